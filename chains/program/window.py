"""Windows that slide over the last two axes of images, for convolutions and pools."""

from __future__ import annotations

from dataclasses import dataclass

from chains.support.lazy import lazy

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """The size of a window and how it moves, each a pair: for rows and for columns.

    Entry `k` of the window at output position `o` lies at input position ``o * stride + k * dilation - padding[0]``;
    positions outside the input are padding, `padding[0]` of them before the input and `padding[1]` after it.
    """

    size: Pair
    stride: Pair = (1, 1)
    padding: tuple[Pair, Pair] = ((0, 0), (0, 0))
    dilation: Pair = (1, 1)

    def outputs(self, inputs: Pair) -> Pair:
        """The number of window positions over an input of this height and width; not positive if the window is too large."""
        rows, columns = ((inputs[k] + sum(self.padding[k]) - self.span[k]) // self.stride[k] + 1 for k in range(2))
        return rows, columns

    @lazy
    def span(self) -> Pair:
        """The extent of the window, from its first entry to its last, both included."""
        rows, columns = ((self.size[k] - 1) * self.dilation[k] + 1 for k in range(2))
        return rows, columns

    @property
    def area(self) -> int:
        """Entries of the window."""
        return self.size[0] * self.size[1]

    @property
    def padded(self) -> bool:
        return self.padding != ((0, 0), (0, 0))

    def __str__(self) -> str:
        parts = [f"{self.size[0]}x{self.size[1]}"]
        parts += [f"stride {_pair(self.stride)}"] if self.stride != (1, 1) else []
        if self.padded:
            even = all(before == after for before, after in self.padding)
            parts.append(f"padding {_pair((self.padding[0][0], self.padding[1][0])) if even else self.padding}")
        parts += [f"dilation {_pair(self.dilation)}"] if self.dilation != (1, 1) else []
        return ", ".join(parts)


def _pair(pair: Pair) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}x{pair[1]}"
