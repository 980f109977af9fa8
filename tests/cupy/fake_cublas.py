"""cuBLAS and cublasLt as their documentation has them, in NumPy: column-major matrices in the computer's memory.

Whatever the documentation forbids fails an assertion. `refuse` says which products cublasLt has no algorithm for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

FLOAT, DOUBLE, FLOAT16, BFLOAT16 = 0, 1, 2, 14
COMPUTE = {
    (FLOAT, FLOAT): (68, 75, 77), (BFLOAT16, FLOAT): (68,), (BFLOAT16, BFLOAT16): (68,), (FLOAT16, FLOAT): (68,),
    (FLOAT16, FLOAT16): (68,), (DOUBLE, DOUBLE): (70,),
}  # fmt: skip # by factors and result
RELU, BIAS, DRELU, BGRAD, AUX, BGRADA, BGRADB = 2, 4, 8, 16, 128, 256, 512
ALGORITHMS = 3  # of a product
WORKSPACE = 0x7F0000  # an address that nobody reads, aligned as it must be


def rounded(array: np.ndarray) -> np.ndarray:
    """float32 numbers rounded to the nearest bfloat16, ties to the even one."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    kept = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(array), np.float32(np.nan), kept.view(np.float32))


def memory(address: int, span: int) -> Any:
    return (ctypes.c_char * max(1, span)).from_address(address)


def matrix(address: int, kind: int, rows: int, columns: int, leading: int, raw: bool = False) -> np.ndarray:
    """A column-major matrix in memory; of bfloat16, a float32 copy unless it is to be `raw`."""
    assert leading >= max(1, rows), "cuBLAS would refuse this leading dimension"
    dtype = np.dtype({FLOAT: np.float32, DOUBLE: np.float64, FLOAT16: np.float16, BFLOAT16: np.uint16}[kind])
    span = ((columns - 1) * leading + rows) * dtype.itemsize
    size = dtype.itemsize
    found = np.ndarray((rows, columns), dtype, memory(address, span), 0, (size, leading * size))
    return (found.astype(np.uint32) << 16).view(np.float32) if kind == BFLOAT16 and not raw else found


def multiplied(left: np.ndarray, right: np.ndarray, kinds: tuple[int, int], compute: int) -> np.ndarray:
    """The product as a result of its type, factors rounded where the compute type says so."""
    assert compute in COMPUTE[kinds]
    if kinds[0] == FLOAT16:
        left, right = left.astype(np.float32), right.astype(np.float32)
    if compute == 75:
        left, right = rounded(left), rounded(right)
    return (right.T @ left.T).T


class FakeCublas:
    """cublasGemmEx."""

    def cublasGemmEx(self, handle, ta, tb, m, n, k, alpha, a, ka, lda, b, kb, ldb, beta, c, kc, ldc, compute, algorithm):
        assert ka.value == kb.value
        assert kc.value != BFLOAT16 or not beta._obj.value, "no program asks for that"
        left = matrix(a.value, ka.value, *((k.value, m.value) if ta.value else (m.value, k.value)), lda.value)
        right = matrix(b.value, kb.value, *((n.value, k.value) if tb.value else (k.value, n.value)), ldb.value)
        out = matrix(c.value, kc.value, m.value, n.value, ldc.value, raw=True)
        factors = (left.T if ta.value else left, right.T if tb.value else right)
        product = alpha._obj.value * multiplied(*factors, (ka.value, kc.value), compute.value)
        total = product + (beta._obj.value * out if beta._obj.value else 0)
        out[...] = rounded(total).view(np.uint32) >> 16 if kc.value == BFLOAT16 else total
        return 0


@dataclass
class Problem:
    """A product as cublasLt sees it: what the descriptors say."""

    description: dict[str, Any]
    left: dict[str, Any]
    right: dict[str, Any]
    result: dict[str, Any]

    @property
    def epilogue(self) -> int:
        return self.description.get("epilogue", 1)


