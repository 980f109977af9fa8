"""Long searches for what no test thought of: run for seconds among the tests, and for as long as one likes by hand.

``python -m tests.campaign.programs --count 100000 --seed 7`` tries numbers 0 to 99,999 of seed 7 and prints a tally; where one
fails, ``--first`` and ``--count 1`` try it alone. A number depends on the seed and itself only.
The campaigns need Linux and ``pip install -e ".[test]"``. `kernels` needs NVRTC or nvcc too, `watched` a C compiler; without
them they name what is missing and end with code 2.
"""
