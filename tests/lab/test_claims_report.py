"""The claims report follows from rows, samples and rules alone, and is computed again from its files."""

import io
import json
import math

import pandas as pd
import pytest
import run_folders
from refusals import refused
from rich.console import Console
from table_rows import TORCH, counted, raced

from gnnlab import files
from gnnlab.commands.notebooks import of_report
from gnnlab.errors import Untestable
from gnnlab.files import write_json
from gnnlab.lab import claims, claims_report, ratios
from gnnlab.lab.claims import Claim, Verdict
from gnnlab.lab.table import Table, row

UNIT = {"unit": "ms", "better": "lower", "origin": "measured"}


def claim(**of):
    fields = {name: of.pop(name) for name in ("needs", "processor", "at_least", "metric", "claimed") if name in of}
    given = {"id": "c", "notebook": "02", "metric": "ratio", "statement": "s", "source": "000"}
    return Claim(**{**given, **fields}, of={"study": "s", **of})


FAILED = row(**TORCH, **UNIT, study="s", variant="fast", status="failed", reason="differs by 1e-1")
SHARE = {**TORCH, **UNIT, "study": "s", "variant": "fast", "statistic": "median", "interval": "none", "n": 9}
SHARES = [row(**SHARE, keys={"size": size}, value=value) for size, value in (("a", 0.4), ("b", 0.9))]
CUDA = raced({"fast": 2.0}, device="CUDA H100")


@pytest.mark.parametrize(
    ("of", "table", "value", "how"),
    [
        (claim(variant="fast"), raced({"fast": 2.0}, cells="abc"), 2, "fast over PyG: geomean of 3 cells, 40 rounds"),
        (claim(variant=["slow", "fast"], over=["PyG", "slow"]), raced({"slow": 0.5, "fast": 2.0}), 2,
         "fast over PyG: 20 rounds"),
        (claim(variant="fast", needs="cuda"), CUDA, 2, "fast over PyG: 40 rounds"),
        (claim(variant="fast"), Table(SHARES), 0.6, "fast: geomean of 2 cells, 9 rounds"),  # are ratios themselves
        (claim(variant="fast", stat="value", where={"size": "a"}), Table(SHARES), 0.4, "median of 9 samples"),
    ],
)  # fmt: skip
def test_a_claim_is_judged_by_a_ratio_or_by_one_row(of, table, value, how):
    evidence = claims.evaluate(of, table)
    assert evidence.estimate.value == pytest.approx(value, rel=0.05) and evidence.how == how


@pytest.mark.parametrize(
    ("of", "table", "needs"),
    [
        (claim(variant="fast", cells=15), raced({"fast": 2.0}, cells="abc"), "3 of the 15 cells"),
        (claim(variant="fast", needs="cuda"), raced({"fast": 2.0}), "needs a CUDA device"),
        (claim(variant="fast", processor="cpu"), CUDA, "needs a CPU device"),
        (claim(variant="fast", where={"size": "b"}), CUDA, "needs rows of s, size b"),
        (claim(variant="slow"), CUDA, "0 of the 1 cells of slow"),
        (claim(variant="fast"), Table([FAILED]), "fast: differs by 1e-1"),
        (claim(variant="fast", stat="value"), Table(SHARES), "names 2 rows of s, not one"),
    ],
)
def test_what_cannot_be_judged_says_what_it_needs(of, table, needs):
    with pytest.raises(Untestable, match=needs):
        claims.evaluate(of, table)


@pytest.mark.parametrize(("mul", "expected"), [(120, Verdict.REPRODUCED), (119, Verdict.REFUTED)])
def test_counts_hold_only_if_all_of_them_do(mul, expected):
    of = claim(equals={"mul": 120, "mm": 40}, metric="count", claimed=(120, 120))
    judged = claims_report._judged(of, [Table(counted(mul=mul, mm=40))])
    assert judged.verdict is expected and "mul" in judged.why


def test_what_differs_between_runs_is_in_the_interval_and_their_number_in_the_row():
    tables = [raced({"fast": gain}, seed=seed) for seed, gain in enumerate((1.0, 1.2, 1.45, 1.3, 1.1))]
    one, five = (
        claims_report._judged(claim(variant="fast"), tables[2:3]),
        claims_report._judged(claim(variant="fast"), tables),
    )
    assert (one.runs, five.runs) == (1, 5)
    assert one.verdict is Verdict.REPRODUCED and five.verdict is Verdict.REPRODUCED
    assert five.high - five.low > 3 * (one.high - one.low)
    two = claims_report._judged(claim(variant="fast"), tables[:2])
    each = [claims_report._judged(claim(variant="fast"), [table]) for table in tables[:2]]
    assert (two.low, two.high) == pytest.approx((min(one.low for one in each), max(one.high for one in each)))
    assert two.verdict is Verdict.INCONCLUSIVE


