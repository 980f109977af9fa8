"""What public objects print: one line that says what they are, short however large they are."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import ODE, Adam, Chain, Dense, SquaredLoss, train
from chains.backends import backend
from chains.network.network import network_of


def public_objects(folder):
    net = Chain(Dense(4, 8, "tanh"), Dense(8, 3))
    p, x, t = net.init(0), np.ones((20, 4), np.float32), np.ones((20, 3), np.float32)
    program, seen = net.program(SquaredLoss()), []
    run = chains.Checkpoint(folder)
    history = train(net, p, x, t, SquaredLoss(), Adam(), epochs=200, checkpoint=run, callbacks=[seen.append])
    solution = Chain(ODE(Dense(4, 4, "tanh"), [0.0, 1.0, 2.0]))
    return {
        "history after 200 epochs, loss": history,
        "after 1 epoch: loss": seen[0],
        "history of 2 members": train(net, np.array([p, p]), x, t, SquaredLoss(), Adam(), epochs=3),
        "moments": history.optimizer_state,
        "step-000000000200": run.load(),
        str(folder): run,
        "declaration of Dense(4, 8, tanh)": network_of(net).declaration.children[0],
        "13 operations": program,
        "Chain(Dense": net,
        "67 parameters on 20 samples": net.objective(x, t, SquaredLoss()),
        "one sample": net.bound(p),
        "2 steps from 0 to 2, 0 refused": chains.ode_steps(solution, solution.init(0), x[:1])[0],
        "67 parameters after 0 steps": chains.Updater(Adam(), p),
        "Callback()": chains.callbacks.Callback(),
        "Batches": chains.data.Batches(x, t, batch_size=5),
        "numpy": backend("numpy"),
        "native": backend("native"),
        "auto": backend("auto"),
        "cosine": chains.schedules.cosine(1e-3, 100),
        "hmc": chains.HMC(),
    }


def test_objects_print_what_they_are(tmp_path):
    pytest.importorskip("llvmlite")
    for says, thing in public_objects(tmp_path).items():
        text = repr(thing)
        assert says.lower() in text.lower()
        assert " at 0x" not in text
        assert "\n" not in text
        assert len(text) < 250, text


def test_a_path_is_one(tmp_path):
    net = Chain(Dense(2, 1))
    with pytest.raises(TypeError, match=r"`path` must be a path such as 'model\.o', got an array of float32"):
        chains.export(net, net.init(0))
    with pytest.raises(TypeError, match="`folder` must be a path, got 3"):
        chains.callbacks.TensorBoard(3)
