"""Layers from papers, by `forward` alone: outputs and gradients are those of PyTorch's formulas and autograd."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import expr
from chains.layers import Cell, Layer
from tests.harness import assert_close

torch = pytest.importorskip("torch")


class SelectiveScan(Layer):
    """The recurrence of Mamba (Gu and Dao 2023): steps, inputs and outputs of a linear state depend on the sample."""

    def __init__(self, features, states):
        self.features, self.states = features, states

    def declare(self, d):
        time, features, n = d.input[0], self.features, self.states
        for name, shape in {"a": (features, n), "b": (features, n), "c": (features, n), "dt": (features, features)}.items():
            d.param(name, shape, "normal")
        d.param("bias", (features,), "normal")
        d.param("skip", (features,), "normal")
        for name, shape in {"dt": (time, features), "b": (time, n), "c": (time, n), "z": (time, features)}.items():
            d.temporary(name, shape)
        d.temporary("h", (features, n))
        d.temporary("read", (features, n))
        d.output(d.input)

    def forward(self, ops, x, y, p, s):
        ops.matmul(s.dt.rows, x.rows, p.dt)
        ops.map(s.dt, lambda z, b: expr.log(1.0 + expr.exp(z + b)), s.dt, p.bias)
        ops.matmul(s.b.rows, x.rows, p.b)
        ops.matmul(s.c.rows, x.rows, p.c)
        ops.fill(s.h, 0.0)
        with ops.loop(x.shape[1]) as at:
            dt, u = at.now(s.dt, 1).expand(-1), at.now(x, 1).expand(-1)
            b, c = at.now(s.b, 1).expand(1), at.now(s.c, 1).expand(1)
            ops.map(s.h, lambda h, dt, a, u, b: expr.exp(-dt * expr.exp(a)) * h + dt * u * b, s.h, dt, p.a, u, b)
            ops.map(s.read, lambda h, c: h * c, s.h, c)
            ops.sum(at.now(s.z, 1).expand(-1), s.read)
        ops.map(y, lambda z, x, d: z + d * x, s.z, x, p.skip)


def selective_scan(x, p):
    dt = torch.log(1.0 + torch.exp(x @ p["dt"] + p["bias"]))
    b, c, h, found = x @ p["b"], x @ p["c"], torch.zeros(len(x), *p["a"].shape, dtype=x.dtype), []
    for k in range(x.shape[1]):
        step = dt[:, k, :, None]
        h = torch.exp(-step * torch.exp(p["a"])) * h + step * x[:, k, :, None] * b[:, k, None]
        found.append((h * c[:, k, None]).sum(-1))
    return torch.stack(found, 1) + p["skip"] * x


class RotaryAttention(Layer):
    """Attention with turned queries and keys (Su et al. 2021), and several queries for each key (Ainslie et al. 2023)."""

    def __init__(self, heads, groups, size):
        self.heads, self.groups, self.size = heads, groups, size

    def declare(self, d):
        (time, features), heads, groups, size = d.input, self.heads, self.groups, self.size
        d.param("q", (features, heads * size), "normal")
        d.param("k", (features, groups * size), "normal")
        d.param("v", (features, groups * size), "normal")
        d.param("out", (heads * size, features), "normal")
        for name, n in {"q": heads, "k": groups, "v": groups}.items():
            d.temporary(name, (time, n * size))
        for name, n in {"turned_q": heads, "turned_k": groups}.items():
            d.temporary(name, (n, time, size))
        for name in ("keys", "values"):
            d.temporary(name, (groups, heads // groups, time, size))
        d.temporary("shares", (heads, time, time))
        d.temporary("row", (heads, time, 1))
        d.temporary("mixed", (time, heads * size))
        d.output(d.input)

    def turn(self, ops, out, a, parts):
        """Rotate pairs of entries, the first half with the second one, by an angle that grows with the time."""
        half, time = self.size // 2, a.shape[1]
        angles = np.arange(time)[:, None] * 100.0 ** (-np.arange(half) / half)
        cos, sin = (ops.constant(name, f(angles)) for name, f in (("cos", np.cos), ("sin", np.sin)))
        a = a.split(-1, parts).swap(-3, -2)  # (batch, parts, time, size)
        halves = [[view.slice(-1, 0, half), view.slice(-1, half, 2 * half)] for view in (out, a)]
        ops.map(tuple(halves[0]), lambda a, b, c, s: (a * c - b * s, b * c + a * s), *halves[1], cos, sin)

    def forward(self, ops, x, y, p, s):
        time, heads, groups, size = x.shape[1], self.heads, self.groups, self.size
        for view, weight in ((s.q, p.q), (s.k, p.k), (s.v, p.v)):
            ops.matmul(view.rows, x.rows, weight)
        self.turn(ops, s.turned_q, s.q, heads)
        self.turn(ops, s.turned_k, s.k, groups)
        ops.copy(s.keys, s.turned_k.expand(2))
        ops.copy(s.values, s.v.split(-1, groups).swap(-3, -2).expand(2))
        keys, values = (view.reshape(heads, time, size) for view in (s.keys, s.values))
        ops.matmul(s.shares, s.turned_q, keys.swap(-1, -2))
        seen = ops.constant("seen", np.tri(time))
        ops.map(s.shares, lambda a, seen: expr.where(seen > 0.5, a / size**0.5, -1e30), s.shares, seen)
        ops.max(s.row, s.shares)
        ops.map(s.shares, lambda a, m: expr.exp(a - m), s.shares, s.row)
        ops.sum(s.row, s.shares)
        ops.map(s.shares, lambda e, t: e / t, s.shares, s.row)
        ops.matmul(s.mixed.split(-1, heads).swap(-3, -2), s.shares, values)
        ops.matmul(y.rows, s.mixed.rows, p.out)


def rotary_attention(x, p):
    heads, groups, size, time = 4, 2, 4, x.shape[1]
    q, k, v = ((x @ p[name]).reshape(len(x), time, -1, size).transpose(1, 2) for name in "qkv")
    half = size // 2
    angles = torch.arange(time, dtype=x.dtype)[:, None] * 100.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    cos, sin = angles.cos(), angles.sin()

    def turned(a):
        first, second = a[..., :half], a[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    q, k = turned(q), turned(k)
    k, v = (a.repeat_interleave(heads // groups, 1) for a in (k, v))
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).reshape(len(x), time, -1) @ p["out"]


class Spectral(Layer):
    """The layer of a Fourier neural operator (Li et al. 2020): complex weights of the lowest waves along the first axis."""

    def __init__(self, modes):
        self.modes = modes

    def declare(self, d):
        points, channels = d.input
        for name in ("re", "im"):
            d.param(name, (self.modes, channels, channels), "normal")
        d.param("local", (channels, channels), "normal")
        d.temporary("across", (channels, points))
        d.temporary("waves", (channels, 2 * self.modes))
        for name in ("product_re", "product_im"):
            d.temporary(name, (self.modes, channels, channels))
        d.temporary("mixed", (channels, 2 * self.modes))
        d.temporary("back", (channels, points))
        d.temporary("z", d.input)
        d.output(d.input)

    def forward(self, ops, x, y, p, s):
        points, modes = x.shape[1], self.modes
        angles = 2.0 * np.pi * np.outer(np.arange(points), np.arange(modes)) / points
        scale = np.where(np.arange(modes) == 0, 1.0, 2.0) / points
        there = ops.constant("there", np.hstack([np.cos(angles), -np.sin(angles)]))
        back = ops.constant("back", np.hstack([np.cos(angles) * scale, -np.sin(angles) * scale]).T)
        ops.copy(s.across, x.swap(1, 2))
        ops.matmul(s.waves.rows, s.across.rows, there)
        re, im = (s.waves.slice(-1, k * modes, (k + 1) * modes).swap(1, 2).expand(-1) for k in (0, 1))
        out_re, out_im = (s.mixed.slice(-1, k * modes, (k + 1) * modes).swap(1, 2).expand(2) for k in (0, 1))
        ops.map(
            (s.product_re, s.product_im), lambda a, b, c, d: (a * c - b * d, a * d + b * c), re, im, p.re, p.im
        )  # (batch, modes, inputs, outputs)
        ops.sum(out_re, s.product_re)
        ops.sum(out_im, s.product_im)
        ops.matmul(s.back.rows, s.mixed.rows, back)
        ops.matmul(s.z.rows, x.rows, p.local)
        ops.map(y, lambda a, b: expr.sin(a + b), s.z, s.back.swap(1, 2))


def spectral(x, p):
    modes = p["re"].shape[0]
    waves = torch.fft.rfft(x, dim=1)
    mixed = torch.zeros_like(waves)
    mixed[:, :modes] = torch.einsum("bmi,mio->bmo", waves[:, :modes], torch.complex(p["re"], p["im"]))
    return torch.sin(x @ p["local"] + torch.fft.irfft(mixed, n=x.shape[1], dim=1))


class ScalarLSTM(Cell):
    """The cell of xLSTM with exponential gates (Beck et al. 2024); `m` keeps them finite."""

    def __init__(self, units):
        self.units = units

    def declare(self, d):
        for name in ("h", "c", "n", "m"):
            d.carry(name, (self.units,))
        d.param("w", (*d.input, 4 * self.units), "normal")
        d.param("r", (self.units, 4 * self.units), "normal")
        d.param("b", (4 * self.units,), "normal")
        d.temporary("a", (4 * self.units,))

    def forward(self, ops, x, y, p, s):
        def step(ai, af, az, ao, bi, bf, bz, bo, c, n, m):
            i, f = ai + bi, -expr.log(1.0 + expr.exp(-(af + bf)))
            z, o = expr.tanh(az + bz), 1.0 / (1.0 + expr.exp(-(ao + bo)))
            m_new = expr.maximum(f + m, i)
            keep, take = expr.exp(f + m - m_new), expr.exp(i - m_new)
            c, n = keep * c + take * z, keep * n + take
            return o * c / n, c, n, m_new

        before, after, u = s.before, s.after, self.units
        ops.matmul(s.a, x, p.w)
        ops.matmul(s.a, before.h, p.r, accumulate=True)
        gates = [view.slice(-1, k * u, (k + 1) * u) for view in (s.a, p.b) for k in range(4)]
        ops.map((y, after.c, after.n, after.m), step, *gates, before.c, before.n, before.m)


def scalar_lstm(x, p):
    units = p["r"].shape[0]
    h, c, n, m = (torch.zeros(len(x), units, dtype=x.dtype) for _ in range(4))
    found = []
    for k in range(x.shape[1]):
        i, f, z, o = (x[:, k] @ p["w"] + h @ p["r"] + p["b"]).split(units, 1)
        f = torch.nn.functional.logsigmoid(f)
        m_new = torch.maximum(f + m, i)
        keep, take = torch.exp(f + m - m_new), torch.exp(i - m_new)
        c, n, m = keep * c + take * torch.tanh(z), keep * n + take, m_new
        h = torch.sigmoid(o) * c / n
        found.append(h)
    return torch.stack(found, 1)


class Kalman(Cell):
    """A step of a Kalman filter with one measurement: a sample's input is the measurement, its output the mean."""

    def __init__(self, size):
        self.size = size

    def declare(self, d):
        n = self.size
        d.carry("mean", (n,))
        d.carry("cov", (n, n))
        for name, shape in {"f": (n, n), "q": (n, n), "see": (n,), "noise": ()}.items():
            d.param(name, shape, "normal")
        for name in ("half", "turned", "cov_ahead", "part"):
            d.temporary(name, (n, n))
        d.temporary("ahead", (n,))
        d.temporary("ph", (n, 1))
        for name in ("error", "spread"):
            d.temporary(name, (1,))
        for name in ("a", "b"):
            d.temporary(name, (n,))

    def forward(self, ops, x, y, p, s):
        n = self.size
        ops.matmul(s.ahead, s.before.mean, p.f.T)
        ops.copy(s.part, s.before.cov)
        ops.matmul(s.half.rows, s.part.rows, p.f.T)
        ops.copy(s.turned, s.half.swap(1, 2))
        ops.matmul(s.cov_ahead.rows, s.turned.rows, p.f.T)  # f cov f', transposed
        ops.map(s.cov_ahead, lambda c, q: c + q * q, s.cov_ahead, p.q)
        ops.map(s.part, lambda c, h: c * h, s.cov_ahead, p.see)
        ops.sum(s.ph, s.part)
        ops.map(s.a, lambda v, h: v * h, s.ph.reshape(n), p.see)
        ops.sum(s.spread, s.a)
        ops.map(s.spread, lambda v, r: v + expr.exp(r), s.spread, p.noise)
        ops.map(s.b, lambda m, h: m * h, s.ahead, p.see)
        ops.sum(s.error, s.b)
        ops.map(s.error, lambda e, z: z - e, s.error, x)
        ops.map(y, lambda m, v, e, t: m + v * e / t, s.ahead, s.ph.reshape(n), s.error, s.spread)
        spread = s.spread.expand(1)
        ops.map(s.after.cov, lambda c, a, b, t: c - a * b / t, s.cov_ahead, s.ph, s.ph.reshape(1, n), spread)


