"""Helpers of the examples on a GPU: the device of `--device`, and the name of the machine that computes."""

from __future__ import annotations

import argparse
import os
import platform
from dataclasses import dataclass

from chains import Chain, Dense


@dataclass(frozen=True)
class Place:
    """Where an example computes: the backend, and the memory in which the parameters are."""

    backend: str = "auto"
    memory: str = "cpu"

    @property
    def on_gpu(self) -> bool:
        """Whether to take the sizes of a GPU: on any device that is not the processor."""
        return self.backend.partition(":")[2] not in ("", "cpu") or self.memory == "cuda"

    @property
    def fused(self) -> bool:
        """Whether the kernels of this package are used, which have more settings."""
        return self.memory == "cuda"


def add_device(parser: argparse.ArgumentParser) -> None:
    """The option by which a user chooses."""
    parser.add_argument(
        "--device",
        default="auto",
        help="cuda, cpu, or a library and its device, such as torch:cuda or torch:mps (%(default)s: cuda if there is one)",
    )


def choose(parser: argparse.ArgumentParser, device: str, smaller: str) -> Place:
    """The place to compute. Where a GPU is missing, says so and what becomes `smaller`, or ends the program."""
    if device == "cpu":
        return Place()
    if device in ("auto", "cuda"):
        place = Place(memory="cuda")
    elif ":" in device:
        place = Place(device)
    else:
        parser.error(f"argument --device: {device!r} must be auto, cuda, cpu, or a library and its device, such as torch:cuda")
    try:
        Chain(Dense(1, 1), backend=place.backend).init(device=place.memory)
    except ValueError as error:
        if device != "auto":
            parser.exit(1, f"No GPU can be used: {error}\n")
        print(f"No GPU can be used: {error}\nThe processor is used, with {smaller}.\n")
        return Place()
    return place


def machine(place: Place) -> str:
    """The name of the machine that computes."""
    if place.fused:
        import cupy

        return cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    if place.on_gpu:
        return place.backend
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
