"""The ledger follows from rows, samples and rules alone, is printed as it is, and is computed again from its files."""

import io
import json

import numpy as np
import pytest
import run_folders
from refusals import refused
from rich.console import Console
from table_rows import TORCH, counted, put, raced

from gnnlab import files
from gnnlab.commands.claims import of_ledger
from gnnlab.errors import Untestable
from gnnlab.files import write_json
from gnnlab.lab import claims, ledger
from gnnlab.lab.claims import Claim, Verdict
from gnnlab.lab.table import Table, row
from gnnlab.measure.estimates import CONTROL

UNIT = {"unit": "ms", "better": "lower", "origin": "measured"}


def claim(**of):
    fields = {name: of.pop(name) for name in ("needs", "processor", "at_least", "metric", "claimed") if name in of}
    given = {"id": "c", "notebook": "02", "metric": "ratio", "statement": "s", "source": "000"}
    return Claim(**{**given, **fields}, of={"study": "s", "stat": "ratio", **of})


def test_a_ratio_is_the_geometric_mean_over_the_cells_of_which_none_may_be_missing():
    table = raced({"fast": 2.0}, cells=("a", "b", "c"))
    evidence = claims.evaluate(claim(form="fast"), table)
    assert evidence.estimate.value == pytest.approx(2, rel=0.02)
    assert evidence.estimate.low < 2 < evidence.estimate.high
    assert "geometric mean of 3 cells by size" in evidence.how
    with pytest.raises(Untestable, match="3 of the 15 cells"):
        claims.evaluate(claim(form="fast", cells=15), table)


def test_the_fastest_of_equal_forms_is_not_judged_by_the_samples_that_chose_it():
    """Of ten forms without a gain the one that looks best shows none: chosen and judged on different rounds."""
    names = [f"form {i}" for i in range(10)]
    values = []
    for seed in range(15):
        table = raced(dict.fromkeys(names, 1.0), rounds=24, noise=0.2, seed=seed)
        values.append(claims.evaluate(claim(form=names), table).estimate.value)
    assert abs(float(np.mean(np.log(values)))) < 0.06
    table = raced({"slow": 1.0, "fast": 2.0})
    assert "fast over PyG" in claims.evaluate(claim(form=["slow", "fast"]), table).how


def test_the_best_peer_counts_and_none_may_be_left_out():
    table = raced({"fast": 3.0, "EdgeIndex": 2.0, "CSR": 1.5})
    evidence = claims.evaluate(claim(form="fast", over=["EdgeIndex", "CSR"]), table)
    assert evidence.estimate.value == pytest.approx(1.5, rel=0.05)
    with pytest.raises(Untestable, match=r"needs torch\.compile in the same race"):
        claims.evaluate(claim(form="fast", over=["EdgeIndex", "torch.compile"]), table)
    without = Table(one for one in table if one.form != "PyG")
    with pytest.raises(Untestable, match="needs PyG in the same race"):
        claims.evaluate(claim(form="fast"), without)


def test_a_peer_that_is_not_right_is_none_and_one_that_is_not_here_is_missed():
    of = claim(form="fast", over=["EdgeIndex", "CSR"], peers="right")
    for status, known in (("failed", True), ("unavailable", False)):
        table = raced({"fast": 3.0, "EdgeIndex": 2.0})
        table.put(row(**TORCH, study="s", keys={"size": "a"}, form="CSR", status=status, reason="other result", **UNIT))
        if known:
            assert claims.evaluate(of, table).estimate.value == pytest.approx(1.5, rel=0.05)
        else:
            with pytest.raises(Untestable, match="CSR: other result"):
                claims.evaluate(of, table)


def test_a_cell_whose_interval_reaches_both_sides_leaves_the_share_that_is_not_slower_open():
    of = claim(form="fast", stat="not slower", metric="share", at_least=0.95)
    for gain, noise, expected in ((1.5, 0.02, (1, 1)), (0.8, 0.02, (0, 0)), (0.98, 0.001, (1, 1)), (0.95, 0.2, (0, 1))):
        evidence = claims.evaluate(of, raced({"fast": gain}, cells=("a", "b"), noise=noise)).estimate
        assert (evidence.low, evidence.high) == expected and evidence.low <= evidence.value <= evidence.high
    strict = claims.evaluate(claim(form="fast", stat="not slower", within=0), raced({"fast": 0.98}, noise=0.001))
    assert strict.estimate.high == 0 and "%" not in strict.how


