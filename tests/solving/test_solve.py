"""A residual problem solved in one call: accuracy, rounds that can be resumed, and interruptions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chains import Adam, AdaptiveWeights, Chain, Dense, ResidualProblem, Term, solve, tanh, train
from chains.expr import sin
from chains.solving import second_points
from chains.solving.causal import time_axis
from chains.solving.second_points import Judge, Verdict
from chains.solving.solve import ADAM_STRETCH, HEAVIER, NOISY, STATE
from chains.training.folder_lock import FolderLock

OPTIONS = {"adam": 150, "iterations": 90, "every": 30, "progress": False}


def poisson(points=60):
    """u'' = -pi^2 sin(pi x), u = 0 at both ends, and the error against sin(pi x)."""
    net = Chain(Dense(1, 8, tanh), Dense(8, 1))
    x = np.linspace(0.01, 0.99, points)[:, None]
    problem = ResidualProblem(
        ("x",), ("u",), [Term(lambda u, x: u.xx + np.pi**2 * sin(np.pi * x), x)], transform=lambda u, x: x * (1.0 - x) * u
    )
    grid = np.linspace(0.0, 1.0, 101)[:, None]

    def error(p):
        return float(abs(problem.evaluate(net, p, grid)["u"] - np.sin(np.pi * grid[:, 0])).max())

    return net, net.init(seed=0, dtype=np.float64), problem, error


def candidates(seed):
    return np.random.default_rng(seed).uniform(0.0, 1.0, (300, 1))


def run(**options):
    net, p, problem, error = poisson()
    given = {**OPTIONS, "candidates": candidates, "metrics": {"error": error}, "weights": AdaptiveWeights(), **options}
    return solve(net, p, problem, **given)


def test_it_solves():
    net, p, problem, error = poisson()
    before = p.copy()
    found = solve(net, p, problem, **{**OPTIONS, "iterations": 400, "every": 100}, metrics={"error": error})
    np.testing.assert_array_equal(p, before)
    assert error(found.p) < 1e-4
    assert found.metrics["error"][-1] == error(found.p)
    assert found.loss[-1] < 1e-4 * found.loss[0]
    assert found.seconds == sorted(found.seconds)


def test_weights_are_renewed_between_stretches_of_adam():
    net, p, problem, _ = poisson()
    found = solve(net, p, problem, adam=ADAM_STRETCH + 7, iterations=0, weights=AdaptiveWeights(), optimizer=Adam(1e-2))
    weights, q, history = AdaptiveWeights(), p.copy(), None
    for steps in (ADAM_STRETCH, 7):
        at = weights.update(net, q, problem)
        whole = {"epochs": steps, "batch_size": None, "shuffle": False, "resume": history}
        history = train(net, q, at.x, at.t, at.loss, Adam(1e-2), **whole)
    np.testing.assert_array_equal(found.p, q)


@pytest.mark.parametrize("method", ["SSBroyden", "BFGS", "L-BFGS"])
def test_a_resumed_run_has_the_same_bits(method, tmp_path):
    whole = run(method=method)
    run(method=method, iterations=60, checkpoint=tmp_path)
    resumed = run(method=method, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(resumed.p, whole.p)
    assert (resumed.loss, resumed.iterations, resumed.weights) == (whole.loss, whole.iterations, whole.weights)
    np.testing.assert_array_equal(resumed.problem.t, whole.problem.t)
    with pytest.raises(ValueError, match="of a run with other settings"):
        run(method=method, every=20, checkpoint=tmp_path, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["solve.safetensors"]


def test_checkpoints_are_refused_where_they_are_damaged_or_of_another_run(tmp_path):
    run(iterations=0, checkpoint=tmp_path)
    with FolderLock(tmp_path), pytest.raises(ValueError, match="written by another training, process"):
        run(checkpoint=tmp_path)
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ValueError, match=r"`checkpoint` .* damaged .*digest"):
        run(checkpoint=tmp_path, resume=True)
    with pytest.raises(ValueError, match="`checkpoint` must be a path"):
        run(checkpoint="")


def test_checkpoints_of_other_versions_are_refused(monkeypatch, tmp_path):
    with monkeypatch.context() as older:
        older.setattr("chains.solving.solve.STATE", [name for name in STATE if name not in ("long", "unseen")])
        run(iterations=0, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="of another version of chains: it has no long, unseen"):
        run(checkpoint=tmp_path, resume=True)


def test_an_interrupted_run_has_what_is_best_so_far(tmp_path):
    def stop(_):
        stop.calls += 1
        if stop.calls == 3:
            raise KeyboardInterrupt
        return 0.0

    stop.calls = 0
    found = run(metrics={"stop": stop}, checkpoint=tmp_path)
    assert found.stopped == "interrupted after 60 iterations"
    assert "stopped: interrupted" in repr(found)
    resumed, whole = run(metrics={"stop": lambda _: 0.0}, checkpoint=tmp_path, resume=True), run()
    np.testing.assert_array_equal(resumed.p, whole.p)


def test_an_interruption_within_a_round():
    """The parameters are those of the last iteration."""
    net, p, problem, error = poisson()

    class Interrupting(AdaptiveWeights):
        def update(self, net, p, problem):
            if self.rounds:
                raise KeyboardInterrupt
            self.rounds += 1
            return super().update(net, p, problem)

    weights = Interrupting()
    weights.rounds = 0
    found = solve(net, p, problem, **{**OPTIONS, "adam": 0}, weights=weights, metrics={"error": error})
    assert found.stopped == "interrupted after 30 iterations"
    assert found.metrics["error"][-1] == error(found.p)
    assert error(found.p) < error(p)


def test_it_ends_where_nothing_falls_any_more():
    net, p, problem, _ = poisson(5)
    found = solve(net, p, problem, adam=0, iterations=100_000, every=2000, progress=False)
    assert found.iterations[-1] < 100_000
    assert found.stopped
    assert np.isnan(found.loss[0])


def test_the_time_is_bounded_and_the_table_printed():
    found = run(seconds=1e-9)
    assert found.stopped == "1e-09 seconds are over"
    assert found.iterations == [0]
    lines = repr(run()).splitlines()
    assert lines[0].split() == ["iterations", "seconds", "loss", "second", "error", "mean", "number"]
    assert [line.split()[0] for line in lines[1:]] == ["0", "30", "60", "90", "success:"]


def test_it_can_be_drawn():
    pytest.importorskip("matplotlib").use("Agg")
    axes = run().plot()
    assert [line.get_label() for line in axes.lines] == ["loss", "loss at second points", "error"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "LM"}, "`method`"),
        ({"every": 0}, "`every`"),
        ({"resume": True}, "`resume` needs `checkpoint`"),
        ({"weights": 3}, "`weights`"),
        ({"metrics": {"error": 3}}, "`metrics`"),
        ({"metrics": len}, "`metrics`.* must be functions of `p` by name"),
        ({"metrics": {"error": abs}}, "the metric error must return a number, got an array"),
        ({"seconds": 0.0}, "`seconds`"),
        ({"optimizer": "adam"}, "`optimizer`"),
    ],
)
def test_arguments_that_make_no_sense(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        run(**options)


def test_networks_and_parameters_have_their_places():
    net, p, problem, _ = poisson()
    for swapped in ((p, net), (net, net)):
        with pytest.raises(TypeError, match=r"`net` \(=an array|`p`"):
            solve(*swapped, problem)
    with pytest.raises(TypeError, match=r"`net` \(=an array"):
        problem.evaluate(p, net, problem.x)


def growth(count=60):
    """n' = 0.03 n (1 - n / K), in persons and years, at random points that leave a gap after the start."""
    capacity, start = 1.4e7, 5e5
    x = np.sort(np.random.default_rng(1).uniform(2.0, 200.0, count))[:, None]
    terms = [
        Term(lambda n: n.t - 0.03 * n * (1.0 - n * (1.0 / capacity)), x),
        Term(lambda n: n - start, np.array([[0.0]])),
    ]
    problem = ResidualProblem(("t",), ("n",), terms, scales={})
    net = Chain(Dense(1, 20, tanh), Dense(20, 20, tanh), Dense(20, 1))
    grid = np.linspace(0.0, 200.0, 300)
    true = capacity / (1.0 + (capacity / start - 1.0) * np.exp(-0.03 * grid))

    def error(p):
        return float(np.linalg.norm(problem.evaluate(net, p, grid[:, None])["n"] - true) / np.linalg.norm(true))

    return net, net.init(seed=1, dtype=np.float64), problem, error


