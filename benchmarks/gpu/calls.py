"""The calls that users make, on a GPU's arrays and on NumPy's: the same results.

The cases of `correctness.py` check programs. These check the Python between a user and a program, which meets CuPy's arrays.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import chains
from benchmarks.gpu.backends import backend_name, device_of, on_host, relative
from benchmarks.gpu.problems import Result, Setting
from chains import Adam, Chain, Dense, MSELoss, SquaredLoss, tanh, train

TOLERANCE = {np.dtype(np.float32): 2e-4, np.dtype(np.float64): 1e-9}


class Place:
    """A memory, and a network whose calls compute there."""

    def __init__(self, name: str, array: Callable[[Any], Any], dtype: Any) -> None:
        self.name, self.array, self.dtype = name, array, dtype
        rng = np.random.default_rng(0)
        self.host_x = rng.standard_normal((24, 3)).astype(dtype)
        self.host_t = np.tanh(self.host_x @ rng.standard_normal((3, 2))).astype(dtype)
        self.x, self.t = array(self.host_x), array(self.host_t)

    def net(self, *layers: Any, **settings: Any) -> Chain:
        return Chain(*(layers or (Dense(3, 8, tanh), Dense(8, 2))), backend=self.name, **settings)

    def p(self, net: Chain) -> Any:
        return self.array(net.init(seed=1, dtype=self.dtype))

    def start(self) -> tuple[Chain, Any]:
        net = self.net()
        return net, self.p(net)

    def like(self, p: Any, seed: int = 5) -> Any:
        return self.array(np.random.default_rng(seed).standard_normal(p.shape).astype(self.dtype))


def _forward(at: Place) -> Iterator[Any]:
    net, p = at.start()
    yield net(at.x, p)
    yield net(at.host_x, p)
    yield net(at.x, p, out=at.array(np.zeros((24, 2), at.dtype)))
    yield net(at.host_x, p, out=np.zeros((24, 2), at.dtype))
    for _ in range(3):
        yield net(at.x[3:10], p)
    yield net(at.x[::2], p)
    yield net(at.x[:1], p)


def _gradients(at: Place) -> Iterator[Any]:
    net, p = at.start()
    weights = at.array(np.linspace(0.1, 2.0, 24).astype(at.dtype))
    for _ in range(3):
        yield from net.value_and_grad(p, at.x, at.t, SquaredLoss())
    yield from net.value_and_grad(p, at.x, at.t, MSELoss(), weights=weights, penalty=chains.L2Penalty(0.1))
    yield from net.value_and_grad(p, at.host_x, at.host_t, MSELoss())
    yield from net.value_and_grad(p, at.x, at.t, MSELoss(), out=at.array(np.zeros(net.n_params, at.dtype)))
    yield from net.vjp(p, at.x, at.t)
    yield net.loss(p, at.x, at.t, MSELoss())


def _derivatives(at: Place) -> Iterator[Any]:
    net, p = at.start()
    yield from net.derivatives(p, at.x, order=2)
    yield from net.derivatives(p, at.x, order=2, full=True)
    yield net.jacobian(p, at.x)
    yield net.input_jacobian(p, at.x)
    yield net.laplacian(p, at.x)
    yield net.hvp(p, at.x, at.t, SquaredLoss(), at.like(p))
    yield net.gauss_newton(p, at.x, at.t, SquaredLoss(), at.like(p))
    yield net.sample_gradients(p, at.x, at.t, SquaredLoss())


def _members(at: Place) -> Iterator[Any]:
    net = at.net()
    many = at.array(net.init_many(5, seed=0, dtype=at.dtype))
    yield net(at.x, many)
    yield from net.value_and_grad(many, at.x, at.t, MSELoss())
    train(net, many, at.x, at.t, MSELoss(), Adam(1e-2), epochs=3, batch_size=8, progress=False)
    yield many
    own = at.array(np.random.default_rng(2).standard_normal((5, 24, 3)).astype(at.dtype))
    train(net, many, own, at.array(np.stack([at.host_t] * 5)), MSELoss(), Adam(1e-2), epochs=2, progress=False)
    yield many


def _minimized(method: str, at: Place) -> Iterator[Any]:
    net, p = at.start()
    found = chains.minimize(net.objective(at.x, at.t, MSELoss()), p, method, maxiter=12, progress=False)
    yield found.x
    yield found.fun
    many = at.array(net.init_many(3, seed=0, dtype=at.dtype))
    yield chains.minimize(net.objective(at.x, at.t, MSELoss()), many, method, maxiter=5, progress=False).x


def _scipy(at: Place) -> Iterator[Any]:
    from scipy.optimize import minimize

    net = at.net(Dense(3, 4, tanh), Dense(4, 2))
    objective = net.objective(at.host_x, at.host_t, MSELoss())
    found = minimize(objective, net.init(seed=1, dtype=at.dtype), jac=True, method="L-BFGS-B", options={"maxiter": 8})
    yield found.fun
    yield chains.minimize(objective, net.init(seed=1, dtype=at.dtype), "LM", maxiter=4, progress=False).fun


def _trained(optimizer: Any, at: Place) -> Iterator[Any]:
    net, p = at.start()
    yield _history(train(net, p, at.x, at.t, MSELoss(), optimizer, epochs=4, batch_size=7, seed=3, progress=False))
    yield p


def _history(history: Any) -> Any:
    return np.asarray(history.loss, np.float64)


def _training(at: Place) -> Iterator[Any]:
    net = at.net(Dense(3, 16, tanh), chains.BatchNorm(16), chains.Dropout(0.3), Dense(16, 2))
    p, state = at.p(net), at.array(net.init_state(at.dtype))
    weights = at.array(np.linspace(0.5, 1.5, 24).astype(at.dtype))
    history = train(
        net, p, at.x, at.t, MSELoss(), Adam(1e-2), epochs=4, batch_size=8, seed=1, state=state, weights=weights,
        penalty=chains.L2Penalty(1e-3), validation=(at.x[:9], at.t[:9]), callbacks=[chains.EarlyStopping(50)],
        progress=False,
    )  # fmt: skip
    yield p
    yield state
    yield _history(history)
    yield np.asarray(history.validation_loss, np.float64)
    yield net(at.x, p, state=state)


def _streamed(at: Place) -> Iterator[Any]:
    net, p = at.start()
    batches = [(at.host_x[k : k + 6], at.host_t[k : k + 6]) for k in range(0, 24, 6)]
    train(net, p, batches, None, MSELoss(), Adam(1e-2), epochs=3, progress=False)
    yield p
    train(net, p, at.host_x, at.host_t, MSELoss(), Adam(1e-2), epochs=3, batch_size=8, progress=False)
    yield p


def _resumed(at: Place) -> Iterator[Any]:
    net, p = at.start()
    q = at.array(on_host_of(p))
    with tempfile.TemporaryDirectory() as folder:
        train(net, p, at.x, at.t, MSELoss(), Adam(1e-2), epochs=2, batch_size=8, checkpoint=folder, progress=False)
        train(net, p, at.x, at.t, MSELoss(), Adam(1e-2), epochs=4, batch_size=8, resume=folder, progress=False)
    train(net, q, at.x, at.t, MSELoss(), Adam(1e-2), epochs=4, batch_size=8, progress=False)
    assert on_host_of(p).tobytes() == on_host_of(q).tobytes(), "resumed with other bits"
    yield p


def _saved(at: Place) -> Iterator[Any]:
    net, p = at.start()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.safetensors"
        chains.save(path, net, p)
        again, q, _ = chains.load(path)
        yield again(at.host_x, q)
    yield from net.views(p).values()


def _queued(at: Place) -> Iterator[Any]:
    net, p = at.start()
    with chains.Queue() as queue:
        results = [queue.value_and_grad(net, p, at.x, at.t, MSELoss()) for _ in range(4)]
        for each in results:
            yield from each.wait()


def _sequences(at: Place) -> Iterator[Any]:
    ids = np.random.default_rng(3).integers(0, 20, (12, 7))
    net = at.net(chains.Embedding(20, 5), chains.GRU(5, 6), Dense(6, 3), input_shape=(7,))
    p, labels = at.p(net), np.random.default_rng(4).integers(0, 3, 12)
    lengths = np.array([7, 3, 5, 1, 7, 2, 6, 4, 7, 7, 5, 3])
    yield net(at.array(ids), p)
    yield net(at.array(ids), p, lengths=at.array(lengths))
    train(
        net, p, at.array(ids), at.array(labels), chains.CrossEntropyLoss(), Adam(1e-2), epochs=3, batch_size=4, progress=False
    )
    yield p


def _equation(at: Place) -> Iterator[Any]:
    net = at.net(chains.ODE(Chain(Dense(3, 8, tanh), Dense(8, 3)), np.linspace(0.0, 1.0, 5), rtol=1e-6), input_shape=(3,))
    p = at.p(net)
    yield net(at.x, p)
    y = net(at.x, p)
    yield from net.value_and_grad(p, at.x, 0 * y + 0.1, MSELoss())


def _sampled(at: Place) -> Iterator[Any]:
    net, p = at.start()
    train(net, p, at.x, at.t, MSELoss(), chains.SGLD(1e-4), epochs=3, batch_size=8, seed=2, progress=False)
    yield p


def _residuals(at: Place) -> Iterator[Any]:
    points = np.random.default_rng(0).uniform([0.0, -1.0], [1.0, 1.0], (40, 2)).astype(at.dtype)
    term = chains.Term(lambda u: u.t + u * u.x - 0.1 * u.xx, points)
    problem = chains.ResidualProblem(("t", "x"), ("u",), [term])
    net = at.net(Dense(2, 8, tanh), Dense(8, 1))
    p = at.p(net)
    x, t = at.array(problem.x.astype(at.dtype)), at.array(problem.t.astype(at.dtype))
    for _ in range(3):
        yield from net.value_and_grad(p, x, t, problem.loss)
    train(net, p, x, t, problem.loss, Adam(1e-2), epochs=3, progress=False)
    yield p


CALLS: dict[str, Callable[[Place], Iterator[Any]]] = {
    "forward": _forward,
    "gradients": _gradients,
    "derivatives": _derivatives,
    "members": _members,
    **{f"minimize, {name}": (lambda at, name=name: _minimized(name, at)) for name in ("BFGS", "SSBroyden", "L-BFGS")},
    "SciPy": _scipy,
    **{
        f"train, {type(each).__name__}": (lambda at, each=each: _trained(each, at))
        for each in (
            chains.SGD(0.1, momentum=0.9), Adam(1e-2), chains.AdamW(1e-2), chains.RMSProp(1e-2), chains.Adagrad(1e-2)
        )
    },
    "train, state and validation": _training,
    "train, data of the host": _streamed,
    "resume": _resumed,
    "save and load": _saved,
    "queue": _queued,
    "sequences": _sequences,
    "equations": _equation,
    "sampling": _sampled,
    "residuals": _residuals,
}  # fmt: skip


def on_host_of(array: Any) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.get()


def check_call(name: str, setting: Setting) -> Result:
    """The largest error of the results on a GPU, relative to those of NumPy, as a share of what is allowed."""
    device, worst = device_of("float32", setting), 0.0
    wrong = []
    for dtype in TOLERANCE:
        here = Place("numpy", np.array, dtype.type)
        there = Place(backend_name("float32", setting), device.array, dtype.type)  # type: ignore[arg-type]
        for k, (wanted, found) in enumerate(zip(CALLS[name](here), CALLS[name](there), strict=True)):
            on = np.asarray(found) if np.isscalar(found) or isinstance(found, np.ndarray) else on_host(device, found)
            error = relative(on, wanted) / TOLERANCE[dtype]
            worst = max(worst, error)
            if error > 1.0:
                wrong.append(f"{dtype}, result {k}: {error:.3g} times the error that is allowed")
    return {"value": worst, "holds": not wrong} | ({"note": "; ".join(wrong)} if wrong else {})
