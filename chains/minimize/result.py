"""The result of a minimiser, for one vector, or for many with a row for each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.support.messages import counted, shown


@dataclass(frozen=True)
class Result:
    """What `minimize` found: the vector `x`, its value `fun` and gradient `jac`, named as in SciPy.

    Of many vectors, `x` and `jac` have a row for each, and the other fields are arrays of an entry for each.
    """

    x: Any
    fun: Any
    jac: Any
    success: Any
    message: Any
    nit: Any  # iterations
    nfev: Any  # points at which the function was called
    state: Any = None  # what the method knows of the curvature, for another call

    @property
    def best(self) -> Result:
        """The result of the row with the lowest value; of one vector, this result."""
        if not np.ndim(self.fun):
            return self
        return self.row(int(np.argmin(np.where(np.isnan(self.fun), np.inf, self.fun))))

    def row(self, k: int) -> Result:
        """The result of one row.

        Parameters
        ----------
        k : int
            Its number.
        """
        return Result(
            self.x[k], float(self.fun[k]), self.jac[k], bool(self.success[k]), str(self.message[k]), int(self.nit[k]),
            int(self.nfev[k]),
        )  # fmt: skip

    def __repr__(self) -> str:
        if np.ndim(self.fun):
            return self._of_rows()
        steepest = float(abs(self.jac).max()) if self.jac.size else 0.0
        numbers = {"fun": f"{self.fun:.6g}", "jac": f"{steepest:.3g} at most", "nit": self.nit, "nfev": self.nfev}
        rows = {"message": self.message, "success": self.success, **numbers, "x": shown(self.x)}
        return "\n".join(f"{name:>7}: {value}" for name, value in rows.items())

    def _of_rows(self) -> str:
        count = len(self.fun)
        values = self.fun[np.isfinite(self.fun)]
        rows = {"success": f"{int(self.success.sum())} of {counted(count, 'row')}"}
        rows |= {"message": "; ".join(f"{number} x {text}" for text, number in Counter(self.message).most_common())}
        if values.size:
            best, middle, worst = np.quantile(values, (0.0, 0.5, 1.0))
            rows["fun"] = (
                f"{best:.6g} to {worst:.6g}, median {middle:.6g}; the lowest in row {np.flatnonzero(self.fun == best)[0]}"
            )
        for name in ("nit", "nfev") if count else ():
            each = getattr(self, name)
            rows[name] = f"{each.min()} to {each.max()}, {each.sum():,} in all"
        rows["x"] = shown(self.x)
        return "\n".join(f"{name:>7}: {value}" for name, value in rows.items())
