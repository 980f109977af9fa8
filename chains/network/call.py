"""A call of a network as one object, and the door where it begins.

A `Method` says once what a method of `Chain` is. From it, `door` makes the function that `Chain` calls. A repeated call ends
there, in machine code (`chains.network.programs.Shortcuts`). Any other call becomes a `Call`, which is handed down whole: it
is checked here, finds its program or records it, and runs that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from chains.backends import Executable
from chains.network import checks
from chains.network.agreement import Agreement, part_arrays
from chains.network.network import Network
from chains.network.programs import Repeated
from chains.program.program import Program
from chains.support import arguments
from chains.support.memory import Memory, memory_of

# An array that a call fills: its shape, the caller's array or None, and the caller's name for it.
Output = tuple[tuple[int, ...], Any, str]


class Method(NamedTuple):
    """What a method of `Chain` is. The texts are lists of names."""

    name: str
    usage: str  # as people write it, for messages
    takes: str  # its arguments, in order
    # Of a method with shortcuts: the arrays that a function in machine code takes, and those that it fills.
    inputs: str = ""
    results: tuple[str, ...] = ()
    may: str = ""  # another input, which may be None
    plain: str = ""  # the arguments that must have their defaults for a shortcut


class Call:
    """One call: the arguments as they were given, which the checks replace, and what is found on the way."""

    x: Any = None
    p: Any = None
    t: Any = None
    loss: Any = None
    weights: Any = None
    lengths: Any = None
    penalty: Any = None
    state: Any = None
    mode: str = "eval"
    seed: Any = 0
    out: Any = None
    # Of single methods.
    dy: Any
    v: Any
    carried: Any
    direction: str
    directions: Any
    order: int
    full: bool
    check_finite: Any
    comm: Any
    net: Any
    stepping: Any

    training = False
    processes: Agreement | None = None  # those that share the work

    def __init__(self, network: Network, given: Mapping[str, Any], method: Method | None = None, plain: bool = False) -> None:
        self.network, self.given, self.method = network, given, method
        self.plain = plain  # whether it may have a shortcut
        self.data: dict[str, Any] = {}  # the checked arrays of samples, by buffer name
        vars(self).update(given)

    @property
    def usage(self) -> str:
        """The call as people write it."""
        return "" if self.method is None else self.method.usage

    @property
    def is_ensemble(self) -> bool:
        """Whether `p` has the parameters of many networks."""
        return checks.is_ensemble(self.p) if type(self.p) is not np.ndarray else self.p.ndim == 2

    @property
    def like(self) -> Any:
        """An array in the memory in which the call is computed."""
        return self.data["x"] if self.p is None else self.p

    @property
    def memory(self) -> Memory:
        """That memory."""
        return memory_of(self.like)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the computation."""
        found: np.dtype[Any] = np.dtype(np.float64) if self.p is None else self.p.dtype
        return found

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...] | None, bool]:
        """The sample shape of the targets; that of the weights, or None; and whether there are lengths."""
        data = self.data
        return data["t"].shape[1:], data["weights"].shape[1:] if "weights" in data else None, "lengths" in data


# The door


def door(method: Method) -> Callable[[Callable[[Call], Any]], Callable[..., Any]]:
    """The function of a method, ``function(network, *arguments)``, from the path of its calls that have no shortcut."""

    def made(general: Callable[[Call], Any]) -> Callable[..., Any]:
        names: dict[str, Any] = {"Call": Call, "general": general, "method": method, "SEED": 0, "ndarray": np.ndarray}
        names |= {"__name__": general.__module__, "is_column": checks.is_column, "is_pair": is_pair}
        exec(compile(_source(method), f"<door of {method.usage}>", "exec"), names)  # this module's text and a method's names
        function: Callable[..., Any] = names["call"]
        function.method = method  # type: ignore[attr-defined]
        function.__name__, function.__doc__, function.__module__ = method.name, general.__doc__, general.__module__
        return function

    return made


DOOR = """
def call(network, {takes}):
    plain = {plain}
    if plain:
        quick = network.shortcuts.find({kind}, {mode}, p, x, {loss}, {penalty})
        if quick is not None:
            found = {found}
            if found is not None:
                return found{value}
    return general(Call(network, {given}, method, plain))
"""
COLUMN = """{found}
            if found is None and type(t) is ndarray and is_column(t, network.output_shape, loss):
                found = {again}"""
DEFAULTS = {"seed": "seed is SEED", "check_finite": "not check_finite"}  # of other arguments, the default is None


def _source(method: Method) -> str:
    """The text of a method's door. This is the rule of all shortcuts."""
    takes, inputs, may, kind = method.takes.split(), method.inputs.split(), method.may, repr(method.name)
    given = "{" + ", ".join(f"{name!r}: {name}" for name in takes) + "}"
    if not inputs:
        return f"def call(network, {', '.join(takes)}):\n    return general(Call(network, {given}, method))\n"
    tests = [DEFAULTS.get(name, f"{name} is None") for name in method.plain.split()]
    pair, outs = len(method.results) > 1, ["out"] * len(method.results)
    if pair:
        tests.append("(out is None or is_pair(out))")

    def run(t: str) -> str:
        arrays = ", ".join([t if name == "t" else name for name in inputs])
        if pair:
            return f"quick({arrays}, None, None) if out is None else quick({arrays}, *out)"
        alone = f"quick({', '.join([arrays, *outs])})"
        return f"{alone} if {may} is None else quick({', '.join([arrays, may, *outs])})" if may else alone

    return DOOR.format(
        takes=", ".join(takes), given=given, plain=" and ".join(tests) or "True",
        kind=f"{kind} if {may} is None else ({kind}, getattr({may}, 'ndim', 0))" if may else kind,
        found=COLUMN.format(found=run("t"), again=run("t[:, None]")) if "t" in inputs else run("t"),
        value="" if outs else "[0]",  # of a method that fills no array, the function returns a tuple of the value
        **{name: name if name in takes else None for name in ("mode", "loss", "penalty")},
    )  # fmt: skip


