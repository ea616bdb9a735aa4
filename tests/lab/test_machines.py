"""Ledgers of several machines, side by side: planted ones, and those of the repository."""

import json
from pathlib import Path

import pytest
from small_site import ENVIRONMENT, judged, result

from gnnlab.errors import GnnlabError
from gnnlab.lab import ledger, machines, results

ROOT = Path(__file__).parents[2]


def plant(root, name, params_set="full", **rows):
    judgements = [
        judged(id.replace("__", "."), *seen, 9, "").model_copy(update={"study": id}) for id, seen in rows.items()
    ]
    claims = [row.model_dump(mode="json") for row in judgements]
    place = root / machines.FOLDER / name
    place.mkdir(parents=True, exist_ok=True)
    runs = {"02": {"measured": "2026-01-02T03:04:05+00:00", "commit": "cccc"}}
    named = {"machine": name.upper(), "parameter_set": params_set, "environment": ENVIRONMENT, "noise": []}
    (place / f"{params_set}.json").write_text(json.dumps({**named, "runs": runs, "claims": claims}))


@pytest.fixture
def two(tmp_path):
    slow, fast = (0.9, (0.88, 0.92)), (1.43, (1.42, 1.44))
    plant(tmp_path, "amd", gat__optimized=slow, gat__compile=slow, gat__cached_ids=fast, goal__gat_hoisted=fast)
    plant(tmp_path, "intel", gat__optimized=slow, gat__compile=fast, gat__cached_ids=(1.1, (1.08, 1.12)))
    return tmp_path


def test_where_machines_agree_and_where_advice_pays_on_one_only(two):
    words = {row.claim.id: row.word for row in machines.compared(machines.read(two))}
    assert words == {
        "gat.optimized": "all: refuted",
        "gat.compile": "pays on intel, not on amd",
        "gat.cached_ids": "all: reproduced",
        "goal.gat_hoisted": "amd only",
    }


def test_other_measurements_beside_reference_runs_are_no_machines(two):
    path = two / machines.FOLDER / "card/kernels.json"
    path.parent.mkdir()
    path.write_text('{"rows": [], "facts": {}}')
    (path.parents[1] / "amd/kernels.json").write_text('{"rows": []}')
    assert [(machine.name, list(machine.documents)) for machine in machines.read(two)] == [
        ("amd", ["full"]),
        ("intel", ["full"]),
    ]


def test_of_two_parameter_sets_the_row_that_rests_on_more_counts(tmp_path):
    wide, narrow, none = (1.1, (0.9, 1.3)), (1.2, (1.19, 1.21)), (None, None)
    plant(tmp_path, "amd", "quick", gat__optimized=wide, gat__compile=wide)
    plant(tmp_path, "amd", "full", gat__optimized=narrow, gat__compile=none)
    path = tmp_path / machines.FOLDER / "amd/full.json"
    path.write_text(path.read_text().replace('"n": 9', '"n": 90'))
    (one,) = machines.read(tmp_path)
    assert list(one.documents) == ["full", "quick"]
    assert one.rows["gat.optimized"].value == 1.2 and one.rows["gat.compile"].value == 1.1


def test_tables_go_between_their_marks_and_nowhere_else(two):
    for path in machines.blocks(two):
        path.write_text(f"before\n{machines.BEGIN}\nold\n{machines.END}\nafter\n")
    pages = [path for path in machines.write(two) if path.name != "README.md"]
    assert [page.read_text().partition("\n")[0] for page in pages] == ["# AMD", "# INTEL"]
    for path in machines.blocks(two):
        text = path.read_text()
        assert text.startswith("before\n") and text.endswith(f"\n{machines.END}\nafter\n") and "old" not in text
        assert "pays on intel, not on amd |" in text
    assert "| amd only |" in (two / machines.FOLDER / "README.md").read_text()
    (advice,) = [x for x in (two / "README.md").read_text().splitlines() if x.startswith("| pays on intel, not on amd")]
    assert "| GNN profiling and optimization results: 1.11 to 1.18× |" in advice


def test_a_reference_run_is_made_of_a_folder_of_results(tmp_path):
    folder = tmp_path / "outputs/full"
    folder.mkdir(parents=True)
    with pytest.raises(GnnlabError, match="no results of a notebook that passed"):
        machines.publish(folder, tmp_path)
    result("01_profile_bottlenecks", folder)
    with pytest.raises(GnnlabError, match="uncommitted changes"):
        machines.publish(folder, tmp_path)
    result("01_profile_bottlenecks", folder, "2", environment=ENVIRONMENT | {"dirty": False})
    path = machines.publish(folder, tmp_path)
    assert path == tmp_path / machines.FOLDER / "amd-epyc-9r14/quick.json"
    (one,) = machines.read(tmp_path)
    assert "gat.parameters" in one.rows and one.phrase.startswith("AMD EPYC 9R14, 2 cores")


def test_a_reference_run_of_five_processes_is_computed_again_from_its_samples():
    folder = ROOT / machines.FOLDER / "intel-xeon-processor-02-full"
    runs = results.runs_of(folder)[0]["02_optimize_gnn"]
    table = runs[0][1]
    assert len(runs) == 5 and not [line for row in list(table)[::20] for line in ledger.differences(row, table)]
    stored = {row["id"]: ledger.Judged(**row) for row in json.loads((folder / ledger.RECORD).read_text())["claims"]}
    for row in ledger.judge_runs(runs):
        assert row.verdict is stored[row.id].verdict and row.numbers == pytest.approx(stored[row.id].numbers), row.id


def test_the_tables_of_the_repository_are_those_of_its_reference_runs():
    for path, text in machines.blocks(ROOT).items():
        assert f"{machines.BEGIN}\n{text}\n{machines.END}" in path.read_text(encoding="utf-8"), (
            f"{path.name} is older than the reference runs: gnnlab claims --machines --write"
        )
