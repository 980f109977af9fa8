"""The block of results that each kernel keeps in registers, for processors with 16 and with 32 vector registers.

A block is some rows of results times some vectors of columns: the MR x NR of BLIS and XNNPACK. NR is counted in vectors, so
that one table serves vectors of any width and numbers of any type. The other registers hold operands: the vectors of one row
of the right side, and a repeated number of the left side.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Panels:
    """Rows of a block for each width: one vector of columns, two, and so on. Narrow blocks have more rows."""

    rows: tuple[int, ...]

    def block(self, vectors: int) -> tuple[int, int]:
        """Rows and vectors of the blocks of a result with `vectors` vectors of columns."""
        width = min(vectors, len(self.rows))
        return self.rows[width - 1], width


@dataclass(frozen=True)
class Gemm:
    """Large products: the block in registers and, as in Goto's scheme, the blocks of both operands in the caches."""

    rows: int  # MR
    vectors: int  # NR
    inner: int = 1024  # KC: numbers along the summed axis, whole vectors
    outer_bytes: int = 384  # MC: bytes of a column of a block of the left side
    across: int = 512  # NC: columns of a block of the right side
    thin_rows: int = 12  # rows up to which packing would cost more than it saves
    dots: int = 4  # rows and columns of a block of dot products

    @property
    def heights(self) -> tuple[int, ...]:
        """Rows of the blocks, from the largest to the smallest; smaller blocks take the rest of the rows."""
        return self.rows, 4, 1

    def outer(self, itemsize: int) -> int:
        """Rows of a block of the left side."""
        return self.outer_bytes // itemsize


@dataclass(frozen=True)
class Limits:
    """Bounds of a convolution's block; the cheapest shape within them is chosen."""

    results: int  # vectors in all
    registers: int  # for results, the operands of one side, and one of the other side
    outs: int  # output channels
    across: int  # positions of a row; input channels for the gradient of kernels
    taps: int = 1  # columns of the kernel


@dataclass(frozen=True)
class Block:
    """Rows times vectors."""

    rows: int
    vectors: int


@dataclass(frozen=True)
class BlockShapes:
    """The blocks of every kernel."""

    matmul: Panels
    matmul_small_tiles: Panels  # for tiles with as many samples as a vector has lanes; the rows divide the lanes
    matmul_sums: Panels
    matmul_updates: Panels  # sums with an optimiser's step: of smaller blocks, stores overlap with the next block's products
    sums_by_rows: int  # bytes of a sum over the samples of a small tile from which on its blocks go row by row
    matmul_narrow: Block  # products of few columns: rows computed together, and vectors of sums in flight
    gemm: Gemm
    gemm_128: Gemm  # for vectors of 128 bits: ARM64's multiply-adds take no number from memory, so those need registers too
    convolve: Limits
    convolve_weight: Limits
    winograd: Block  # output channels times tiles
    winograd_weight: Block  # output channels times input channels, together a multiple of the lanes
    updates_ahead: int  # how many blocks before their update a sum over the samples prefetches weights; 0: never
    pools_in_convolutions: bool  # whether blocks are whole windows of a pool that follows; twelve sums are too few for that
    reduce: int = 8  # vectors of columns
    pool: int = 4  # windows of a row


SHAPES = {
    32: BlockShapes(
        matmul=Panels((12, 12, 8, 6)),
        matmul_small_tiles=Panels((16, 8, 8)),
        matmul_sums=Panels((12, 12, 8, 6)),
        matmul_updates=Panels((12, 8, 8, 6)),
        sums_by_rows=256 << 10,
        matmul_narrow=Block(rows=8, vectors=8),
        gemm=Gemm(rows=12, vectors=2),
        gemm_128=Gemm(rows=8, vectors=2),
        convolve=Limits(results=24, registers=32, outs=8, across=12),
        convolve_weight=Limits(results=24, registers=64, outs=8, across=8, taps=6),
        winograd=Block(rows=6, vectors=4),
        winograd_weight=Block(rows=4, vectors=4),
        updates_ahead=0,
        pools_in_convolutions=True,
    ),
    16: BlockShapes(
        matmul=Panels((12, 6)),
        matmul_small_tiles=Panels((4, 4)),
        matmul_sums=Panels((12, 5)),
        matmul_updates=Panels((12, 5)),
        sums_by_rows=32 << 10,
        matmul_narrow=Block(rows=8, vectors=4),
        gemm=Gemm(rows=6, vectors=2),
        gemm_128=Gemm(rows=6, vectors=2),
        convolve=Limits(results=12, registers=16, outs=8, across=12),
        convolve_weight=Limits(results=12, registers=16, outs=8, across=8, taps=5),
        winograd=Block(rows=6, vectors=2),
        winograd_weight=Block(rows=4, vectors=2),
        updates_ahead=2,
        pools_in_convolutions=False,
    ),
}


def block_shapes(registers: int) -> BlockShapes:
    """The blocks for a processor with this number of vector registers."""
    return SHAPES[32 if registers >= 32 else 16]
