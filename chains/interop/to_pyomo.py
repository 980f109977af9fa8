"""Networks as grey boxes of Pyomo, for Ipopt through cyipopt."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.interop.parts import needed
from chains.network.checks import check_numeric
from chains.network.network import check_net, network_of
from chains.support import arguments
from chains.support.checks import check_count


def to_pyomo(net: Chain, p: Any, state: Any = None, *, samples: int = 1) -> Any:
    """A network as an external model of Pyomo, with exact Jacobians and Hessians, for ``ExternalGreyBoxBlock``.

    Parameters
    ----------
    net : Chain
        The network. Its inputs are numbers.
    p : array, shape (n_params,)
        Its parameters; they are copied, in float64.
    state : array, shape (n_state,), optional
        Its state, for networks that have one.
    samples : int
        The number of samples, such as the steps of a horizon. Derivatives are block diagonal.

    Returns
    -------
    pyomo.contrib.pynumero.interfaces.external_grey_box.ExternalGreyBoxModel
        Inputs are `x0`, `x1`, ... and outputs `y0`, `y1`, ... in C's order; with more than one sample `x0_0`, `x0_1`, ...,
        where the first number is that of the sample.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit.
    ImportError
        If Pyomo or SciPy is missing.
    """
    needed("pyomo")
    needed("scipy")
    check_net(net)
    check_count("samples", samples, 1)
    check_numeric(network_of(net))
    p = np.array(arguments.check_params(p, net.n_params), np.float64)
    arguments.check_finite(p.dtype, p=p)
    net(np.zeros((1, *net.input_shape)), p, state=state)  # which checks the state
    return _grey_box()(net, p, None if state is None else np.array(state, np.float64), samples)


@cache
def _grey_box() -> Any:
    """The class of these models."""
    from pyomo.contrib.pynumero.interfaces.external_grey_box import ExternalGreyBoxModel
    from scipy.sparse import coo_matrix

    class GreyBox(ExternalGreyBoxModel):
        """The outputs of a network for given inputs."""

        def __init__(self, net: Chain, p: np.ndarray, state: np.ndarray | None, samples: int) -> None:
            self.net, self.p, self.state, self.samples = net, p, state, samples
            self.inputs, self.outputs = math.prod(net.input_shape), math.prod(net.output_shape)
            self._x = np.zeros((samples, *net.input_shape))
            self._v = np.zeros((samples, self.outputs))

        def __repr__(self) -> str:
            return f"GreyBox({self.net!r}, samples={self.samples})"

        def _names(self, letter: str, count: int) -> list[str]:
            if self.samples == 1:
                return [f"{letter}{k}" for k in range(count)]
            return [f"{letter}{s}_{k}" for s in range(self.samples) for k in range(count)]

        def input_names(self) -> list[str]:
            return self._names("x", self.inputs)

        def output_names(self) -> list[str]:
            return self._names("y", self.outputs)

        def set_input_values(self, input_values: Any) -> None:
            self._x[...] = self._checked("input_values", input_values, self._x.size).reshape(self._x.shape)

        def set_output_constraint_multipliers(self, output_con_multiplier_values: Any) -> None:
            values = self._checked("output_con_multiplier_values", output_con_multiplier_values, self._v.size)
            self._v[...] = values.reshape(self._v.shape)

        @staticmethod
        def _checked(name: str, values: Any, size: int) -> np.ndarray:
            array = np.asarray(values, np.float64)
            if array.shape != (size,):
                raise ValueError(f"`{name}` has shape {array.shape}: wanted ({size},), the numbers of all samples")
            return array

        def evaluate_outputs(self) -> np.ndarray:
            return self.net(self._x, self.p, state=self.state).ravel()

        def evaluate_jacobian_outputs(self) -> Any:
            J = self.net.input_jacobian(self.p, self._x, state=self.state)
            J = J.reshape(self.samples, self.outputs, self.inputs)
            s, o, i = np.indices(J.shape)
            places = (s * self.outputs + o).ravel(), (s * self.inputs + i).ravel()
            return coo_matrix((J.ravel(), places), (self.samples * self.outputs, self.samples * self.inputs))

        def evaluate_hessian_outputs(self) -> Any:
            """The lower triangle of the Hessian of the sum of multipliers times outputs."""
            second = self.net.derivatives(self.p, self._x, 2, full=True, state=self.state)[2]
            H = np.einsum("so,soij->sij", self._v, second.reshape(*self._v.shape, self.inputs, self.inputs))
            i, j = np.tril_indices(self.inputs)
            first = self.inputs * np.arange(self.samples)[:, None]
            size = self.samples * self.inputs
            return coo_matrix((H[:, i, j].ravel(), ((first + i).ravel(), (first + j).ravel())), (size, size))

    return GreyBox