def test_a_folder_is_judged_from_its_files_alone(tmp_path, result_file):
    table = raced({"all together": 1.43, "compile": 1.0}, cells=(1, 8, 16, 32, 64), study="symptom_steps")
    run_folders.put(tmp_path, result_file(notebook="02_optimize_gnn"), table)
    judged = claims_report.judge(tmp_path)
    verdicts = {row.id: row.verdict.value for row in judged.rows}
    known = {"gat.optimized": "reproduced", "gat.compile": "refuted", "gat.compile_cuda": "untestable here"}
    assert known.items() <= verdicts.items()
    assert {entry.id for entry in judged.missing} == {id for id, c in claims.catalogue().items() if c.notebook != "02"}


def test_the_share_of_equal_verdicts_needs_two_runs():
    of = claims.catalogue()["goal.same_verdict"]
    tables = [
        raced({"all together": 1.43, "compile": gain}, cells=(1, 8, 16, 32, 64), study="symptom_steps", seed=seed)
        for seed, gain in enumerate((1.0, 1.0, 1.15))
    ]
    assert claims_report._judged(of, tables[:1]).verdict is Verdict.UNTESTABLE
    assert claims_report._judged(of, tables[:2]).value == 1
    assert claims_report._judged(of, tables).value < 1


def test_a_notebook_that_was_skipped_leaves_its_claims_untestable_with_the_reason(result_file):
    skipped = result_file(notebook="02_optimize_gnn", status="skipped", reason="no CUDA device here")
    judged = claims_report.judge_runs([(skipped, Table())])
    assert {j.verdict for j in judged} == {Verdict.UNTESTABLE} and {j.why for j in judged} == {"no CUDA device here"}


# ---- printed, and computed again


RACE = {"study": "gat_layer", "variant": "gnnlab"}
CATALOGUE = [
    {"id": "gat.faster", "source": "S0", "claimed": (2, 2), "of": RACE},
    {"id": "gat.compile", "source": "S0", "claimed": (5, 5), "of": RACE | {"variant": "torch.compile"}},
    {"id": "gat.calls", "source": "S0", "metric": "count", "of": {"study": "calls", "equals": {"arange": 7}}},
    {"id": "goal.gat", "at_least": 1.5, "of": RACE},
    {"id": "goal.far", "at_least": 100, "of": RACE},
    {"id": "other.claim", "source": "S1", "notebook": "02", "claimed": (2, 2), "of": RACE},
]


@pytest.fixture
def stored(tmp_path, result_file, monkeypatch):
    """Three runs of notebook 01 and their claims_report, by a small catalogue."""
    entries = [
        Claim(**{"notebook": "01", "metric": "ratio", "statement": "[red]faster[/red]"} | row) for row in CATALOGUE
    ]
    monkeypatch.setattr(claims_report, "catalogue", lambda: {claim.id: claim for claim in entries})
    for run in ("a", "b", "c"):
        rows = raced({"gnnlab": 2.0}, study="gat_layer", rounds=20, noise=0.01, seed=ord(run))
        rows.put(ratios.summarized(rows, "gat_layer", "gnnlab", how="worst"))
        rows.put(*counted("calls", arange=7))
        run_folders.put(tmp_path, result_file(notebook="01_a", run=run), rows, at=run)
    files.write_json(tmp_path / claims_report.RECORD, claims_report.judge(tmp_path).to_dict())
    return tmp_path


def test_claims_and_goals_stand_apart_each_with_its_counts_and_what_could_not_be_read(stored):
    console = Console(width=200, record=True, file=io.StringIO())
    (stored / "02_x/a").mkdir(parents=True)
    (stored / "02_x/a/result.json").write_text("{")
    console.print(of_report(claims_report.judge(stored)))
    text = console.export_text()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines()]
    cells = {row[0]: row[1:7] for row in rows if len(row) > 6}
    assert cells["gat.faster"][0] == "2×" and cells["gat.faster"][3:] == ["60", "3", "✓ reproduced"]
    assert cells["gat.compile"][1:] == ["", "", "", "", "○ untestable here"]
    assert cells["gat.calls"][1:] == ["7", "", "3", "3", "✓ reproduced"]
    of_claims, _, of_goals = text.partition("\ngoals  ")
    assert "claims: reproduced 2, untestable here 1" in of_claims and "goal." not in of_claims
    assert cells["goal.gat"][0] == "at least 1.5×" and "goals: met 1, missed 1" in of_goals
    assert "not measured here: 1 of notebook 02" in of_goals
    assert "left out: " in of_goals and "02_x/a/result.json is not a result file of this version" in of_goals
    assert claims_report.judge(stored).to_dict()["not_measured"] == ["other.claim"]


