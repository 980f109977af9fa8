"""The passes from a program to a plan: what must hold after each, and what is printed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import chains
from chains import (
    ODE,
    SGD,
    Adam,
    BatchNorm,
    Chain,
    Conv,
    CrossEntropyLoss,
    Dense,
    Flatten,
    MaxPool,
    Scale,
    SquaredLoss,
    relu,
    tanh,
)
from chains.backends import UnsupportedOperationError
from chains.backends.numpy.backend import NumpyBackend
from chains.network import record
from chains.network.network import network_of
from chains.program.operations import MatMul
from chains.testing import listing
from tests import harness

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native.llvm.target import Processor
from chains.backends.native.plan import passes
from chains.backends.native.plan.execution_plan import ExecutionPlan
from chains.backends.native.plan.fused_update import fuse_update_into_large_products, fuse_update_into_tiles
from chains.backends.native.plan.layout import pad_rows
from chains.backends.native.plan.one_sample import write_loops_for_one_sample
from chains.backends.native.plan.passes import PASSES, lines_of, name_of, plan_of
from chains.backends.native.plan.teams import partition_rows
from chains.backends.native.plan.tiles import point_to_rows
from tests.native.support import assert_equal_results, native, random_arrays, run_on
from tests.native.test_shared_weights import recurrent
from tests.native.verify import CHECKS, PlanError, verify
from tests.program.test_loops import nested, recurrence

PROCESSORS = [Processor("avx512", 64, 32, "", ""), Processor("avx2", 32, 16, "", ""), Processor("sse2", 16, 16, "", "")]
WAYS = [(processor, parts) for processor in PROCESSORS for parts in (1, 2, 4)]
WIDE, *_ = PROCESSORS
CASES = {case.name: case for case in harness.CASES}

SMALL = Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4))
NARROW = Chain(Dense(784, 30, tanh), Dense(30, 10))
LARGE = Chain(Dense(600, 410, relu), Dense(410, 520, relu), Dense(520, 20))
TWO_SEGMENTS = Chain(Dense(9, 21), BatchNorm(21), Dense(21, 17, tanh))
IMAGES = Chain(Conv(1, 6, 5, relu), MaxPool(2), Conv(6, 16, 3, relu), Flatten(), Dense(1600, 10), input_shape=(1, 28, 28))
SHARED_WEIGHTS = recurrent(features=20, units=50)
NETWORKS = {
    "small": SMALL,
    "narrow": NARROW,
    "large": LARGE,
    "two segments": TWO_SEGMENTS,
    "images": IMAGES,
    "shared weights": SHARED_WEIGHTS,
}
LOOPS = recurrence().finish()
OPTIMIZERS = {"SGD": SGD(0.1), "momentum": SGD(0.1, momentum=0.9), "Adam": Adam(0.001), "clipped": SGD(0.1, clip_norm=1.0)}


def step_of(net, optimizer=OPTIMIZERS["SGD"]):
    return net.program(SquaredLoss(), optimizer, dtype=np.float32)


def verified(program, processor, parts=1):
    """The plan of a program, verified after every pass that changes it."""
    seen = ExecutionPlan.of(program, processor, parts)
    verify(seen)

    def watch(name, plan):
        nonlocal seen
        if plan is not seen:
            try:
                verify(plan)
            except PlanError as error:
                raise AssertionError(f"after {name}: {error}") from None
        seen = plan

    return plan_of(program, processor, parts, watch)


# Every pass keeps what a program means


@pytest.mark.few(16)
@pytest.mark.parametrize("name", CASES)
def test_schedules_of_every_layer_hold_after_every_pass(name):
    """Each case by three of the ways, others than its neighbours'."""
    case, number = CASES[name], list(CASES).index(name)
    network, objective = (
        network_of(case.net()),
        case.criterion(),
    )
    dtype = np.dtype(harness.DTYPES[number % 2])
    programs = [record.training_step(network, objective, optimizer, dtype) for optimizer in (SGD(0.1), Adam(0.1))]
    for way, program in enumerate([*programs, record.vjp(network, dtype, training=True)]):
        try:
            verified(program, *WAYS[(4 * number + way) % len(WAYS)])
        except UnsupportedOperationError:
            continue


