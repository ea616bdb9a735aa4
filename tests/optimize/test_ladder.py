"""The rungs share weights, the tables say what they must; one compile, in the slow suite."""

import math

import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

from gnnlab.optimize import ladder as module
from gnnlab.optimize.ladder import CompileCost, Ladder, LadderError, paid_after, rungs

COLUMNS = {"rung", "batch", "ratio", "ci_low", "ci_high", "n", "parity_error", "throughput_ratio", "latency_ms"}


@pytest.fixture
def graph():
    return Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=4)


def test_eager_rungs_are_bit_equal_to_the_baseline(graph):
    forms = rungs(graph, modes=())
    assert list(forms) == ["baseline", "cached ids", "expand"]
    for batch in (1, 5):
        expected = forms["baseline"](batch)
        assert expected.shape == (batch, 256)
        for form in forms.values():
            assert torch.equal(form(batch), expected)


def test_the_seed_gives_the_weights_and_leaves_the_random_state(graph):
    state = torch.random.get_rng_state()
    first, same, other = (Ladder(graph, (), seed=s).rungs()["baseline"](1) for s in (1, 1, 2))
    assert torch.equal(first, same) and not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_climb_has_a_row_for_each_rung_and_batch(graph):
    table = Ladder(graph, ()).climb((1, 4), budget_s=0.05)
    assert set(table.columns) >= COLUMNS
    assert list(zip(table["rung"], table["batch"], strict=True)) == [
        (rung, batch) for batch in (1, 4) for rung in ("A/A", "cached ids", "expand")
    ]
    assert (table["ci_low"] <= table["ratio"]).all() and (table["ratio"] <= table["ci_high"]).all()
    assert (table.loc[table["rung"] != "A/A", "parity_error"] == 0).all()


def test_a_rung_that_does_not_compile_is_named_with_its_reason(graph, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no compiler found")

    monkeypatch.setattr(module, "_compiled", broken)
    ladder = Ladder(graph)
    assert list(ladder.rungs()) == ["baseline", "cached ids", "expand"]
    assert set(ladder.failed) == {"compile", "all together"}
    assert "no compiler found" in ladder.failed["compile"]
    assert ladder.compile_costs().empty


def test_compile_costs_are_set_against_what_a_call_saves(graph):
    ladder = Ladder(graph, ())
    ladder.costs["compile"] = CompileCost(
        seconds=2.0, graphs=3, graph_breaks=1, cache_hits=0, shared=False, reasons=("x",)
    )
    times = {"rung": "compile", "baseline_ms": [1.0, 1.2, 1.1], "latency_ms": [0.8, 0.9, 0.9]}
    climbed = pd.DataFrame(times | {"ci_low": [1.1, 1.2, 1.1]})
    (row,) = ladder.compile_costs(climbed).to_dict("records")
    assert row["saved_ms"] == pytest.approx(0.2)
    assert row["paid_after"] == pytest.approx(10_000)
    assert row["graph_breaks"] == 1 and row["reasons"] == "x"
    (row,) = ladder.compile_costs(climbed.assign(ci_low=[1.1, 0.99, 1.1])).to_dict("records")
    assert math.isnan(row["paid_after"])  # at one batch size no saving is seen


def test_what_saves_nothing_never_pays():
    assert paid_after(1.0, 0.5) == 2000
    assert math.isnan(paid_after(1.0, 0.0)) and math.isnan(paid_after(1.0, -0.1))


@pytest.mark.parametrize("modes", [("fast",), ("default", "max")])
def test_an_unknown_mode_is_refused(graph, modes):
    with pytest.raises(LadderError, match=r"default, reduce-overhead, got '(fast|max)'"):
        Ladder(graph, modes)


@pytest.mark.parametrize("sizes", [(), (0,), (1, 2.5)])
def test_batch_sizes_are_positive_integers(graph, sizes):
    with pytest.raises(LadderError, match="batch_sizes must be integers of 1 or more"):
        Ladder(graph, ()).climb(sizes)


@pytest.mark.slow
def test_compiled_rungs_agree_and_know_their_cost(graph):
    ladder = Ladder(graph)
    forms = ladder.rungs()
    assert list(forms)[3:] == ["all together", "compile"] and not ladder.failed
    for batch in (1, 4):
        for name in ("compile", "all together"):
            torch.testing.assert_close(forms[name](batch), forms["baseline"](batch), rtol=1e-5, atol=1e-6)
    costs = ladder.compile_costs().set_index("rung")
    assert costs.loc["all together", "seconds"] > 0 and costs.loc["all together", "graph_breaks"] >= 1
    assert list(costs["shared"]) == [False, True]
