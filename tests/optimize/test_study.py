"""Races of cases on planted truth: means, intervals, conditions put back."""

import numpy as np
import pandas as pd
import pytest
import torch

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize import study_reading
from gnnlab.optimize.study import (
    BASELINE,
    CONTROL,
    SAME,
    Case,
    Conditions,
    Gain,
    geometric_mean,
    races,
    rounds_of,
    set_conditions,
)
from gnnlab.profiling.parity import ParityError


@pytest.fixture(autouse=True)
def conditions():
    """Threads and precision as they were, whatever a test sets."""
    before = Conditions.now()
    yield before
    before.set()


@pytest.fixture
def options(conditions):
    return {"budget_s": 0.01, "installed": conditions, "ours": conditions}


def planted(ratio, n=60, noise=0.05, seed=0):
    """Rounds of a form that is `ratio` times as fast, under noise that both share and noise of their own."""
    random = np.random.default_rng(seed)
    machine = np.exp(random.normal(0, 0.5, n))
    own = np.exp(random.normal(0, noise, (n, 2)))
    return np.column_stack([ratio * machine, machine]) * own


def table(*rounds, form="fast"):
    """A table of races with the planted rounds, a size each."""
    rows = [
        {
            "form": form,
            "size": i,
            "rounds": r,
            "same_rounds": r,
            "parity_error": 1e-7,
            "conditions": "1 thread, highest",
            "under": Conditions(1, "highest"),
            "ratio": np.median(r[:, 0] / r[:, 1]),
        }
        for i, r in enumerate(rounds)
    ]
    return pd.DataFrame(rows)


def test_the_geometric_mean_of_planted_ratios_lies_in_its_interval():
    gain = geometric_mean([planted(2.0, seed=1), planted(8.0, seed=2)])
    assert gain.ci[0] < 4 < gain.ci[1] and gain.ci[1] / gain.ci[0] < 1.1
    assert (gain.n, gain.sizes) == (60, 2)


def test_nineteen_of_twenty_intervals_hold_the_truth():
    held = [
        low <= 3 <= high
        for seed in range(200)
        for low, high in [geometric_mean([planted(3.0, n=8, seed=3 * seed + i) for i in range(3)]).ci]
    ]
    assert np.mean(held) >= 0.93


def test_throughput_is_the_ratio_of_mean_times():
    rounds = np.array([[2.0, 1.0]] * 9 + [[2.0, 11.0]])  # one slow call in ten
    assert geometric_mean([rounds]).value == pytest.approx(2)
    assert geometric_mean([rounds], of="mean").value == pytest.approx(1)


@pytest.mark.parametrize(("rounds", "of"), [([], "median"), ([planted(1.0)], "mode")])
def test_a_mean_of_nothing_or_of_something_unknown_is_refused(rounds, of):
    with pytest.raises(OptimizeError, match="geometric_mean needs rounds"):
        geometric_mean(rounds, of=of)


def test_conditions_are_put_back_also_after_an_error(conditions):
    other = Conditions(1, "medium")
    with pytest.raises(RuntimeError), other.held():
        assert Conditions.now() == other
        raise RuntimeError
    assert Conditions.now() == conditions
    assert set_conditions(1, "high") == (conditions, Conditions(1, "high")) and Conditions.now().precision == "high"
    assert set_conditions(0, "highest")[1].threads == 1


def test_each_side_runs_under_its_own_conditions(conditions):
    seen = {"baseline": set(), "fast": set()}

    def form(name):
        def run():
            seen[name].add(torch.get_float32_matmul_precision())
            return torch.ones(2)

        return run

    ours = Conditions(conditions.threads, "medium")
    ours.set()
    case = Case({"size": "1/1"}, form("baseline"), {"fast": form("fast")})
    found = races([case], budget_s=0.01, installed=conditions, ours=ours)
    assert seen == {"baseline": {conditions.precision, "medium"}, "fast": {"medium"}}
    assert list(found["form"]) == [BASELINE, CONTROL, SAME, "fast"]
    fast, same = rounds_of(found, "fast")[0], rounds_of(found, "fast", same=True)[0]
    assert np.array_equal(fast[:, 1], same[:, 1]) and not np.array_equal(fast[:, 0], same[:, 0])
    assert Conditions.now() == ours


def test_under_the_same_conditions_both_figures_are_one(options):
    found = races([Case({}, lambda: 1.0, {"fast": lambda: 1.0})], **options).set_index("form").loc["fast"]
    assert (found["ratio"], found["ci_low"], found["ci_high"]) == (
        found["same_ratio"],
        found["same_low"],
        found["same_high"],
    )


def test_a_form_that_does_not_run_is_named_and_one_that_differs_is_not_timed(options):
    def missing():
        raise NotImplementedError("no kernel\nfor this")

    found = races([Case({}, lambda: 1.0, {"fast": lambda: 1.0, "absent": missing})], **options)
    absent = found[found["form"] == "absent"].iloc[0]
    assert absent["notes"] == "does not run here: no kernel" and np.isnan(absent["ratio"])
    assert rounds_of(found, "absent") == [] and "absent does not run here" in study_reading.forms(found)
    with pytest.raises(ParityError, match="wrong"):
        races([Case({}, lambda: 1.0, {"wrong": lambda: 1.1})], **options)
    races([Case({}, lambda: 1.0, {"rough": lambda: 1.01}, {"rough": 0.02})], **options)


def test_titles_follow_the_numbers():
    both = pd.concat([table(planted(2.0)), table(planted(3.0), form="bag")], ignore_index=True)
    assert study_reading.fastest(both, "Sum").startswith("Sum: bag is ")


def test_a_gain_reads_as_one():
    assert study_reading.gain_text(Gain(2.0, (1.5, 2.5), 9, 1)) == "2 times as fast (1.5 to 2.5)"
