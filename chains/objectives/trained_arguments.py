"""Arguments of `scipy.optimize.minimize` of all parameters as those of the trained ones, and its result the other way round."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from chains.objectives.free import FreeObjective
from chains.objectives.minimize_with_scipy import check_start, minimize_with_scipy
from chains.support.messages import counted

Function = Callable[..., Any]


def minimize_trained(objective: Any, p: Any, method: str, progress: bool | None, options: Mapping[str, Any]) -> Any:
    """``scipy.optimize.minimize`` of an objective, which gets the trained parameters alone; arguments and `x` are of all."""
    free = objective.free
    if free.n_params == objective.n_params:
        return minimize_with_scipy(objective, p, method, progress, dict(options))
    q = free.restrict(check_start(p))
    return completed(free, minimize_with_scipy(free, q, method, progress, trained_arguments(free, options)))


def trained_arguments(free: FreeObjective, options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for a vector of the trained parameters. Functions still get all parameters.

    Arrays in the dictionary `options` stay as they are: they are of the trained parameters.
    """
    found = dict(options)
    for name, convert in CONVERSIONS.items():
        if found.get(name) is not None:
            found[name] = convert(free, found[name])
    return found


def completed(free: FreeObjective, result: Any) -> Any:
    """SciPy's result with all parameters in `x`, and zero for frozen ones in the gradient."""
    result.x = free.complete(result.x)
    for name in ("jac", "grad"):
        if name in result and np.shape(result[name]) == (free.n_params,):
            result[name] = free.expand(np.asarray(result[name]))
    return result


def _bounds(free: FreeObjective, bounds: Any) -> Any:
    from scipy.optimize import Bounds

    n = free.complete(np.zeros(free.n_params)).size
    if isinstance(bounds, Bounds):
        sides = (np.broadcast_to(each, (n,)) for each in (bounds.lb, bounds.ub, bounds.keep_feasible))
        return Bounds(*map(free.select, sides))
    pairs = list(bounds)
    if len(pairs) != n:
        raise ValueError(f"`bounds` has {counted(len(pairs), 'pair')}, but there are {counted(n, 'parameter')}")
    return [pairs[k] for k in free.select(np.arange(n))]


def _callback(free: FreeObjective, callback: Function) -> Function:
    if set(inspect.signature(callback).parameters) == {"intermediate_result"}:  # by which SciPy knows what to pass

        def with_result(intermediate_result: Any) -> Any:
            return callback(intermediate_result=completed(free, type(intermediate_result)(intermediate_result)))

        return with_result
    return _of_all(free, callback)


def _of_all(free: FreeObjective, function: Function) -> Function:
    """The function of `q` and further arguments that calls a function of all parameters."""
    return lambda q, *others: function(free.complete(q), *others)


def _of_rows(free: FreeObjective, jacobian: Any) -> Any:
    """A function that returns columns for all parameters, as one for the trained ones; SciPy's own words stay."""
    if not callable(jacobian):
        return jacobian
    return lambda q, *others: free.select(np.asarray(jacobian(free.complete(q), *others)))


def _matrix(free: FreeObjective, hessian: Any) -> Any:
    if not callable(hessian):
        return hessian
    return lambda q, *others: free.select(free.select(np.asarray(hessian(free.complete(q), *others))).T).T


def _product(free: FreeObjective, product: Function) -> Function:
    return lambda q, v, *others: free.select(np.asarray(product(free.complete(q), free.expand(np.asarray(v)), *others)))


def _constraints(free: FreeObjective, constraints: Any) -> Any:
    if isinstance(constraints, (list, tuple)):
        return [_constraint(free, each) for each in constraints]
    return _constraint(free, constraints)


def _constraint(free: FreeObjective, constraint: Any) -> Any:
    from scipy.optimize import LinearConstraint, NonlinearConstraint

    if isinstance(constraint, LinearConstraint):
        rows = constraint.A.toarray() if hasattr(constraint.A, "toarray") else np.atleast_2d(constraint.A)
        offset = rows @ free.complete(np.zeros(free.n_params))
        return LinearConstraint(free.select(rows), constraint.lb - offset, constraint.ub - offset, constraint.keep_feasible)
    if isinstance(constraint, NonlinearConstraint):
        return NonlinearConstraint(
            _of_all(free, constraint.fun), constraint.lb, constraint.ub, _of_rows(free, constraint.jac),
            _matrix(free, constraint.hess), constraint.keep_feasible, constraint.finite_diff_rel_step,
            constraint.finite_diff_jac_sparsity,
        )  # fmt: skip
    found = {**constraint, "fun": _of_all(free, constraint["fun"])}
    return found | ({"jac": _of_rows(free, constraint["jac"])} if "jac" in constraint else {})


CONVERSIONS: dict[str, Callable[[FreeObjective, Any], Any]] = {
    "bounds": _bounds,
    "constraints": _constraints,
    "callback": _callback,
    "hess": _matrix,
    "hessp": _product,
}