@pytest.mark.few(2)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_schedules_hold_at_every_width_and_number_of_threads(name, optimizer):
    program = step_of(NETWORKS[name], OPTIMIZERS[optimizer])
    plans = {(way.kind, parts): verified(program, way, parts) for way, parts in WAYS}
    assert ({plan.parts for plan in plans.values()} > {1}) == (name == "narrow")


@pytest.mark.few(1)
@pytest.mark.parametrize("model", [chains.models.resnet50, chains.models.densenet121])
def test_schedules_of_whole_models_hold(model):
    net = model(classes=10, input_shape=(3, 32, 32))
    verify(plan_of(net.program(CrossEntropyLoss(), SGD(0.1), dtype=np.float32), WIDE))


OPTIONAL = {
    pad_rows: NARROW,
    fuse_update_into_large_products: LARGE,
    partition_rows: NARROW,
    fuse_update_into_tiles: NARROW,
    point_to_rows: NARROW,
    write_loops_for_one_sample: Chain(ODE(SMALL, [0.0, 1.0], "rk4", steps=3)),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("left_out", OPTIONAL, ids=name_of)
def test_a_pass_may_be_left_out(left_out, changed_compiler, monkeypatch):
    """Without it there is another plan, which means the same."""
    program = step_of(OPTIONAL[left_out])
    parts = 2 if left_out is partition_rows else 1
    whole = lines_of(plan_of(program, WIDE, parts))
    monkeypatch.setattr(passes, "PASSES", [each for each in PASSES if each is not left_out])
    assert lines_of(verified(program, WIDE, parts)) != whole
    arrays = random_arrays(program, 7)
    wanted = run_on(NumpyBackend(), program, 7, arrays, runs=2)
    assert_equal_results(run_on(native(parts), program, 7, arrays, runs=2), wanted, np.float32, factor=20)


def test_rows_of_half_a_vector_stay_where_all_their_products_are_narrow():
    """With four of eight lanes in use: masks take registers, of which AVX2 has sixteen."""

    def row_of(net, number, processor):
        plan = plan_of(step_of(net), processor)
        return next(b for step in plan.steps for v in step.operation.views if (b := v.buffer).name == f"y{number}").size

    _, avx2, sse2 = PROCESSORS
    assert row_of(Chain(Dense(10, 16, tanh), Dense(16, 4), Scale()), 1, avx2) == 4
    assert row_of(Chain(Dense(3, 4, tanh), Dense(4, 4), Scale()), 1, avx2) == 8
    assert row_of(Chain(Dense(10, 16, tanh), Dense(16, 8), Scale()), 1, WIDE) == 16
    assert row_of(Chain(Dense(10, 16, tanh), Dense(16, 3), Scale()), 1, sse2) == 4


def test_passes_are_known_by_name():
    names = []
    plan_of(step_of(SMALL), WIDE, 1, lambda name, plan: names.append(name))
    assert names == [name_of(each) for each in PASSES]
    assert len(set(names)) == len(names)
    assert names[:3] == ["solve in lanes", "choose width", "arrange layout"]


def test_the_page_of_the_design_lists_them():
    text = (Path(chains.__file__).parent.parent / "docs" / "design" / "native.md").read_text()
    rows = [
        line.split("|")[1].strip() for line in text.split("\n| pass |")[1].split("\n\n")[0].splitlines() if line.startswith("|")
    ]
    assert rows[1:] == [name_of(each) for each in PASSES]


def test_a_schedule_does_not_change():
    """Passes return others."""
    stages = [ExecutionPlan.of(step_of(NARROW), WIDE, 2)]
    texts = [repr(stages[0])]
    for each in PASSES:
        stages.append(each(stages[-1]))
        texts.append(repr(stages[-1]))
    assert [repr(stage) for stage in stages] == texts
    with pytest.raises(AttributeError):
        stages[0].parts = 3


# Plans that are wrong


def stage(net, name, parts=1, optimizer=OPTIMIZERS["SGD"]):
    """The plan of a network's training step behind a pass."""
    found = {}
    plan_of(step_of(net, optimizer), WIDE, parts, found.__setitem__)
    return found[name]


def on_first(plan, fits, change):
    """A plan with one step changed: the first that fits."""
    done = []

    def changed(step):
        if done or not fits(step):
            return step
        done.append(step)
        return change(step)

    result = plan.changed(changed)
    assert done
    return result


def in_segment(plan, number=0, **changed):
    segments = list(plan.segments)
    segments[number] = replace(segments[number], **changed)
    return replace(plan, segments=tuple(segments))


def shifted(step):
    out = step.operation.outs[0]
    return replace(step, operation=replace(step.operation, outs=(replace(out, offset=out.buffer.size),)))


def a_view_beside_its_buffer():
    return on_first(stage(SMALL, "cut into segments"), lambda step: step.batched, shifted)


def a_step_left_out():
    plan = stage(SMALL, "pad rows")
    return replace(plan, steps=plan.steps[1:])


def two_steps_in_the_other_order():
    plan = stage(SMALL, "pad rows", optimizer=OPTIMIZERS["momentum"])
    *steps, moments, parameters = plan.steps
    return replace(plan, steps=(*steps, parameters, moments))


def the_rest_of_an_update_left_out():
    plan = stage(LARGE, "fuse update into large products")
    return replace(plan, steps=plan.steps[:-1])


def segments_joined():
    plan = stage(TWO_SEGMENTS, "cut into segments")
    first, second, *rest = plan.segments
    joined = replace(first, tiled=(*first.tiled, *second.tiled), once=(*first.once, *second.once))
    return replace(plan, segments=(joined, *rest))


def a_sum_begun_twice():
    plan = stage(SHARED_WEIGHTS, "cut into segments")
    return on_first(plan, lambda step: step.continued, lambda step: replace(step, continued=False))


def nothing_kept_for_the_whole_batch():
    return replace(stage(TWO_SEGMENTS, "cut into segments"), whole=frozenset())


def an_owner_too_many():
    return on_first(stage(NARROW, "cut into segments", 2), lambda step: step.owner == 1, lambda step: replace(step, owner=2))


def rows_of_no_whole_vectors():
    def narrower(step):
        copy = replace(step.packed.copy, strides=(step.packed.copy.shape[1], 1))
        return replace(step, packed=step.packed._replace(copy=copy))

    return on_first(stage(NARROW, "pack weights"), lambda step: step.packed, narrower)


def a_kernel_with_maps_of_another():
    plan = stage(SMALL, "describe products")
    return on_first(
        plan, lambda step: step.fused and step.fused_product, lambda step: replace(step, fused=(), origins=step.origins[:1])
    )


def a_sum_left_out():
    plan = stage(SMALL, "place tile scratch")
    return in_segment(plan, sums=plan.segments[0].sums[:-1])


def no_barriers():
    plan = stage(NARROW, "place barriers", 2)
    return in_segment(plan, barriers=(False,) * len(plan.segments[0].barriers))


def a_buffer_without_address():
    plan = stage(SMALL, "list buffers")
    return replace(plan, table=plan.table[:-1])


def a_loop_without_a_step():
    plan = plan_of(LOOPS, WIDE)
    (segment, *rest) = plan.segments
    steps = [replace(step, body=step.body[:-1]) for step in segment.tiled_steps]
    return replace(plan, segments=(segment.with_tiled(steps), *rest))


def a_product_twice_for_one_sample():
    return on_first(stage(SMALL, "outline alike"), lambda step: step.batched, lambda step: replace(step, single=True))


def one_place_for_all():
    plan = stage(SMALL, "place tile scratch")
    return replace(plan, scratch=replace(plan.scratch, batched=dict.fromkeys(plan.scratch.batched, 0)))


def a_result_left_out_that_is_read():
    def unstored(step):
        return replace(step, transient=frozenset({step.operation.outs[0].buffer}))

    return on_first(stage(IMAGES, "leave out stores"), lambda step: step.fused, unstored)


BROKEN = {
    a_view_beside_its_buffer: "views lie within their buffers",
    a_step_left_out: "reads follow writes",
    two_steps_in_the_other_order: "order of conflicts is kept",
    the_rest_of_an_update_left_out: "results are complete",
    segments_joined: "tiles wait for nothing",
    a_sum_begun_twice: "tiles wait for nothing",
    nothing_kept_for_the_whole_batch: "tiles share nothing",
    an_owner_too_many: "owners are threads",
    rows_of_no_whole_vectors: "packed weights fit",
    a_kernel_with_maps_of_another: "products are described as they are",
    a_loop_without_a_step: "loops have their steps",
    a_product_twice_for_one_sample: "only loops have code for one sample",
    a_sum_left_out: "sums are listed",
    no_barriers: "barriers keep threads apart",
    a_buffer_without_address: "tables hold all buffers",
    one_place_for_all: "tile scratch is apart",
    a_result_left_out_that_is_read: "what is not stored is not read",
}


@pytest.mark.parametrize("program", [LOOPS, nested(3, 2).finish()], ids=str)
def test_programs_with_loops_pass_all_checks(program):
    for processor, parts in WAYS:
        verified(program, processor, parts)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_what_is_wrong_is_found(broken):
    with pytest.raises(PlanError, match=f"^{BROKEN[broken]}: "):
        verify(broken())


def test_every_check_finds_something():
    assert set(BROKEN.values()) == {name_of(check) for check in CHECKS}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_barrier_is_needed(optimizer):
    plan = stage(NARROW, "place barriers", 2, OPTIMIZERS[optimizer])
    (segment,) = plan.segments
    placed = [position for position, meet in enumerate(segment.barriers) if meet]
    assert placed
    for left_out in placed:
        barriers = tuple(meet and position != left_out for position, meet in enumerate(segment.barriers))
        with pytest.raises(PlanError, match=r"^barriers keep threads apart: "):
            verify(in_segment(plan, barriers=barriers))


def wrongly_padded(plan):
    """As if a pass did its work for the last step only."""
    (operation,) = (step.operation for step in plan.steps[:1])
    out = operation.outs[0]
    buffer = replace(out.buffer, name="other")
    first = replace(plan.steps[0], operation=replace(operation, outs=(replace(out, buffer=buffer),)))
    return replace(plan, steps=(first, *plan.steps[1:]))


def without_barriers(plan):
    return in_segment(plan, barriers=(False,) * len(plan.segments[0].barriers))


def twice(plan):
    """An update done by products and again by all."""
    segment = plan.segments[0]
    size = segment.once[segment.fused_update.work].length
    return in_segment(plan, fused_update=segment.fused_update._replace(rest=((0, size),)))


@pytest.mark.parametrize(
    ("at", "wrong", "parts"),
    [("pad rows", wrongly_padded, 1), ("place barriers", without_barriers, 2), ("fuse update into tiles", twice, 1)],
)
def test_a_wrong_pass_is_named(at, wrong, parts, monkeypatch):
    found = [each if name_of(each) != at else lambda plan, each=each: wrong(each(plan)) for each in PASSES]
    for each, original in zip(found, PASSES, strict=True):
        each.__name__ = original.__name__
    monkeypatch.setattr(passes, "PASSES", found)
    with pytest.raises(AssertionError, match=f"^after {at}: "):
        verified(step_of(NARROW), WIDE, parts)


# What is printed


def test_a_listing_shows_what_each_pass_made():
    program = step_of(NARROW)
    text = native(2).listing(program, passes=True, batch=10)
    stages = dict(part.split(" ==", 1) for part in text.split("\n== ")[1:])
    assert list(stages) == ["the program", *map(name_of, PASSES)]
    assert stages["arrange layout"].strip() == "no change"
    assert "\n-   y0(B, 30) float32 scratch\n" in stages["pad rows"]
    assert "\n+   y0(B, 32) float32 scratch\n" in stages["pad rows"]
    assert any(line.startswith("+") and line.endswith("(thread 1)") for line in stages["partition rows"].split("\n"))
    assert "\n+ segment 0\n" in stages["cut into segments"]
    assert "\n+   barrier\n" in stages["place barriers"]
    assert " of a tile\n" in stages["place tile scratch"]
    assert "define" not in text
    assert "thread 1" not in native(2).listing(program, passes=True)
    for name in program.buffers:
        assert f"  {name}(" in stages["the program"]


def test_other_backends_show_one_stage():
    net = Chain(Dense(3, 4), backend="numpy")
    program = net.program()
    assert listing(program, net.backend, passes=True) == listing(program, net.backend) == str(program)
    assert "== pad rows" in listing(program, "native", passes=True, batch=3)


def test_every_step_is_printed_in_every_stage():
    program = step_of(NARROW)
    text = native(1).listing(program, passes=True)
    products = [str(o) for o in program.operations if isinstance(o, MatMul)]
    for part in text.split("\n== ")[1:]:
        assert "no change" in part or all(product in part for product in products)


def test_what_a_listing_cannot_be():
    net = Chain(Dense(3, 4))
    with pytest.raises(TypeError, match="`passes`"):
        listing(net.program(), passes=3)
    with pytest.raises(ValueError, match="`batch`"):
        listing(net.program(), batch=0)
