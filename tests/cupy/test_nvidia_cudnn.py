"""cuDNN's headers and front end, where they are installed: they know the names, and take the calls."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest

from chains.backends.cupy.device import cudnn
from chains.backends.cupy.device.interface import Convolution
from chains.backends.cupy_settings import Cupy
from chains.program.operations import Window
from tests.cupy import fake_cudnn
from tests.cupy.headers import header, header_values

ALLOWED = {"FFT", "WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13", "STRICT_NAN_PROP"}


def names(prefix: str, *files: str) -> set[str]:
    """The enumerators of this prefix, without it."""
    return {name.removeprefix(prefix) for name in header_values(*files) if name.startswith(prefix)}


def test_every_note_on_a_plan_is_left_out_or_allowed():
    """A note that a newer cuDNN has must be looked at: it may be of fewer bits."""
    notes = names("CUDNN_NUMERICAL_NOTE_", "cudnn_graph.h") - {"TYPE_COUNT"}
    assert notes == {*cudnn.LEFT_OUT["float32"], *ALLOWED}
    assert set(fake_cudnn.NOTES) <= notes


def test_types_and_statuses_are_those_of_the_header():
    assert set(cudnn.TYPES.values()) <= names("CUDNN_DATA_", "cudnn_graph.h")
    sizes = {"FLOAT": 4, "DOUBLE": 8}
    assert {name: dtype.itemsize for dtype, name in cudnn.TYPES.items()}.items() <= sizes.items()
    said = set(re.findall(r"CUDNN_STATUS_(\w+)", inspect.getsource(fake_cudnn)))
    assert said
    assert said <= names("CUDNN_STATUS_", "cudnn_graph.h")


def test_the_oldest_version_is_written_as_the_header_writes_it():
    text = header("cudnn_version.h")
    major, minor, patch = (int(re.search(rf"CUDNN_{part}\s+(\d+)", text)[1]) for part in ("MAJOR", "MINOR", "PATCHLEVEL"))
    formula = re.search(r"CUDNN_VERSION\s+\((.*)\)", text)[1]
    assert formula == "CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL"
    assert 10_000 * major + 100 * minor + patch >= cudnn.OLDEST == 9 * 10_000


class Noted:
    """Something that notes by name how its methods are called, and does what `own` does."""

    def __init__(self, own: Any, seen: dict[str, list[tuple[tuple, dict]]]) -> None:
        self.own, self.seen = own, seen

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.own, name)
        if not inspect.ismethod(found):
            return found

        def call(*given, **settings):
            self.seen.setdefault(name, []).append((given, settings))
            result = found(*given, **settings)
            return Noted(result, self.seen) if name == "pygraph" else result

        return call


def calls() -> dict[str, list[tuple[tuple, dict]]]:
    """What the front end is asked for by the three operations, from graphs to execution."""
    seen: dict[str, list[tuple[tuple, dict]]] = {}
    shapes, strides = ((2, 2, 5, 4), (3, 2, 3, 3), (2, 3, 3, 2)), ((40, 20, 4, 1), (18, 9, 3, 1), (18, 6, 2, 1))
    arrays = [np.ndarray(shape, np.float32, bytearray(4096)) for shape in shapes]
    device = type("Device", (), {"current_stream": lambda self: fake_cudnn.STREAM})()
    library = cudnn.Cudnn(device, Noted(fake_cudnn.FrontEnd(), seen), Cupy())
    window = Window((3, 3))
    for result in range(3):
        convolution = Convolution(result, np.dtype(np.float32), shapes, strides, window)
        rooms = [np.zeros(array.nbytes + 16, np.uint8) for array in arrays]
        addresses = [-(-room.ctypes.data // 16) * 16 for room in rooms]
        workspace = np.zeros(library.workspace(convolution) + 1, np.uint8)
        library.work(convolution, tuple(addresses), workspace.ctypes.data)()
    return seen


def test_the_front_end_takes_the_calls():
    module = pytest.importorskip("cudnn", reason="nvidia-cudnn-frontend is not installed")
    seen = calls()
    assert {"pygraph", "conv_fprop", "conv_dgrad", "conv_wgrad", "execute_plan_at_index", "set_stream"} <= seen.keys()
    for name, given in seen.items():
        owner = module if name in ("pygraph", "create_handle", "set_stream") else module.pygraph
        assert callable(getattr(owner, name)), name
        try:
            signature = inspect.signature(getattr(owner, name))
        except ValueError:  # of a function in C++, whose text says the same
            text = str(getattr(owner, name).__doc__)
            assert all(word in text for _, settings in given for word in settings), name
            continue
        for positional, settings in given:
            signature.bind(*(() if owner is module else (None,)), *positional, **settings)
    members = {"data_type": cudnn.TYPES.values(), "heur_mode": ("A", "FALLBACK"), "numerical_note": fake_cudnn.NOTES}
    for enumeration, wanted in members.items():
        assert all(hasattr(getattr(module, enumeration), member) for member in wanted), enumeration
    assert issubclass(module.cudnnGraphNotSupportedError, Exception)
