"""The objective of a network on fixed data; `Chain` inherits it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from chains.losses import Loss
from chains.network import arguments
from chains.network.objective import Objective
from chains.network.parallel import check_comm, part_arrays, part_of
from chains.network.second_order import SecondOrder
from chains.network.streaming import Streaming
from chains.penalties import Penalty
from chains.support.memory import memory_of


class Objectives(Streaming):
    """A network whose loss on fixed data is a function of the parameters."""

    def objective(
        self,
        x: Any,
        t: Any,
        loss: Loss,
        penalty: Penalty | None = None,
        *,
        weights: Any = None,
        lengths: Any = None,
        state: Any = None,
        mode: str = "eval",
        seed: int = 0,
        comm: Any = None,
    ) -> Objective:
        """The loss on this data as a function of the parameters alone, for SciPy's optimisers and the like.

        ``objective(p)`` returns a float and a fresh float64 gradient, computed in float64 whatever the type of `p`:
        ``minimize(objective, p, jac=True, method="BFGS")``.

        Parameters
        ----------
        x, t, loss, penalty, weights, lengths
            As in `value_and_grad`.
        state : array, shape (n_state,), optional
            As in `value_and_grad`, but copied and never changed: the same `p` always gives the same value.
        mode, seed
            As in a call of the network.
        comm : mpi4py.MPI.Intracomm, optional
            As in `value_and_grad`. All processes call the objective, equally often and with the same `p`.

        Returns
        -------
        Objective
            The function.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit.
        """
        training = arguments.check_mode(mode)
        data, problem = self.problem(x, t, loss, weights, penalty, lengths)
        data = arguments.together(data["x"], data)
        shared = None if comm is None else check_comm(comm)
        total, first = (len(data["x"]), 0) if shared is None else part_of(shared, len(data["x"]))
        executable = self._gradient(data["x"], problem, np.dtype(np.float64), training, pure=True, parallel=comm is not None)
        known = self.state_for(executable.program, state, None, training, data, total)
        own = {name: memory_of(a).array(memory_of(a).contiguous(a, np.float64)) for name, a in known.items()}
        if shared is not None:
            own |= part_arrays(shared, executable, total, first, data["x"])
        remake = partial(self.objective, loss=loss, penalty=penalty, mode=mode, seed=seed, comm=comm)
        return Objective(
            executable,
            data,
            self.n_params,
            arguments.with_random(own, executable, seed, data["x"]),
            remake,
            SecondOrder(self, loss, penalty) if shared is None else None,
        )
