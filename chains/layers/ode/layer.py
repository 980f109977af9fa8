"""Ordinary differential equations: a layer whose output is the solution at given times, for a right-hand side that is a layer.

The pullback is exact for the steps that were done; their lengths are constants. The right-hand side is recorded once for each
stage. The gradients of its weights become products over all steps (`chains.program.hoist`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from chains.layers.base import Declaration, Layer, SampleShape
from chains.layers.ode.between import BetweenDoses
from chains.layers.ode.doses import Doses
from chains.layers.ode.events import DIRECTIONS
from chains.layers.ode.implicit import LARGEST_STATE
from chains.layers.ode.methods import METHODS
from chains.layers.ode.right_side import check_deterministic
from chains.layers.ode.settings import Settings, ascending, forcing_of, interpolation, most_steps, text_of, tolerances
from chains.layers.ode.strategy import AtTimes, ControlledSteps, EqualSteps, Strategy
from chains.layers.ode.until import UntilEvent
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count, check_flags, check_is, check_word, whole
from chains.support.messages import shown

EARLIER = {"event": None, "direction": "both", "doses": None, "interpolate": False, "jumps": ()}  # where pickles have fewer


class ODE(Settings, Layer):
    """``dy/dt = rhs(y)``, solved from the state at the first of some times: the output has the states at all of them.

    A sample is the initial state, (n,), and the output (times, n), the initial state first. To train initial states, put an
    `Embedding` before the layer: it has one for each trajectory.

    Parameters
    ----------
    rhs : Layer
        A layer or chain from (n + given + time + forcing,) to (n,). Its input is the state, then the `given` features, the time
        and the forcing, if there are any. `Equations` makes a right-hand side from formulas and networks.
    times : sequence of float, or int
        Two or more, ascending. A whole number k means that each sample has k times, its last features. They ascend too: equal
        times give equal states, and falling times give NaN.
    method : str
        "euler" (order 1), "midpoint" (2), "rk4" (4), "tsit5" (5), or "leapfrog" (2, symplectic). For "leapfrog" the state is
        positions, then velocities, and the change of each half depends on the other half alone. For stiff equations of at most
        32 numbers there are "kvaerno3" (3) and "kvaerno5" (5), implicit and L-stable. If a step is too long for Newton's method
        to converge, states from there on are NaN.
    steps : int
        The number of equal steps from each of the times to the next.
    rtol : float, optional
        Step control instead of equal steps, with "tsit5" or an implicit method: the estimated error of a step stays below
        ``atol + rtol * abs(y)``, as a mean square over the state. Each trajectory has its own steps. They end at the times,
        unless states there are interpolated.
    atol : float, or sequence of n floats, optional
        By default a thousandth of `rtol`.
    max_steps : int, optional
        The largest number of steps that step control tries, by default 256, or four to each of the times where steps must end,
        if these are more. Steps that are not needed are left out. If there are too few, ``net(x, p)``, ``net.bound(p)(x)`` and
        `value_and_grad` raise FloatingPointError with the reason that `ode_steps` gives; other calls, such as `loss` and `vjp`,
        give NaN for the states that are not reached, and for gradients.
    given : int
        The number of features of a sample, after the initial state, that are constants, not state: a dose, a temperature.
    time : bool
        Whether `rhs` takes the time.
    forcing : pair of arrays, shapes (m,) and (m, features), optional
        Ascending times, and the inputs to the system at these times. Between them inputs are interpolated linearly; outside
        they are constant.
    checkpoint_every : int, optional
        Keep only the state of every k-th step; the pullback repeats the steps between. This needs less memory and one more
        forward pass. By default everything is kept. With step control the default is 8, since its pullback repeats the accepted
        steps anyway. If the steps do not divide evenly, there are fewer between checkpoints.
    adjoint : bool
        Whether the gradient is that of the continuous adjoint equations, solved back in time by the same method and steps, from
        the state at each of the times. It keeps no steps. It is not exact: it approximates the gradient of the solution to the
        order of the method, which must be explicit. diffrax calls this BacksolveAdjoint, torchdiffeq odeint_adjoint.

    event : Layer, optional
        A layer or chain with the input of `rhs` and one number, (1,), as output. The trajectory ends where the number first
        changes its sign; the sign is compared after each step. The output becomes (times + 1, n + 1): the states with their
        times, and in its last row the state and the time of the event. Rows of later times repeat the last row. Without an
        event before the last time, the last row has the state at that time. `event` may have parameters; the gradient by the
        time of the event is exact. Events need an explicit method, without `forcing`, `adjoint` or `checkpoint_every`.
    direction : str
        "up" for a function that becomes positive, "down" for one that becomes negative, "both" by default. A function that
        begins at zero crosses it only when it comes back.
    doses : Doses, optional
        Amounts that are added to the state, at times of each trajectory. The features of a sample are then the state, the given
        ones, those of the doses, and its own times, if any. There are `steps` equal steps from each of these times to the next,
        or at most `max_steps` tried ones in all. Doses do not go with `forcing`, `adjoint` and `event`.
    interpolate : bool, optional
        Whether the error alone chooses the steps of step control, and states at times within a step are interpolated; the
        gradient is exact for these. False: steps end at each of the times. By default states are interpolated at more than 16
        and more than ``4 * rtol ** (-1 / order)`` times after the first one, which is about how many steps a smooth solution
        needs; not with "kvaerno5", `event`, `adjoint`, `forcing` and `doses`. True does not go with `adjoint`; steps then end
        at doses.
    jumps : sequence of float
        Ascending times at which the right-hand side jumps, such as switching times, between the first and the last of the
        `times`. A step of step control ends shortly before each, and one begins shortly after it.

    Raises
    ------
    TypeError, ValueError
        For other settings, for a `rhs` whose output does not fit, and for one with a state or arrays of the whole batch.

    Notes
    -----
    Times and lengths of steps are constants of the pullback, as in diffrax: the gradient by a sample's times is 0. With `doses`
    they are not: the gradients by times of doses, lags and own times are exact for the steps that were done. With step control,
    a step is then a constant part of its interval.

    Source: Hairer, Nørsett and Wanner, "Solving ordinary differential equations I", 1993; Kværnø, "Singly diagonally implicit
    Runge-Kutta methods with an explicit first stage", 2004; Chen et al. 2018 for layers of this kind, Rackauckas et al. 2020
    (arXiv 2001.04385) for networks together with known terms.
    """

    advice: ClassVar[str] = "`ode_steps(net, p, x)` gives the status of each solution"

    def __init__(
        self, rhs: Layer, times: Sequence[float] | int, method: str = "tsit5", steps: int = 1, *, rtol: float | None = None,
        atol: Any = None, max_steps: int | None = None, given: int = 0, time: bool = False, forcing: Any = None,
        checkpoint_every: int | None = None, adjoint: bool = False, event: Layer | None = None, direction: str = "both",
        doses: Doses | None = None, interpolate: bool | None = None, jumps: Sequence[float] = (),
    ) -> None:  # fmt: skip
        if not isinstance(rhs, Layer):
            raise TypeError(f"`rhs` (={shown(rhs)}) must be a layer: a Chain, or Equations of formulas")
        check_word("method", method, *METHODS)
        check_flags(time=time, adjoint=adjoint)
        if adjoint and len(METHODS[method].halves) > 1:
            raise ValueError(f"`adjoint` (=True) goes back in time by a method for the whole state, not by {method!r}")
        if adjoint and METHODS[method].gamma:
            raise ValueError(f"`adjoint` (=True) goes back in time, where stiff equations explode: not with {method!r}")
        if whole(given, 0) is None:
            raise ValueError(f"`given` (={shown(given)}) must be a whole number of features, 0 or more")
        self.rhs = rhs
        own = whole(times, -np.inf)
        self.times = (
            tuple(ascending("times", times, 2, " or a whole number").tolist()) if own is None else check_count("times", own, 2)
        )
        self.method = method
        self.steps = check_count("steps", steps)
        self.doses = doses
        if doses is not None:
            check_is("doses", doses, Doses, "a `Doses`, such as Doses(4, into=0)")
        self.given = int(given)
        self.time = time
        self.forcing = None if forcing is None else forcing_of(forcing)
        self.checkpoint_every = None if checkpoint_every is None else check_count("checkpoint_every", checkpoint_every)
        self.adjoint = bool(adjoint)
        self.event, self.direction = self._checked_event(event, direction)
        self.interpolate, self.jumps = interpolation(self, rtol, interpolate, jumps)
        self.rtol, self.atol = tolerances(method, self.steps, rtol, atol, max_steps)
        self.max_steps = most_steps(self, max_steps)
        for name in ("forcing", "adjoint", "event") if doses is not None else ():
            if getattr(self, name):
                raise ValueError(f"`{name}` (={shown(getattr(self, name))}) does not go with `doses`")

    def _checked_event(self, event: Any, direction: Any) -> tuple[Layer | None, str]:
        """The checked settings of an event."""
        check_word("direction", direction, *DIRECTIONS)
        if event is None:
            if direction != "both":
                raise ValueError(f"`direction` (={direction!r}) is of use with an `event` only")
            return None, direction
        if not isinstance(event, Layer):
            raise TypeError(f'`event` (={shown(event)}) must be a layer, such as Equations(lambda h, v: h, ("h", "v"))')
        if self.implicit:
            raise ValueError(f"`event` (={event!r}) goes with explicit methods, not with {self.method!r}")
        for name in ("forcing", "adjoint", "checkpoint_every"):
            if getattr(self, name):
                raise ValueError(f"`{name}` (={shown(getattr(self, name))}) does not go with an `event`")
        return event, direction

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(EARLIER | state)

    @property
    def _steps(self) -> AtTimes:
        """How steps are found."""
        if self.doses is not None:
            return BetweenDoses(self, self.doses).steps
        return EqualSteps(self) if self.rtol is None else ControlledSteps(self)

    @property
    def _strategy(self) -> Strategy:
        if self.doses is not None:
            return BetweenDoses(self, self.doses)
        return self._steps if self.event is None else UntilEvent(self._steps)

    @property
    def may_fail(self) -> bool:
        return self._strategy.may_fail

    @property
    def has_tangents(self) -> bool:
        return not self.adjoint

    def fixed_input(self) -> SampleShape | None:
        shape = self.rhs.fixed_input()
        known = shape is not None and len(shape) == 1 and shape[0] > self.known
        return (shape[0] - self.known + self.own_features,) if shape is not None and known else None

    def declare(self, d: Declaration) -> None:
        n = d.input[0] - self.given - self.own_features if len(d.input) == 1 else 0
        if n < 1:
            doses = f" and {self.doses.width} features of doses" if self.doses is not None else ""
            times = f" and {self.own_times} times" if self.own_times else ""
            raise ValueError(
                f"a sample must be a state (n,) and {self.given} given features{doses}{times}, but its shape is {d.input}"
            )
        output = self._strategy.declare_rhs(d, n)
        if output != (n,):
            more = self.given + self.known
            sees = f", from the state and {more} more (given, time, forcing)" if more else ""
            raise ValueError(f"`rhs` (={self.rhs!r}) gives {output} for a state of shape {(n,)}: it must give its change{sees}")
        halves = len(self.tableau.halves)
        if halves > n or n % halves:
            raise ValueError(f"`method` (={self.method!r}) takes positions and as many velocities, not a state of length {n}")
        if self.implicit and n > LARGEST_STATE:
            raise ValueError(f"`method` (={self.method!r}) takes states of at most {LARGEST_STATE} numbers, but there are {n}")
        if isinstance(self.atol, tuple) and len(self.atol) != n:
            raise ValueError(f"`atol` (={self.atol}) must have as many numbers as the state, {n}, or be one for all")
        check_deterministic(d.children[-1])
        for part in d.children[-1].all:
            part.timed = False  # lengths are those of the times here
        self._strategy.declare(d, n)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        self._strategy.forward(ops, x, y, s)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        self._strategy.pullback(ops, x, y, dy, dx, s)

    def __repr__(self) -> str:
        times = text_of(self.times) if isinstance(self.times, tuple) else str(self.times)
        names = ["steps"] if self.rtol is None else ["rtol", "atol", "max_steps"]
        names += ["given", "time", "checkpoint_every", "adjoint"]
        more = "".join(f", {name}={value}" for name in names if (value := getattr(self, name)))
        more += f", doses={self.doses!r}" if self.doses is not None else ""
        more += f", event={self.event!r}" if self.event is not None else ""
        more += f", direction={self.direction!r}" if self.direction != "both" else ""
        more += f", interpolate={self.interpolates}" if self.interpolate is not None or self.interpolates else ""
        more += f", jumps={text_of(self.jumps)}" if self.jumps else ""
        more += ", forcing=..." if self.forcing is not None else ""
        return f"ODE({self.rhs!r}, {times}, method={self.method!r}{more})"
