"""Rows of planted races of plans say what is true of them, and the claims that rest on them come out as planted."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from one_table import Recorder

from gnnlab.errors import GnnlabError, Untestable
from gnnlab.planning.comparison import PEERS, Comparison
from gnnlab.planning.plans import parse

CPU, GPU, NPU = (f"plan_units:{name}" for name in ("cpu", "gpu", "npu"))
ONE, CHOSEN, OTHER = (
    parse(text).words() for text in (f"1-7 on {CPU}", f"1-5 on {CPU}, 6-7 on {GPU}", f"1-5 on {NPU}, 6-7 on {GPU}")
)


def steady(ms, rounds=12):
    return np.full(rounds, float(ms))


class Planted:
    """What a trial predicts: each plan's executed time times `off`, +-10 %; the tables alone the same."""

    candidates = (parse(CHOSEN),)

    def __init__(self, samples, off, fitted):
        self.value = {form: off.get(form, 1.0) * np.median(ms) for form, ms in samples.items()}
        self.fitted = fitted

    def predicted(self, plans):
        rows = []
        for plan in plans:
            ms = self.value[plan.words()]
            ends = {"low": 0.9 * ms, "high": 1.1 * ms, "table_low": 0.9 * ms, "table_high": 1.1 * ms}
            rows.append({"size": self.size, "form": plan.words(), "value": ms, **ends, "n": 400, "fitted": self.fitted})
        return pd.DataFrame(rows)


def recorded(*races, peers=None):
    """What the notebook records of races, each (samples by plan, control, off, fitted)."""
    lab, trials = Recorder(), {}
    for number, given in enumerate(races, 1):
        samples = {**dict(zip((ONE, CHOSEN, OTHER), given["ms"], strict=True)), **(peers or {})}
        size, off = f"{number}/1", dict(zip((ONE, CHOSEN, OTHER), given.get("off", ()), strict=False))
        trials[size] = Planted(samples, off, given.get("fitted", "no"))
        trials[size].size = size
        base, again = samples[ONE], given.get("control", samples[ONE])
        common = {"unit": "ms", "keys": {"size": size}, "runtime": "planted", "threads": 1}
        lab.samples("executed_plans", ONE, base, **common)
        for form, ms in {"A/A": again, **{f: s for f, s in samples.items() if f != ONE}}.items():
            over = {"baseline": ONE, "ratio": float(np.median(base / ms))}
            lab.samples("executed_plans", form, ms, **common, **over)
    raced = Comparison(lab.study("executed_plans"), trials)
    lab.record("plan_error", raced.errors(), keys=["size", "plan"])
    lab.record("plan_coverage", raced.coverage(), keys=["size", "plan", "fitted"])
    lab.record("plan_regret", raced.regret(), keys=["size"])
    lab.record("plan_gain", raced.gain(), keys=["size"])
    return lab


def race(one, chosen, other, **given):
    return {"ms": [steady(ms) if np.isscalar(ms) else ms for ms in (one, chosen, other)], **given}


def test_the_fastest_of_the_proposed_plans_is_chosen_by_every_other_round():
    lucky = np.tile([6.0, 2.0], 6)  # the best of all in the rounds that judge
    samples = {ONE: steady(4), CHOSEN: steady(5), OTHER: lucky}
    trial = Planted(samples, {}, "no")
    trial.size, trial.candidates = "1/1", [parse(form) for form in (CHOSEN, OTHER)]
    lab = Recorder()
    for form, ms in samples.items():
        over = {} if form == ONE else {"baseline": ONE, "ratio": float(np.median(samples[ONE] / ms))}
        lab.samples("executed_plans", form, ms, unit="ms", keys={"size": "1/1"}, runtime="planted", threads=1, **over)
    raced = Comparison(lab.study("executed_plans"), {"1/1": trial})
    assert raced.chosen == {"1/1": parse(CHOSEN)} and raced.predicted["chosen"].tolist() == [False, True, False]


def test_regret_is_held_against_the_best_of_the_others():
    found, verdict = recorded(race(10, 5, 4)).judge("goal.plan_regret")
    assert found.estimate.value == pytest.approx(25) and verdict == "missed" and OTHER in found.rows[0].notes[0]
    assert CHOSEN in found.rows[0].notes[0]
    best, verdict = recorded(race(10, 4, 5)).judge("goal.plan_regret")
    assert best.estimate.interval == (0, 0) and verdict == "met"


def test_what_the_control_shows_is_in_the_regret():
    noisy, verdict = recorded(race(10, 4, 4, control=steady(8))).judge("goal.plan_regret")
    assert noisy.estimate.low == 0 and noisy.estimate.high == pytest.approx(25) and verdict == "open"


