"""Steps of plans carry the bytes that really go along, and the calls that are really writes; streams keep the laws of
queues."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_costs import costs

from gnnlab.errors import GnnlabError
from gnnlab.planning.plans import Block, parse
from gnnlab.planning.steps import (
    SEGMENTS,
    Work,
    cover,
    flow,
    moved_bytes,
    places_of,
    stream,
    whole_until,
    window,
    works_of,
)
from gnnlab.workloads.graphsage import gat, random_inputs, sage

LAYER = sage(16)
N, E = 400, 900


@pytest.mark.parametrize("layer", [LAYER, gat(8, 2, 4)], ids=["sage", "gat"])
@pytest.mark.parametrize("after", range(1, 7))
def test_moved_bytes_are_those_of_the_real_tensors(layer, after):
    values = layer.trace(**random_inputs(N, E, layer.features))
    size = {name: tensor.numel() * tensor.element_size() for name, tensor in values.items()}
    block = Block(("CPU",), 1, after)
    writes = [stage.writes for stage in layer.stages[:after]]
    needed = {name for stage in layer.stages[after:] for name in stage.reads}
    travels = sum(size[name] for name in ["x", "edge_index", *writes] if name in needed)
    assert moved_bytes(costs(layer=layer, separate=["NPU"]), block, "CPU", "NPU", N, E) == travels
    near = moved_bytes(costs(layer=layer), block, "CPU", "NPU", N, E)
    assert near == sum(size[name] for name in writes if name in needed)


def test_a_block_is_one_call_where_it_was_measured_and_a_few_else():
    singles = {(n, n) for n in range(1, 8)}
    assert cover(singles | {(1, 7), (1, 5)}, 1, 7) == ((1, 7),)
    assert cover(singles | {(1, 5), (6, 7)}, 1, 7) == ((1, 5), (6, 7))
    assert cover({(1, 5), (7, 7)}, 1, 7) == () and cover(singles, 3, 3) == ((3, 3),)
    plan = parse("1-7 on CPU")
    fused, parts = (works_of(plan, of, N, E)[0] for of in (costs(), costs(lacking=[("CPU", 1, 7)])))
    assert (len(fused.calls), len(parts.calls)) == (1, 2) and fused.low_ms < fused.ms < fused.high_ms < parts.high_ms


def test_a_part_reads_the_whole_x_and_drops_other_rows_before_weights_are_applied():
    for work, own in zip(works_of(parse("1-7 on CPU and GPU (0.3, 0.7)"), costs(), N, E), (120, 280), strict=True):
        edges = round(own / N * E)
        assert work.calls == ((work.unit, 1, 5, N, edges), (work.unit, 6, 7, own, edges))
    rows = works_of(parse("1-5 on CPU, 6-7 on GPU and NPU (0.5, 0.5)"), costs(), N, E)[1:]
    assert [call[3] for work in rows for call in work.calls] == [200, 200]


@pytest.mark.parametrize(
    ("layer", "span", "until"),
    [(LAYER, (1, 7), 5), (LAYER, (1, 4), 4), (LAYER, (6, 7), 0), (gat(8, 2, 4), (1, 7), 7), (LAYER, (1, 2), None)],
)
def test_until_where_a_part_computes_all_rows_follows_from_the_layer(layer, span, until):
    if until is not None:
        assert whole_until(layer, *span) == until
        return
    with pytest.raises(GnnlabError, match="stages 1-2 hand on values of edges"):
        whole_until(layer, *span)


def test_devices_with_a_memory_of_their_own_are_sent_the_graph_and_the_whole_cut():
    plan = parse("1-2 on NPU, 3-7 on CPU")
    near, far = (works_of(plan, costs(separate=separate), N, E)[0] for separate in ((), ["NPU"]))
    moved = LAYER.cut_bytes(0, N, E) + LAYER.cut_bytes(2, N, E) - LAYER.values["messages"].bytes(N, E)
    assert far.ms - near.ms == pytest.approx(0.01 + moved / 5e6)


def test_a_missing_time_is_named_in_one_line():
    lacking = [("CPU", a, b) for a in range(1, 8) for b in range(a, 8) if a <= 6 <= b]
    with pytest.raises(GnnlabError, match="no time of stages 1-7 on CPU"):
        works_of(parse("1-7 on CPU"), costs(lacking=lacking), N, E)


# ---- streams ---------------------------------------------------------------------------------------------------------

MS = st.floats(0.1, 50)


def segments_of(works, cores, graphs, devices=()):
    return pd.DataFrame(stream(works, places_of(works, cores, devices), graphs), columns=SEGMENTS)


@pytest.mark.parametrize(
    ("ms", "cores", "devices", "period_ms", "idle"),
    [
        ((5,), 2, "", 5, {"a": 0}),
        ((5, 3), 2, "", 5, {"b": 0.4}),  # the slowest sets the pace
        ((5, 3), 1, "", 8, {"a": 3 / 8, "b": 5 / 8}),  # they take turns
        ((5, 3), 1, "b", 5, {"b": 0.4}),  # a device needs no core
        ((2, 5, 2), 2, "", 5, {"b": 0}),  # the first and the last take turns on one core, the middle one has its own
    ],
)
def test_the_busiest_core_sets_the_pace_of_a_stream(ms, cores, devices, period_ms, idle):
    works = [Work(block, "abc"[block], each) for block, each in enumerate(ms)]
    seen = flow(segments_of(works, cores, 100, devices))
    assert seen["from graph to graph"] == pytest.approx(period_ms, rel=0.05)
    assert {unit: seen[f"idle: {unit}"] for unit in idle} == pytest.approx(idle, abs=0.03)
    alone = flow(segments_of(works, cores, 1, devices))
    assert alone["latency of a graph, with its wait"] == alone["from graph to graph"] == pytest.approx(sum(ms))


@settings(max_examples=40, deadline=None)
@given(blocks=st.lists(st.lists(MS, min_size=1, max_size=2), min_size=1, max_size=3), cores=st.integers(1, 4))
def test_no_graph_is_lost_none_overtakes_another_and_no_core_does_two_things_at_once(blocks, cores):
    works = [Work(b, f"{b}{unit}", ms) for b, block in enumerate(blocks) for unit, ms in enumerate(block)]
    segments = segments_of(works, cores, 12)
    left = segments.groupby("graph")["end_ms"].max().to_numpy()
    entered = segments[segments["block"] == 0].groupby("graph")["start_ms"].min().to_numpy()
    assert len(segments) == 12 * len(works) and (np.diff(left) >= 0).all()
    most = window(len(blocks))
    assert (entered[most:] >= left[:-most] - 1e-9).all()
    for _, on_core in segments.groupby(segments["unit"].map(places_of(works, cores))):
        on_core = on_core.sort_values("start_ms")
        assert (on_core["start_ms"].to_numpy()[1:] >= on_core["end_ms"].to_numpy()[:-1] - 1e-9).all()
