"""Two variants in fresh processes: what is planted in time and memory comes out, what was not seen is no number."""

import os
import time
from pathlib import Path

import pytest
import torch
from refusals import refused

from gnnlab.measure.estimates import Estimate
from gnnlab.measure.versus import Made, Memory, Peak, Versus, cost_s, versus

HERE = "test_versus"
MIB_OF_FLOATS = 2**18
X = Made(f"{HERE}:inputs")


# ---- what the processes make ----------------------------------------------------------------------------------------


def inputs():
    return (torch.ones(8),)


def sleeps(seconds, other=0.0):
    def variant(x):
        time.sleep(seconds)
        return x + other

    return variant


def needs(variable):
    """Takes 1 ms, or half of it where the environment has a variable."""
    return sleeps(0.0005 if variable in os.environ else 0.001)


def ends():
    os._exit(7)


def takes(torch_mib, kept_mib=0):
    """A variant that holds so much while it runs, and keeps some from its first call on."""
    kept = []

    def variant(x):
        if not kept:
            kept.append(torch.ones(kept_mib * MIB_OF_FLOATS))
        held = torch.ones(torch_mib * MIB_OF_FLOATS)
        return x + 0 * len(held)

    return variant


def made(function, **arguments):
    return Made(f"{HERE}:{function}", arguments)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


# ---- what comes out -------------------------------------------------------------------------------------------------


def test_each_process_makes_both_and_times_them_in_turns():
    told = []
    raced = versus(made("sleeps", seconds=0.004), made("sleeps", seconds=0.001), X, processes=3, seconds=0.1,
                   tell=told.append)  # fmt: skip
    assert raced.speed.low > 2 and len(raced.processes) == len(told) == 3 and raced.error == 0
    assert raced.before_ms.value > raced.after_ms.value and raced.memory is None and raced.device == "cpu"


@pytest.mark.parametrize(("enough", "processes"), [(True, 1), (False, 3)])
def test_it_ends_after_a_first_process_that_is_enough(enough, processes):
    asked = []
    variants = made("sleeps", seconds=0.001), made("sleeps", seconds=0.004), X
    raced = versus(*variants, processes=3, seconds=0.05, enough=lambda first: asked.append(first.value) or enough)
    assert len(raced.processes) == processes and asked == [raced.processes[0].value]


def test_an_environment_is_that_of_after_alone():
    side = made("needs", variable="PLANTED")
    assert versus(side, side, X, processes=1, seconds=0.2, environment={"PLANTED": "1"}).speed.value > 1.2


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (made("sleeps", seconds=0.001, other=1.0), "after: its output differs from that of before"),
        (made("ends"), "the process exited with code 7"),
        (made("not_there"), "has no attribute 'not_there'"),
    ],
)
def test_what_differs_or_dies_is_refused(after, words):
    with refused(words):
        versus(made("sleeps", seconds=0.001), after, X, processes=1, seconds=0.01)


@pytest.mark.parametrize("processes", [0, 2])
def test_processes_that_make_no_interval_are_refused_before_one_starts(processes):
    with refused("give 1, whose interval is that within it, or 3 and more"):
        versus(X, X, X, processes=processes)


def test_peaks_hold_the_first_call_and_what_is_kept_and_both_counts_agree():
    variants = made("takes", torch_mib=40, kept_mib=20), made("takes", torch_mib=30)
    memory = versus(*variants, X, processes=1, seconds=0.01, memory=True).memory
    assert memory.before.torch_mib == pytest.approx(60, abs=0.5) and memory.after.torch_mib == pytest.approx(
        30, abs=0.5
    )
    assert memory.before.agrees and memory.after.agrees and memory.ratio.value == pytest.approx(2, rel=0.02)


def peak(torch_mib, process_mib=None, agrees=None, device="cpu"):
    return Peak(torch_mib, process_mib, agrees, device, 1.0, 1.0)


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (peak(20.0), "does not tell the peak memory of a process"),
        (peak(20.0, 41.0, False), "not judged, as the two differ"),
        (peak(20.0, 24.0, None), "not judged, as the two differ"),  # it cannot be told
        (peak(2.0, 2.1, True), "not judged, as below 8 MiB"),
        (peak(0.0, device="cuda"), "holds nothing beside its inputs"),
        (peak(20.0, 20.5, True), ""),
        (peak(20.0, device="cuda"), ""),
    ],
)
def test_a_ratio_of_peaks_that_were_not_both_seen_is_none(after, why):
    memory = Memory(peak(40.0, 40.2, True), after)
    assert why in memory.why and bool(memory.why) is bool(why)
    assert (memory.ratio is None) is bool(why) and (why or memory.ratio.value == 2)


def test_the_cost_is_known_before():
    assert cost_s(5, 2.0) == pytest.approx(5 * (4 + 2.6)) and cost_s(1, 0.0, memory=True) == 12


def test_an_effect_that_could_be_seen_is_wider_than_the_interval():
    one = Estimate(1.0, 0.9, 1.1, 12)
    assert Versus(one, (one,), one, one, 0.0, "", "cpu").detectable > (1.1 / 0.9) ** 0.5
    two = Estimate(1.0, None, None, 2)
    assert Versus(two, (one,), one, one, 0.0, "", "cpu").detectable is None
