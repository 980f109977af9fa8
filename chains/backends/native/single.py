"""A program on single samples without a batch axis, run by the calling thread: as a Python function and as C functions.

The C functions are for solvers that take an address. They are of float64:

    void derivative(double t, const double *y, double *dy, void *data);
    double integrand(int n, double *x, void *data);

`data` points to a list of words that describes the binding. So all programs share the code of these functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from chains.backends.base import Single
from chains.backends.native.binding import NativeBinding
from chains.backends.native.llvm.emit import I32, PTR, Function, Module, Type, Value, integer
from chains.backends.native.llvm.jit import Code, machine_code
from chains.backends.native.llvm.struct import Struct
from chains.backends.native.llvm.target import processor
from chains.backends.native.runtime.fastcall import python_function, set_slots

_DOUBLE = Type("double")
_C_CALL = Struct(
    {
        "run": "ptr",  # the program
        "words": "ptr",  # its argument
        "in_slots": "ptr",  # where the program looks up the address of the input; `out_slots` likewise
        "in_count": "i64",
        "out_slots": "ptr",
        "out_count": "i64",
        "timed": "i64",  # whether the time is the last of the input's features
        "states": "i64",  # the features before the time
        "input": "ptr",  # the binding's own arrays
        "output": "ptr",
    }
)


def single(binding: NativeBinding, ins: Sequence[str], outs: Sequence[str]) -> Single:
    """A binding of one sample, as functions."""
    words = _c_words(binding, ins[0], outs[0])
    function = python_function(binding, dict.fromkeys(ins, binding.program.dtype), outs, single=True)
    return Single(function, words.ctypes.data, lambda name: _code().address(name), (binding, words))


def _c_words(binding: NativeBinding, input: str, output: str) -> np.ndarray:
    """The list of words that the C functions take as `data`."""
    ins, outs = (np.array(binding.slots(name), np.int64) for name in (input, output))
    features, results = binding.arrays[input].size, binding.arrays[output].size
    words = _C_CALL.pack(
        run=binding.run_address, words=binding.words_address,
        in_slots=0, in_count=len(ins), out_slots=0, out_count=len(outs),
        timed=int(features == results + 1), states=min(features, results),
        input=binding.addresses[input], output=binding.addresses[output],
    )  # fmt: skip
    whole = np.concatenate([words, ins, outs])
    first = whole.ctypes.data + 8 * len(words)
    _C_CALL.write(whole, in_slots=first, out_slots=first + 8 * len(ins))
    return whole


@cache
def _code() -> Code:
    module = Module()
    for function in (_derivative(module), _integrand(module)):
        module.add(function)
    return machine_code(module.text(), ["derivative", "integrand"], processor())


def _derivative(module: Module) -> Function:
    f = Function(module, "derivative", [(_DOUBLE, "t"), (PTR, "y"), (PTR, "dy"), (PTR, "data")])
    t, y, dy, data = f.arguments

    def with_time() -> Value:
        own, states = _C_CALL.loads(f, data, "input", "states")
        f.each(states, lambda k: f.store(f.load(_DOUBLE, f.address(y, k, _DOUBLE)), f.address(own, k, _DOUBLE)))
        f.store(t, f.address(own, states, _DOUBLE))
        return own

    timed = f.compare("eq", _C_CALL.load(f, data, "timed"), integer(1))
    _run_at(f, data, f.either(timed, with_time, lambda: y), dy)
    return f


def _integrand(module: Module) -> Function:
    f = Function(module, "integrand", [(I32, "n"), (PTR, "x"), (PTR, "data")], "double")
    _, x, data = f.arguments
    output = _C_CALL.load(f, data, "output")
    _run_at(f, data, x, output)
    f.returns(f.load(_DOUBLE, output))
    return f


def _run_at(f: Function, data: Value, input: Value, output: Value) -> None:
    """Run the program on the caller's input and output, without copies."""
    for name, place in (("in", input), ("out", output)):
        slots, count = _C_CALL.loads(f, data, f"{name}_slots", f"{name}_count")
        set_slots(f, slots, count, place)
    run, words = _C_CALL.loads(f, data, "run", "words")
    f.invoke(run, None, words)
