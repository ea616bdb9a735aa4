"""Reference runs of several machines: synthetic ones, and those of the repository (scripts/publish.py)."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from small_site import ENVIRONMENT, judged, result
from table_rows import TORCH, put

from gnnlab.errors import GnnlabError
from gnnlab.lab import claims, claims_report, results
from gnnlab.lab.table import Table, row

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import publish  # noqa: E402

KEYS = {"model": "GCN 16", "graph": "dense features", "pass": "forward"}
BEST = {name: 5.0 for name in claims.catalogue()["goal.whole_model_forward"].of.over if name != "PyG"}


def plant(root, name, params_set="full", n=9, **rows):
    """A reference run: `gat__compile=(value, (low, high))` is that of the claim gat.compile."""
    judgements = [
        judged(id.replace("__", "."), *seen, n, "").model_copy(update={"study": id}) for id, seen in rows.items()
    ]
    place = root / publish.FOLDER / name
    place.mkdir(parents=True, exist_ok=True)
    runs = {"02": {"measured": "2026-01-02T03:04:05+00:00", "commit": "cccc"}}
    named = {"machine": name.upper(), "parameter_set": params_set, "environment": ENVIRONMENT, "noise": []}
    named |= {"runs": runs, "claims": [each.model_dump(mode="json") for each in judgements]}
    (place / f"{params_set}.json").write_text(json.dumps(named))


@pytest.fixture
def two(tmp_path):
    slow, fast, wide, none = (0.9, (0.88, 0.92)), (1.43, (1.42, 1.44)), (1.1, (0.9, 1.3)), (None, None)
    plant(tmp_path, "amd", gat__optimized=slow, gat__compile=slow, gat__cached_ids=fast, goal__gat_constant_output=fast)
    plant(tmp_path, "amd", "quick", n=3, gat__optimized=wide, gat__compile=none)  # rests on fewer samples
    plant(tmp_path, "intel", gat__optimized=slow, gat__compile=fast, gat__cached_ids=(1.1, (1.08, 1.12)))
    (tmp_path / publish.FOLDER / "amd/kernels.json").write_text('{"rows": []}')  # is no reference run
    return tmp_path


def test_where_machines_agree_and_where_advice_pays_on_one_only(two):
    rows = publish.compared(publish.read(two))
    assert {claim.id: word for claim, _, word in rows} == {
        "gat.optimized": "all: refuted",
        "gat.compile": "pays on intel, not on amd",
        "gat.cached_ids": "all: reproduced",
        "goal.gat_constant_output": "amd only",
    }
    assert [claim.is_goal for claim, *_ in rows] == [False, False, False, True]


def test_tables_go_between_their_marks_and_nowhere_else(two):
    files = [two / "README.md", two / publish.FOLDER / "README.md"]
    for path in files:
        path.write_text(f"before\n{publish.BEGIN}\nold\n{publish.END}\nafter\n")
    pages = [path for path in publish.write(two) if path.name != "README.md"]
    assert [page.read_text().partition("\n")[0] for page in pages] == ["# AMD", "# AMD", "# INTEL"]
    for path in files:
        text = path.read_text()
        assert text.startswith("before\n") and text.endswith(f"\n{publish.END}\nafter\n") and "old" not in text
        assert "pays on intel, not on amd |" in text
    assert "| amd only |" in files[1].read_text()
    assert "| GNN profiling and optimization results: 1.11 to 1.18× |" in files[0].read_text()


def test_a_reference_run_is_made_of_a_folder_of_results(tmp_path):
    folder = tmp_path / "outputs/full"
    folder.mkdir(parents=True)
    with pytest.raises(GnnlabError, match="no results of a notebook that passed"):
        publish.publish(folder, tmp_path)
    result("01_profile_bottlenecks", folder)
    with pytest.raises(GnnlabError, match="uncommitted changes"):
        publish.publish(folder, tmp_path)
    result("01_profile_bottlenecks", folder, "2", environment=ENVIRONMENT | {"dirty": False})
    path = publish.publish(folder, tmp_path)
    assert path == tmp_path / publish.FOLDER / "amd-epyc-9r14/quick.json"
    document = publish.read(tmp_path)["amd-epyc-9r14"]["quick"]
    assert "gat.parameters" in {each.id for each in publish.judged(document)}
    assert document["machine"].startswith("AMD EPYC 9R14, 2 cores")


def test_a_reference_run_of_five_processes_is_computed_again_from_its_samples():
    folder = ROOT / publish.FOLDER / "intel-xeon-processor-02-full"
    runs = results.runs_of(folder)[0]["02_optimize_gnn"]
    table = runs[0][1]
    assert len(runs) == 5
    assert not [line for each in list(table)[::20] for line in claims_report.differences(each, table)]
    written = json.loads((folder / claims_report.RECORD).read_text())["claims"]
    stored = {each["id"]: claims_report.ClaimResult(**each) for each in written}
    for each in claims_report.judge_runs(runs):
        known = stored[each.id]
        assert each.verdict is known.verdict and each.numbers == pytest.approx(known.numbers), each.id


def test_the_tables_of_the_repository_are_those_of_its_reference_runs():
    for name, text in publish.blocks(publish.read()).items():
        assert f"{publish.BEGIN}\n{text}\n{publish.END}" in (ROOT / name).read_text(encoding="utf-8"), (
            f"{name} is older than the reference runs: python scripts/publish.py"
        )


# ---- whole models


def run(gnnlab=1.0, leave_out=(), peak=2048.0):
    """One run of notebook 09: a whole model of which PyG takes 8 ms, layers on new graphs, and two cells of growth."""
    table, noise = Table(), np.exp(np.random.default_rng(0).normal(0, 0.01, 40))
    races = [("whole_models", KEYS, BEST | {"torch.compile": 2.0, "gnnlab": gnnlab})]
    races += [
        ("new_graph", {"layer": layer, "graph": "digits"}, {"gnnlab": ms}) for layer, ms in (("GCN", 2), ("GAT", 4))
    ]
    for study, keys, variants in races:
        put(table, study, keys, "PyG", 8 * noise)
        for variant in variants.keys() - set(leave_out):
            put(table, study, keys, variant, variants[variant] * noise, ("PyG", 8 * noise))
    single = {**TORCH, "study": "growth", "n": 1, "better": "lower", "statistic": "single", "origin": "measured"}
    for phase, quantity, unit, values in (
        ("forward", "time", "ms", (4000.0, 500.0)),
        ("training step", "peak memory", "MiB", (None, peak)),
        ("forward", "first call over a later one", "x", (1.0, 2.5)),
    ):
        keys = {"nodes": 100, "edges": 2_000_000, "phase": phase, "quantity": quantity}
        for variant, value in zip(("GCN, PyG", "GCN, gnnlab"), values, strict=True):
            lost = {"status": "failed", "reason": "used 9 GB"} if value is None else {"interval": "none"}
            table.put(row(**single, keys=keys, variant=variant, unit=unit, value=value, **lost))
    return table


def test_whole_models_new_graphs_and_growth_of_all_runs():
    models = publish.models_of([run(1.0, peak=2048.0), run(1.21, peak=3072.0)])
    (gain,) = models["whole_models"]
    assert (gain["over_pyg"], gain["over_best"]) == pytest.approx((8 / 1.1, 2 / 1.1), rel=0.01)
    assert publish.models_of([run(leave_out=["torch.compile"])])["whole_models"] == []  # compared with all, or left out
    other = models | {"whole_models": [gain | {"pass": "training", "over_best": 3.0}]}
    machines = {"amd-chip": {"full": {"models": models}}, "another": {"full": {"models": other}}}
    raced = publish._models(machines, publish.WHOLE)
    best, usual = "\n".join(publish.speedups(raced)), "\n".join(publish.over_pyg(raced))
    assert (
        "(AMD Chip / Another, 2 threads)" in best and "| dense features, forward | dense features, training |" in best
    )
    assert "| GCN 16 | 1.8 / – | – / 3.0 |" in best and "| geometric mean | 7.3 / – | – / 7.3 |" in usual
    assert "2 to 4, geometric mean 2.83 (amd-chip)" in publish.new_graphs(machines)[1]
    lines = publish.growth(machines)
    assert "On 2,000,000 edges" in lines[1] and "| GCN | amd-chip | 4 → 0.5 |  | does not fit → 2.5 | 2.5 |" in lines
    none = {"amd-chip": {"full": {}}}
    assert not [
        *publish.speedups(publish._models(none, publish.WHOLE)),
        *publish.new_graphs(none),
        *publish.growth(none),
    ]


def test_a_ratio_below_a_half_is_said_to_be_slower():
    slow, fast = (
        judged("gat.optimized", value, interval, 9, "") for value, interval in ((0.04, (0.01, 0.08)), (2, (1, 3)))
    )
    assert publish._gain(slow) == "25× slower (12.5 to 100×)" and publish._gain(fast) == fast.text
