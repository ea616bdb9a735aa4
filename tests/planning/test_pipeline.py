"""The stream keeps the laws of queues."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnlab.planning.pipeline import SEGMENTS, flow, places_of, stream, window
from gnnlab.planning.steps import Work

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
@given(
    blocks=st.lists(st.lists(MS, min_size=1, max_size=2), min_size=1, max_size=3),
    cores=st.integers(1, 4),
)
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
