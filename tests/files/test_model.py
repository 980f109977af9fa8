"""`save` and `load`: files of safetensors that hold a network."""

from __future__ import annotations

import gc
import json
import os
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import chains
from chains import BatchNorm, Chain, Conv, Dense, Equations, Flatten, relu, tanh
from chains.files.architecture import built
from chains.support import storage
from tests.files import earlier
from tests.own import Double


@pytest.fixture
def file(tmp_path):
    return tmp_path / "model.safetensors"


def classifier() -> Chain:
    return Chain(Conv(1, 2, 3, relu), BatchNorm(2), Flatten(), Dense(8, 3), input_shape=(1, 4, 4))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_saved_is_loaded(file, dtype):
    net = classifier()
    p, state = net.init(seed=3, dtype=dtype), net.init_state(dtype) + dtype(0.5)
    chains.save(file, net, p, state)
    found, q, other = chains.load(str(file))
    assert repr(found) == repr(net)
    assert q.dtype == other.dtype == dtype
    np.testing.assert_array_equal(q, p)
    np.testing.assert_array_equal(other, state)
    x = np.random.default_rng(0).normal(size=(5, 1, 4, 4))
    np.testing.assert_array_equal(found(x, q, state=other), net(x, p, state=state))
    assert os.listdir(file.parent) == ["model.safetensors"]


def test_networks_without_a_state_and_without_parameters(file):
    net = Chain(Flatten(), input_shape=(2, 3))
    chains.save(file, net, net.init())
    found, p, state = chains.load(file, backend="numpy")
    assert (found.n_params, p.shape, state, found.backend) == (0, (0,), None, "numpy")


def test_safetensors_reads_the_file(file):
    safetensors = pytest.importorskip("safetensors")
    numpy = pytest.importorskip("safetensors.numpy")
    net = classifier()
    p, state = net.init(), net.init_state()
    chains.save(file, net, p, state)
    arrays = numpy.load_file(file)
    expected = {**net.views(p), **net.state_views(state)}
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array)
    with safetensors.safe_open(file, "np") as opened:
        assert json.loads(opened.metadata()["network"])["layer"] == "Chain"
        assert opened.metadata()["version"] == chains.__version__


def test_a_file_that_safetensors_has_written_is_read(file):
    numpy = pytest.importorskip("safetensors.numpy")
    net = Chain(Dense(3, 4, tanh), Dense(4, 2))
    p = net.init(seed=5)
    numpy.save_file(net.views(p), file)
    with pytest.raises(ValueError, match="it holds arrays, but no network of chains: pass the network as `net`"):
        chains.load(file)
    found, q, state = chains.load(file, net=net)
    assert found is net
    assert state is None
    np.testing.assert_array_equal(q, p)


def test_custom_layers_come_back_where_the_network_is_passed(file):
    net = Chain(Dense(2, 2), Double())
    p = net.init(seed=1)
    chains.save(file, net, p)
    with pytest.raises(ValueError, match=r"model.safetensors'. cannot be loaded: .*the custom layer tests.own.Double"):
        chains.load(file)
    np.testing.assert_array_equal(chains.load(file, net=net)[1], p)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (Chain(Dense(3, 4), Dense(4, 3)), r"'1.weight' has shape \(4, 2\), but the network has \(4, 3\)"),
        (Chain(Dense(3, 4), Dense(4, 2), Dense(2, 2)), r"it has no '2.weight', which the network has in shape \(2, 2\)"),
        (Chain(Dense(3, 4)), r"it has '1.weight' of shape \(4, 2\), which the network lacks"),
        (Chain(Dense(3, 4), BatchNorm(4)), r"'1.weight' has shape \(4, 2\), but the network has \(4,\)"),
    ],
)
def test_another_network_is_refused_by_the_first_slice_that_differs(file, other, reason):
    net = Chain(Dense(3, 4), Dense(4, 2))
    chains.save(file, net, net.init())
    with pytest.raises(ValueError, match=reason):
        chains.load(file, net=other)