def test_what_a_control_shows_is_in_every_ratio():
    quiet, loud = raced({"fast": 2.0}, noise=0.001), Table()
    base, control, fast = (quiet.samples_of(quiet.select("s", form)[0]) for form in ("PyG", CONTROL, "fast"))
    put(loud, "s", {"size": "a"}, "PyG", base)
    put(loud, "s", {"size": "a"}, CONTROL, control * 1.1, ("PyG", base))
    put(loud, "s", {"size": "a"}, "fast", fast, ("PyG", base), control * 1.1)
    narrow, wide = (claims.evaluate(claim(form="fast"), table).estimate for table in (quiet, loud))
    assert wide.low < narrow.low / 1.05 and wide.high > narrow.high * 1.05


def test_rows_of_a_cpu_never_decide_a_claim_about_cuda_nor_the_other_way_round():
    cpu, cuda = raced({"fast": 2.0}), raced({"fast": 2.0}, device="CUDA H100")
    with pytest.raises(Untestable, match="needs a CUDA device"):
        claims.evaluate(claim(form="fast", needs="cuda"), cpu)
    assert claims.evaluate(claim(form="fast", needs="cuda"), cuda).estimate.value == pytest.approx(2, rel=0.05)
    with pytest.raises(Untestable, match="needs a CPU device"):
        claims.evaluate(claim(form="fast", processor="cpu"), cuda)


def test_a_form_that_failed_is_untestable_with_its_reason():
    table = Table([row(**TORCH, study="s", form="fast", status="failed", reason="differs by 1e-1", **UNIT)])
    with pytest.raises(Untestable, match="differs by 1e-1"):
        claims.evaluate(claim(form="fast"), table)


@pytest.mark.parametrize(("mul", "expected"), [(120, Verdict.REPRODUCED), (119, Verdict.REFUTED)])
def test_counts_hold_only_if_all_of_them_do(mul, expected):
    of = claim(equals={"mul": 120, "mm": 40}, stat="value", metric="count", claimed=(120, 120))
    judged = ledger._judged(of, [Table(counted(mul=mul, mm=40))])
    assert judged.verdict is expected and "mul" in judged.why


def test_what_differs_between_runs_is_in_the_interval_and_their_number_in_the_row():
    tables = [raced({"fast": gain}, seed=seed) for seed, gain in enumerate((1.0, 1.2, 1.45, 1.3, 1.1))]
    one, five = ledger._judged(claim(form="fast"), tables[2:3]), ledger._judged(claim(form="fast"), tables)
    assert (one.runs, five.runs) == (1, 5)
    assert one.verdict is Verdict.REPRODUCED and five.verdict is Verdict.REPRODUCED
    assert five.high - five.low > 3 * (one.high - one.low)
    two = ledger._judged(claim(form="fast"), tables[:2])
    assert (two.low, two.verdict) == (None, Verdict.INCONCLUSIVE) and "two runs have no 95 % interval" in two.why


def test_a_folder_is_judged_from_its_files_alone(tmp_path, result_file):
    table = raced({"all together": 1.43, "compile": 1.0}, cells=(1, 8, 16, 32, 64), study="symptom_ladder")
    run_folders.put(tmp_path, result_file(notebook="02_optimize_gnn"), table)
    judged = ledger.judge(tmp_path)
    verdicts = {row.id: row.verdict for row in judged.rows}
    assert verdicts["gat.optimized"] is Verdict.REPRODUCED and verdicts["gat.compile"] is Verdict.REFUTED
    assert verdicts["gat.compile_cuda"] is Verdict.UNTESTABLE
    others = {id for id, entry in claims.catalogue().items() if entry.notebook != "02"}
    assert {entry.id for entry in judged.missing} == others


def test_the_share_of_equal_verdicts_needs_two_runs():
    of = claims.catalogue()["goal.same_verdict"]
    tables = [
        raced({"all together": 1.43, "compile": gain}, cells=(1, 8, 16, 32, 64), study="symptom_ladder", seed=seed)
        for seed, gain in enumerate((1.0, 1.0, 1.15))
    ]
    assert ledger._judged(of, tables[:1]).verdict is Verdict.UNTESTABLE
    assert ledger._judged(of, tables[:2]).value == 1
    assert ledger._judged(of, tables).value < 1


def test_a_notebook_that_was_skipped_leaves_its_claims_untestable_with_the_reason(result_file):
    skipped = result_file(notebook="02_optimize_gnn", status="skipped", reason="no CUDA device here")
    judged = ledger.judge_runs([(skipped, Table())])
    assert {j.verdict for j in judged} == {Verdict.UNTESTABLE} and {j.why for j in judged} == {"no CUDA device here"}


