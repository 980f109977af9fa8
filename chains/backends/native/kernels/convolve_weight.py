"""The gradient of a convolution with respect to its kernels, on images whose lanes are samples.

The code goes through all positions of the image and keeps a block of sums in registers: some output channels times some input
channels times the entries of a row of the kernel. Each sum has a lane for each sample; the lanes are added at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chains.backends.native.kernels.block_shapes import Limits
from chains.backends.native.kernels.elementwise import Frame, horizontal
from chains.backends.native.kernels.taps import Images, Taps, output_taps
from chains.backends.native.llvm.blocking import blocks
from chains.backends.native.llvm.emit import I64, Function, Type, Value, integer, number, real_type
from chains.backends.native.llvm.shuffles import sums_of_lanes
from chains.program.operations import ConvolveWeight


def lower_convolve_weight(frame: Frame, operation: ConvolveWeight) -> None:
    """The gradient with respect to the kernels: sums over the positions and the samples of the tile."""
    (out,), (x, dy) = operation.outs, operation.ins
    window, groups = operation.window, operation.groups
    rows, columns = (output_taps(window, k, x.sample_shape[1 + k], dy.sample_shape[1 + k])[0] for k in range(2))
    kernel = _WeightSums(
        frame.lanes,
        frame.shapes.convolve_weight,
        real_type(out.dtype),
        dy.sample_shape[0] // groups,
        x.sample_shape[0] // groups,
        groups,
        Images.of(dy),
        Images.of(x),
        out.strides,  # type: ignore[arg-type]
        rows,
        columns,
    )
    frame.outlined("convolve_weight", [frame.base(view) for view in (out, x, dy)], kernel.write)


MAX_UNROLLED_MULTIPLY_ADDS = 20  # multiply-adds in one straight run of code
MIN_TOGETHER = 3  # sums whose lanes are added up together, in one vector


@dataclass(frozen=True)
class _WeightSums:
    """``out[o, c, tap] = sum over i, j and the samples: dy[o, i, j] * x[c, source(i), source(j)]``."""

    lanes: int
    limits: Limits
    scalar: Type
    outs: int  # channels of a group
    ins: int
    groups: int
    dy: Images
    x: Images
    weight: tuple[int, int, int, int]  # strides: out channel, in channel, row, column
    rows: Taps
    columns: Taps

    def write(self, f: Function, arguments: list[Value]) -> None:
        out, x, dy, count, first = arguments
        alive = f.first_lanes(self.lanes, count)
        begin = f.compare("ne", first, integer(0))
        height, width, taps = self._block()
        covered = [
            [m for m in range(self.rows.count) if k in self.rows.reached(m)] for k in range(self.rows.taps)
        ]  # the output rows that entry k of the kernel reaches
        low = f.module.table([rows[0] if rows else 0 for rows in covered])
        high = f.module.table([rows[-1] + 1 if rows else 0 for rows in covered])

        def group(g: Value) -> None:
            own = (
                f.address(out, f.mul(g, self.outs * self.weight[0]), self.scalar),
                f.address(x, f.mul(g, self.ins * self.x.channel), self.scalar),
                f.address(dy, f.mul(g, self.outs * self.dy.channel), self.scalar),
            )

            def block(o: Value, c: Value, h: int, w: int) -> None:
                def entry(k: Value, _: list[Value]) -> None:
                    limits = [f.load(I64, f.address(table, k, I64)) for table in (low, high)]
                    for start in range(0, self.columns.taps, taps):
                        some = range(start, min(start + taps, self.columns.taps))
                        sums = self._sums(f, own, o, c, k, h, w, some, limits)
                        self._add(f, own[0], o, c, k, h, w, some, sums, alive, begin)

                f.loop(integer(0), integer(self.rows.taps), 1, entry)

            blocks(f, self.outs, height, lambda o, h: blocks(f, self.ins, width, lambda c, w: block(o, c, h, w)))

        if self.groups == 1:
            group(integer(0))
        else:
            f.loop(integer(0), integer(self.groups), 1, lambda g, _: group(g))

    def _block(self) -> tuple[int, int, int]:
        """Output channels, input channels and columns of the kernel in a block."""
        most = self.limits
        taps = min(self.columns.taps, most.taps)
        heights, widths = range(1, min(most.outs, self.outs) + 1), range(1, min(most.across, self.ins) + 1)

        def cost(h: int, w: int) -> float:
            return (h + w * taps + max(h * w * taps, 4)) * -(-self.outs // h) * -(-self.ins // w)

        choices = [
            (h, w) for h in heights for w in widths if h * w * taps <= most.results and h * w * taps + h < most.registers
        ]
        height, width = min(choices, key=lambda choice: cost(*choice))
        return height, width, taps

    def _sums(
        self,
        f: Function,
        bases: tuple[Value, Value, Value],
        o: Value,
        c: Value,
        k: Value,
        height: int,
        width: int,
        taps: range,
        limits: list[Value],
    ) -> list[Value]:
        type = Type(self.scalar.name, self.lanes)
        columns, rows = self.columns, self.rows
        _, x, dy = bases
        dy = f.address(dy, f.mul(o, self.dy.channel), self.scalar)
        x = f.address(x, f.mul(c, self.x.channel), self.scalar)
        x = f.address(x, f.mul(f.add(f.mul(k, rows.across), rows.source), self.x.row), self.scalar)

        def row(m: Value, sums: list[Value]) -> list[Value]:
            dy_row = f.address(dy, f.mul(m, self.dy.row), self.scalar)
            x_row = f.address(x, f.mul(m, rows.along * self.x.row), self.scalar)

            def position(reached: Sequence[int], j: Value, sums: Sequence[Value]) -> list[Value]:
                """One position of the row, for the kernel's columns that reach it."""
                sums = list(sums)
                at = f.address(dy_row, f.mul(j, self.dy.column), self.scalar)
                slopes = [f.load(type, f.address(at, integer(h * self.dy.channel), self.scalar)) for h in range(height)]
                at = f.address(x_row, f.mul(j, columns.along * self.x.column), self.scalar)
                for w in range(width):
                    for t in reached:
                        offset = w * self.x.channel + (columns.source + columns.across * t) * self.x.column
                        value = f.load(type, f.address(at, integer(offset), self.scalar))
                        for h in range(height):
                            n = (h * width + w) * len(taps) + t - taps.start
                            sums[n] = f.fma(slopes[h], value, sums[n])
                return sums

            runs: list[tuple[int, int, list[int]]] = []  # positions reached by the same columns of the kernel
            for j in range(columns.count):
                reached = [t for t in taps if t in columns.reached(j)]
                if runs and runs[-1][2] == reached:
                    runs[-1] = (runs[-1][0], j + 1, reached)
                else:
                    runs.append((j, j + 1, reached))
            for start, stop, reached in runs:
                if not reached:
                    continue
                if stop - start == 1:
                    sums = position(reached, integer(start), sums)
                    continue
                most = max(1, MAX_UNROLLED_MULTIPLY_ADDS // len(sums))
                several = next(n for n in range(min(most, stop - start), 0, -1) if (stop - start) % n == 0)

                def positions(
                    j: Value, sums: Sequence[Value], reached: Sequence[int] = reached, several: int = several
                ) -> list[Value]:
                    for n in range(several):
                        sums = position(reached, f.add(j, n), sums)
                    return list(sums)

                sums = f.loop(integer(start), integer(stop), several, positions, sums)[1]
            return list(sums)

        return f.loop(limits[0], limits[1], 1, row, [number(type, 0.0)] * (height * width * len(taps)))[1]

    def _add(
        self,
        f: Function,
        out: Value,
        o: Value,
        c: Value,
        k: Value,
        height: int,
        width: int,
        taps: range,
        sums: list[Value],
        alive: Value,
        begin: Value,
    ) -> None:
        """Add up the lanes of each sum. The first tile stores these totals; later tiles add theirs."""
        offset = f.add(f.add(f.mul(o, self.weight[0]), f.mul(c, self.weight[1])), f.mul(k, self.weight[2]))
        out = f.address(out, offset, self.scalar)
        type = sums[0].type
        zero = number(type, 0.0)
        together = self.weight[3] == 1 and MIN_TOGETHER <= len(taps) <= self.lanes
        for h in range(height):
            for w in range(width):
                here = (h * width + w) * len(taps)
                own = [f.select(alive, each, zero) for each in sums[here : here + len(taps)]]
                place = h * self.weight[0] + w * self.weight[1] + taps.start * self.weight[3]
                if together:
                    totals = [sums_of_lanes(f, [*own, *[zero] * (self.lanes - len(own))])]
                    mask = f.lane_mask(self.lanes, len(own))
                else:
                    totals, mask = [horizontal(f, each) for each in own], None
                for t, total in enumerate(totals):
                    pointer = f.address(out, integer(place + t * self.weight[3]), self.scalar)
                    before = f.select(begin, number(total.type, 0.0), f.load(total.type, pointer, mask))
                    f.store(f.binary("fadd", before, total), pointer, mask)