@dataclass
class FakeCublasLt:
    """Descriptors, heuristic and products. `ran` are the epilogues of the products done, `live` counts descriptors.

    Each product has three algorithms, the first of which is the slowest. `fails` is the status with which an algorithm, by its
    rank, refuses when it is to run. `relu` is what is done to a number, `bit` what is noted of it.
    """

    refuse: Callable[[Problem], int] = lambda problem: 0
    fails: Callable[[Problem, int], int] = lambda problem, rank: 0
    relu: Callable[[np.ndarray], np.ndarray] = lambda value: np.maximum(value, 0)
    bit: Callable[[np.ndarray], np.ndarray] = lambda value: value > 0
    seconds: float = 0.0  # of the last product
    ran: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    heuristics: int = 0
    live: int = 0

    def __post_init__(self) -> None:
        self._things: dict[int, dict[str, Any]] = {}
        self._algorithms: dict[int, tuple[Any, ...]] = {}
        self._next = 1

    def _create(self, pointer: Any, **facts: Any) -> int:
        pointer._obj.value = self._next
        self._things[self._next] = facts
        self._next += 1
        self.live += 1
        return 0

    def _destroy(self, pointer: Any) -> int:
        del self._things[pointer.value]
        self.live -= 1
        return 0

    def cublasLtMatmulDescDestroy(self, pointer: Any) -> int:
        return self._destroy(pointer)

    def cublasLtMatrixLayoutDestroy(self, pointer: Any) -> int:
        return self._destroy(pointer)

    def cublasLtMatmulPreferenceDestroy(self, pointer: Any) -> int:
        return self._destroy(pointer)

    def cublasLtCreate(self, pointer: Any) -> int:
        pointer._obj.value = 0xC0
        return 0

    def cublasLtMatmulDescCreate(self, pointer: Any, compute: Any, scale: Any) -> int:
        return self._create(pointer, compute=compute.value, scale=scale.value)

    def cublasLtMatrixLayoutCreate(self, pointer: Any, kind: Any, rows: Any, columns: Any, leading: Any) -> int:
        assert isinstance(rows, ctypes.c_uint64)
        assert isinstance(columns, ctypes.c_uint64)
        assert isinstance(leading, ctypes.c_int64)
        return self._create(pointer, kind=kind.value, rows=rows.value, columns=columns.value, leading=leading.value)

    def cublasLtMatmulPreferenceCreate(self, pointer: Any) -> int:
        return self._create(pointer)

    def _set(self, names: dict[int, tuple[str, int]], pointer: Any, attribute: Any, value: Any, size: Any) -> int:
        name, wanted = names[attribute.value]
        assert size.value == wanted == ctypes.sizeof(value._obj)
        self._things[pointer.value][name] = value._obj.value
        return 0

    def cublasLtMatmulDescSetAttribute(self, *arguments: Any) -> int:
        names = {
            2: ("mode", 4),
            3: ("ta", 4),
            4: ("tb", 4),
            7: ("epilogue", 4),
            8: ("vector", 8),
            11: ("mask", 8),
            12: ("mask_leading", 8),
        }
        return self._set(names, *arguments)

    def cublasLtMatmulPreferenceSetAttribute(self, *arguments: Any) -> int:
        names = {1: ("workspace", 8), 3: ("reduction", 4), 5: ("a", 4), 6: ("b", 4), 7: ("c", 4), 8: ("d", 4)}
        return self._set(names, *arguments)

    def _problem(self, description: Any, left: Any, right: Any, c: Any, result: Any) -> Problem:
        assert c.value == result.value
        problem = Problem(*(self._things[each.value] for each in (description, left, right, result)))
        facts = problem.description
        assert facts["scale"] == problem.result["kind"]
        assert facts["compute"] in COMPUTE[problem.left["kind"], problem.result["kind"]]
        assert problem.left["kind"] == problem.right["kind"]
        needs_vector = problem.epilogue & (BIAS | BGRAD | BGRADA | BGRADB) and problem.epilogue != 1
        assert bool(needs_vector) == ("vector" in facts)
        assert bool(problem.epilogue & AUX) == ("mask" in facts)
        if "mask" in facts:
            assert facts["mask_leading"] % 128 == 0
            assert facts["mask_leading"] >= problem.result["rows"]
        return problem

    def cublasLtMatmulAlgoGetHeuristic(self, handle, description, left, right, c, d, preference, wanted, found, count) -> int:
        problem, limits = self._problem(description, left, right, c, d), self._things[preference.value]
        assert handle.value == 0xC0
        assert wanted.value == len(found) == 8
        self.heuristics += 1
        status = self.refuse(problem)
        if status:
            return status
        count._obj.value = ALGORITHMS
        for rank in range(ALGORITHMS):
            number = len(self._algorithms) + 1
            self._algorithms[number] = (problem.epilogue, dict(limits), rank)
            found[rank].algo.data[0], found[rank].workspace_size, found[rank].state = number, limits["workspace"], 0
        return 0

    def cublasLtMatmul(
        self, handle, description, alpha, a, left, b, right, beta, c, third, d, result, algorithm, workspace, nbytes, stream
    ) -> int:  # fmt: skip
        problem = self._problem(description, left, right, third, result)
        epilogue, limits, rank = self._algorithms[algorithm._obj.data[0]]
        assert epilogue == problem.epilogue
        assert nbytes.value >= limits["workspace"]
        assert workspace.value % 256 == 0
        assert c.value == d.value
        for name, address in (("a", a), ("b", b), ("c", c), ("d", d)):
            assert address.value % limits[name] == 0
        if status := self.fails(problem, rank):
            return status
        if problem.description.get("mode", 0) == 1:  # both factors lie on the device
            kind = problem.result["kind"]
            first, second = (float(matrix(each.value, kind, 1, 1, 1)[0, 0]) for each in (alpha, beta))
        else:
            first, second = alpha._obj.value, beta._obj.value
        self._multiply(problem, a.value, b.value, d.value, first, second)
        self.ran.append(problem.epilogue)
        self.ranks.append(rank)
        self.seconds = 3.0 - rank
        return 0

    def _multiply(self, problem: Problem, a: int, b: int, d: int, alpha: float, beta: float) -> None:
        facts, epilogue = problem.description, problem.epilogue

        def read(address: int, layout: dict[str, Any]) -> np.ndarray:
            return matrix(address, layout["kind"], layout["rows"], layout["columns"], layout["leading"])

        left, right, out = read(a, problem.left), read(b, problem.right), read(d, problem.result)
        left, right = (x.T if facts.get(turned) else x for x, turned in ((left, "ta"), (right, "tb")))
        assert (left.shape[0], right.shape[1]) == out.shape
        kinds = (problem.left["kind"], problem.result["kind"])
        value = alpha * multiplied(left, right, kinds, facts["compute"]) + (beta * out if beta else 0)
        rows, columns = out.shape
        vector: Any = None
        if "vector" in facts:
            length = columns if epilogue == BGRADB else rows
            vector = matrix(facts["vector"], kinds[1], length, 1, length)[:, 0]
        bits = None
        if "mask" in facts:
            leading = facts["mask_leading"] // 8
            bits = np.ndarray((columns, leading), np.uint8, memory(facts["mask"], columns * leading))
        if epilogue & BIAS:
            value = value + vector[:, None]
        if epilogue & RELU:
            if bits is not None:
                bits[...] = np.packbits(np.pad(self.bit(value.T), ((0, 0), (0, 8 * bits.shape[1] - rows))), axis=1)
            value = self.relu(value)
        if epilogue & DRELU:
            value = np.where(np.unpackbits(bits, axis=1)[:, :rows].T, value, 0)
        out[...] = value.astype(out.dtype)
        if epilogue & BGRAD:
            vector[...] = out.sum(1)
        if epilogue == BGRADA:
            vector[...] = left.sum(1)
        if epilogue == BGRADB:
            vector[...] = right.sum(0)
