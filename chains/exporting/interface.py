"""The functions of an exported network as C sees them: names, arguments, and the program that each of them runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from chains.chain import Chain
from chains.losses import Loss
from chains.network import record
from chains.network.network import network_of
from chains.network.record import Criterion
from chains.network.stepping import Stepping
from chains.optimizers import Optimizer
from chains.params import Layout
from chains.program.program import Program
from chains.program.view import Batch, Buffer
from chains.residuals.loss import ResidualLoss

GRADIENTS: dict[str | None, tuple[str, ...]] = {"parameters": ("g",), "inputs": ("dx",), "both": ("g", "dx"), None: ()}


@dataclass(frozen=True)
class Argument:
    """An array that a function takes: its name, and the shape of it or, where it is `batched`, of a sample's part."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    batched: bool
    role: str  # "input", "output" or "state", which is updated
    about: str

    @property
    def changed(self) -> bool:
        """Whether the function writes to it."""
        return self.role in ("output", "state")

    @property
    def updated(self) -> bool:
        """Whether the function reads it and writes to it."""
        return self.role == "state"


@dataclass(frozen=True)
class Call:
    """A function of the interface. `name` follows that of the network."""

    name: str
    about: str
    program: Program
    arguments: tuple[Argument, ...]

    @property
    def value(self) -> Buffer | None:
        """What the function returns."""
        return self.program.buffers.get("value")


@dataclass(frozen=True)
class Interface:
    """All functions of an exported network. `baked` are vectors that are part of the code rather than arguments."""

    name: str
    dtype: np.dtype
    network: str
    calls: tuple[Call, ...]
    sizes: Mapping[str, int]  # what the functions `..._n_params` and so on return
    layout: Layout
    state_layout: Layout
    baked: Mapping[str, np.ndarray]
    workspace: bool = False  # whether the functions take one as their last argument


ABOUT = {
    "x": "inputs",
    "p": "parameters",
    "state": "running statistics",
    "y": "outputs",
    "carried": "what the step before has left, zeros at first",
    "new carried": "what the next step needs",
    "dy": "cotangents of the outputs",
    "g": "gradient with respect to the parameters",
    "dx": "gradient with respect to the inputs",
    "t": "targets",
    "moments": "the optimiser's moments, zeros at first",
    "step": "the number of steps done, 0 at first",
    "random": "a seed, and a number to raise by 1 each step",
}
ORDER = {
    "forward": ("x", "p", "state", "y"),
    "vjp": ("x", "p", "state", "dy", "g", "dx"),
    "stream": ("x", "p", "carried", "y", "new carried"),
    "loss": ("x", "p", "state", "t", "g", "dx"),
    "step": ("x", "t", "p", "state", "moments", "step", "random"),
}
ALWAYS = ("x", "p", "state", "t", "moments")  # these are arguments whether or not the function looks at them


def interface_of(
    net: Chain,
    name: str,
    dtype: np.dtype,
    baked: Mapping[str, np.ndarray],
    gradient: str | None,
    objective: Criterion | None,
    optimizer: Optimizer | None,
) -> Interface:
    """The functions of a network. Vectors that are `baked`, by the names "p" and "state", are not arguments."""
    network, wanted = network_of(net), GRADIENTS[gradient]
    programs = {"forward": record.forward(network, dtype, False)}
    if wanted:
        programs["vjp"] = record.vjp(network, dtype, False, wanted)
    if objective is not None:
        programs["loss"] = record.gradient(network, objective, dtype, False, pure=True, wanted=_of_loss(wanted, objective.loss))
    if objective is not None and optimizer is not None:
        programs["step"] = record.training_step(network, objective, optimizer, dtype)
    step = _step(net, dtype)
    if step is not None:
        programs["stream"] = step
    moments = 0 if optimizer is None else optimizer.n_states * net.n_params
    sizes = {"p": net.n_params, "state": net.n_state, "moments": moments}
    about = {
        "forward": "The outputs y.",
        "vjp": f"Pulls the cotangents dy back: fills {' and '.join(wanted)}.",
        "loss": f"Returns the loss, {repr(objective.loss) if objective else ''}, and fills its gradients.",
        "stream": "The outputs y of one step of a sequence.",
        "step": f"One step of {optimizer!r}: updates p and the arrays of the optimiser. Returns the loss before the step.",
    }
    calls = []
    for kind, program in programs.items():
        buffers = {**_vectors(sizes, dtype), **program.buffers}
        if objective is not None:
            buffers.setdefault("t", Buffer("t", "input", dtype, (Batch(), *objective.target)))
        buffers.setdefault("x", Buffer("x", "input", dtype, (Batch(), *net.input_shape)))
        taken = [each for each in ORDER[kind] if each in program.buffers or (each in ALWAYS and each in buffers)]
        arguments = tuple(_argument(each, buffers[each]) for each in taken if each not in baked)
        calls.append(Call(kind, about[kind], program, arguments))
    counts = {
        "n_params": net.n_params,
        "n_state": net.n_state,
        "n_moments": moments,
        "n_carried": 0 if step is None else net.n_carried,
    }
    counts = {key: count for key, count in counts.items() if count or key == "n_params"}
    return Interface(name, dtype, repr(net), tuple(calls), counts, net.layout, net.state_layout, dict(baked))


def _step(net: Chain, dtype: np.dtype) -> Program | None:
    """The program of one step of a sequence; None where `net.step` has none, such as for bidirectional layers and for ids."""
    try:
        return Stepping(network_of(net)).record(dtype)
    except (TypeError, ValueError):
        return None


def _of_loss(wanted: tuple[str, ...], loss: Loss) -> tuple[str, ...]:
    """Which gradients of a loss there are: residuals have none with respect to the points where they are taken."""
    return tuple(each for each in wanted if each != "dx" or not isinstance(loss, ResidualLoss))


def _vectors(sizes: Mapping[str, int], dtype: np.dtype) -> dict[str, Buffer]:
    """Stand-ins for vectors that a program does not touch."""
    return {name: Buffer(name, "input", dtype, (size,)) for name, size in sizes.items() if size or name == "p"}


def c_name(buffer: Buffer) -> str:
    """The name of a caller's buffer in C."""
    return buffer.name.replace(" ", "_")


def _argument(name: str, buffer: Buffer) -> Argument:
    shape = buffer.shape[1:] if buffer.batched else buffer.shape
    return Argument(c_name(buffer), buffer.dtype, tuple(map(int, shape)), buffer.batched, buffer.role, ABOUT[name])  # type: ignore[arg-type]