def kalman(x, p):
    n = p["see"].shape[0]
    mean, cov, found = torch.zeros(len(x), n, dtype=x.dtype), torch.zeros(len(x), n, n, dtype=x.dtype), []
    for k in range(x.shape[1]):
        mean, cov = mean @ p["f"].T, (p["f"] @ cov @ p["f"].T).transpose(1, 2) + p["q"] ** 2
        seen = cov @ p["see"]
        spread = seen @ p["see"] + torch.exp(p["noise"])
        mean = mean + seen * ((x[:, k, 0] - mean @ p["see"]) / spread)[:, None]
        cov = cov - seen[:, :, None] * seen[:, None] / spread[:, None, None]
        found.append(mean)
    return torch.stack(found, 1)


CASES = {
    "selective scan": (SelectiveScan(3, 2), (4, 3), selective_scan),
    "rotary attention": (RotaryAttention(4, 2, 4), (5, 3), rotary_attention),
    "spectral": (Spectral(3), (8, 2), spectral),
    "xLSTM": (chains.Recurrent(ScalarLSTM(3), return_sequences=True), (4, 2), scalar_lstm),
    "Kalman": (chains.Recurrent(Kalman(2), return_sequences=True), (4, 1), kalman),
}


@pytest.mark.parametrize("backend", ["numpy", "native"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_autograd(name, backend):
    if backend == "native":
        pytest.importorskip("llvmlite")
    layer, shape, function = CASES[name]
    net = chains.Chain(layer, input_shape=shape, backend=backend)
    rng = np.random.default_rng(0)
    p, x = 0.5 * rng.normal(size=net.n_params), rng.normal(size=(3, *shape))
    y = net(x, p)
    dy = rng.normal(size=y.shape)
    g, dx = net.vjp(p, x, dy)
    flat, inputs = (torch.tensor(each, requires_grad=True) for each in (p, x))
    named = {entry.name.split(".")[-1]: flat[entry.start : entry.stop].reshape(entry.shape) for entry in net.layout}
    wanted = function(inputs, named)
    wanted.backward(torch.tensor(dy))
    for what, found, each in (("y", y, wanted), ("g", g, flat.grad), ("dx", dx, inputs.grad)):
        assert_close(found, each.detach().numpy(), 1e-10, f"{name}: {what}")
