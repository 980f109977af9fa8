"""The architecture of a network: its layers, the layouts of its vectors, its frozen parameters, and its parts."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np

from chains.layers.base import Declaration, Layer, SampleShape
from chains.layers.combine import Series
from chains.network import arguments, record
from chains.network.structure import value_of
from chains.network.summary import summary
from chains.params import Layout, LayoutBuilder
from chains.support.checks import check_count, check_shape, whole
from chains.support.lazy import lazy
from chains.support.memory import memory_named
from chains.support.messages import as_html, counted, listed

RENAMED = {"freeze": "with_frozen", "train_only": "with_trained"}  # names that read as if they changed a network


class Architecture(Series):
    """Layers in sequence, for samples of one shape: all facts about a `Chain` that need no computation."""

    def __init__(self, *layers: Layer, input_shape: SampleShape | None = None) -> None:
        super().__init__(*layers)
        self._given_shape = None if input_shape is None else check_shape("input_shape", input_shape)
        self._input_shape = super().fixed_input() if self._given_shape is None else self._given_shape
        self._frozen_names: frozenset[str] = frozenset()
        if self._input_shape is not None:
            self.network  # noqa: B018 - declare now: layers that do not fit are refused here

    def fixed_input(self) -> SampleShape | None:
        return self._input_shape

    @lazy
    def network(self) -> record.Network:
        """The declared layers, for recording programs."""
        if self._input_shape is None and not self.layers:
            raise ValueError("`input_shape` is needed: a chain without layers does not fix the shape of its input")
        if self._input_shape is None:
            raise ValueError(f"`input_shape` is needed: {self!r} begins with a layer that does not fix the shape of its input")
        params, state = LayoutBuilder(), LayoutBuilder()
        declaration = Declaration(self, self._input_shape, params, state)
        layout, state_layout = Layout(params.slices), Layout(state.slices, "state array")
        return record.Network(declaration, layout, state_layout, frozenset(layout[name].name for name in params.frozen))

    def declare(self, d: Declaration) -> None:
        if self._given_shape not in (None, d.input):
            raise ValueError(f"`input_shape` (={self._given_shape}) of this chain is not the shape of its input, {d.input}")
        super().declare(d)
        for name in self._frozen_names:
            d.freeze(name)

    @property
    def input_shape(self) -> SampleShape:
        """The shape of one input sample."""
        return self.network.declaration.input

    @property
    def output_shape(self) -> SampleShape:
        """The shape of one output sample."""
        return self.network.declaration.output_shape

    @property
    def n_params(self) -> int:
        """The length of the flat parameter vector."""
        return self.network.layout.size

    @property
    def layout(self) -> Layout:
        """The slices of the flat vector: a sequence of entries with name, start, stop and shape."""
        return self.network.layout

    @property
    def n_state(self) -> int:
        """The length of the state vector; 0 for most networks."""
        return self.network.state_layout.size

    @property
    def state_layout(self) -> Layout:
        """The slices of the state vector, such as "0.running_mean"."""
        return self.network.state_layout

    @property
    def frozen(self) -> frozenset[str]:
        """The names of the parameters that are not trained."""
        return self.network.frozen

    def _structure(self) -> Hashable:
        """A value of all that programs depend on (see `chains.network.structure`). Raises Unknown where there is none."""
        return value_of((type(self), self.layers, self.input_shape, self.frozen))

    def init(self, seed: int | np.random.Generator = 0, dtype: Any = np.float32, *, device: str = "cpu") -> Any:
        """A fresh parameter vector, filled by the layers' initializers.

        Parameters
        ----------
        seed : int or Generator
            A whole number from 0 up to 2**64, exclusive, or NumPy's generator. The same seed gives the same numbers.
        dtype : type
            float32 or float64.
        device : str
            "cpu", for a NumPy array, or "cuda", for CuPy's: computations from it are then done on the GPU.

        Returns
        -------
        array, shape (n_params,)
            The parameters.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, and where there is no GPU to use.
        """
        if not isinstance(seed, np.random.Generator):
            seed = np.random.default_rng(arguments.check_seed(seed, ", or a Generator"))
        return memory_named(device).contiguous(self.layout.init(seed, arguments.check_dtype(dtype)))

    def init_many(self, n: int, seed: int = 0, dtype: Any = np.float32, *, device: str = "cpu") -> Any:
        """The parameters of several networks, for an ensemble.

        Parameters
        ----------
        n : int
            How many networks.
        seed : int
            Row i is ``net.init(np.random.default_rng([seed, i]))``. Another seed gives other networks; a larger `n` adds
            networks and keeps the others.
        dtype, device
            As of `init`.

        Returns
        -------
        array, shape (n, n_params)
            The parameters, a row for each network.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit.
        """
        n, seed, dtype = check_count("n", n), arguments.check_seed(seed), arguments.check_dtype(dtype)
        rows = np.empty((n, self.n_params), dtype)
        for row, p in enumerate(rows):
            p[...] = self.layout.init(np.random.default_rng([seed, row]), dtype)
        return memory_named(device).contiguous(rows)

    def init_state(self, dtype: Any = np.float32, *, device: str = "cpu") -> Any:
        """A fresh state vector, shape (n_state,): running means of 0 and variances of 1.

        Parameters
        ----------
        dtype, device
            As of `init`; the type is that of the parameters.
        """
        return memory_named(device).contiguous(self.state_layout.init(np.random.default_rng(0), arguments.check_dtype(dtype)))

    def state_views(self, state: np.ndarray) -> dict[str, np.ndarray]:
        """Each array of the state by name, sharing memory.

        Parameters
        ----------
        state : array, shape (n_state,)
            The state.
        """
        return self.state_layout.views(arguments.check_state(state, self.state_layout, None, False, {}))

    def views(self, p: np.ndarray) -> dict[str, np.ndarray]:
        """Each parameter by name, as an array of its own shape that shares the memory of the vector.

        Parameters
        ----------
        p : array, shape (n_params,)
            The parameters.

        Returns
        -------
        dict of array
            An unknown name raises a KeyError that lists the known ones.

        Raises
        ------
        TypeError, ValueError
            For a vector that does not fit.
        """
        return self.layout.views(arguments.check_params(p, self.n_params))

    def values(self, p: np.ndarray) -> dict[str, np.ndarray]:
        """Each parameter by name as layers see it: a parameter with bounds by its value, not by what is stored for it.

        Parameters
        ----------
        p : array, shape (n_params,)
            The parameters.

        Returns
        -------
        dict of array
            Fresh arrays of their own shapes. To change a parameter, write to an array of `views`.

        Raises
        ------
        TypeError, ValueError
            For a vector that does not fit.
        """
        return self.layout.values(arguments.check_params(p, self.n_params))

    def with_frozen(self, *patterns: str) -> Self:
        """This network with further parameters frozen: their gradient is zero, and no step moves them.

        The network itself stays as it is: ``net = net.with_frozen("0.*")``.

        Parameters
        ----------
        *patterns : str
            Shell-style patterns of parameter names: ``net.with_frozen("0.*", "*.bias")``.

        Raises
        ------
        ValueError
            For a pattern that matches nothing.
        """
        return self._with_frozen(self.frozen | self.layout.names(*patterns))

    def with_trained(self, *patterns: str) -> Self:
        """This network with all parameters frozen but those that match: ``net.with_trained("2.*")``.

        Parameters
        ----------
        *patterns : str
            As of `with_frozen`.
        """
        return self._with_frozen(frozenset(entry.name for entry in self.layout) - self.layout.names(*patterns))

    def _with_frozen(self, frozen: frozenset[str]) -> Self:
        twin = copy.copy(self)
        twin._frozen_names = frozen
        return twin

    @overload
    def __getitem__(self, at: int) -> Layer: ...

    @overload
    def __getitem__(self, at: slice) -> Self: ...

    def __getitem__(self, at: int | slice) -> Layer | Self:
        """One of the layers; for a slice, the network of those layers, in which frozen parameters stay frozen.

        Parameters and state are in the order of the layers, so that the part reads a slice of the whole's vectors:
        ``features = net[:-1]`` takes ``p[:features.n_params]`` and ``state[:features.n_state]``, and ``net[-1:]`` the
        rest. Raises IndexError where there is no such layer, TypeError for a name, and ValueError for a slice with a step.
        """
        if not isinstance(at, slice):
            if whole(at, -math.inf) is None:
                raise TypeError(
                    f"`{at!r}` is not a layer index: this network has {counted(len(self.layers), 'layer')}, numbered from 0; "
                    f"the names in net.views(p) are {listed(entry.name for entry in self.layout)}"
                )
            if not -len(self.layers) <= at < len(self.layers):
                raise IndexError(
                    f"there is no layer {at}: this network has {counted(len(self.layers), 'layer')}, numbered from 0"
                )
            return self.layers[at]
        start, stop, step = at.indices(len(self.layers))
        if step != 1:
            raise ValueError(f"`{at}` must have a step of 1, so that the layers follow one another, got {step}")
        network = self.network.declaration
        part = copy.copy(self)
        part.layers = self.layers[start:stop]
        part._given_shape = part._input_shape = [*(child.input for child in network.children), network.output_shape][start]
        frozen = [name.split(".", 1) for name in self.frozen]
        part._frozen_names = frozenset(f"{int(k) - start}.{name}" for k, name in frozen if start <= int(k) < stop)
        return part

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in RENAMED:
                raise AttributeError(
                    f"a network has no `{name}`: `net.{RENAMED[name]}(...)` returns another network, as in "
                    f"net = net.{RENAMED[name]}(...)"
                )
            return object.__getattribute__(self, name)  # which raises the error again

    def __len__(self) -> int:
        """How many layers there are."""
        return len(self.layers)

    def __repr__(self) -> str:
        names = sorted(self._frozen_names, key=[entry.name for entry in self.layout].index) if self._frozen_names else []
        return super().__repr__() + (f".with_frozen({listed(map(repr, names))})" if names else "")

    def summary(self, p: Any = None) -> str:
        """A table of the layers: output shapes, numbers of parameters, what is frozen, the size of the state, and bounds.

        Parameters
        ----------
        p : array, shape (n_params,), optional
            Parameters: those with bounds are printed as their values and as what is stored.
        """
        return summary(self.network, None if p is None else arguments.check_params(p, self.n_params))

    def _repr_html_(self) -> str:
        """For notebooks: the table of the layers, where the shape of the input is known."""
        return as_html(repr(self) if self._input_shape is None else Architecture.summary(self))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "network"}
