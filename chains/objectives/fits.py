"""Normal equations, and fits by Levenberg-Marquardt, in machine code, of one network or of many, on shared or separate data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from chains.backends import Executable
from chains.backends.base import Fitter
from chains.losses import SeriesLoss
from chains.minimize.levenberg_marquardt import FORGET, MAX_CORRECTIONS, MAX_FACTORINGS, MIN_SCALE, RADIUS_TOLERANCE
from chains.minimize.rows import CompiledFits
from chains.minimize.stopping import REST, Limits
from chains.network import jacobian_direction, record_derivatives
from chains.network.record import Criterion
from chains.network.record_derivatives import MatrixForm
from chains.objectives.on_data import OnData
from chains.objectives.second_order import SecondOrder

MAX_PARAMETERS = 512  # with more, LAPACK on all threads solves the equations faster
MAX_RESIDUALS = 8  # of a sample in reverse: the program has a pullback for each, which would take long to compile
MAX_JACOBIAN = 1 << 18  # numbers of a sample's Jacobian, forward: threads keep those of a tile of samples


def started(
    fitter: Fitter | None, p: np.ndarray, low: np.ndarray, high: np.ndarray, gtol: float, ftol: float
) -> CompiledFits | None:
    """The descents from rows of parameters; None without a fitter."""
    if fitter is None:
        return None
    limits = Limits.of(gtol)
    settings = {
        "promise": limits.promise, "floor": limits.floor, "rest": REST, "ftol": ftol, "min_scale": MIN_SCALE,
        "tolerance": RADIUS_TOLERANCE, "forget": FORGET, "max_corrections": MAX_CORRECTIONS, "max_factorings": MAX_FACTORINGS,
    }  # fmt: skip
    return cast(CompiledFits, fitter.start(p, low, high, settings))


def fitter_of(second: SecondOrder, data: Mapping[str, Any], own: Collection[str], members: int = 1) -> Fitter | None:
    """The fitter on these data in machine code, or None. `own` data have a row for each member."""
    shape = second.network.backend.matrix_shape(second.network.n_params)
    found = None if shape is None else _recorded(second, data, own, members, (MatrixForm(shape), None))
    if found is None:
        return None
    (model, value), everything = found
    if model.backend is not value.backend:
        return None
    has_rows = {name: name in own or ("weights" in own and name in ("t", "factors")) for name in everything}
    shared = {name: array for name, array in everything.items() if not has_rows[name]} | model.settings | value.settings
    rows = {name: array for name, array in everything.items() if has_rows[name]}
    samples = data["x"].shape[1 if "x" in own else 0]
    return model.backend.fitter(model.program, value.program, samples, shared, rows)


def normal_equations_of(second: SecondOrder, data: Mapping[str, Any]) -> OnData | None:
    """The value, J'r and J'J as one program in machine code, or None."""
    n = second.network.n_params
    second.factors(data)  # refuses objectives without residuals
    if second.network.backend.matrix_shape(n) is None:
        return None
    found = _recorded(second, data, (), 1, (MatrixForm((n, n), both_halves=True),))
    if found is None or found[0][0].backend.matrix_shape(n) is None:
        return None
    (model,), everything = found
    return OnData(model, everything, n, {"g": (n,), "matrix": (n, n)})


def _recorded(
    second: SecondOrder, data: Mapping[str, Any], own: Collection[str], members: int, forms: Sequence[MatrixForm | None]
) -> tuple[list[Executable], dict[str, np.ndarray]] | None:
    """The programs of a sum of squares, with these matrices, and the data that they use; None if that is too much."""
    network, loss, n = second.network, second.loss, second.network.n_params
    dtype = np.dtype(np.float64)
    samples = data["x"].shape[1 if "x" in own else 0]
    forward = not isinstance(loss, SeriesLoss) and jacobian_direction.cheaper(network, samples) == jacobian_direction.FORWARD
    most = MAX_JACOBIAN // max(1, n) if forward else MAX_RESIDUALS
    if not 0 < n <= MAX_PARAMETERS or second.per_sample > most:
        return None
    factors, t = _weighed(second, data, own, members)
    target = t.shape[1 + ("t" in own or "weights" in own) :]
    masked = "lengths" in data
    criterion = Criterion(loss, target, masked=masked)
    programs = []
    for form in forms:
        ahead = forward and form is not None
        make = partial(record_derivatives.sum_of_squares, network, loss, target, dtype, form, masked=masked, forward=ahead)
        try:
            programs.append(network.program(t, ("sum of squares", dtype, form, ahead), make, criterion))
        except NotImplementedError:  # a layer without a rule for single samples, or for tangents
            network.lacks_tangents |= forward
            return _recorded(second, data, own, members, forms) if forward else None
    everything = {**{name: data[name] for name in ("x", "state", "lengths") if name in data}, "t": t, "factors": factors}
    kinds = {name: buffer.dtype for each in programs for name, buffer in each.program.buffers.items()}
    return programs, {name: np.ascontiguousarray(a, kinds[name]) for name, a in everything.items() if name in kinds}


def _weighed(second: SecondOrder, data: Mapping[str, Any], own: Collection[str], members: int) -> tuple[np.ndarray, np.ndarray]:
    """The factors of the residuals, and the targets, with a row for each member if weights have one."""
    size = second.per_sample
    samples = data["x"].shape[1 if "x" in own else 0]

    def factors(weights: Any) -> np.ndarray:
        given = {name: data[name] for name in ("lengths",) if name in data} | ({} if weights is None else {"weights": weights})
        return second.factors({"x": np.broadcast_to(np.empty(()), (samples,)), **given}).reshape(samples, size)

    if "weights" not in own:
        return factors(data.get("weights")), data["t"]
    t = data["t"] if "t" in own else np.broadcast_to(data["t"], (members, *data["t"].shape))
    return np.array([factors(each) for each in data["weights"]]), t
