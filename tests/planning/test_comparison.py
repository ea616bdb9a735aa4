"""Rows of planted races of plans say what is true of them, and the claims that rest on them come out as planted."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from one_table import Recorder
from refusals import refused

from gnnlab.errors import Untestable
from gnnlab.planning.bench import PEERS
from gnnlab.planning.comparison import Comparison
from gnnlab.planning.plans import parse

CPU, GPU, NPU = (f"plan_units:{name}" for name in ("cpu", "gpu", "npu"))
ONE, CHOSEN, OTHER = PLANS = [
    parse(text).words() for text in (f"1-7 on {CPU}", f"1-5 on {CPU}, 6-7 on {GPU}", f"1-5 on {NPU}, 6-7 on {GPU}")
]
LUCKY = np.tile([2.0, 6.0], 6)  # the best of all in the rounds that pick


def steady(ms, rounds=12):
    return np.full(rounds, float(ms))


class Planted:
    """What a trial predicts: each plan's executed time times `off`, +-10 %; the tables alone the same."""

    def __init__(self, size, samples, off, fitted, candidates):
        self.value = {form: off.get(form, 1.0) * np.median(ms) for form, ms in samples.items()}
        self.size, self.fitted, self.candidates = size, fitted, [parse(form) for form in candidates]

    def predicted(self, plans):
        rows = []
        for plan in plans:
            ms = self.value[plan.words()]
            ends = {"low": 0.9 * ms, "high": 1.1 * ms, "table_low": 0.9 * ms, "table_high": 1.1 * ms}
            rows.append({"size": self.size, "form": plan.words(), "value": ms, **ends, "n": 400, "fitted": self.fitted})
        return pd.DataFrame(rows)


def race(*ms, control=None, off=(), fitted="no", candidates=(CHOSEN,)):
    """Times of the three plans, of the baseline's control; predicted over executed."""
    samples = dict(zip(PLANS, (steady(one) if np.isscalar(one) else one for one in ms), strict=True))
    off = dict(zip(PLANS, off, strict=False))
    return samples, samples[ONE] if control is None else control, (off, fitted, candidates)


def recorded(*races, peers=None):
    """What the notebook records of races; `raced` is their comparison."""
    lab, trials = Recorder(), {}
    for number, (samples, control, planted) in enumerate(races, 1):
        size, samples = f"{number}/1", samples | (peers or {})
        trials[size] = Planted(size, samples, *planted)
        common = {"unit": "ms", "keys": {"size": size}, "runtime": "planted", "threads": 1}
        lab.samples("executed_plans", ONE, samples[ONE], **common)
        for form, ms in {"A/A": control, **{f: s for f, s in samples.items() if f != ONE}}.items():
            over = {"baseline": ONE, "ratio": float(np.median(samples[ONE] / ms))}
            lab.samples("executed_plans", form, ms, **common, **over)
    lab.raced = Comparison(lab.study("executed_plans"), trials)
    lab.record("plan_error", lab.raced.errors(), keys=["size", "plan"])
    lab.record("plan_coverage", lab.raced.coverage(), keys=["size", "plan", "fitted"])
    lab.summarize("plan_error", "predicted", how="median", cluster="size")
    lab.summarize("plan_coverage", "predicted", how="share", within=0, cluster="size", fitted="no")
    lab.record("plan_regret", lab.raced.regret(), keys=["size"])
    lab.record("plan_gain", lab.raced.gain(), keys=["size"])
    return lab


@pytest.mark.parametrize(
    ("races", "regret", "verdict"),
    [
        ([race(10, 5, 4)], (25, 25, 25), "missed"),
        ([race(10, 4, 5)], (0, 0, 0), "met"),
        ([race(10, 5, 4), race(10, 4, 5)], (25, 25, 25), "missed"),  # that of the worst size
        ([race(10, 4, 4, control=steady(8))], (0, 0, 25), "open"),  # what the control shows is in it
        ([race(10, 5, LUCKY)], (0, 0, 0), "met"),  # who is lucky in the rounds that pick is judged by the others
        ([race(10, 5, LUCKY[::-1], candidates=(CHOSEN, OTHER))], (150, 150, 150), "missed"),  # or comes too late
    ],
)
def test_regret_is_held_against_the_best_of_the_others(races, regret, verdict):
    lab = recorded(*races)
    assert set(lab.raced.chosen.values()) == {parse(CHOSEN)}
    judged, of = lab.judge("goal.plan_regret")
    assert (judged.estimate.value, *judged.estimate.interval) == pytest.approx(regret) and of == verdict
    assert judged.estimate.n == 6 and len(lab.study("plan_regret").rows) == len(races) + 1
    assert CHOSEN in judged.rows[0].notes[0] and OTHER in judged.rows[0].notes[0]


def test_the_gain_is_over_the_fastest_by_every_other_round_and_needs_the_peers_in_the_race():
    lab = recorded(race(10, 5, 4))
    with pytest.raises(Untestable, match="needs OpenVINO HETERO, AUTO, throughput streams"):
        lab.judge("goal.plan_gain")
    over_one, over_all = lab.study("plan_gain").rows
    assert over_one.value == pytest.approx(2) and over_all.status == "unavailable"
    assert recorded(race(LUCKY, 5, 5)).study("plan_gain").rows[0].value == pytest.approx(6 / 5)
    lab = recorded(race(10, 5, 4), peers=dict(zip(PEERS, map(steady, (9, 8, 8, 7.5, 9)), strict=True)))
    assert lab.judge("goal.plan_gain")[0].estimate.value == pytest.approx(1.5)
    assert len(lab.study("plan_error").rows) == 3 and list(lab.raced.gain()["rival"]) == [ONE, "hand-built, all cores"]


def test_plans_of_one_size_are_no_samples_of_their_own():
    """Three plans at one size say nothing of other sizes; an error counts either way."""
    off = (0.7, 0.6, 1.5)
    one, verdict = recorded(race(10, 5, 4, off=off)).judge("goal.plan_error")
    assert one.estimate.value == pytest.approx(40) and one.estimate.interval is None and verdict == "open"
    assert "one unit 30 % in the median, 1 of 1 predicted too fast" in one.rows[0].notes[1]
    many, verdict = recorded(*[race(10, 5, 4, off=off)] * 8).judge("goal.plan_error")
    assert many.estimate.interval is not None and verdict == "missed"


def test_coverage_counts_sizes_that_no_table_has():
    judged, _ = recorded(*[race(10, 5, 4)] * 4).judge("goal.plan_coverage")
    assert judged.estimate.value == 1 and judged.estimate.n == 12 and judged.estimate.low < 0.9  # four sizes say little
    beyond = recorded(race(10, 5, 4, off=(0.5, 1.0, 2.0)))
    assert beyond.judge("goal.plan_coverage")[0].estimate.value == pytest.approx(1 / 3)
    with pytest.raises(Untestable):
        recorded(race(10, 5, 4, fitted="yes")).judge("goal.plan_coverage")


def test_a_race_without_the_chosen_plan_or_of_one_plan_alone_is_refused_in_one_line():
    lab = Recorder()
    lab.samples("executed_plans", ONE, steady(3), unit="ms", keys={"size": "1/1"}, runtime="planted", threads=1)
    trials = {"1/1": SimpleNamespace(candidates=[parse(CHOSEN)])}
    with refused("1 plans ran; one that was proposed and another are needed"):
        Comparison(lab.study("executed_plans"), trials)
