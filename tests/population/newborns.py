"""The 59 newborns with phenobarbital, and NONMEM's estimates."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(os.environ.get("CHAINS_DATA", "")) / "population"
here = pytest.mark.skipif(
    not (os.environ.get("CHAINS_DATA") and (FOLDER / "phenobarbital.csv").exists()),
    reason="CHAINS_DATA has no folder population",
)
ESTIMATE = np.array([4.69555e-3, 0.984258, 0.158920])
ESTIMATE_VARIANCES = [2.93508e-2, 2.79060e-2]
ESTIMATE_ERROR = 1.32410e-2
STANDARD_ERRORS = [2.10036e-4, 2.68952e-2, 8.37623e-2, 1.34153e-2, 7.47651e-3, 2.27940e-3]