def test_parameters_are_loaded_only_with_the_bounds_they_were_saved_with(file):
    def decay(low: float | None) -> Chain:
        bounds = None if low is None else {"k": (low, None)}
        return Chain(Equations(lambda y, k: -k * y, ("y",), parameters={"k": 1.5}, bounds=bounds))

    chains.save(file, decay(0.0), decay(0.0).init())
    np.testing.assert_array_equal(chains.load(file, net=decay(0.0))[1], decay(0.0).init())
    for low, own in ((1.0, r"\[1.0, None\]"), (None, "None")):
        with pytest.raises(ValueError, match=rf"'0.k' has the bounds \[0.0, None\], but the network has {own}"):
            chains.load(file, net=decay(low))
    chains.save(file, decay(None), decay(None).init())
    with pytest.raises(ValueError, match=r"'0.k' has the bounds None, but the network has \[0.0, None\]"):
        chains.load(file, net=decay(0.0))


def test_a_changed_architecture_is_refused(file):
    net = Chain(Dense(3, 4), Dense(4, 2))
    chains.save(file, net, net.init())
    arrays, texts = storage.read(file, digest=False)
    texts["network"] = texts["network"].replace('"outputs": 2', '"outputs": 3')
    storage.write(file, arrays, texts)
    with pytest.raises(ValueError, match=r"'1.weight' has shape \(4, 2\), but the network has \(4, 3\)"):
        chains.load(file)
    storage.write(file, arrays, texts | {"format": "chains 2", "version": "9.0"})
    with pytest.raises(ValueError, match=r"it is of a later version, '9\.0'"):
        chains.load(file)


@pytest.mark.parametrize("change", [{"0.bias": "f8"}, {"0.weight": "f2", "0.bias": "f2"}, {"0.weight": "i4"}])
def test_other_types_are_refused(file, change):
    net = Chain(Dense(3, 4))
    arrays = {name: array.astype(change.get(name, "f4")) for name, array in net.views(net.init()).items()}
    storage.write(file, arrays, {})
    with pytest.raises(ValueError, match=r"'0.\w+' must be float32"):
        chains.load(file, net=net)


def test_a_file_with_any_byte_changed_is_refused_or_gives_the_same(file):
    net = Chain(Dense(2, 3, tanh), Dense(3, 1))
    p = net.init()
    chains.save(file, net, p)
    data, messages = bytearray(file.read_bytes()), []
    for place in range(len(data)):
        for mask in (1 << place % 8, 0x15):
            data[place] ^= mask
            file.write_bytes(data)
            data[place] ^= mask
            try:
                found, q, _ = chains.load(file)
            except ValueError as error:
                messages.append(str(error))
            else:  # a letter of the digest's name has changed
                assert (repr(found), q.tobytes()) == (repr(net), p.tobytes())
    assert len(messages) >= 2 * len(data) - 2 * len("sha256")
    assert all(message.startswith(f"`path` (={str(file)!r}) cannot be loaded: it") for message in messages)


def test_a_file_of_another_length_is_refused(file):
    net = Chain(Dense(2, 3))
    chains.save(file, net, net.init())
    data = file.read_bytes()
    for length in range(len(data)):
        file.write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"`path` .*model\.safetensors'\) cannot be loaded: it is cut short: its "):
            chains.load(file)
    file.write_bytes(data + b"\0\0\0")
    with pytest.raises(
        ValueError, match=r"model\.safetensors'\) cannot be loaded: its arrays end at byte \d+, the file has \d+"
    ):
        chains.load(file)


def test_what_is_no_file_of_a_network_is_named(file):
    file.write_text("import numpy as np")
    with pytest.raises(ValueError, match=r"model\.safetensors'\) cannot be loaded: it is no file of safetensors"):
        chains.load(file)
    with pytest.raises(ValueError, match="cannot be loaded: it is a folder"):
        chains.load(file.parent)


