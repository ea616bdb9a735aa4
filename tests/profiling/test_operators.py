"""The profile finds the planted bottleneck, counts calls exactly, and leaves neither hooks nor half a trace behind."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import torch
from torch import nn

from gnnlab.errors import GnnlabError
from gnnlab.profiling.operators import _shares, profile_operators


class Heavy(nn.Module):
    """One large product, and two calls of a small layer."""

    def __init__(self):
        super().__init__()
        self.small = nn.Linear(4, 4)
        self.large = nn.Sequential(nn.Linear(300, 300, bias=False), nn.ReLU())

    def forward(self, x, wide):
        return self.small(self.small(x)).sum() + self.large(wide).sum()


class Breaks(nn.Module):
    def forward(self, x):
        raise RuntimeError("broken")


@pytest.fixture(scope="module")
def batch():
    return torch.ones(2, 4), torch.ones(2000, 300)


@pytest.fixture(scope="module")
def model():
    return Heavy().eval()


@pytest.fixture(scope="module")
def profile(model, batch, tmp_path_factory):
    return profile_operators(model, batch, runs=8, trace=tmp_path_factory.mktemp("traces") / "deep" / "trace.json.gz")


def test_the_planted_bottleneck_leads_the_table(profile):
    assert list(profile.top(1).operator) == ["aten::mm"]
    assert profile.frame.share[0] > 0.5
    assert len(profile.top(3)) == 3


def test_calls_are_exact(profile):
    table = profile.frame.set_index("operator")
    assert dict(table.calls[["aten::mm", "aten::addmm", "aten::relu", "aten::sum"]]) == {
        "aten::mm": 8,
        "aten::addmm": 16,
        "aten::relu": 8,
        "aten::sum": 16,
    }
    assert (table.calls_per_forward == table.calls / profile.runs).all()


@pytest.mark.parametrize("part", ["frame", "modules"])
def test_every_share_lies_in_its_interval_and_the_largest_comes_first(profile, part):
    table = getattr(profile, part)
    assert ((table.share_low >= 0) & (table.share_low <= table.share) & (table.share <= table.share_high)).all()
    assert (table.share_high <= 1).all()
    assert table.share.is_monotonic_decreasing


def test_only_operators_are_in_the_operator_table(profile):
    assert not profile.frame.operator.str.startswith("gnnlab").any()
    assert 0 < profile.outside_ms < profile.run_ms


def test_modules_have_their_class_their_calls_and_their_time(profile):
    table = profile.modules.set_index("module")
    assert dict(table["class"]) == {
        "": "Heavy",
        "small": "Linear",
        "large": "Sequential",
        "large.0": "Linear",
        "large.1": "ReLU",
    }
    assert dict(table.calls_per_forward) == {"": 1, "small": 2, "large": 1, "large.0": 1, "large.1": 1}
    assert profile.modules.module[0] == "large.0"
    assert (table.inclusive_ms >= table.self_ms).all()
    assert table.inclusive_ms["large"] > table.inclusive_ms["large.0"] > table.self_ms["large"]
    assert table.inclusive_ms[""] == table.inclusive_ms.max()


def test_the_trace_holds_operators_and_modules_and_nothing_else_is_left(profile):
    with gzip.open(profile.trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    names = {event.get("name") for event in events}
    assert {"aten::mm", "gnnlab.module large.0"} <= names
    products = [event for event in events if event.get("name") == "aten::mm"]
    assert all(event["args"]["Input Dims"] for event in products)  # shapes, as S0 records them
    assert any(event["args"].get("Bytes") for event in events if event.get("name") == "[memory]")
    assert list(profile.trace.parent.iterdir()) == [profile.trace]


def test_no_hook_stays_not_even_after_an_exception(model, profile):
    broken = nn.Sequential(nn.Linear(4, 4), Breaks())
    with pytest.raises(RuntimeError, match="broken"):
        profile_operators(broken, (torch.ones(1, 4),), runs=2)
    fails_later = nn.Sequential(nn.Linear(4, 4))
    calls = iter(range(6))

    def forward(x):
        if next(calls) == 5:
            raise RuntimeError("broken")
        return nn.Sequential.forward(fails_later, x)

    fails_later.forward = forward
    with pytest.raises(RuntimeError, match="broken"):
        profile_operators(fails_later, (torch.ones(1, 4),), runs=2)
    for each in (*model.modules(), *broken.modules(), *fails_later.modules()):
        assert not each._forward_hooks
        assert not each._forward_pre_hooks
    assert not torch.autograd.profiler._is_profiler_enabled


def test_a_training_step_is_profiled_as_a_function():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    profile = profile_operators(step, (torch.ones(3, 4),), runs=2, model=model)
    names = set(profile.frame.operator)
    assert {"aten::addmm", "AddmmBackward0"} <= names
    assert not any("Optimizer" in name for name in names)  # an annotation, no operator
    assert list(profile.modules.module) == [""]
    assert profile_operators(torch.ones_like, (torch.ones(3),), runs=2).modules.empty


def test_a_stall_in_one_run_makes_no_bottleneck():
    parts = np.array([[8.0] * 10, [2.0] * 9 + [1000.0]])
    shares = _shares(parts, parts.sum(0))
    assert shares["share"] == [0.8, 0.2]
    assert shares["share_low"][1] == 0.2
    assert shares["share_high"][0] == 0.8


@pytest.mark.parametrize("runs", [1, 0, 2.0, True])
def test_too_few_runs_are_refused(runs):
    with pytest.raises(GnnlabError, match="2 or more"):
        profile_operators(torch.ones_like, (torch.ones(1),), runs=runs)


def test_a_trace_that_cannot_be_written_is_one_line(model, batch, tmp_path):
    with pytest.raises(GnnlabError, match=r"ends in .json or .json.gz"):
        profile_operators(model, batch, trace="trace.pkl")
    in_the_way = tmp_path / "file"
    in_the_way.write_text("kept")
    with pytest.raises(GnnlabError, match=r"could not write .*trace\.json"):
        profile_operators(model, batch, runs=2, trace=in_the_way / "trace.json")
    assert in_the_way.read_text() == "kept"
