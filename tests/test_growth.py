"""The variants of examples/growth.py compute the same, and their race makes the rows of notebook 09."""

from dataclasses import asdict

import pytest

from examples import growth
from gnnlab.measure.estimates import Estimate
from gnnlab.measure.versus import Memory, Peak, Versus, race


@pytest.mark.parametrize("phase", growth.PHASES)
@pytest.mark.parametrize("model", growth.MODELS)
def test_both_variants_give_the_same(model, phase):
    sides = dict(zip(("before", "after", "inputs"), map(asdict, growth.variants(model, 300, 1200, phase)), strict=True))
    assert race(**sides, mode="plain", tolerance=1e-4, seconds=0.0)["error"] < 1e-4


def test_a_race_is_a_time_a_peak_and_a_first_call_of_each_variant(monkeypatch):
    ms = Estimate(4.0, 3.0, 5.0, 30), Estimate(1.0, None, None, 2)
    peaks = Peak(20.0, 20.0, True, "cpu", 9.0, 3.0), Peak(10.0, 40.0, False, "cpu", 4.0, 1.0)
    raced = Versus(ms[0], (), *ms, 1e-7, "1 thread", "cpu", Memory(*peaks))
    monkeypatch.setattr(growth, "versus", lambda *variants, **options: raced)
    frame = growth.measured("GCN", 1000, 5000, "forward")
    assert list(frame["variant"].unique()) == ["GCN, PyG", "GCN, gnnlab"] and len(frame) == 6
    fast = frame[frame["variant"] == "GCN, gnnlab"].set_index("quantity")
    assert fast.loc["time", "value"] == 1.0 and fast.loc["time", "interval"] == "none"
    assert 10.4 < fast.loc["peak memory", "value"] < 10.6 and "process 40" in fast.loc["peak memory", "notes"][0]
    assert fast.loc[growth.FIRST, "value"] == 4.0
