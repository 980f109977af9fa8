"""The tests, laid out like the package; `harness` holds the cases and the checks they share."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # before NumPy comes: workers side by side have one thread each for its products
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
