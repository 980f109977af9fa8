"""The recorder: layers call it, and their calls become the operations of a program.

Shapes are checked when operations are recorded. `finish` drops results that are never read (`chains.program.simplify`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np

from chains.expr import Expr, Formula, key_of, trace_with_settings
from chains.program import operations as op
from chains.program.loop import Loop, Steps
from chains.program.operations import COMMUNICATOR, COMMUNICATOR_WORDS, Operation, Window
from chains.program.operations.base import check_broadcast, check_views
from chains.program.program import Program
from chains.program.settings import evaluate, numbers_of, symbolic
from chains.program.simplify import simplified
from chains.program.view import Batch, Buffer, Shape, View
from chains.support.checks import check_count, is_real
from chains.support.messages import counted, shown

T = TypeVar("T")


class Recorder:
    """Records operations and checks that shapes fit; `finish` makes the `Program`. Among the operands, outputs come first.

    Parameters
    ----------
    name, dtype : str, type
        The name of the program, and the type of all its arrays except ids.
    training : bool
        Whether layers behave as in training.
    parallel : bool
        Whether each of several processes has a part of the batch.
    """

    def __init__(self, name: str, dtype: Any, *, training: bool = False, parallel: bool = False) -> None:
        self.name = name
        self.dtype = np.dtype(dtype)
        self.training = training
        self.parallel = parallel
        self.lengths: View | None = None  # the number of steps of each sample, if the caller gives lengths
        self.output_lengths: View | None = None  # likewise of its output, if samples have no time axis
        self.carried: dict[Any, list[list[View]]] = {}  # in a single step, by layer: the arrays before it, those after it, ...
        self.operations: list[Operation] = []
        self._buffers: dict[str, View] = {}
        self._constants: dict[str, list[View]] = {}
        self._numbers: list[float] = []  # the settings when the program is recorded
        self._settings: dict[Any, tuple[View, Expr]] = {}
        self._label = ""
        self._draws = 0
        self._depth = 0  # of loops
        self._held = False
        self.linearises = False  # whether forward passes are recorded for tangents (`chains.jets.tangents`)
        self.keeps_parts = False  # whether the operations of a layer within another become one, a part

    def __repr__(self) -> str:
        return f"<Recorder of the program {self.name} ({self.dtype}): {counted(len(self.operations), 'operation')} so far>"

    # Buffers

    def external(self, name: str, shape: tuple[int, ...], *, role: str, batched: bool = False, dtype: Any = None) -> View:
        """A buffer that the caller of the program provides. The same name always gives the same view."""
        if name not in self._buffers:
            self._buffers[name] = self._view(name, role, shape, batched, dtype)
        return self._buffers[name]

    def scratch(self, name: str, shape: tuple[int, ...], *, batched: bool = True) -> View:
        """Private memory, live from the first operation that uses it to the last.

        Parameters
        ----------
        name, shape : str, tuple of int
            The name, for people, and the shape of one sample or, unless `batched`, of the array.
        batched : bool
            Whether each sample has such an array.
        """
        if not isinstance(shape, (tuple, list)):
            raise TypeError(f"scratch: the shape of `{name}` (={shown(shape)}) must be a tuple such as (3,)")
        label = f"{self._label}.{name}" if self._label else name
        return self._view(label, "scratch", shape, batched)

    def constant(self, name: str, data: np.ndarray) -> View:
        """Numbers that are part of the program.

        Parameters
        ----------
        name, data : str, array
            The name, for people, and the numbers.
        """
        data = np.ascontiguousarray(data, dtype=self.dtype).reshape(np.shape(data))
        used = self._constants.setdefault(name, [])
        for view in used:
            if view.buffer.data is not None and np.array_equal(view.buffer.data, data):
                return view
        used.append(self._view(f"constant {name}" + f" {len(used) + 1}" * bool(used), "constant", data.shape, data=data))
        return used[-1]

    def symbolic(self, thing: T) -> T:
        """`thing` with symbols for its settings. Symbols that formulas use become inputs of the program.

        One call takes all things with settings, a tuple, in the order of their numbers at a run.
        """
        numbers = numbers_of(thing)
        assert not (numbers and self._numbers), f"settings of {thing!r} would follow others: pass both in one call"
        twin = symbolic(thing, len(self._numbers))
        self._numbers += numbers
        return twin

    def _setting(self, node: Expr, dtype: np.dtype[Any]) -> View:
        """The scalar that holds the value of an expression of settings."""
        key = (key_of(node), dtype)
        if key not in self._settings:
            text = f"({node})" if node.operands else repr(node)
            same = sum(view.buffer.name.startswith(text) for view, _ in self._settings.values())
            number = np.array(evaluate(node, self._numbers), dtype)
            view = self._view(f"{text} {same + 1}" if same else text, "input", (), dtype=dtype, data=number)
            self._settings[key] = view, node
        return self._settings[key][0]

    @cached_property
    def _seed_zero(self) -> View:
        return self._view("seed 0", "constant", (2,), dtype=np.uint64, data=np.zeros(2, np.uint64))

    @property
    def in_loop(self) -> bool:
        """Whether a loop is being recorded."""
        return self._depth > 0

    @property
    def depth(self) -> int:
        """The number of loops that are being recorded."""
        return self._depth

    @contextmanager
    def aside(self) -> Iterator[list[Operation]]:
        """A context: operations recorded inside go to a separate list, which is given."""
        around, self.operations = self.operations, []
        try:
            yield self.operations
        finally:
            self.operations = around

    @property
    def inverse_batch(self) -> View:
        """The number 1 / batch size; that of the whole batch, if it is divided among processes."""
        return self.external("inverse_total" if self.parallel else "inverse_batch", (), role="input")

    def _view(
        self, name: str, role: str, shape: tuple[int, ...], batched: bool = False, dtype: Any = None, data: Any = None
    ) -> View:
        full: Shape = (Batch(), *shape) if batched else shape
        return Buffer(name, role, np.dtype(dtype or self.dtype), full, data).whole

    @contextmanager
    def label(self, label: str) -> Iterator[None]:
        """A context: operations and scratch buffers recorded inside have this label when the program is printed.

        Parameters
        ----------
        label : str
            The label.
        """
        before, self._label = self._label, label
        yield
        self._label = before

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context: operations recorded inside have results that tangents take for constants, such as lengths of steps."""
        before, self._held = self._held, True
        yield
        self._held = before

    # Operations

    @contextmanager
    def again(self, loop: Loop) -> Iterator[None]:
        """A context: operations recorded inside are the body of a loop that is otherwise like `loop`.

        Parameters
        ----------
        loop : Loop
            The loop. It is at the depth of the loops that are being recorded.
        """
        self._depth += 1
        with self.aside() as body:
            yield
        self._depth -= 1
        self.operations.append(loop.around(body))

    @contextmanager
    def loop(
        self, steps: int, *, backwards: bool = False, closed: bool = False,
        skip_where_zero: Callable[[Steps], View] | None = None, solves: tuple[View, View, View] | None = None,
    ) -> Iterator[Steps]:  # fmt: skip
        """A context: operations recorded inside are done once for each step of a time axis.

        ``with ops.loop(7) as at: ops.map(at.now(y, 1), f, at.now(x, 1))`` loops over axis 1 of both.

        Parameters
        ----------
        steps, backwards, closed : int, bool, bool
            The number of steps; whether they run from the end of the axis to its start; and whether products that depend on no
            step stay in the loop. Outside of it they need memory for all steps.
        skip_where_zero : callable, optional
            It gives an array of a step that is 0 for samples for which the step changes nothing that is read later. Steps that
            are 0 for all samples may be left out; the loop is then closed. Sums over samples begin with zeros, and so do arrays
            without samples that have an entry for each step.
        solves : (View, View, View), optional
            The views (out, matrix, right) of a loop that solves ``matrix @ out = right`` and has no other result.
        """
        around, self.operations = self.operations, []
        self._depth += 1
        try:
            at = Steps(check_count("steps", steps), self._depth - 1, backwards)
            yield at
            if self.operations:
                skip = None if skip_where_zero is None else skip_where_zero(at)
                loop = Loop.of(
                    steps, self.operations, at.depth, self._label, closed=closed or skip is not None, skip_where_zero=skip,
                    from_zero=skip is not None, solves=solves,
                )  # fmt: skip
                around.append(replace(loop, held=self._held))
        finally:
            self.operations = around
            self._depth -= 1

    def matmul(self, out: View, a: View, b: View, *, accumulate: bool = False) -> None:
        """out = a @ b, or out += a @ b.

        Parameters
        ----------
        out, a, b : View
            Matrices, each possibly transposed. With three or more axes: stacks of matrices in the last two axes; the other
            axes must be equal.
        accumulate : bool
            Whether to add to `out`.
        """
        check_views("matmul", out)
        kind = op.BatchMatMul if out.ndim > 2 else op.MatMul
        self.record(kind((out,), (a, b), accumulate=accumulate, label=self._label))

    def map(self, outs: View | tuple[View, ...], function: Callable[..., Any], *ins: View) -> None:
        """outs = function(*ins), element by element.

        Parameters
        ----------
        outs : View or tuple of View
            An array for each result of the function.
        function : callable
            It is traced once and may use arithmetic and the functions of `chains.expr`.
        *ins : View
            The arguments of the function, which broadcast to the outs.
        """
        outs = outs if isinstance(outs, tuple) else (outs,)
        check_views("map", *outs, *ins)
        if not callable(function):
            raise TypeError(f"map: `function` (={shown(function)}) must be a formula: ops.map(y, lambda x: 2 * x, x)")
        formula, settings = trace_with_settings(function, len(ins))
        scalar = all(view.ndim == 0 for view in (*outs, *ins))
        ins += tuple(self._setting(node, np.dtype(np.float64) if scalar else self.dtype) for node in settings)
        if len(formula.outputs) != len(outs):
            raise ValueError(f"map: the formula gives {len(formula.outputs)} results for {len(outs)} outs")
        for view in ins:
            check_broadcast("map", view, outs[0])
        if any(view.dtype != self.dtype and view.ndim for view in (*outs, *ins)):
            raise ValueError(f"map: operands must be {self.dtype}, or all be scalars: {', '.join(map(str, (*outs, *ins)))}")
        if any(out.shape != outs[0].shape for out in outs):
            raise ValueError(f"map: the outs differ in shape: {', '.join(map(str, outs))}")
        self.map_formula(outs, formula, ins)

    def map_formula(self, outs: tuple[View, ...], formula: Formula, ins: tuple[View, ...]) -> None:
        """As `map`, for a formula and operands that fit.

        Parameters
        ----------
        outs, formula, ins : tuple of View, Formula, tuple of View
            As of `map`.
        """
        if formula.copied_input is not None:
            self.copy(outs[0], ins[formula.copied_input])
        else:
            self.record(op.Map(outs, ins, formula, label=self._label))

    def sum(self, out: View, a: View) -> None:
        """out = the sum of `a` over the axes `out` lacks or has with length 1.

        Parameters
        ----------
        out, a : View
            The sum, and the array to add up.
        """
        self.record(op.Reduce((out,), (a,), "sum", label=self._label))

    def max(self, out: View, a: View) -> None:
        """out = the largest of `a` over the axes `out` lacks or has with length 1.

        Parameters
        ----------
        out, a : View
            The largest entries, and the array to look through.
        """
        self.record(op.Reduce((out,), (a,), "max", label=self._label))

    def convolve(self, y: View, x: View, w: View, window: Window, *, groups: int = 1) -> None:
        """y = the convolution of the images x with the kernels w (see `chains.program.operations.Convolve`).

        Parameters
        ----------
        y, x, w : View
            (batch, outputs, rows, columns), (batch, inputs, height, width) and (outputs, inputs / groups, *window).
        window, groups : Window, int
            Size, stride, padding and dilation; the number of groups of channels, each convolved separately.
        """
        self.record(op.Convolve((y,), (x, w), window, groups, label=self._label))

    def convolve_input(self, dx: View, dy: View, w: View, window: Window, *, groups: int = 1) -> None:
        """dx = the gradient of `convolve` with respect to x.

        Parameters
        ----------
        dx, dy, w, window, groups
            As of `convolve`; `dy` is the gradient with respect to y.
        """
        self.record(op.ConvolveInput((dx,), (dy, w), window, groups, label=self._label))

    def convolve_weight(self, dw: View, x: View, dy: View, window: Window, *, groups: int = 1) -> None:
        """dw = the gradient of `convolve` with respect to w.

        Parameters
        ----------
        dw, x, dy, window, groups
            As of `convolve`; `dy` is the gradient with respect to y.
        """
        self.record(op.ConvolveWeight((dw,), (x, dy), window, groups, label=self._label))

    def pool(self, kind: str, y: View, x: View, window: Window, *, count_padding: bool = True) -> None:
        """y = the largest or the mean entry of each window of x (see `chains.program.operations.Pool`).

        Parameters
        ----------
        kind : str
            "max" or "mean".
        y, x : View
            (batch, channels, rows, columns) and (batch, channels, height, width).
        window, count_padding : Window, bool
            Size, stride and padding; whether zeros of the padding count in a mean.
        """
        self.record(op.Pool((y,), (x,), kind, window, count_padding, label=self._label))

    def pool_input(
        self, kind: str, dx: View, dy: View, x: View, y: View, window: Window, *, count_padding: bool = True
    ) -> None:
        """dx = the gradient of `pool` with respect to x.

        Parameters
        ----------
        kind, dx, dy, x, y, window, count_padding
            As of `pool`; `dy` is the gradient with respect to y.
        """
        ins = (dy, x, y) if kind == "max" else (dy,)
        self.record(op.PoolInput((dx,), ins, kind, window, count_padding, label=self._label))

    def gather(self, out: View, table: View, index: View) -> None:
        """out[i] = table[index[i]].

        Parameters
        ----------
        out, table, index : View
            The rows, the table that contains them, and their numbers.
        """
        self.record(op.Gather((out,), (table, index), label=self._label))

    def scatter_add(self, out: View, index: View, source: View) -> None:
        """out[index[i]] += source[i].

        Parameters
        ----------
        out, index, source : View
            The table, the numbers of its rows, and the rows to add.
        """
        self.record(op.ScatterAdd((out,), (index, source), label=self._label))

    def random(self, out: View, *, fixed: bool = False) -> None:
        """out = uniform numbers in [0, 1) that depend only on the caller's seed and step (see `Random`).

        Parameters
        ----------
        out : View
            The array to fill.
        fixed : bool
            Whether the seed is always 0, so that the program has none from its caller.
        """
        check_views("random", out)
        if self._depth:
            raise ValueError(f"random: every step of a loop would draw the same numbers for `{out}`: draw them before the loop")
        ins = [self._seed_zero if fixed else self.external("random", (2,), role="input", dtype=np.uint64)]
        if self.parallel and out.batched:
            ins.append(self.external("first_sample", (), role="input", dtype=np.uint64))
        self.record(op.Random((out,), tuple(ins), self._draws, label=self._label))
        self._draws += 1

    def all_reduce(self, out: View, a: View) -> None:
        """out = the sum of a over all processes, each of which has a part of the batch (see `AllReduce`).

        Parameters
        ----------
        out, a : View
            Contiguous arrays without samples; they may be the same.
        """
        check_views("all_reduce", out, a)
        if self._depth:
            raise ValueError(f"all_reduce: `{out}` is in a loop: sum up after the loop")
        communicator = self.external(COMMUNICATOR, (COMMUNICATOR_WORDS,), role="input", dtype=np.int64)
        self.record(op.AllReduce((out,), (a, communicator), label=self._label))

    def over_processes(self, *sums: View) -> tuple[View, ...]:
        """The sums over the whole batch, of sums over the samples of this process; the same views if there is one process.

        Parameters
        ----------
        *sums : View
            Arrays without samples, which go to the other processes in one message.

        Returns
        -------
        tuple of View
            An array for each.
        """
        if not self.parallel:
            return sums
        whole = self.scratch("over processes", (sum(view.sample_size for view in sums),), batched=False)
        stops = list(accumulate(view.sample_size for view in sums))
        places = [whole.slice(0, *each).reshape(*a.sample_shape) for each, a in zip(pairwise([0, *stops]), sums, strict=True)]
        for place, view in zip(places, sums, strict=True):
            self.copy(place, view)
        self.all_reduce(whole, whole)
        return tuple(places)

    def copy(self, out: View, a: View) -> None:
        """out = a; nothing is recorded if both are the same memory.

        Parameters
        ----------
        out, a : View
            The arrays; `a` broadcasts to `out`.
        """
        if out != a:
            self.record(op.Copy((out,), (a,), label=self._label))

    def fill(self, out: View, value: float) -> None:
        """out = value.

        Parameters
        ----------
        out, value : View, float
            The array and the number.
        """
        if not is_real(value):
            raise TypeError(f"`value` (={shown(value)}) must be a number, such as 0.0")
        self.record(op.Fill((out,), (), float(value), label=self._label))

    def record(self, operation: Operation) -> None:
        """Add an operation, after a check that its operands fit together.

        Parameters
        ----------
        operation : Operation
            One of `chains.program.operations`. Without a label, it gets that of the layer.
        """
        if not isinstance(operation, Operation):
            raise TypeError(f"ops.record takes an Operation of chains.program.operations, got {shown(operation)}")
        operation.check()
        if self._label and not operation.label:
            operation = replace(operation, label=self._label)
        for out in operation.outs:
            if out.buffer.role in ("input", "constant"):
                raise ValueError(f"{operation.name}: `{out}` belongs to the {out.buffer.role}s and may only be read")
        self.operations.append(replace(operation, held=True) if self._held else operation)

    def pop_operations(self) -> list[Operation]:
        """Remove and return the operations recorded so far, so that they can be recorded in another form."""
        operations, self.operations = self.operations, []
        return operations

    def finish(self) -> Program:
        """The program of the recorded operations, without results that are never read."""
        settings = tuple((view.buffer.name, node) for view, node in self._settings.values())
        return Program(self.name, self.dtype, tuple(simplified(self.operations)), settings)
