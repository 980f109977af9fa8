"""One network, written in each framework: a Rosetta stone. `python -m rosetta cnn --samples 2000 --epochs 1`.

Source: "Deep-learning frameworks: a Rosetta Stone of deep learning" (Karmanov et al., Microsoft, 2018).
"""