def test_a_growing_solution_is_found_again_after_a_jump():
    """At first the network jumps to zero between the points, with a small loss; the residual beside the points is seen."""
    net, p, problem, error = growth(300)
    found = solve(net, p, problem, iterations=2000, progress=False)
    assert found.second[1] > 1e3 * found.loss[1]
    assert found.success
    assert error(found.p) < 1e-6


def test_a_run_that_is_too_short_says_so():
    net, p, problem, error = growth()
    found = solve(net, p, problem, adam=10, iterations=5, progress=False)
    assert error(found.p) > 0.1
    assert not found.success
    assert "more iterations" in found.message
    assert repr(found).splitlines()[-1] == f"success: False: {found.message}"


@pytest.mark.parametrize(("share", "chosen"), [(1e-9, 2), (0.5, 3)])
def test_a_state_much_worse_than_the_best_is_no_result(monkeypatch, share, chosen):
    """The second of three rounds looks best at the second points."""
    looked, look = [], Judge.look

    def seen(*arguments, **options):
        verdict, p = look(*arguments, **options), arguments[1]
        looked.append(p.copy())
        relative = 1.0 if len(looked) == 4 else 0.0
        return replace(verdict, second=np.ones(1) * (share if len(looked) == 3 else 1.0), relative=relative, change=0.0)

    monkeypatch.setattr(Judge, "look", seen)
    found = run()
    assert len(looked) == 4
    np.testing.assert_array_equal(found.p, looked[chosen])
    assert not found.success  # the last state is bad, so the run has not settled


