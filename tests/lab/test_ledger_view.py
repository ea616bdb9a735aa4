"""The ledger as a terminal shows it, and whether it follows from what is stored."""

import io
import json

import pytest
from rich.console import Console
from table_rows import counted, raced

from gnnlab import files
from gnnlab.commands.tables import of_ledger
from gnnlab.lab import ledger, results
from gnnlab.lab.claims import Claim

RACE = {"study": "gat_layer", "form": "gnnlab", "stat": "ratio"}
CATALOGUE = [
    {"id": "gat.faster", "source": "S0", "claimed": (2, 2), "of": RACE},
    {"id": "gat.compile", "source": "S0", "claimed": (5, 5), "of": RACE | {"form": "torch.compile"}},
    {"id": "gat.calls", "source": "S0", "metric": "count", "of": {"study": "calls", "equals": {"arange": 7}}},
    {"id": "goal.gat", "at_least": 1.5, "of": RACE},
    {"id": "goal.far", "at_least": 100, "of": RACE},
    {"id": "other.claim", "source": "S1", "notebook": "02", "claimed": (2, 2), "of": RACE},
]


@pytest.fixture(autouse=True)
def small_catalogue(monkeypatch):
    claims = [
        Claim(**{"notebook": "01", "metric": "ratio", "statement": "[red]faster[/red]"} | row) for row in CATALOGUE
    ]
    monkeypatch.setattr(ledger, "catalogue", lambda: {claim.id: claim for claim in claims})


@pytest.fixture
def folder(tmp_path, result_file):
    """Two runs of notebook 01 and their ledger."""
    for place, run in {"01_a": "b", "runs/01_a.1": "a"}.items():
        rows = raced({"gnnlab": 2.0}, study="gat_layer", rounds=20, noise=0.01, seed=ord(run))
        rows.put(*counted("calls", arange=7))
        results.write(tmp_path / f"{place}.json", result_file(notebook="01_a", run=run), rows)
    files.write_json(tmp_path / ledger.RECORD, ledger.judge(tmp_path).to_dict())
    return tmp_path


def printed(judged):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(of_ledger(judged))
    return console.export_text()


def line(text, start):
    (found,) = [line for line in text.splitlines() if line.strip("│ ").startswith(start)]
    return [cell.strip() for cell in found.strip("│").split("│")]


def test_claims_and_goals_stand_apart_each_with_its_counts(folder):
    text = printed(ledger.judge(folder))
    claims, _, goals = text.partition("Goals")
    assert line(claims, "gat.faster")[:2] == ["gat.faster", "2×"]
    assert line(claims, "gat.faster")[4:7] == ["40", "2", "✓ reproduced"]
    assert line(claims, "gat.compile")[2:7] == ["", "", "", "", "○ untestable here"]
    assert line(claims, "gat.calls")[2:7] == ["7", "", "2", "2", "✓ reproduced"]
    assert "3 claims: reproduced 2, untestable here 1" in claims and "goal." not in claims
    assert line(goals, "goal.gat")[1] == "at least 1.5×" and "2 goals: met 1, missed 1" in goals
    assert "notebook 02 has no result here: 1 row" in goals


def test_what_could_not_be_read_is_said(folder):
    (folder / "runs/01_a.1.json").write_text("{")
    assert "01_a.1.json is not a result file of this version" in printed(ledger.judge(folder))


def test_the_json_holds_claims_goals_and_what_was_not_measured(folder):
    data = json.loads(ledger.judge(folder).to_json())
    assert [row["id"] for row in data["claims"]] == [row["id"] for row in CATALOGUE[:5]]
    assert data["claims"][0]["runs"] == 2 and data["claims"][0]["low"] < 2 < data["claims"][0]["high"]
    assert data["not_measured"] == ["other.claim"] and data["problems"] == []


# ---- computed again


def test_stored_results_follow_from_their_samples(folder):
    told = "rows computed again from their samples: 6 of 8, the others have none; "
    assert ledger.recompute(folder) == (True, [told + "claims and goals judged again: 5; all is as stored"])


def change(path, where, by=1.001):
    """Change a number of a JSON file by a tenth of a percent."""
    content = json.loads(path.read_text())
    *outer, last = where
    place = content
    for key in outer:
        place = place[key]
    place[last] *= by
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("file", ["01_a.json", "runs/01_a.1.json"])
@pytest.mark.parametrize("field", ["value", "low", "high", "ratio", "ratio_low", "ratio_high"])
def test_a_digit_that_was_changed_in_a_row_is_named(folder, file, field):
    change(folder / file, ["rows", 2, field])
    follows, lines = ledger.recompute(folder)
    assert not follows and any("gat_layer, a: gnnlab" in line for line in lines)


def test_a_count_that_was_changed_is_named_with_the_verdict_that_rests_on_it(folder):
    for field in ("value", "low", "high"):
        change(folder / "01_a.json", ["rows", 3, field], by=2)
    follows, lines = ledger.recompute(folder)
    assert not follows and any(line.startswith("gat.calls: stored reproduced 7") for line in lines)


def test_samples_that_were_changed_are_named(folder):
    path = folder / "01_a.samples.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    follows, lines = ledger.recompute(folder)
    assert not follows and any("01_a.samples.parquet are not those of their result file" in line for line in lines)


@pytest.mark.parametrize("field", ["value", "low", "high"])
def test_a_digit_that_was_changed_in_the_ledger_is_named(folder, field):
    change(folder / ledger.RECORD, ["claims", 0, field])
    follows, lines = ledger.recompute(folder)
    assert not follows and len(lines) == 1 and lines[0].startswith("gat.faster: stored reproduced")


@pytest.mark.parametrize("content", [None, "{", "[]", '{"claims": [1]}', '{"claims": 1}'])
def test_a_ledger_that_is_missing_or_damaged_is_one_line(folder, content):
    (folder / ledger.RECORD).unlink()
    if content:
        (folder / ledger.RECORD).write_text(content)
    follows, lines = ledger.recompute(folder)
    assert not follows and len(lines) == 1 and "claims.json is missing or damaged" in lines[0]
