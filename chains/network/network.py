"""The implementation of a `Chain`: declared layers, layouts of vectors, a backend, and the programs that are kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from chains.backends import Backend, Executable
from chains.layers.base import Declaration, Layer, SampleShape
from chains.layers.combine import Series
from chains.network.programs import Programs, Shortcuts
from chains.network.structure import value_of
from chains.params import Layout, LayoutBuilder
from chains.program.program import Program
from chains.program.settings import Tunable
from chains.support import arguments, streams
from chains.support.memory import backend_of, is_elsewhere, memory_named
from chains.support.messages import shown


class Network:
    """A layer with an input shape, ready to be recorded and run. Raises ValueError for layers that do not fit."""

    def __init__(self, layer: Layer, input_shape: SampleShape, backend: Backend) -> None:
        params, state = LayoutBuilder(), LayoutBuilder()
        self.declaration = Declaration(layer, input_shape, params, state)
        self.layout = Layout(params.slices)
        self.state_layout = Layout(state.slices, "state array")
        self.frozen = frozenset(self.layout[name].name for name in params.frozen)
        self.input_shape, self.output_shape = self.declaration.input, self.declaration.output_shape
        self.n_params, self.n_state = self.layout.size, self.state_layout.size
        self.id_count = self.declaration.id_count  # if inputs are ids
        self.lacks_tangents = False  # whether an operation turned out to have no rule for them
        self.may_fail = self.declaration.may_fail  # results may be NaN: an equation that is not solved
        self._most_demanding = self.declaration.most_demanding
        # Whether there is no state and no minimum batch size, as in most networks.
        self.is_stateless = not self.n_state and self._most_demanding.smallest_batch == 1
        self.use(backend)

    def use(self, backend: Backend) -> None:
        """Run programs on this backend, and forget those of another one."""
        self.backend = backend
        self.programs = Programs(backend)
        self.shortcuts = Shortcuts(backend)
        self._elsewhere: dict[Backend, Programs] = {}  # for arrays on GPUs

    @property
    def trainable(self) -> list[tuple[int, int]]:
        """The ranges of the flat vector that are not frozen."""
        return self.layout.ranges(without=self.frozen)

    def check_batch(self, batch: int, what: str = "`x`") -> None:
        """Raise ValueError if a layer cannot be trained on such a small batch."""
        wanting = self._most_demanding
        if batch < wanting.smallest_batch:
            raise ValueError(
                f"{what} is a batch of {batch}, but layer {wanting.name}, {wanting.layer!r}, needs at least "
                f"{wanting.smallest_batch} samples while training: it takes its statistics over the batch"
            )

    def structure(self) -> Hashable:
        """A value of everything that programs depend on (see `chains.network.structure`). Raises Unknown if there is none."""
        layer = self.declaration.layer
        layers = layer.layers if isinstance(layer, Series) else (layer,)
        return value_of((type(layer), layers, self.input_shape, self.frozen))

    def programs_at(self, like: Any) -> Programs:
        """The programs for arrays in the memory of `like`."""
        if type(like) is np.ndarray or not is_elsewhere(like):
            return self.programs
        backend = backend_of(like, self.backend)
        if backend not in self._elsewhere:
            self._elsewhere[backend] = Programs(backend)
        return self._elsewhere[backend]

    def program(self, like: Any, kind: tuple[Any, ...], make: Callable[[], Program], *parts: Tunable) -> Executable:
        """The program of this kind, from these parts, for arrays in the memory of `like`."""
        return self.programs_at(like).get(self.structure, kind, make, *parts)

    def part(self, layer: Layer, input_shape: SampleShape) -> Network:
        """Another network on the same backend, such as a part of this one."""
        return Network(layer if isinstance(layer, Series) else Series(layer), input_shape, self.backend)


def network_of(net: Any) -> Network:
    """The `Network` of a `Chain`. Raises TypeError for anything else, ValueError if the shape of its input is unknown."""
    check_net(net)
    network: Network = net._network
    return network


def check_net(net: Any) -> None:
    """Raise TypeError unless `net` is a network."""
    if not hasattr(type(net), "_network"):
        raise TypeError(f"`net` (={shown(net)}) must be a network such as Chain(Dense(2, 3))")


def init(network: Network, seed: Any, dtype: Any, device: str) -> Any:
    """A fresh parameter vector."""
    if not isinstance(seed, np.random.Generator):
        seed = streams.generator("init", arguments.check_seed(seed, ", or a Generator"))
    return memory_named(device).contiguous(network.layout.init(seed, arguments.check_dtype(dtype)))


def init_many(network: Network, n: int, seed: int, dtype: Any, device: str) -> Any:
    """The parameters of several networks, a row for each."""
    seeds, dtype = streams.member_seeds(n, seed), arguments.check_dtype(dtype)
    rows = np.empty((len(seeds), network.n_params), dtype)
    stream = streams.Streams("init")
    for p, own in zip(rows, seeds, strict=True):
        p[...] = network.layout.init(stream(own), dtype)
    return memory_named(device).contiguous(rows)
