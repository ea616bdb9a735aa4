"""Plans are ranked by what their devices really do: the bytes that go along, the calls, and the stream of graphs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from synthetic_costs import DEVICES, blocks_without, costs

from gnnlab.plans.plans import Block, Space, parse
from gnnlab.plans.rank import (
    DeviceStep,
    Planner,
    cores_of,
    device_steps,
    greedy_cover,
    last_full_stage,
    moved_bytes,
    stream_ms,
    window,
)
from gnnlab.workloads.graphsage import random_inputs, sage

LAYER = sage(16)
N, E = 400, 900
NPU_CANNOT = blocks_without("NPU", 3, 4)


@pytest.mark.parametrize("after", range(1, 7))
def test_moved_bytes_are_those_of_the_real_tensors(after):
    values = LAYER.trace(**random_inputs(N, E, LAYER.features))
    size = {name: tensor.numel() * tensor.element_size() for name, tensor in values.items()}
    block = Block(("CPU",), 1, after)
    writes = [stage.writes for stage in LAYER.stages[:after]]
    needed = {name for stage in LAYER.stages[after:] for name in stage.reads}
    travels = sum(size[name] for name in ["x", "edge_index", *writes] if name in needed)
    assert moved_bytes(costs(layer=LAYER, separate=["NPU"]), block, "CPU", "NPU", N, E) == travels
    near = moved_bytes(costs(layer=LAYER), block, "CPU", "NPU", N, E)
    assert near == sum(size[name] for name in writes if name in needed)


def test_a_block_is_one_call_where_it_was_measured_and_a_few_else():
    singles = {(n, n) for n in range(1, 8)}
    assert greedy_cover(singles | {(1, 7), (1, 5)}, 1, 7) == [(1, 7)]
    assert greedy_cover(singles | {(1, 5), (6, 7)}, 1, 7) == [(1, 5), (6, 7)]
    assert greedy_cover({(1, 5), (7, 7)}, 1, 7) == [] and greedy_cover(singles, 3, 3) == [(3, 3)]
    plan = parse("1-7 on CPU")
    fused, parts = (device_steps(plan, of, N, E)[0] for of in (costs(), costs(lacking=[("CPU", 1, 7)])))
    assert (len(fused.calls), len(parts.calls)) == (1, 2) and fused.low_ms < fused.ms < fused.high_ms < parts.high_ms


def test_a_part_reads_the_whole_x_and_drops_other_rows_before_weights_are_applied():
    for step, own in zip(device_steps(parse("1-7 on CPU and GPU (0.3, 0.7)"), costs(), N, E), (120, 280), strict=True):
        edges = round(own / N * E)
        assert step.calls == ((step.device, 1, 5, N, edges), (step.device, 6, 7, own, edges))
    rows = device_steps(parse("1-5 on CPU, 6-7 on GPU and NPU (0.5, 0.5)"), costs(), N, E)[1:]
    assert [call[3] for step in rows for call in step.calls] == [200, 200]
    assert [last_full_stage(LAYER, *span) for span in ((1, 7), (1, 4), (6, 7))] == [5, 4, 0]
    with refused("stages 1-2 hand on values of edges"):
        last_full_stage(LAYER, 1, 2)


def test_devices_with_a_memory_of_their_own_are_sent_the_graph_and_the_whole_cut():
    plan = parse("1-2 on NPU, 3-7 on CPU")
    near, far = (device_steps(plan, costs(separate=separate), N, E)[0] for separate in ((), ["NPU"]))
    moved = LAYER.cut_bytes(0, N, E) + LAYER.cut_bytes(2, N, E) - LAYER.values["messages"].bytes(N, E)
    assert far.ms - near.ms == pytest.approx(0.01 + moved / 5e6)


def test_a_missing_time_names_the_block_and_the_device_that_lack_it():
    """Also where a part of a shared block is run by itself: that part is named, not the whole block."""
    without_6 = costs(lacking=blocks_without("GPU", 6))
    with refused("no time of stages 1-7 on GPU; it has times of 1 GATHER, 1-2, 1-3"):
        device_steps(parse("1-7 on GPU"), without_6, N, E)
    lacking = [("GPU", a, b) for a, b in LAYER.blocks() if (a, b) not in ((1, 5), (1, 7))]
    with refused("no time of stages 6-7 on GPU, which it runs by itself where it shares 1-7; it has times of 1-5, 1-7"):
        device_steps(parse("1-7 on GPU and CPU (0.3, 0.7)"), costs(lacking=lacking), N, E)


@pytest.mark.parametrize(
    ("ms", "cores", "own", "a_graph_ms"),
    [
        ((5,), 2, "", 5),
        ((5, 3), 2, "", 5),  # the slowest sets the pace
        ((5, 3), 1, "", 8),  # they take turns
        ((5, 3), 1, "b", 5),  # a device of its own needs no core
        ((2, 5, 2), 2, "", 5),  # the first and the last take turns on one core, the middle one has its own
    ],
)
def test_the_busiest_core_sets_the_pace_of_a_stream(ms, cores, own, a_graph_ms):
    steps = [DeviceStep(block, "abc"[block], each) for block, each in enumerate(ms)]
    places = cores_of(steps, cores, own)
    assert stream_ms(steps, places, 500) / 500 == pytest.approx(a_graph_ms, rel=0.03)
    assert stream_ms(steps, places, 1) == sum(ms)


def independent_stream(steps, cores, graphs):
    """Each device by itself: it starts a graph when its core, the block before, and a slot are free."""
    blocks = max(step.block for step in steps) + 1
    following, done, free = [0] * len(steps), {}, dict.fromkeys(cores.values(), 0.0)
    while min(following) < graphs:
        able = []
        for place, step in enumerate(steps):
            graph = following[place]
            needs = (graph, step.block - 1) if step.block else (graph - window(blocks), blocks - 1)
            devices = [p for p, other in enumerate(steps) if other.block == needs[1]]
            if graph < graphs and (needs[0] < 0 or all((needs[0], p) in done for p in devices)):
                ready = max((done[needs[0], p] for p in devices), default=0.0) if needs[0] >= 0 else 0.0
                able.append((max(ready, free[cores[step.device]]), graph, -step.block, place))
        start, graph, _, place = min(able)
        done[graph, place] = free[cores[steps[place].device]] = start + steps[place].ms
        following[place] += 1
    return max(done.values())


@settings(max_examples=60)
@given(
    blocks=st.lists(st.lists(st.floats(0.1, 50), min_size=1, max_size=2), min_size=1, max_size=3),
    cores=st.integers(1, 4),
    graphs=st.integers(1, 16),
)
def test_a_stream_takes_what_an_independent_simulation_takes(blocks, cores, graphs):
    steps = [DeviceStep(b, f"{b}{place}", ms) for b, block in enumerate(blocks) for place, ms in enumerate(block)]
    places = cores_of(steps, cores)
    total = stream_ms(steps, places, graphs)
    assert total == pytest.approx(independent_stream(steps, places, graphs), rel=1e-14)
    busiest = max(sum(step.ms for step in steps if places[step.device] == core) for core in places.values())
    assert graphs * busiest <= total * (1 + 1e-12) and total <= graphs * sum(step.ms for step in steps) * (1 + 1e-12)


def planner(lacking=NPU_CANNOT, **options):
    return Planner(costs(lacking=lacking), **{"cores": 2, "max_blocks": 3, **options})


def test_every_legal_plan_is_ranked_and_plans_of_one_device_are_among_them():
    ranking = planner().rank(400, 900)
    table, alone = ranking.table, ranking.one_device_plans
    assert table["ms"].is_monotonic_increasing and ranking.chosen == table.index[0]
    assert ((table["low"] < table["ms"]) & (table["ms"] < table["high"])).all()
    assert alone == [plan for plan in table.index if len(plan.devices) == 1]
    legal = Space(DEVICES, unable={"NPU": {3, 4}}).candidates(max_blocks=3, one_device=True)
    shared = {(block.first, block.last) for plan in table.index for block in plan.blocks if block.shared}
    assert set(table.index) < set(legal) and shared == {(1, 4), (1, 5), (1, 6), (1, 7)}
    mine = parse("1-5 on CPU and GPU (0.25, 0.75), 6-7 on NPU")  # a ratio that no candidate has
    assert set(planner().rank(400, 900, [mine]).table.index) == {*table.index, mine}


def test_three_blocks_are_searched_where_they_are_asked_for():
    two, three = (planner(max_blocks=blocks).rank(400, 900).table for blocks in (2, 3))
    assert [{len(plan.blocks) for plan in table.index} for table in (two, three)] == [{1, 2}, {1, 2, 3}]
    assert set(two.index) < set(three.index) and three["ms"].iloc[0] <= two["ms"].iloc[0]


def test_near_plans_are_few_and_have_the_best_of_one_device_first():
    ranking = planner().rank(400, 900)
    near, ms = ranking.near(within=1.2, most=3), ranking.table["ms"]
    assert near[0] == ranking.one_device_plans[0] and ranking.chosen in near and len(near) <= 6
    assert all(ms[plan] <= 1.2 * (ms[near[0]] if len(plan.devices) == 1 else ms.iloc[0]) for plan in near)


def test_an_interval_has_all_blocks_at_their_ends():
    plan = parse("1-7 on CPU")
    ms, low, high = planner().rank(400, 900, also=[plan]).table.loc[plan, ["ms", "low", "high"]]
    assert high - ms == pytest.approx(ms - low) and np.isclose((ms - low) / ms, 0.1, atol=0.04)  # copies have none


def test_what_cannot_be_planned_says_why_in_one_line():
    no_stage_6 = [block for device in DEVICES for block in blocks_without(device, 6)]
    with refused("can be costed: CPU: no times of stages 6 at 10x10; GPU"):
        planner(no_stage_6).rank(10, 10)
    with refused("'TPU' is unknown"):
        planner().rank(10, 10, also=[parse("1-7 on TPU")])
