"""The functions of an exported network as C sees them: names, arguments, and the program that each of them runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from chains.chain import Chain
from chains.exporting.names import check_prefix
from chains.losses import Loss, SeriesLoss
from chains.network import record, record_by_inputs
from chains.network.network import Network, network_of
from chains.network.record import Criterion
from chains.network.stepping import Stepping
from chains.optimizers import Optimizer
from chains.params import Layout
from chains.program.operations import Map, Operation
from chains.program.program import Program
from chains.program.scratch import ALIGNMENT
from chains.program.view import Batch, Buffer

DERIVATIVES: dict[str, Callable[[Network, np.dtype], Program]] = {
    "jvp": record_by_inputs.jvp,
    "jacobian": record_by_inputs.jacobian,
    "hessian": record_by_inputs.hessian,
}
GRADIENTS: dict[str | None, tuple[str, ...]] = {"parameters": ("g",), "inputs": ("dx",), "both": ("g", "dx"), None: ()}


@dataclass(frozen=True)
class Argument:
    """An array argument of a function: its name, and its shape or, if `batched`, the shape of a sample's part."""

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
        """The result of the function."""
        return self.program.buffers.get("value")


@dataclass(frozen=True)
class ScratchBytes:
    """The length of scratch memory for n samples: ``fixed + n * growth`` bytes."""

    fixed: int
    growth: int = 0

    def of(self, n: int) -> int:
        """The bytes for `n` samples."""
        return self.fixed + n * self.growth

    @classmethod
    def largest(cls, several: Iterable[ScratchBytes]) -> ScratchBytes:
        """A length that is enough for each of several."""
        lengths = list(several)
        return cls(max(each.fixed for each in lengths), max(each.growth for each in lengths))


@dataclass(frozen=True)
class Interface:
    """All functions of an exported network. `baked` are vectors that are part of the code rather than arguments.

    `network` is the text of the network, as `comment` makes it.
    """

    name: str
    dtype: np.dtype
    network: str
    calls: tuple[Call, ...]
    sizes: Mapping[str, int]  # the results of the functions `..._n_params` and so on
    layout: Layout
    state_layout: Layout
    baked: Mapping[str, np.ndarray]
    workspace: bool = False  # whether the functions take one as their last argument
    scratch: Mapping[str, ScratchBytes] = field(default_factory=dict)  # of each function, on the stack or in the workspace

    @property
    def work_bytes(self) -> dict[str, ScratchBytes]:
        """The results of the functions ``..._work_bytes``, by the ends of their names: for all functions, then for each one."""
        if not self.workspace:
            return {"work_bytes": ScratchBytes(0)}
        aligned = {name: ScratchBytes(each.fixed + ALIGNMENT, each.growth) for name, each in self.scratch.items()}
        largest = ScratchBytes.largest(aligned.values())
        return {"work_bytes": largest} | {f"{name}_work_bytes": each for name, each in aligned.items()}

    @property
    def bytes_for_one(self) -> dict[str, int]:
        """The bytes that each function takes for one sample: of its workspace, or of the stack for its scratch memory."""
        lengths = {name: self.work_bytes[f"{name}_work_bytes"] for name in self.scratch} if self.workspace else self.scratch
        return {name: length.of(1) for name, length in lengths.items()}


def comment(text: str) -> str:
    """The text in one line that begins and ends no comment of C: names in it may come from a file that is not trusted."""
    return " ".join(text.split()).replace("*/", "* /").replace("/*", "/ *")


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
    "J": "derivatives of the outputs with respect to the inputs",
    "v": "weights of the outputs",
    "H": "second derivatives, with respect to the inputs, of the sum of v times the outputs",
}
ABOUT_IN = {  # other descriptions of arrays in some functions
    ("jvp", "dx"): "a direction of the inputs",
    ("jvp", "dy"): "derivatives of the outputs along dx",
    ("stream_jacobian", "J"): "rows: outputs, then new carried; columns: inputs, then carried",
}
ORDER = {
    "forward": ("x", "p", "state", "y"),
    "vjp": ("x", "p", "state", "dy", "g", "dx"),
    "stream": ("x", "p", "carried", "y", "new carried"),
    "jvp": ("x", "p", "state", "dx", "dy"),
    "jacobian": ("x", "p", "state", "J"),
    "hessian": ("x", "p", "state", "v", "H"),
    "stream_jacobian": ("x", "p", "carried", "J"),
    "loss": ("x", "p", "state", "t", "g", "dx"),
    "step": ("x", "t", "p", "state", "moments", "step", "random"),
}
ALWAYS = ("x", "p", "state", "t", "moments")  # these are arguments even if the function does not use them
ALWAYS_IN = {"jvp": ("dx",), "hessian": ("v",)}  # likewise in these


@dataclass(frozen=True)
class Request:
    """What is exported: a network, and the kinds of its functions."""

    net: Chain
    dtype: np.dtype
    gradient: str | None = None
    criterion: Criterion | None = None
    optimizer: Optimizer | None = None
    derivatives: Sequence[str] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """The lengths of vectors."""
        moments = 0 if self.optimizer is None else self.optimizer.n_states * self.net.n_params
        return {"p": self.net.n_params, "state": self.net.n_state, "moments": moments}