@pytest.fixture
def no_collections():
    """Finalisers of what earlier tests have left cannot run where the stack is full."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("text", ["[1]", "3", "null", "{", "[" * 100_000, '{"a":' * 100_000], ids=lambda text: text[:3])
@pytest.mark.parametrize("name", ["network", "bounds"])
def test_metadata_of_any_json_are_refused(file, name, text, no_collections):
    net = Chain(Dense(2, 3))
    chains.save(file, net, net.init())
    arrays, texts = storage.read(file, digest=False)
    storage.write(file, arrays, texts | {name: text})
    with pytest.raises(ValueError, match="cannot be loaded: it"):
        chains.load(file, net=net if name == "bounds" else None)


def test_the_time_to_load_a_network_grows_with_its_layers_alone():
    """No layer goes through those before it: 16 times the layers took 70 times the time."""

    def seconds(n):
        start = time.process_time()
        net = built({"layer": "Chain", "layers": [{"layer": "Flatten"}] * n, "input_shape": [3]})
        assert len(net.layers) == n
        return time.process_time() - start

    short = min(seconds(1000) for _ in range(3))
    assert seconds(16_000) < 40 * short


def test_a_file_of_an_earlier_version_is_loaded(file):
    file.write_bytes(earlier.MODEL)
    net, p, state = chains.load(file)
    assert repr(net) == repr(Chain(Dense(2, 2, tanh), BatchNorm(2)))
    assert (p.tolist(), state.tolist()) == (list(range(10)), [1, 2, 3, 4])
    file.write_bytes(earlier.MODEL + b"\0")
    with pytest.raises(
        ValueError, match=rf"its arrays end at byte {len(earlier.MODEL)}, the file has {len(earlier.MODEL) + 1}"
    ):
        chains.load(file)


def test_bad_arguments_are_refused_and_nothing_is_written(file):
    net, plain = classifier(), Chain(Dense(2, 3))
    p = net.init()
    with pytest.raises(ValueError, match=r"`state` is missing: this network has one .1.running_mean"):
        chains.save(file, net, p)
    with pytest.raises(ValueError, match="`p` must have shape"):
        chains.save(file, net, p[:-1], net.init_state())
    with pytest.raises(TypeError, match="`state` must be float32"):
        chains.save(file, net, p, net.init_state(np.float64))
    with pytest.raises(ValueError, match="`state` must be left out"):
        chains.save(file, plain, plain.init(), np.ones(2, np.float32))
    with pytest.raises(TypeError, match=r"`net` .* must be a network"):
        chains.save(file, p, net)
    with pytest.raises(TypeError, match=r"`path` must be a path such as 'model\.safetensors', got 3"):
        chains.save(3, plain, plain.init())
    for call in (lambda: chains.save("", plain, plain.init()), lambda: chains.load("")):
        with pytest.raises(ValueError, match=r"`path` must be a path such as 'model\.safetensors', got ''"):
            call()
    assert not file.exists()
    with pytest.raises(FileNotFoundError):
        chains.load(file)
    with pytest.raises(TypeError, match=r"`net` .* must be a network"):
        chains.load(file, net=3)


class TwoNames(Double):
    """A parameter and a state of one name."""

    def declare(self, d):
        d.param("mean", (1,), "zeros")
        d.state("mean", (1,), "zeros")
        d.output(d.input)

    def pullback(self, ops, x, y, dy, dx, p, g, s):
        super().pullback(ops, x, y, dy, dx, p, g, s)
        ops.fill(g.mean, 0.0)


def test_a_name_for_two_arrays_is_refused(file):
    net = Chain(TwoNames(), input_shape=(2,))
    with pytest.raises(ValueError, match=r"'0\.mean' both as a parameter and as a state"):
        chains.save(file, net, net.init(), net.init_state())


def test_a_file_is_replaced_only_by_a_whole_one(file, monkeypatch):
    net = Chain(Dense(2, 3))
    p = net.init()
    chains.save(file, net, p)

    def failing(*_):
        raise error

    monkeypatch.setattr(os, "fsync", failing)
    for error in (OSError(28, "No space left on device"), KeyboardInterrupt()):
        with pytest.raises(type(error), match=r"No space left on device: '.*model\.safetensors'|^$"):
            chains.save(file, net, p + 1)
        assert os.listdir(file.parent) == ["model.safetensors"]
        np.testing.assert_array_equal(chains.load(file)[1], p)


def test_writers_of_one_file_do_not_mix(file, monkeypatch):
    """Each of two writers has written its file before the first one moves it."""
    net, both = Chain(Dense(2, 3)), threading.Barrier(2)
    rows = [np.full(net.n_params, k, np.float32) for k in range(2)]
    move = storage._move
    monkeypatch.setattr(storage, "_move", lambda *paths: (both.wait(10), move(*paths)))
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(chains.save, file, net, p) for p in rows]:
            done.result()
    assert chains.load(file)[1].tolist() in [p.tolist() for p in rows]
    assert os.listdir(file.parent) == ["model.safetensors"]


@pytest.mark.skipif(os.name != "posix", reason="files have no such modes")
def test_a_file_has_the_mode_of_any_new_file(file):
    net = Chain(Dense(2, 3))
    before = os.umask(0o027)
    try:
        chains.save(file, net, net.init())
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_loading_takes_no_optional_package(file):
    net = Chain(Dense(2, 3))
    chains.save(file, net, net.init())
    code = f"import sys, chains; chains.load({str(file)!r}); print('safetensors' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
