"""Steps of training that go through the rows of an embedding that ids name, against dense steps and against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chains import (
    GRU,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Chain,
    Conv,
    CrossEntropyLoss,
    Dense,
    Embedding,
    Flatten,
    L2Penalty,
    Parallel,
    Reshape,
    RMSProp,
    Series,
    train,
)
from chains.backends.numpy import NumpyBackend
from chains.network import record
from chains.network.network import network_of
from chains.network.record import Criterion
from chains.optimizers import Optimizer
from chains.program.operations import Fill, ScatterAdd
from chains.program.rows import UpdateRows
from tests.cupy.support import needs_compiler

COUNT, FEATURES, STEPS = 40, 9, 5
LOSS = CrossEntropyLoss()
IDS = {
    "some": np.random.default_rng(1).integers(0, COUNT // 2, (13, STEPS)),
    "within a sample": np.repeat(np.arange(13)[:, np.newaxis], STEPS, 1),
    "one": np.full((13, STEPS), 7),
    "padding": np.where(np.arange(STEPS) < 2, np.arange(13)[:, np.newaxis] + 1, 3),
    "ends": np.tile(np.array([0, COUNT - 1, 0, 1, COUNT - 1]), (13, 1)),
}
every_backend = pytest.mark.parametrize("backend", ["numpy", "native"])


def network(backend: Any = "numpy", padding: int | None = None) -> Chain:
    layers = Embedding(COUNT, FEATURES, padding), GRU(FEATURES, 4), Dense(4, 3)
    return Chain(*layers, input_shape=(STEPS,), backend=backend)


def trained(net: Chain, optimizer: Optimizer, ids: str = "some", dtype: Any = np.float32, **settings: Any) -> np.ndarray:
    p, x = net.init(seed=0, dtype=dtype), IDS[ids]
    settings = {"epochs": 2, "batch_size": 6, **settings}
    train(net, p, x, np.arange(len(x)) % 3, LOSS, optimizer, progress=False, **settings)
    return p


def step_of(optimizer: Optimizer, padding: int | None = None) -> list[Any]:
    """The operations of a step of training."""
    net = network("numpy", padding)
    return list(record.training_step(network_of(net), Criterion(LOSS, ()), optimizer, np.float32).operations)


@pytest.fixture
def dense(monkeypatch):
    """Have steps be recorded as dense ones, as they are within the context."""

    def result(*arguments: Any, **settings: Any) -> np.ndarray:
        with monkeypatch.context() as m:
            m.setattr(Optimizer, "_tables", lambda self, ops, g: [])
            return trained(*arguments, **settings)

    return result


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adagrad(0.1), Adam(0.01, sparse="lazy"), Adam(0.01)], ids=str)
@pytest.mark.parametrize("padding", [None, 3])
def test_no_dense_gradient_is_filled(optimizer, padding):
    operations = step_of(optimizer, padding)
    (update,) = [each for each in operations if isinstance(each, UpdateRows)]
    assert update.every == (optimizer == Adam(0.01))
    assert update.padding == padding
    assert not any(isinstance(each, ScatterAdd) for each in operations)
    assert not any(view.sample_size >= COUNT * FEATURES for each in operations if isinstance(each, Fill) for view in each.outs)


@pytest.mark.few(3)
@every_backend
@pytest.mark.parametrize("optimizer", [SGD(0.1), Adagrad(0.1), Adam(0.01), AdamW(0.01), RMSProp(0.01), SGD(0.1, 0.9)], ids=str)
def test_exact_steps_have_the_bits_of_dense_ones(backend, optimizer, dense):
    net = network(backend, padding=3)
    np.testing.assert_array_equal(trained(net, optimizer), dense(network(backend, padding=3), optimizer))


@pytest.mark.few(8)
@every_backend
@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("batch_size", [1, 13])
def test_ids_of_all_kinds(backend, ids, batch_size, dense):
    arguments: dict[str, Any] = {"ids": ids, "dtype": np.float64, "batch_size": batch_size}
    for padding in (None, 3):
        net, other = network(backend, padding), network("numpy", padding)
        np.testing.assert_allclose(trained(net, SGD(0.1), **arguments), dense(other, SGD(0.1), **arguments), rtol=1e-12)
        lazy = Adam(0.01, sparse="lazy")
        np.testing.assert_allclose(trained(net, lazy, **arguments), trained(other, lazy, **arguments), rtol=1e-9, atol=1e-12)


@needs_compiler
@pytest.mark.few(2)
@pytest.mark.parametrize(
    "optimizer", [SGD(0.1), Adam(0.01), *(Adam(0.01, sparse="lazy", clip_norm=clip) for clip in (None, 0.05))], ids=str
)
def test_on_an_emulated_gpu(optimizer):
    np.testing.assert_allclose(
        trained(network("emulated", 3), optimizer, dtype=np.float64, epochs=1),
        trained(network("numpy", 3), optimizer, dtype=np.float64, epochs=1), rtol=1e-9, atol=1e-12,
    )  # fmt: skip


@every_backend
@pytest.mark.parametrize(
    "optimizer", [AdamW(0.01, sparse="lazy"), SGD(0.1, 0.9, sparse="lazy"), RMSProp(sparse="lazy")], ids=str
)
def test_rows_that_no_id_names_stay(backend, optimizer):
    net = network(backend)
    before, after = (net.views(p)["0.weight"] for p in (net.init(seed=0), trained(net, optimizer)))
    moved = np.flatnonzero((before != after).any(axis=1))
    np.testing.assert_array_equal(moved, np.unique(IDS["some"]))


@every_backend
def test_what_is_clipped_is_the_whole_gradient(backend, dense):
    """Where all rows are named, lazy steps are dense ones."""
    net = Chain(Embedding(4, 3), GRU(3, 4), Dense(4, 3), input_shape=(STEPS,), backend=backend)
    x, p, q = np.arange(40).reshape(8, 5) % 4, net.init(seed=0, dtype=np.float64), net.init(seed=0, dtype=np.float64)
    for each, sparse in ((p, "lazy"), (q, "exact")):
        train(net, each, x, np.arange(8) % 3, LOSS, Adam(0.01, clip_norm=0.05, sparse=sparse), epochs=3, progress=False)
    np.testing.assert_allclose(p, q, rtol=1e-10)
    exact = SGD(0.1, clip_norm=0.05)
    np.testing.assert_array_equal(trained(network(backend), exact), dense(network(backend), exact))


@every_backend
def test_a_penalty_on_the_table_makes_it_dense(backend, dense):
    penalty = L2Penalty(0.01)
    got = trained(network(backend), SGD(0.1), penalty=penalty)
    np.testing.assert_array_equal(got, dense(network(backend), SGD(0.1), penalty=penalty))
    p = network().init(seed=0)
    before = p.copy()
    with pytest.raises(ValueError, match=r"a table of shape \(40, 9\) has other parts: leave the table out of penalties"):
        train(network(backend), p, IDS["some"], np.zeros(13, int), LOSS, Adam(0.01, sparse="lazy"), penalty=penalty)
    np.testing.assert_array_equal(p, before)
    trained(network(backend), Adam(0.01, sparse="lazy"), penalty=L2Penalty(0.01, ("1.*", "2.*")))


@every_backend
def test_a_frozen_table_stays(backend):
    net = network(backend).with_frozen("0.*")
    before, after = (net.views(p)["0.weight"] for p in (net.init(seed=0), trained(net, Adam(0.01, sparse="lazy"))))
    np.testing.assert_array_equal(before, after)


@every_backend
def test_a_run_goes_on_to_the_bit(backend, tmp_path):
    net, optimizer = network(backend, 3), Adam(0.01, sparse="lazy")
    whole = trained(net, optimizer, epochs=3)
    trained(net, optimizer, epochs=1, checkpoint=tmp_path)
    np.testing.assert_array_equal(trained(net, optimizer, epochs=3, resume=tmp_path), whole)


def test_threads_and_tiles():
    """Each row is added up by one thread, in the order of the batch: any number of threads gives the same bits."""
    pytest.importorskip("llvmlite")
    import chains

    rng = np.random.default_rng(0)
    net = Chain(Embedding(500, 33), GRU(33, 32), Dense(32, 3), input_shape=(20,), backend="native")
    x, t = rng.integers(0, 300, (130, 20)), rng.integers(0, 3, 130)
    found = []
    for threads in (1, 2, 3):
        with chains.num_threads(threads):
            p = net.init(seed=0, dtype=np.float64)
            train(net, p, x, t, LOSS, Adam(0.01, sparse="lazy"), epochs=3, batch_size=65, progress=False)
            found.append(p)
    for other in found[1:]:  # sums of the other layers are added in another order
        np.testing.assert_allclose(other, found[0], rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("parts", [1, 2])
def test_plans_of_row_updates_hold(parts):
    """After every pass, also where images are in the same program, which lie in lanes."""
    pytest.importorskip("llvmlite")
    from chains.backends.native.llvm.target import Processor
    from chains.backends.native.plan.passes import plan_of
    from tests.native.verify import verify

    images = [Embedding(COUNT, 16), Reshape(1, STEPS, 16), Conv(1, 2, 3), Flatten(), Dense(84, 3)]
    for net in (network(padding=3), Chain(*images, input_shape=(STEPS,))):
        for optimizer in (SGD(0.1), Adam(0.01), Adam(0.01, sparse="lazy", clip_norm=1.0)):
            program = record.training_step(network_of(net), Criterion(LOSS, ()), optimizer, np.float32)
            plan_of(program, Processor("avx2", 32, 16, "", ""), parts, lambda name, plan: verify(plan))


@every_backend
def test_beside_images(backend):
    """Samples lie in lanes there."""
    x, found = IDS["some"], []
    for each in (backend, "numpy"):
        layers = Embedding(COUNT, 16), Reshape(1, STEPS, 16), Conv(1, 2, 3), Flatten(), Dense(84, 3)
        net = Chain(*layers, input_shape=(STEPS,), backend=each)
        p = net.init(seed=0, dtype=np.float64)
        train(net, p, x, np.arange(13) % 3, LOSS, Adam(0.01, sparse="lazy"), epochs=2, batch_size=6, progress=False)
        found.append(p)
    np.testing.assert_allclose(*found, rtol=1e-8, atol=1e-11)


def test_a_word_for_each_form():
    with pytest.raises(ValueError, match=r"`sparse` \(='dense'\) must be 'exact' or 'lazy'"):
        Adam(0.01, sparse="dense")


def test_effects_of_an_update():
    """Without `every`, what the tables held is read; any batch is one whole."""
    lazy, exact = (next(each for each in step_of(o) if isinstance(each, UpdateRows)) for o in (SGD(0.1), Adam(0.01)))
    assert set(lazy.tables) <= set(lazy.reads)
    assert lazy.over_batch == exact.over_batch == "whole"
    assert lazy.gradient in lazy.writes  # it is added up where it is
    assert lazy.marks.shape == (COUNT,)
    assert "for all rows" in str(exact)
    assert type(lazy) in NumpyBackend.lowered


@pytest.mark.parametrize("kind", ["SGD", "SparseAdam"])
def test_steps_are_those_of_pytorch(kind):
    torch = pytest.importorskip("torch")
    net = Chain(Embedding(COUNT, FEATURES, padding=3), GRU(FEATURES, 4), Dense(4, 3), input_shape=(STEPS,))
    p = net.init(seed=0, dtype=np.float64)
    arrays, x = net.views(p), IDS["some"]
    table = torch.nn.Embedding(COUNT, FEATURES, padding_idx=3, sparse=True, dtype=torch.float64)
    gru, linear = torch.nn.GRU(FEATURES, 4, batch_first=True, dtype=torch.float64), torch.nn.Linear(4, 3, dtype=torch.float64)
    places = {
        "0.weight": table.weight, "1.weight": gru.weight_ih_l0.T, "1.recurrent_weight": gru.weight_hh_l0.T,
        "1.bias": gru.bias_ih_l0, "1.recurrent_bias": gru.bias_hh_l0, "2.weight": linear.weight.T, "2.bias": linear.bias,
    }  # fmt: skip
    with torch.no_grad():
        for name, place in places.items():
            place.copy_(torch.from_numpy(arrays[name].copy()))
    rest = [*gru.parameters(), *linear.parameters()]
    if kind == "SGD":
        mine, theirs = SGD(0.1), [torch.optim.SGD([table.weight, *rest], 0.1)]
    else:
        mine = Adam(0.01, eps=1e-30, sparse="lazy")  # SparseAdam has eps at another place than Adam
        theirs = [torch.optim.SparseAdam([table.weight], 0.01, eps=1e-30), torch.optim.Adam(rest, 0.01, eps=1e-30)]
    t = np.arange(13) % 3
    train(net, p, x, t, LOSS, mine, epochs=3, batch_size=6, shuffle=False, progress=False)
    for _ in range(3):
        for start in range(0, 13, 6):
            for optimizer in theirs:
                optimizer.zero_grad()
            logits = linear(gru(table(torch.from_numpy(x[start : start + 6])))[0][:, -1])
            torch.nn.functional.cross_entropy(logits, torch.from_numpy(t[start : start + 6])).backward()
            for optimizer in theirs:
                optimizer.step()
    for name, place in places.items():
        np.testing.assert_allclose(arrays[name], place.detach().numpy(), rtol=1e-8, atol=1e-10, err_msg=name)


@every_backend
def test_batches_from_elsewhere_lengths_and_weights(backend):
    """Ids of 32 bits, a batch at a time, as arrays of 64 bits; samples have lengths and weights."""
    net, x, t, lazy = network(backend), IDS["some"], np.arange(13) % 3, Adam(0.01, sparse="lazy")
    p, q = (net.init(seed=1, dtype=np.float64) for _ in range(2))
    train(net, p, x, t, LOSS, lazy, epochs=2, batch_size=6, shuffle=False, progress=False)
    batches = [(x[k : k + 6].astype(np.int32), t[k : k + 6]) for k in range(0, 13, 6)]
    train(net, q, batches, None, LOSS, lazy, epochs=2, progress=False)
    np.testing.assert_array_equal(p, q)
    found = []
    for each in (backend, "numpy"):
        found.append(net.init(seed=1, dtype=np.float64))
        lengths, weights = np.arange(13) % STEPS + 1, np.linspace(0.5, 1.5, 13)
        train(network(each), found[-1], x, t, LOSS, lazy, lengths=lengths, weights=weights, batch_size=6, progress=False)
    np.testing.assert_allclose(*found, rtol=1e-9, atol=1e-12)


@every_backend
def test_two_tables_of_the_same_ids(backend, dense):
    def net() -> Chain:
        tables = Series(Embedding(COUNT, 3), Flatten()), Series(Embedding(COUNT, 4, padding=2), Flatten())
        return Chain(Parallel(*tables), Dense(35, 3), input_shape=(STEPS,), backend=backend)

    np.testing.assert_array_equal(trained(net(), Adagrad(0.1)), dense(net(), Adagrad(0.1)))