# ---- computed again


def test_stored_results_follow_from_their_samples(stored):
    summary = "rows computed again from their samples: 12 of 15, the others have none; "
    assert claims_report.recompute(stored) == (True, [summary + "claims and goals judged again: 5; all is as stored"])


@pytest.mark.parametrize(
    ("file", "where", "by", "line"),
    [
        ("01_a/b/result.json", ["rows", 2, ("value",)], 1.001, "01_a: gat_layer, a: gnnlab"),
        ("01_a/b/result.json", ["rows", 2, ("ratio",)], 1.001, "01_a: gat_layer, a: gnnlab"),
        ("01_a/b/result.json", ["rows", 3, ("value",)], 1.001, "01_a: gat_layer_summary, worst: gnnlab"),
        ("01_a/b/result.json", ["rows", 4, ("value", "low", "high")], 2, "gat.calls: stored reproduced 7"),
        (claims_report.RECORD, ["claims", 0, ("value",)], 1.001, "gat.faster: stored reproduced"),
    ],
)
def test_a_digit_that_was_changed_is_named_with_the_verdict_that_rests_on_it(stored, file, where, by, line):
    content = json.loads((stored / file).read_text())
    part, place, names = where
    for name in names:
        content[part][place][name] *= by
    write_json(stored / file, content)
    follows, lines = claims_report.recompute(stored)
    assert not follows and any(each.startswith(line) for each in lines)


def rewritten(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (dict.clear, "claims: Field required"),
        (lambda of: of.update(claims=None), "claims: Input should be a valid list"),
        (lambda of: of["claims"][0].pop("id"), "claims.0.id: Field required"),
        (lambda of: of["claims"][1].update(more=1), "claims.1.more: Extra inputs are not permitted"),
        (lambda of: of["claims"][0].update(verdict="true"), "claims.0.verdict: Input should be 'reproduced'"),
        (lambda of: of["claims"][0].update(value=math.nan), "claims.0.value: Input should be a finite number"),
    ],
)
def test_a_report_that_was_edited_is_a_line_beside_what_else_does_not_follow(stored, change, part):
    rewritten(stored / "01_a/b/result.json", lambda of: of["rows"][2].update(value=of["rows"][2]["value"] * 1.001))
    rewritten(stored / claims_report.RECORD, change)
    follows, (row, report) = claims_report.recompute(stored)
    assert not follows and row.startswith("01_a: gat_layer, a: gnnlab: stored")
    assert (
        "claims.json is not a claims report of this version: " + part in report and "gnnlab report writes it" in report
    )


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda rows: rows[2].update(baseline="nobody"),
            "01_a: gat_layer, a: gnnlab: cannot be computed again: needs no",
        ),
        (lambda rows: rows[1].update(baseline="nobody"), "01_a: gat_layer, a: A/A: cannot be computed again: needs no"),
        (lambda rows: rows[3]["keys"].update(how="best"), "01_a: gat_layer_summary, best: gnnlab: cannot be computed"),
        (lambda rows: rows[3]["keys"].update(table=1), "01_a: gat_layer_summary, worst, 1: gnnlab: cannot be computed"),
    ],
)
def test_a_row_that_cannot_be_computed_again_is_named(stored, change, line):
    rewritten(stored / "01_a/b/result.json", lambda of: change(of["rows"]))
    follows, lines = claims_report.recompute(stored)
    assert not follows and any(each.startswith(line) for each in lines), lines


@pytest.mark.parametrize("by", [math.nan, math.inf, 0.0, -1.0])
def test_samples_that_are_no_times_leave_a_line_and_no_number(stored, by):
    for run in "abc":
        file = stored / f"01_a/{run}/samples.parquet"
        frame = pd.read_parquet(file)
        frame.assign(value=frame["value"].where(frame["sample"] > 10, by)).to_parquet(file)
    judged, (follows, lines) = claims_report.judge(stored), claims_report.recompute(stored)
    assert not follows and any("01_a" in line and "gat_layer, a: " in line for line in lines)
    assert all(row.value is None or math.isfinite(row.value) for row in judged.rows)


def test_a_report_that_is_missing_is_one_line(stored):
    (stored / claims_report.RECORD).unlink()
    with refused("claims.json.*gnnlab report writes it"):
        claims_report.recompute(stored)
