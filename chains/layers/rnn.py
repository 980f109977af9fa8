"""The recurrent layers that everybody has: the cells of `chains.layers.cells`, each repeated along the time axis."""

from __future__ import annotations

from chains.activations import Activation, tanh
from chains.initializers import InitializerLike
from chains.layers.cells import GatedCell, GRUCell, LSTMCell, RNNCell
from chains.layers.recurrent import Recurrent


class _Named(Recurrent):
    """A recurrence of a cell that has a name of its own as a layer, and the settings of the cell."""

    cell: GatedCell

    @property
    def inputs(self) -> int:
        return self.cell.inputs

    @property
    def units(self) -> int:
        return self.cell.units

    @property
    def weight_init(self) -> InitializerLike:
        return self.cell.weight_init

    @property
    def recurrent_init(self) -> InitializerLike:
        return self.cell.recurrent_init

    @property
    def bias_init(self) -> InitializerLike:
        return self.cell.bias_init

    def __repr__(self) -> str:
        return f"{type(self).__name__}{repr(self.cell).removeprefix(type(self.cell).__name__)[:-1]}{self._settings()})"


class RNN(_Named):
    """An `RNNCell` repeated along the time axis: samples are (steps, inputs).

    Parameters
    ----------
    inputs, units, activation
        As of `RNNCell`.
    return_sequences, bidirectional, initial_state, checkpoint_every
        As of `Recurrent`.
    weight_init, recurrent_init, bias_init : initializer
        As of `RNNCell`.
    """

    cell: RNNCell

    def __init__(
        self, inputs: int, units: int, activation: Activation | str = tanh, *, return_sequences: bool = False,
        bidirectional: bool = False, initial_state: str = "zeros", checkpoint_every: int | None = None,
        weight_init: InitializerLike = "glorot_uniform", recurrent_init: InitializerLike = "glorot_uniform",
        bias_init: InitializerLike = "zeros",
    ) -> None:  # fmt: skip
        cell = RNNCell(
            inputs, units, activation, weight_init=weight_init, recurrent_init=recurrent_init, bias_init=bias_init
        )  # fmt: skip
        super().__init__(
            cell, return_sequences=return_sequences, bidirectional=bidirectional, initial_state=initial_state,
            checkpoint_every=checkpoint_every,
        )  # fmt: skip

    @property
    def activation(self) -> Activation:
        return self.cell.activation


class LSTM(_Named):
    """An `LSTMCell` repeated along the time axis: samples are (steps, inputs).

    Parameters
    ----------
    inputs, units : int
        As of `LSTMCell`.
    return_sequences, bidirectional, initial_state, checkpoint_every
        As of `Recurrent`.
    weight_init, recurrent_init, bias_init : initializer
        As of `LSTMCell`.
    """

    def __init__(
        self, inputs: int, units: int, *, return_sequences: bool = False, bidirectional: bool = False,
        initial_state: str = "zeros", checkpoint_every: int | None = None, weight_init: InitializerLike = "glorot_uniform",
        recurrent_init: InitializerLike = "glorot_uniform", bias_init: InitializerLike = "zeros",
    ) -> None:  # fmt: skip
        cell = LSTMCell(inputs, units, weight_init=weight_init, recurrent_init=recurrent_init, bias_init=bias_init)
        super().__init__(
            cell, return_sequences=return_sequences, bidirectional=bidirectional, initial_state=initial_state,
            checkpoint_every=checkpoint_every,
        )  # fmt: skip


class GRU(_Named):
    """A `GRUCell` repeated along the time axis: samples are (steps, inputs).

    Parameters
    ----------
    inputs, units, reset_after
        As of `GRUCell`.
    return_sequences, bidirectional, initial_state, checkpoint_every
        As of `Recurrent`.
    weight_init, recurrent_init, bias_init : initializer
        As of `GRUCell`.
    """

    cell: GRUCell

    def __init__(
        self, inputs: int, units: int, *, reset_after: bool = True, return_sequences: bool = False,
        bidirectional: bool = False, initial_state: str = "zeros", checkpoint_every: int | None = None,
        weight_init: InitializerLike = "glorot_uniform", recurrent_init: InitializerLike = "glorot_uniform",
        bias_init: InitializerLike = "zeros",
    ) -> None:  # fmt: skip
        cell = GRUCell(
            inputs, units, reset_after=reset_after, weight_init=weight_init, recurrent_init=recurrent_init, bias_init=bias_init
        )  # fmt: skip
        super().__init__(
            cell, return_sequences=return_sequences, bidirectional=bidirectional, initial_state=initial_state,
            checkpoint_every=checkpoint_every,
        )  # fmt: skip

    @property
    def reset_after(self) -> bool:
        return self.cell.reset_after
