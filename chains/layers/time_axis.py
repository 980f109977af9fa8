"""Which axis of a network's samples, or of its output, goes along time, so that a sample may have fewer steps than others."""

from __future__ import annotations

from chains.layers.base import Declaration


def keeps_time(d: Declaration) -> bool:
    """Whether the first axis of a layer's output goes along the same steps as that of its input."""
    others = any(part.output_times is not None for part in (d, *d.children))
    return not others and len(d.output_shape) > 1 and d.input[:1] == d.output_shape[:1]


def steps_of_output(d: Declaration) -> int:
    """The number of steps along the first axis of a network's output, of which a sample may have fewer; 0 for none."""
    if not d.goes_along_time:
        return d.output_times or 0
    return int(d.input[0]) if keeps_time(d) else 0


def most_steps(d: Declaration) -> int:
    """The largest length of a sample, where a network or a part of it takes lengths; 0 where none does."""
    return int(d.input[0]) if d.goes_along_time else next((each.output_times for each in d.all if each.output_times), 0)