def test_a_state_that_follows_the_noise_of_measurements_is_no_result(monkeypatch):
    """The last of three rounds fits unseen measurements worse than the second, which is as good as the first."""
    looked, look, unseen = [], Judge.look, [1.0, 0.5, 0.501, 0.6]

    def seen(*arguments, **options):
        looked.append(arguments[1].copy())
        return replace(look(*arguments, **options), unseen=unseen[len(looked) - 1])

    monkeypatch.setattr(Judge, "look", seen)
    found = run()
    assert len(looked) == 4
    np.testing.assert_array_equal(found.p, looked[2])
    assert found.message.endswith(NOISY)


def test_noise_of_measurements_is_no_lost_run(monkeypatch):
    """The fit of unseen measurements gets a thousand times worse; the equation holds throughout."""
    x = np.linspace(0.0, 1.0, 120)[:, None]
    law, start = Term(lambda u: u.x - 1.0, x), Term(lambda u: u, x[:1])
    problem = ResidualProblem(("x",), ("u",), [law, start, Term(lambda u, y: u - y, x, data={"y": x[:, 0]})])
    look, looked = Judge.look, []

    def seen(*arguments, **options):
        looked.append(arguments[1].copy())
        fit = 1.0 if len(looked) < 3 else 1e3
        return replace(look(*arguments, **options), second=np.array([1e-4, 1e-4, fit]), unseen=fit, relative=1e-3, change=0.0)

    monkeypatch.setattr(Judge, "look", seen)
    net = Chain(Dense(1, 2, tanh), Dense(2, 1))
    found = solve(net, net.init(0, np.float64), problem, adam=5, iterations=6, every=3, progress=False)
    np.testing.assert_array_equal(found.p, looked[1])
    assert found.success
    assert found.message.endswith(NOISY)


def test_rounds_of_few_iterations_do_not_make_outputs_settled(monkeypatch):
    """Each changes little; all of them change much."""
    monkeypatch.setattr(second_points, "LARGEST_RESIDUAL", np.inf)
    net, p, problem, _ = growth()
    found = solve(net, p, problem, adam=10, iterations=90, every=1, progress=False)
    assert not found.success
    assert "outputs changed" in found.message


def between_ends():
    """u'' = -pi^2 sin(pi x) and u = 0 at both ends as a term."""
    net, p, problem, _ = poisson()
    ends = Term(lambda u: u, np.array([[0.0], [1.0]]))
    return net, p, ResidualProblem(("x",), ("u",), [*problem.terms, ends])


def test_conditions_that_a_poor_round_leaves_behind_get_more_weight(monkeypatch, tmp_path):
    net, p, problem = between_ends()
    monkeypatch.setattr("chains.solving.solve.POOR", 0.0)
    monkeypatch.setattr(Judge, "behind", lambda judge, verdict: [1])
    options = {"adam": 20, "every": 3, "progress": False}
    found = solve(net, p, problem, iterations=9, **options)
    assert found.weights == [{}, {"factor 1": HEAVIER}, {"factor 1": HEAVIER**2}, {"factor 1": HEAVIER**3}]
    np.testing.assert_array_equal(found.problem.t[:, 1], HEAVIER**2 * problem.t[:, 1])
    np.testing.assert_array_equal(found.problem.t[:, 0], problem.t[:, 0])
    assert "factor 1" in repr(found)
    solve(net, p, problem, iterations=6, checkpoint=tmp_path, **options)
    again = solve(net, p, problem, iterations=9, checkpoint=tmp_path, resume=True, **options)
    np.testing.assert_array_equal(again.p, found.p)
    assert again.weights == found.weights


