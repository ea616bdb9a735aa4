"""The reference runs in docs hold together: without their machine, every figure follows from the files."""

import json
from pathlib import Path

import pytest

from gnnlab.lab import ledger, results

ROOT = Path(__file__).parents[2] / "docs" / "reference-runs"
FOLDERS = sorted(path.parent for path in ROOT.glob(f"*/{ledger.RECORD}"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_every_row_and_verdict_is_computed_again(folder):
    runs, problems = results.runs_of(folder)
    assert problems == [] and runs
    for result, table in [of_notebook[0] for of_notebook in runs.values()]:
        assert [line for row in table for line in ledger.differences(row, table)] == [], result.notebook
    stored = json.loads((folder / ledger.RECORD).read_text(encoding="utf-8"))["claims"]
    again = {row.id: row for row in ledger.judge(folder).rows}
    for row in stored:
        found = again[row["id"]]
        assert (found.verdict, found.runs, found.n) == (row["verdict"], row["runs"], row["n"]), row["id"]
        assert (found.value, found.low, found.high) == pytest.approx((row["value"], row["low"], row["high"])), row["id"]


def test_there_is_a_reference_run_of_five_processes():
    assert any(len(runs) >= 5 for folder in FOLDERS for runs in results.runs_of(folder)[0].values())
