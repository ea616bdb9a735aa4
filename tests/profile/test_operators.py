"""The profile finds the planted bottleneck, counts calls exactly, and leaves no half of a trace behind."""

import gzip
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.profiler import DeviceType

from gnnlab.errors import GnnlabError
from gnnlab.profile.operators import _RUN, OUTSIDE, _calls_by_run, _shares, profile_operators


class Heavy(nn.Module):
    """One large product, and two calls of a small layer."""

    def __init__(self):
        super().__init__()
        self.small = nn.Linear(4, 4)
        self.large = nn.Sequential(nn.Linear(300, 300, bias=False), nn.ReLU())

    def forward(self, x, wide):
        return self.small(self.small(x)).sum() + self.large(wide).sum()


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    trace = tmp_path_factory.mktemp("traces") / "deep" / "trace.json.gz"
    return profile_operators(Heavy().eval(), (torch.ones(2, 4), torch.ones(4000, 300)), runs=8, trace=trace)


def test_a_known_bottleneck_leads_the_table_and_calls_are_exact(profile):
    table, names = profile.frame, list(profile.frame["operator"][:2])
    assert list(profile.top(1).operator) == ["aten::mm"] and len(profile.top(3)) == 3
    counts = table.set_index("operator").calls[["aten::mm", "aten::addmm", "aten::relu", "aten::sum"]]
    assert list(counts) == [8, 16, 8, 16] and (table.calls_per_forward == table.calls / profile.runs).all()
    assert ((table.share_low >= 0) & (table.share_low <= table.share) & (table.share <= table.share_high)).all()
    assert (table.share_high <= 1).all() and table.share.is_monotonic_decreasing
    assert not table.operator.str.startswith("gnnlab").any()
    np.testing.assert_allclose(profile.joint_share(*names), profile.shares.loc[names].sum())
    assert profile.joint_share("aten::no_such").tolist() == [0] * 8
    assert profile.calls("aten::addmm", "aten::no_such") == {"aten::addmm": 2, "aten::no_such": 0}


def test_the_trace_holds_operators_with_shapes_and_allocations_and_nothing_else_is_left(profile):
    with gzip.open(profile.trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    products = [event for event in events if event.get("name") == "aten::mm"]
    assert products and all(event["args"]["Input Dims"] for event in products)  # shapes, as S0 records them
    assert any(event["args"].get("Bytes") for event in events if event.get("name") == "[memory]")
    assert list(profile.trace.parent.iterdir()) == [profile.trace]


def test_a_training_step_is_profiled_as_a_function():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    profile = profile_operators(step, (torch.ones(3, 4),), runs=2)
    names = set(profile.frame.operator)
    assert {"aten::addmm", "AddmmBackward0"} <= names
    assert not any("Optimizer" in name for name in names)  # an annotation, no operator


def test_a_stall_in_one_run_makes_no_bottleneck_and_five_runs_have_no_interval():
    stalled = pd.DataFrame([[8.0] * 10, [2.0] * 9 + [1000.0]])
    table, _ = _shares(stalled)
    assert list(table["share"]) == [0.8, 0.2]
    assert table["share_low"][1] == 0.2 and table["share_high"][0] == 0.8
    assert _shares(stalled.iloc[:, :5])[0]["share_low"].isna().all()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [*(({"runs": runs}, "2 or more") for runs in (1, 0, 2.0, True)), ({"trace": "trace.pkl"}, "ends in .json or")],
)
def test_too_few_runs_and_a_trace_of_another_kind_are_refused(wrong, words):
    with pytest.raises(GnnlabError, match=words):
        profile_operators(torch.ones_like, (torch.ones(1),), **wrong)


def event(name, start, end, device=DeviceType.CPU, kernels_us=0.0):
    """As torch's profiler has them, in us."""
    time = SimpleNamespace(start=start, end=end, elapsed_us=lambda: end - start)
    times = {"self_device_time_total": kernels_us, "self_cpu_time_total": end - start}
    return SimpleNamespace(
        name=name, time_range=time, device_type=device, is_user_annotation=name == _RUN and device is DeviceType.CPU,
        **times,
    )  # fmt: skip


def test_on_cuda_the_time_is_that_of_kernels_and_those_that_no_operator_launched_are_not_lost():
    events = []
    for run in range(3):
        at = 1000 * run
        events += [event(_RUN, at, at + 900), event(_RUN, at + 30, at + 800, DeviceType.CUDA)]
        events += [event("aten::mm", at + 10, at + 20, kernels_us=300.0)]
        events += [
            event("gemm", at + 30, at + 330, DeviceType.CUDA),
            event("triton", at + 400, at + 500, DeviceType.CUDA),
        ]
    record = SimpleNamespace(events=lambda: events)
    calls = _calls_by_run(record, torch.device("cuda"))
    assert sorted(zip(calls["run"], calls["operator"], calls["ms"], strict=True)) == [
        (run, *row) for run in (0, 1) for row in (("aten::mm", 0.3), (OUTSIDE, pytest.approx(0.1)))
    ]
    on_cpu = _calls_by_run(record, torch.device("cpu"))
    assert on_cpu["operator"].tolist() == ["aten::mm"] * 2 and on_cpu["ms"].tolist() == [0.01] * 2
