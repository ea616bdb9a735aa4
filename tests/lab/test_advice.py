"""What a report and the front page say first follows from planted rows."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from small_site import judged
from table_rows import TORCH

from gnnlab.lab import advice, parameters
from gnnlab.lab import table as tables
from gnnlab.lab.table import Table

ROOT = Path(__file__).parents[2]
MS = {"unit": "ms", "better": "lower", "origin": "measured", "statistic": "median", "interval": "95 % confidence"}


def raced(study, form, ratio, low, high, *, keys=None, error=1e-7, baseline="PyG", **fields):
    compared = {"ratio": ratio, "ratio_low": low, "ratio_high": high, "baseline": baseline, "parity_error": error}
    measured = {"value": 1.0, "low": 0.9, "high": 1.1, "n": 9, **MS, **TORCH}
    return tables.row(study=study, form=form, keys=keys or {"size": "a"}, **measured, **compared, **fields)


def test_the_fastest_form_that_computes_the_same_everywhere_is_named():
    table = Table(
        [
            raced("layer", "fast", 2.0, 1.9, 2.1),
            raced("layer", "fast", 8.0, 7.9, 8.1, keys={"size": "b"}),
            raced("layer", "rough", 9.0, 8.9, 9.1, error=1e-2),
            raced("layer", "rough", 9.0, 8.9, 9.1, error=1e-2, keys={"size": "b"}),
            raced("layer", "only at a", 50.0, 49.0, 51.0),
            raced("layer", advice.CONTROL, 60.0, 59.0, 61.0),
            raced("sum", "noisy", 1.5, 0.9, 2.5),
            raced("no choice", "fast", 9.0, 8.9, 9.1),
        ]
    )
    layer, summed = advice.uses(table, {"sum": "a sum", "layer": "a layer"})  # what has no faster form comes last
    assert (layer.purpose, layer.form, layer.over, layer.texts[0]) == ("a layer", "fast", "PyG", "4.00×")
    assert (summed.purpose, summed.form, summed.over, summed.texts) == ("a sum", None, "PyG", ("", ""))


def test_a_form_that_looks_up_known_answers_is_not_advised():
    table = Table(
        [
            raced("decision", "predictor", 5.0, 4.9, 5.1),
            raced("decision", "predictor, cached", 8.0, 7.9, 8.1, notes=["every state is known"]),
            raced("known alone", "cached", 8.0, 7.9, 8.1, notes=["noisy", "every network is known"]),
        ]
    )
    (decision,) = advice.uses(table, {"decision": "one decision", "known alone": "nothing"})
    assert (decision.form, decision.texts[0]) == ("predictor", "5.00×")


def test_rows_over_another_baseline_are_another_choice():
    table = Table(
        [
            raced("service", "batch", 0.5, 0.4, 0.6, keys={"scenario": "server"}, baseline="guide"),
            raced("service", "gzip", 0.8, 0.7, 0.9, keys={"scenario": "large answers"}, baseline="unpacked"),
            raced("service", "pool", 3.0, 2.9, 3.1, keys={"scenario": "same name"}, baseline="new connections"),
            raced("service", "plain", 4.0, 3.9, 4.1, keys={"scenario": "same name", "of": "b"}, baseline="guide"),
        ]
    )
    uses = advice.uses(table, {"service": "serving, {scenario}"})
    assert [(use.purpose, use.form, use.over) for use in uses] == [
        ("serving, same name", "pool", "new connections"),
        ("serving, same name", "plain", "guide"),
        ("serving, server", None, "guide"),
        ("serving, large answers", None, "unpacked"),
    ]


def test_the_readers_own_models_come_first_a_line_each():
    mine = [raced("your_model", "gnnlab", gain, gain - 0.1, gain + 0.1, keys={"model": str(gain)}) for gain in (2, 3)]
    table = Table([raced("layer", "fast", 9.0, 8.9, 9.1), *mine])
    purposes = {"layer": "a layer", "your_model": "{model}"}
    assert [use.purpose for use in advice.uses(table, purposes, own=True)] == ["2", "3", "a layer"]
    assert [use.yours for use in advice.uses(table, purposes)] == [False, False]


def test_purposes_of_a_study_with_one_answer_are_one_line():
    sizes = [raced("layer", "fast", gain, gain - 0.1, gain + 0.1, keys={"size": str(gain)}) for gain in (1, 2, 4)]
    other = raced("layer", "other", 9.0, 8.9, 9.1, keys={"size": "9"})
    table = Table([*sizes[1:], other, raced("layer", "fast", 8.0, 7.9, 8.1, keys={"size": "8"}), sizes[0]])
    uses = advice.uses(table, {"layer": "a layer of size {size}"})
    assert [(use.purpose, use.form, use.texts[0]) for use in uses] == [
        ("a layer of size 2, 4 or 8", "fast", "4.00×"),
        ("a layer of size 9", "other", "9.00×"),
        ("a layer of size 1", None, ""),
    ]


def test_a_line_names_no_combination_that_has_another_answer():
    cells = [("gcn", "forward", 3), ("gcn", "training", 3), ("gin", "forward", 1), ("gin", "training", 3)]
    table = Table([raced("m", "fast", g, g - 0.1, g + 0.1, keys={"model": m, "pass": p}) for m, p, g in cells])
    lines = [(use.purpose, use.form) for use in advice.uses(table, {"m": "{model}, {pass}"})]
    assert lines == [
        ("gcn, forward", "fast"),
        ("gcn, training", "fast"),
        ("gin, training", "fast"),
        ("gin, forward", None),
    ]


def test_a_run_on_a_busy_machine_says_so(result_file):
    rows = [raced("layer", advice.CONTROL, ratio, 0.5, 2.0, keys={"size": ratio}) for ratio in (0.9, 1.1, 1.2)]
    quiet = {"others_percent": 2.0, "steal_percent": 0.0}
    assert advice.noise(result_file(environment=quiet | {"finished": quiet})) is None
    busy = result_file(environment=quiet | {"finished": {"others_percent": 42.0}}, rows=rows)
    assert "at its end, 42 % of its CPU time goes to other programs" in advice.noise(busy)
    assert "(A/A) differs by 10 %, the median of 3" in advice.noise(busy)


def test_claims_are_in_the_order_of_surprise_and_wrong_advice_comes_before_gains():
    rows = [
        judged("gat.compile", 1.14, (1.12, 1.15), 9, ""),
        judged("gat.compile_cuda", None, None, 0, ""),
        judged("gat.optimized", 0.9, (0.88, 0.92), 9, ""),
        judged("gat.throughput", 1.2, (1.19, 1.21), 9, ""),
        judged("goal.gat_hoisted", 300.0, (290.0, 310.0), 9, ""),
    ]
    (*_, claims), (*_, goals) = advice.parts(rows)
    assert [r.id for r in claims] == ["gat.optimized", "gat.throughput", "gat.compile", "gat.compile_cuda"]
    assert [r.id for r in goals] == ["goal.gat_hoisted"]
    rows = [r.model_copy(update={"study": r.id}) for r in rows]
    assert [(kind, r.id) for kind, r in advice.headlines(rows)] == [
        (advice.FALSE, "gat.optimized"),
        (advice.LESS, "gat.throughput"),
        (advice.PAYS, "gat.compile"),
    ]
    assert [r.id for r in advice.gains(rows)] == ["goal.gat_hoisted"]
    wide = judged("gat.optimized", 1.05, (0.95, 1.15), 9, "")  # a headline is true of the whole interval
    assert [kind for kind, _ in advice.headlines([wide])] == [advice.UNSURE]


def test_what_the_reader_named_is_told_from_the_defaults_and_from_a_part_of_them():
    declared = {
        name: SimpleNamespace(default=value) for name, value in {"models": ["a:a", "a:b"], "graph": "g"}.items()
    }
    assert advice.yours({"models": ["a:b"], "graph": "g", "size": 3}, declared) == []
    assert advice.yours({"models": ["a:b", "my:own"], "graph": "mine.npz"}, declared) == ["models", "graph"]


@pytest.mark.parametrize("path", sorted(ROOT.glob("params/quick/*.yaml")), ids=lambda p: p.stem)
def test_the_quick_set_names_nothing_of_a_readers_own(path):
    declared = parameters.declared(ROOT / "notebooks" / f"{path.stem}.ipynb")
    assert advice.yours(parameters.load_yaml(path), declared) == []