def interface_of(request: Request, name: str, baked: Mapping[str, np.ndarray]) -> Interface:
    """The functions of a network. Vectors that are `baked`, by the names "p" and "state", are not arguments.

    Raises NotImplementedError with the name of a layer that has no rule for the derivatives.
    """
    net, dtype, sizes = request.net, request.dtype, request.sizes
    stepping, step = _step(net, dtype)
    about = _descriptions(request)
    calls = []
    for kind, recorded in _programs(request, stepping, step).items():
        program = _with_settings(recorded)
        buffers = _buffers(request, program)
        always = (*ALWAYS, *ALWAYS_IN.get(kind, ()))
        taken = [each for each in ORDER[kind] if each in program.buffers or (each in always and each in buffers)]
        arguments = tuple(_argument(kind, each, buffers[each]) for each in taken if each not in baked)
        calls.append(Call(kind, comment(about[kind]), program, arguments))
    counts = {f"n_{'params' if vector == 'p' else vector}": size for vector, size in sizes.items()}
    counts["n_carried"] = 0 if stepping is None else stepping.n_carried
    counts = {key: count for key, count in counts.items() if count or key == "n_params"}
    check_prefix(name, [*(f"{call.name}_work_bytes" for call in calls), *(f"size_of_{end[2:]}" for end in counts)])
    return Interface(name, dtype, comment(repr(net)), tuple(calls), counts, net.layout, net.state_layout, dict(baked))


def _programs(request: Request, stepping: Stepping | None, step: Program | None) -> dict[str, Program]:
    """The programs of the functions, by kind."""
    network, dtype, criterion = network_of(request.net), request.dtype, request.criterion
    wanted = GRADIENTS[request.gradient]
    programs = {"forward": record.forward(network, dtype, False)}
    if wanted:
        programs["vjp"] = record.vjp(network, dtype, False, wanted)
    if criterion is not None:
        programs["loss"] = record.gradient(network, criterion, dtype, False, pure=True, wanted=_of_loss(wanted, criterion.loss))
    if criterion is not None and request.optimizer is not None:
        programs["step"] = record.training_step(network, criterion, request.optimizer, dtype)
    if stepping is not None and step is not None:
        programs["stream"] = step
        if "jacobian" in request.derivatives:
            programs["stream_jacobian"] = record_by_inputs.step_jacobian(stepping, dtype)
    return programs | {each: DERIVATIVES[each](network, dtype) for each in request.derivatives}


def _with_settings(program: Program) -> Program:
    """The program with its settings as numbers in its formulas."""

    def changed(operation: Operation) -> Operation:
        if not isinstance(operation, Map):
            return operation
        known = {
            position: float(view.buffer.data.item())
            for position, view in enumerate(operation.ins)
            if view.buffer.data is not None and view.buffer.size == 1 and not view.loop_strides
        }
        ins = tuple(view for position, view in enumerate(operation.ins) if position not in known)
        return replace(operation, ins=ins, formula=operation.formula.given(known)) if known and ins else operation

    return replace(program, operations=tuple(map(changed, program.operations)))


def _descriptions(request: Request) -> dict[str, str]:
    """A line about each kind of function."""
    criterion, optimizer = request.criterion, request.optimizer
    return {
        "forward": "The outputs y.",
        "vjp": f"Pulls the cotangents dy back: fills {' and '.join(GRADIENTS[request.gradient])}.",
        "loss": f"Returns the loss, {repr(criterion.loss) if criterion else ''}, and fills its gradients.",
        "stream": "The outputs y of one step of a sequence.",
        "jvp": "Derivatives dy of the outputs along dx.",
        "jacobian": "The Jacobian J of each sample: the derivatives of its outputs with respect to its inputs.",
        "hessian": "The Hessian H of each sample with respect to its inputs: of the sum of v times its outputs. Symmetric.",
        "stream_jacobian": "The Jacobian J of one step of a sequence.",
        "step": f"One step of {optimizer!r}: updates p and the arrays of the optimiser. Returns the loss before the step.",
    }


def _buffers(request: Request, program: Program) -> dict[str, Buffer]:
    """The caller's buffers of a program, and stand-ins for arguments that it does not touch."""
    net, dtype, criterion = request.net, request.dtype, request.criterion
    buffers = {**_vectors(request.sizes, dtype), **program.buffers}
    samples = {"x": net.input_shape, "dx": net.input_shape, "v": net.output_shape}
    if criterion is not None:
        samples = {"t": criterion.target, **samples}
    for each, shape in samples.items():
        buffers.setdefault(each, Buffer(each, "input", dtype, (Batch(), *shape)))
    return buffers


def _step(net: Chain, dtype: np.dtype) -> tuple[Stepping, Program] | tuple[None, None]:
    """The program of one step of a sequence; None if `net.step` has none, such as for bidirectional layers and for ids."""
    try:
        stepping = Stepping(network_of(net))
        return stepping, stepping.record(dtype)
    except (TypeError, ValueError):
        return None, None


def _of_loss(wanted: tuple[str, ...], loss: Loss) -> tuple[str, ...]:
    """The gradients of a loss: residuals have none with respect to their points."""
    return tuple(each for each in wanted if each != "dx" or not isinstance(loss, SeriesLoss))


def _vectors(sizes: Mapping[str, int], dtype: np.dtype) -> dict[str, Buffer]:
    """Stand-ins for vectors that a program does not touch."""
    return {name: Buffer(name, "input", dtype, (size,)) for name, size in sizes.items() if size or name == "p"}


def c_name(buffer: Buffer) -> str:
    """The name of a caller's buffer in C."""
    return buffer.name.replace(" ", "_")


def _argument(kind: str, name: str, buffer: Buffer) -> Argument:
    about = ABOUT_IN.get((kind, name), ABOUT[name])
    shape = buffer.shape[1:] if buffer.batched else buffer.shape
    return Argument(c_name(buffer), buffer.dtype, tuple(map(int, shape)), buffer.batched, buffer.role, about)  # type: ignore[arg-type]
