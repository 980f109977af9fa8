"""Helpers of the examples on a GPU: is there one, and which machine computes?"""

from __future__ import annotations

import argparse
import os
import platform

from chains import Chain, Dense


def add_device(parser: argparse.ArgumentParser) -> None:
    """The option by which a user chooses."""
    parser.add_argument(
        "--device", choices=("auto", "cuda", "cpu"), default="auto", help="(%(default)s: a GPU if there is one)"
    )


def choose(parser: argparse.ArgumentParser, device: str, smaller: str) -> bool:
    """Whether to compute on a GPU. Where one is missing, says so and what becomes `smaller`, or ends the program."""
    sentence = "" if device == "cpu" else _missing()
    if sentence and device == "cuda":
        parser.exit(1, f"No GPU can be used: {sentence}\n")
    if sentence:
        print(f"No GPU can be used: {sentence}\nThe processor is used, with {smaller}.\n")
    return device != "cpu" and not sentence


def machine(on_gpu: bool) -> str:
    """The name of the machine that computes."""
    if not on_gpu:
        return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    import cupy

    return cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()


def _missing() -> str:
    """The reason why no GPU can be used; empty if one can."""
    try:
        Chain(Dense(1, 1)).init(device="cuda")
    except ValueError as error:
        return str(error)
    return ""