def test_a_short_last_round_does_not_make_outputs_settled(monkeypatch):
    """One iteration changes little, so the change is that since the round before."""
    monkeypatch.setattr(second_points, "LARGEST_RESIDUAL", np.inf)
    monkeypatch.setattr(second_points, "LARGEST_CHANGE", 0.1)
    net, p, problem, _ = growth()
    found = solve(net, p, problem, adam=10, iterations=161, every=40, progress=False)
    assert found.iterations == [0, 40, 80, 120, 160, 161]
    assert not found.success
    assert "outputs changed" in found.message


def test_an_interrupted_run_is_judged_where_it_ends(monkeypatch):
    """The rounds before were fine."""
    net, p, problem, _ = growth()
    monkeypatch.setattr(Verdict, "success", property(lambda verdict: True))
    monkeypatch.setattr(Verdict, "sentence", lambda verdict: f"{verdict.second.sum():.17g}")
    calls = []

    def metric(p):
        calls.append(p)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return 1.0

    found = solve(net, p, problem, adam=10, iterations=50, every=20, metrics={"m": metric}, progress=False)
    assert found.stopped == "interrupted after 20 iterations"
    second = Judge(net, p, problem, [None, None], 0).look(found.p, problem).second.sum()
    assert found.message == f"{second:.17g}"


def test_numbers_far_from_one_are_warned_of():
    x = np.linspace(0.0, 1e-8, 20)[:, None]
    problem = ResidualProblem(("x",), ("u",), [Term(lambda u: u.x - 1e8, x), Term(lambda u: u, x[:1])])
    net = Chain(Dense(1, 2, tanh), Dense(2, 1))
    with pytest.warns(UserWarning, match=r"far from it: x \(5e-09\); ResidualProblem\(..., scales={}\) scales them"):
        solve(net, net.init(dtype=np.float64), problem, adam=1, iterations=1, progress=False)


def test_a_run_that_begins_again_resumes_with_identical_bits(tmp_path):
    """The growth ends wrongly after the first round, so that weights follow time from then on."""

    def solved(iterations, **options):
        net, p, problem, _ = growth(150)
        given = {"adam": 200, "every": 300, "progress": False, "checkpoint": tmp_path / str(len(options))}
        return solve(net, p, problem, iterations=iterations, **given, **options)

    whole = solved(900)
    assert len(whole.loss) > 6  # rounds of 100 iterations
    for iterations in (300, 500, 900):
        part = solved(iterations, resume=True)
    np.testing.assert_array_equal(part.p, whole.p)
    assert part.second == whole.second


@pytest.mark.parametrize(
    ("wanted", "terms", "transform"),
    [
        (0, [("u.t", "inside"), ("u", "start"), ("u", "sides")], None),
        (None, [("u.xx", "inside"), ("u", "sides"), ("u", "top and bottom")], None),
        (None, [("u.xx", "inside"), ("u", "start"), ("u", "end")], None),
        (0, [("u.t", "inside")], lambda u, t, x: t * (1.0 - x) * x * u),
        (None, [("u.xx", "inside")], lambda u, t, x: t * (1.0 - t) * x * (1.0 - x) * u),
    ],
)  # fmt: skip
def test_time_is_a_coordinate_with_a_start_and_no_end(wanted, terms, transform):
    line, zeros = np.linspace(0.0, 1.0, 20), np.zeros(20)
    places = {
        "inside": np.random.default_rng(0).uniform(0.0, 1.0, (50, 2)),
        "start": np.column_stack([zeros, line]),
        "end": np.column_stack([zeros + 1.0, line]),
        "sides": np.column_stack([line, np.tile([0.0, 1.0], 10)]),
        "top and bottom": np.column_stack([np.tile([0.0, 1.0], 10), line]),
    }
    formulas = {"u": lambda u: u, "u.t": lambda u: u.t - u.xx, "u.xx": lambda u: u.xx + u.tt}
    given = [Term(formulas[formula], places[place]) for formula, place in terms]
    assert time_axis(ResidualProblem(("t", "x"), ("u",), given, transform=transform)) == wanted
