"""The settings of the GPU backend, for `backend=`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from chains.support.checks import check_flags
from chains.support.messages import shown

Precision = Literal["float32", "tf32"]
Convolver = Literal["auto", "cudnn", "own"]


@dataclass(frozen=True, repr=False)
class Cupy:
    """The GPU backend with these settings; ``backend="cupy"`` has those by default.

    Parameters
    ----------
    precision : {"float32", "tf32"}
        The precision of products of float32 matrices: "tf32" rounds the factors to 10 bits. Sums and all other operations stay
        in float32.
    convolutions : {"auto", "cudnn", "own"}
        The kernels of convolutions: cuDNN's if `tune` is set and it can be used, cuDNN's or an error, or those of this package.
    tune : bool
        Whether to try cuDNN's plans and take the fastest. Another process may then choose another one, whose results differ
        in the last bits.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    precision: Precision = "float32"
    convolutions: Convolver = "auto"
    tune: bool = False

    def __post_init__(self) -> None:
        for name, values in (("precision", get_args(Precision)), ("convolutions", get_args(Convolver))):
            given = getattr(self, name)
            if not isinstance(given, str) or given not in values:
                raise ValueError(f"`{name}` (={shown(given)}) must be one of {', '.join(map(repr, values))}")
        check_flags(tune=self.tune)
        if self.tune and self.convolutions == "own":
            raise ValueError("`tune` (=True) tries out plans of cuDNN, but `convolutions` is 'own'")

    def __repr__(self) -> str:
        given = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Cupy({', '.join(given)})"
