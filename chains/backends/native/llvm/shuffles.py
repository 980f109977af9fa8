"""Numbers moved between the lanes of vectors.

Vectors consist of pieces of 128 bits. Moves within a piece, and moves of whole pieces, are fast.
"""

from __future__ import annotations

from collections.abc import Sequence

from chains.backends.native.llvm.emit import Function, Type, Value


def shuffled(f: Function, a: Value, b: Value | None, lanes: Sequence[int]) -> Value:
    """The vector of these lanes of `a` and `b`; the lanes of `b` are numbered after the lanes of `a`."""
    other = f"{a.type} poison" if b is None else str(b)
    indices = ", ".join(f"i32 {lane}" for lane in lanes)
    return f.assign(Type(a.type.name, len(lanes)), f"shufflevector {a}, {other}, <{len(lanes)} x i32> <{indices}>")


def _piece(type: Type) -> int:
    """The number of lanes in a piece."""
    return min(type.lanes, 16 // type.size)


def _dealt(f: Function, a: Value, b: Value, unit: int) -> tuple[Value, Value]:
    """Two vectors, dealt from blocks of `unit` lanes of `a` and `b`.

    The first has the lower half of each piece, with blocks of `a` and `b` in turn; the second has the upper halves. If blocks
    are whole pieces, the first has the even blocks of `a`, then of `b`; the second has the odd blocks.
    """
    lanes, piece = a.type.lanes, _piece(a.type)
    blocks = lanes // unit
    if unit < piece:
        half = piece // unit // 2
        low = [2 * half * p + k + side * blocks for p in range(lanes // piece) for k in range(half) for side in (0, 1)]
        high = [block + half for block in low]
    else:
        low = list(range(0, 2 * blocks, 2))
        high = [block + 1 for block in low]
    first, second = ([unit * block + lane for block in side for lane in range(unit)] for side in (low, high))
    return shuffled(f, a, b, first), shuffled(f, a, b, second)


def transposed(f: Function, vectors: Sequence[Value], unit: int = 1) -> list[Value]:
    """The columns of a square, given by rows, of blocks of `unit` lanes."""
    if len(vectors) == 1:
        return list(vectors)
    pairs = [_dealt(f, a, b, unit) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    piece = _piece(vectors[0].type)
    together = piece // unit // 2 if unit < piece else 1  # neighbouring columns on the same side
    low, high = (transposed(f, side, 2 * unit if unit < piece else unit) for side in zip(*pairs, strict=True))
    columns = zip(*(iter(low),) * together, *(iter(high),) * together, strict=True)
    return [column for some in columns for column in some]


def sums_of_lanes(f: Function, vectors: Sequence[Value], unit: int = 1) -> Value:
    """The sum of the lanes of each vector, as one vector. The number of vectors is the number of lanes."""
    if len(vectors) == 1:
        return vectors[0]
    pairs = [_dealt(f, a, b, unit) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    wider = 2 * unit if unit < _piece(vectors[0].type) else unit
    return sums_of_lanes(f, [f.binary("fadd", low, high) for low, high in pairs], wider)


def interleaved(f: Function, vectors: Sequence[Value]) -> list[Value]:
    """The first lanes of all vectors, then the second lanes, and so on. The number of vectors must be a power of two."""
    if len(vectors) == 1:
        return list(vectors)
    lanes, half = vectors[0].type.lanes, len(vectors) // 2
    pairs = []
    for a, b in zip(vectors[:half], vectors[half:], strict=True):
        zipped = [k // 2 + lanes * (k % 2) for k in range(2 * lanes)]
        pairs.append((shuffled(f, a, b, zipped[:lanes]), shuffled(f, a, b, zipped[lanes:])))
    return [each for side in zip(*pairs, strict=True) for each in interleaved(f, side)]


def spread(f: Function, vector: Value, lane: int, unit: int) -> Value:
    """Each block of `unit` lanes filled with its lane `lane`."""
    return shuffled(f, vector, None, [k // unit * unit + lane for k in range(vector.type.lanes)])


def repeated(f: Function, row: Value, columns: int, lanes: int) -> Value:
    """A vector of `lanes` lanes that repeats the first `columns` lanes of `row`."""
    return shuffled(f, row, None, [k % columns for k in range(lanes)])
