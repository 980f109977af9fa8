"""Events by diffrax: jitted, under vmap, with each of its adjoints that goes through an event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)


def gradients(p: np.ndarray, x: np.ndarray, steps: int, end: float) -> dict[str, Callable[[], np.ndarray]]:
    """A call for each adjoint: the gradient of speeds and twice the times by parameters and initial states."""
    event = diffrax.Event(lambda t, y, args, **_: y[0], optimistix.Newton(1e-10, 1e-10))
    term = diffrax.ODETerm(lambda t, y, p: jnp.stack([y[1], -p[0] - p[1] * y[1]]))

    def call(adjoint: Any) -> Callable[[], np.ndarray]:
        def total(p: Any, start: Any) -> Any:
            found = diffrax.diffeqsolve(
                term, diffrax.Tsit5(), 0.0, end, end / steps, start, p, event=event, adjoint=adjoint, max_steps=steps + 8,
                saveat=diffrax.SaveAt(t1=True), stepsize_controller=diffrax.ConstantStepSize(),
            )  # fmt: skip
            return found.ys[0, 1] + 2.0 * found.ts[0]

        gradient = jax.jit(jax.grad(lambda p, x: jax.vmap(total, (None, 0))(p, x).sum(), (0, 1)))
        given = jnp.asarray(p), jnp.asarray(x)

        def run() -> np.ndarray:
            dp, dx = gradient(*given)
            return np.concatenate([np.asarray(dp), np.asarray(dx).ravel()])

        return run

    return {
        "diffrax, default checkpoints": call(diffrax.RecursiveCheckpointAdjoint()),
        "diffrax, all steps kept": call(diffrax.RecursiveCheckpointAdjoint(checkpoints=steps + 8)),
    }
