"""What is said of executed plans is true of the times that were made up, and OpenVINO's own ways are among them."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from one_table import Recorder

from gnnlab.errors import ParityError, Untestable
from gnnlab.lab.text import with_unit
from gnnlab.plans import compare
from gnnlab.plans.compare import ALTERNATIVES, Comparison
from gnnlab.plans.execute import CheckedGraph
from gnnlab.plans.plans import parse
from gnnlab.stages.export import export
from gnnlab.stages.sizes import layer_of
from gnnlab.workloads.graphsage import random_inputs

CPU, GPU = "plan_devices:cpu", "plan_devices:gpu"
ONE, SEVERAL, OTHER = PLANS = [f"1-7 on {CPU}", f"1-5 on {CPU}, 6-7 on {GPU}", f"1-2 on {GPU}, 3-7 on {CPU}"]
LUCKY = np.tile([2.0, 6.0], 6)  # the best of all in the rounds that pick
LAYER = layer_of("sage", 8)


def steady(ms):
    return np.full(12, float(ms))


def recorded(*races, off=(1.0, 1.0, 1.0), others=None, control=None):
    """What the notebook records of races, in each of which the three plans take so many ms; `off`: expected over
    executed; `others`: ms of the alternatives; `control`: of the baseline's."""
    lab, rankings = Recorder(), {}
    for number, ms in enumerate(races, 1):
        samples = dict(zip(PLANS, (steady(each) if np.isscalar(each) else each for each in ms), strict=True))
        expected = [factor * np.median(samples[plan]) for factor, plan in zip(off, PLANS, strict=True)]
        table = pd.DataFrame({"ms": expected}, pd.Index(map(parse, PLANS), dtype=object))
        rankings[f"{number}x1"] = SimpleNamespace(table=table)
        common = {"unit": "ms", "keys": {"size": f"{number}x1"}, "runtime": "made up", "threads": 1}
        variants = {"A/A": samples[ONE] if control is None else steady(control), **samples, **(others or {})}
        for variant, each in variants.items():
            over = {"baseline": ONE, "ratio": float(np.median(samples[ONE] / each))} if variant != ONE else {}
            lab.samples("executed_plans", variant, each, **common, **over)
    lab.compared = Comparison(lab.study("executed_plans"), rankings)
    lab.record("plan_error", lab.compared.errors(), keys=["size", "plan"])
    lab.summarize("plan_error", "predicted", how="median", cluster="size")
    lab.record("plan_gain", lab.compared.gains(), keys=["size"])
    return lab


def every_alternative(*ms):
    return dict(zip(ALTERNATIVES, map(steady, ms), strict=True))


def test_the_gain_is_over_the_fastest_by_every_other_round_and_needs_the_alternatives():
    lab = recorded((10, 5, 6))
    with pytest.raises(Untestable, match="needs OpenVINO's HETERO, AUTO, throughput streams in the race"):
        lab.judge("goal.plan_gain")
    over_one, over_all = lab.study("plan_gain").rows
    assert over_one.value == pytest.approx(2) and over_all.status == "unavailable"
    assert recorded((5, LUCKY, 6)).study("plan_gain").rows[0].value == pytest.approx(5 / 6)  # luck is no gain
    lab = recorded((10, 5, 6), others=every_alternative(9, 8, 8, 7.5, 9))
    judged, verdict = lab.judge("goal.plan_gain")
    assert judged.estimate.value == pytest.approx(1.5) and verdict == "met"
    assert list(lab.compared.gains()["rival"]) == [ONE, "hand-built, all cores"]


@pytest.mark.parametrize(
    ("races", "others", "control", "words"),
    [
        ([(10, 5, 6)], (9, 8, 8, 7.5, 9), None, f"Planning pays at 1x1: the fastest plan, {SEVERAL}, is 1.5"),
        ([(10, 5, 6)], (9, 8, 8, 4, 9), None, "Planning does not pay at 1x1: the fastest plan"),
        ([(10, 5, 6)], (9, 8, 8, 5, 9), 12, "Planning makes no measurable difference at 1x1"),  # by what the A/A shows
        ([(10, 5, 6), (10, 5, 2)], (9, 8, 8, 5, 9), None, "Planning pays at 1 of 2 sizes; at 2x1 the fastest plan"),
        ([(4, 5, 6)], None, None, f"the fastest plan, {ONE}, is 1"),  # over the best device alone: it is the same plan
    ],
)
def test_the_finding_is_one_sentence_of_the_numbers_in_the_table_of_gains(races, others, control, words):
    lab = recorded(*races, others=others and every_alternative(*others), control=control)
    said = lab.compared.finding(with_unit)
    assert words in said and said.count(". ") == 0 and said.endswith(".")
    values = [with_unit(row.estimate, "x") for row in lab.study("plan_gain").rows if row.status == "ok"]
    assert any(f"is {value} ({interval}) as fast as" in said for value, interval in values)


def test_an_error_counts_either_way_and_plans_of_one_size_are_no_samples_of_their_own():
    off = (0.7, 0.6, 1.5)
    lab = recorded((10, 5, 4), off=off)
    (one, verdict), first = lab.judge("goal.plan_error"), lab.study("plan_error").rows[0]
    assert one.estimate.value == pytest.approx(40) and one.estimate.interval is None and verdict == "open"
    assert first.notes == ["expected 7 ms a graph, times 1; executed 10 ms"] and first.estimate.interval is not None
    many, verdict = recorded(*[(10, 5, 4)] * 8, off=off).judge("goal.plan_error")
    assert many.estimate.interval is not None and verdict == "missed"


def test_how_much_plans_at_other_sizes_took_over_what_was_expected_corrects_a_prediction_at_this_one():
    slowed = (1.0, 0.8, 0.8)  # plans of several devices take 1.25 times what was expected, those of one what was
    (one, _), (many, verdict) = (recorded(*[(10, 5, 4)] * n, off=slowed).judge("goal.plan_error") for n in (1, 8))
    assert one.estimate.value == pytest.approx(20) and many.estimate.value == pytest.approx(0, abs=1e-9)
    assert verdict == "met"
    lab = recorded((10, 5, 4), (10, 5, 8), off=slowed)
    assert [row.notes[0].split("times ")[1].split(";")[0] for row in lab.study("plan_error").rows[:2]] == ["1", "1.25"]


@pytest.fixture(scope="module")
def models(tmp_path_factory, one_registry):
    folder = tmp_path_factory.mktemp("models")
    assert all(export(LAYER, 1, 7, exporter=exporter, folder=folder).ready for exporter in ("openvino", "handbuilt"))
    return folder


def test_every_alternative_gives_the_last_graphs_result_or_is_not_timed(models, tmp_path, monkeypatch):
    cases = [CheckedGraph.of(LAYER, random_inputs(30, 90, 8, seed)) for seed in range(3)]
    calls = compare.alternatives(LAYER, cases, models, count=5)
    assert [*calls] == [*ALTERNATIVES]
    for name, call in calls.items():
        cases[4 % 3].require_equal(call(), name)
    assert compare.alternatives(LAYER, cases, tmp_path, 5) == {}  # without a model of the whole layer
    streamed = compare._streamed
    monkeypatch.setattr(compare, "_streamed", lambda *given: streamed(*given) + 0.1)
    with pytest.raises(ParityError, match="HETERO"):
        compare.alternatives(LAYER, cases, models, 5)