def is_pair(out: Any) -> bool:
    """Whether this is a pair of arrays to fill."""
    return isinstance(out, tuple) and len(out) == 2 and out[0] is not None and out[1] is not None


# The checks of a call. Nothing is written before the last of them.


def check_point(call: Call) -> None:
    """The parameters and the inputs. Raises TypeError or ValueError if they do not fit, as all of these checks do."""
    network = call.network
    call.p = checks.check_params(network, call.p, call.x, call.usage)
    call.data["x"] = arguments.check_input(call.x, network.input_shape, ids=network.id_count)


def check_lengths(call: Call) -> None:
    """The lengths of samples, if there are any."""
    if call.lengths is not None:
        call.data |= checks.lengths_of(call.lengths, call.data["x"], call.network.declaration)


def check_problem(call: Call) -> None:
    """The parameters and the data of a loss."""
    call.p = checks.check_params(call.network, call.p, call.x, call.usage)
    check_data(call)


def check_data(call: Call) -> None:
    """The data of a loss."""
    network, loss, data = call.network, call.loss, call.data
    declaration, output = network.declaration, network.output_shape
    x = arguments.check_input(call.x, network.input_shape, ids=network.id_count)
    checks.check_loss(loss)
    counts = checks.lengths_of(call.lengths, x, declaration)
    data |= {"x": x, "t": checks.check_targets(call.t, len(x), output, loss)}
    if call.weights is not None:
        data["weights"] = checks.check_weights(call.weights, data["t"].shape, loss)
    data |= counts
    if (check := checks.target_check(output, loss)) is not None:
        check(checks.with_counted_targets(declaration, data)["t"])


def check_numbers(call: Call, dtype: Any, **others: Any) -> None:
    """Refuse an infinity or NaN in the data, in the range of `dtype`."""
    arguments.check_finite(dtype, **others, **checks.with_counted_targets(call.network.declaration, call.data))


def vector(call: Call) -> np.ndarray:
    """The argument `v`, a vector like the parameters."""
    v = arguments.array_of("v", call.v)
    if v.shape != call.p.shape:
        raise ValueError(f"`v` has shape {v.shape}: wanted {call.p.shape}, a number for each parameter")
    return call.memory.contiguous(v, call.dtype)


# The run


def run(call: Call, executable: Executable, outs: Mapping[str, Output]) -> dict[str, np.ndarray]:
    """Run an executable on the checked data. Returns its outputs, by name.

    All other arguments are checked before anything is written. The data are copied to the memory of the parameters if
    necessary.
    """
    p, batch, memory = call.p, len(call.data["x"]), call.memory
    arrays = {**arguments.to_device_of(p, call.data), "p": p}
    arrays |= state_of(call, executable.program, arrays)
    results: dict[str, np.ndarray] = {}
    for name, (shape, given, called) in outs.items():
        if given is None:
            results[name] = memory.empty(shape, p.dtype)
        else:
            results[name] = arguments.check_out(given, shape, p.dtype, arrays, called)
            arrays[called] = given  # no program has a buffer of this name; further outputs may not overlap it
    arrays |= shared_arrays(call, executable, batch)
    arrays |= results
    executable(batch, arrays)
    return results


def shared_arrays(call: Call, executable: Executable, batch: int) -> dict[str, np.ndarray]:
    """The arrays for random numbers, and for the part of a batch that belongs to this process.

    The processes speak here for the first time; the batch that all of them train on must be large enough.
    """
    seed, arrays = arguments.check_seed(call.seed), {}
    if "random" in executable.program.buffers:
        arrays["random"] = call.memory.contiguous(np.array([seed, 0], np.uint64))
    total, first = (batch, 0) if call.processes is None else call.processes.part_of(batch)
    if call.training:
        call.network.check_batch(total)
    if call.processes is not None:
        arrays |= part_arrays(call.processes.comm, executable, total, first, call.like)
    return arrays


def state_of(call: Call, program: Program, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The checked state by buffer name, for a run of a program on these inputs."""
    network, state = call.network, call.state
    if state is None and network.is_stateless:
        return {}
    buffer = program.buffers.get("state")
    updated = buffer is not None and buffer.role == "state"
    if state is not None:
        dtype = None if call.p is None else call.p.dtype
        return {"state": arguments.check_state(state, network.n_state, dtype, updated, inputs)}
    if buffer is not None:
        raise ValueError(
            f"`state` is missing: this network has one ({network.state_layout[0].name}, ...), which this call "
            f"{'updates' if updated else 'reads'}; begin with net.init_state() and pass it to every call"
        )
    return {}


def add_shortcut(call: Call, executable: Executable) -> None:
    """Provide a function in machine code for calls like this one, unless it has arguments that such a function cannot check."""
    method, data = call.method, call.data
    if not call.plain or method is None:
        return
    check = None if "t" not in data else checks.target_check(call.network.output_shape, call.loss)
    if "weights" in data and check is not None:  # of targets with weights, only some are checked
        return
    arrays = {"p": call.p} | {name: data[name] for name in (*method.inputs.split(), method.may) if name in data}
    kind = (method.name, data["weights"].ndim) if "weights" in data else method.name
    mode = call.mode if "mode" in call.given else None
    call.network.shortcuts.add(executable, Repeated(kind, mode, arrays, method.results, call.loss, call.penalty, check))