def test_a_plan_that_is_lucky_in_the_rounds_that_pick_it_is_judged_by_the_others():
    lucky = np.tile([2.0, 6.0], 6)  # the best of all in every other round
    found, _ = recorded(race(10, 5, lucky)).judge("goal.plan_regret")
    assert found.estimate.value == 0 and found.estimate.n == 6
    alone = recorded(race(lucky, 5, 5)).study("plan_gain").rows[0]
    assert alone.value == pytest.approx(6 / 5) and alone.n == 6


def test_the_regret_of_several_sizes_is_that_of_the_worst():
    lab = recorded(race(10, 5, 4), race(10, 4, 5))
    found, verdict = lab.judge("goal.plan_regret")
    assert found.estimate.value == pytest.approx(25) and verdict == "missed" and len(lab.study("plan_regret").rows) == 3


def test_the_gain_needs_peers_that_are_not_raced_yet():
    lab = recorded(race(10, 5, 4))
    with pytest.raises(Untestable, match="needs OpenVINO HETERO, AUTO, throughput streams"):
        lab.judge("goal.plan_gain")
    over_one, over_all = lab.study("plan_gain").rows
    assert over_one.value == pytest.approx(2) and over_all.status == "unavailable"


def test_the_gain_over_peers_of_the_same_race_is_that_over_the_fastest():
    lab = recorded(race(10, 5, 4), peers=dict(zip(PEERS, map(steady, (9, 7.5, 8)), strict=True)))
    found, _ = lab.judge("goal.plan_gain")
    assert found.estimate.value == pytest.approx(1.5) and len(lab.study("plan_error").rows) == 3


def test_plans_of_one_size_are_no_samples_of_their_own():
    """Three plans at one size say nothing of other sizes; an error counts either way."""
    off = (0.7, 0.6, 1.5)
    one, verdict = recorded(race(10, 5, 4, off=off)).judge("goal.plan_error")
    assert one.estimate.value == pytest.approx(40) and one.estimate.interval is None and verdict == "open"
    assert "one unit 30 % in the median, 1 of 1 predicted too fast" in one.rows[0].notes[0]
    many, verdict = recorded(*[race(10, 5, 4, off=off)] * 8).judge("goal.plan_error")
    assert many.estimate.interval is not None and verdict == "missed"


def test_the_conclusion_says_which_plan_what_it_gains_and_if_the_prediction_held():
    lab = Recorder()
    for given, off, words in (
        ((10, 5, 6), 1.05, f"**{CHOSEN}**: 5 ms a graph, 2.00 (2.00 to 2.00) times as fast as the best single unit. "
         "Expected were 5.25 ms (+5 %); the 90 % interval of that prediction holds."),
        ((10, 5, 6), 1.5, "(+50 %); the 90 % interval of that prediction does not hold."),
    ):  # fmt: skip
        samples = dict(zip((ONE, CHOSEN, OTHER), map(steady, given), strict=True))
        trial, lab = Planted(samples, {CHOSEN: off}, "no"), Recorder()
        trial.size = "1/1"
        for form, ms in {**samples, "A/A": samples[ONE]}.items():
            over = {} if form == ONE else {"baseline": ONE, "ratio": float(np.median(samples[ONE] / ms))}
            lab.samples(
                "executed_plans", form, ms, unit="ms", keys={"size": "1/1"}, runtime="planted", threads=1, **over
            )
        assert words in Comparison(lab.study("executed_plans"), {"1/1": trial}).conclusion()


def test_coverage_counts_sizes_that_no_table_has():
    found, _ = recorded(*[race(10, 5, 4)] * 4).judge("goal.plan_coverage")
    assert found.estimate.value == 1 and found.estimate.n == 12 and found.estimate.low < 0.9  # four sizes say little
    beyond = recorded(race(10, 5, 4, off=(0.5, 1.0, 2.0)))
    assert beyond.judge("goal.plan_coverage")[0].estimate.value == pytest.approx(1 / 3)
    with pytest.raises(Untestable):
        recorded(race(10, 5, 4, fitted="yes")).judge("goal.plan_coverage")


def test_a_race_without_the_chosen_plan_or_of_one_plan_alone_is_refused_in_one_line():
    lab = Recorder()
    lab.samples("executed_plans", ONE, steady(3), unit="ms", keys={"size": "1/1"}, runtime="planted", threads=1)
    trials = {"1/1": SimpleNamespace(candidates=[parse(CHOSEN)])}
    with pytest.raises(GnnlabError, match="1 plans ran; one that was proposed and another are needed") as error:
        Comparison(lab.study("executed_plans"), trials)
    assert "\n" not in str(error.value)