# ---- printed, and computed again


RACE = {"study": "gat_layer", "form": "gnnlab", "stat": "ratio"}
CATALOGUE = [
    {"id": "gat.faster", "source": "S0", "claimed": (2, 2), "of": RACE},
    {"id": "gat.compile", "source": "S0", "claimed": (5, 5), "of": RACE | {"form": "torch.compile"}},
    {"id": "gat.calls", "source": "S0", "metric": "count", "of": {"study": "calls", "equals": {"arange": 7}}},
    {"id": "goal.gat", "at_least": 1.5, "of": RACE},
    {"id": "goal.far", "at_least": 100, "of": RACE},
    {"id": "other.claim", "source": "S1", "notebook": "02", "claimed": (2, 2), "of": RACE},
]


@pytest.fixture
def stored(tmp_path, result_file, monkeypatch):
    """Three runs of notebook 01 and their ledger, by a small catalogue."""
    entries = [
        Claim(**{"notebook": "01", "metric": "ratio", "statement": "[red]faster[/red]"} | row) for row in CATALOGUE
    ]
    monkeypatch.setattr(ledger, "catalogue", lambda: {claim.id: claim for claim in entries})
    for run in ("a", "b", "c"):
        rows = raced({"gnnlab": 2.0}, study="gat_layer", rounds=20, noise=0.01, seed=ord(run))
        rows.put(*counted("calls", arange=7))
        run_folders.put(tmp_path, result_file(notebook="01_a", run=run), rows, at=run)
    files.write_json(tmp_path / ledger.RECORD, ledger.judge(tmp_path).to_dict())
    return tmp_path


def test_claims_and_goals_stand_apart_each_with_its_counts_and_what_could_not_be_read(stored):
    console = Console(width=200, record=True, file=io.StringIO())
    (stored / "02_x/a").mkdir(parents=True)
    (stored / "02_x/a/result.json").write_text("{")
    console.print(of_ledger(ledger.judge(stored)))
    text = console.export_text()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines()]
    cells = {row[0]: row[1:7] for row in rows if len(row) > 6}
    assert cells["gat.faster"][0] == "2×" and cells["gat.faster"][3:] == ["60", "3", "✓ reproduced"]
    assert cells["gat.compile"][1:] == ["", "", "", "", "○ untestable here"]
    assert cells["gat.calls"][1:] == ["7", "", "3", "3", "✓ reproduced"]
    of_claims, _, of_goals = text.partition("Goals")
    assert "3 claims: reproduced 2, untestable here 1" in of_claims and "goal." not in of_claims
    assert cells["goal.gat"][0] == "at least 1.5×" and "2 goals: met 1, missed 1" in of_goals
    assert "notebook 02 has no result here: 1 row" in of_goals
    assert "02_x/a/result.json is not a result file of this version" in of_goals
    assert ledger.judge(stored).to_dict()["not_measured"] == ["other.claim"]


# ---- computed again


def test_stored_results_follow_from_their_samples(stored):
    summary = "rows computed again from their samples: 9 of 12, the others have none; "
    assert ledger.recompute(stored) == (True, [summary + "claims and goals judged again: 5; all is as stored"])


@pytest.mark.parametrize(
    ("file", "where", "by", "line"),
    [
        ("01_a/b/result.json", ["rows", 2, ("value",)], 1.001, "01_a: gat_layer, a: gnnlab"),
        ("01_a/b/result.json", ["rows", 2, ("ratio",)], 1.001, "01_a: gat_layer, a: gnnlab"),
        ("01_a/b/result.json", ["rows", 3, ("value", "low", "high")], 2, "gat.calls: stored reproduced 7"),
        (ledger.RECORD, ["claims", 0, ("value",)], 1.001, "gat.faster: stored reproduced"),
    ],
)
def test_a_digit_that_was_changed_is_named_with_the_verdict_that_rests_on_it(stored, file, where, by, line):
    content = json.loads((stored / file).read_text())
    part, place, names = where
    for name in names:
        content[part][place][name] *= by
    write_json(stored / file, content)
    follows, lines = ledger.recompute(stored)
    assert not follows and any(each.startswith(line) for each in lines)


def test_a_ledger_that_is_missing_is_one_line(stored):
    (stored / ledger.RECORD).unlink()
    with refused("claims.json.*gnnlab report writes it"):
        ledger.recompute(stored)
