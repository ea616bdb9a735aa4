"""From what is asked for to the files: real units in their processes, real graphs, the command."""

import contextlib
import json
import sys
from types import SimpleNamespace

import pytest

from gnnlab import cli
from gnnlab.campaign import campaign, sizes
from gnnlab.campaign.campaign import LocalUnits
from gnnlab.campaign.cells import Settings
from gnnlab.commands import stages as stages_command
from gnnlab.export.export import export
from gnnlab.lab import discovery
from gnnlab.units.unit import Availability
from gnnlab.workloads.graphsage import sage

TORCH, FAST, NPU = "torch:CPU", "fast:CPU", "simulated:NPU"
# ---- real units


MY_UNIT = """
from gnnlab.units.torch_units import TorchUnit


def make():
    return TorchUnit("x:CPU", "CPU", "torch")
"""


def test_real_units_in_processes_of_their_own_leave_the_files_of_the_study(tmp_path, monkeypatch):
    """One's own unit by the name that it is asked for by, and measured anew once its module was edited."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_unit.py").write_text(MY_UNIT)
    asked = {"models": tmp_path / "none", "sizes": sizes.read(["30/90"]), "features": 8, "budget_s": 0.01}
    measured = campaign.measure(tmp_path, **asked, blocks=["1", "3", "1-5"], names=[FAST, NPU, "my_unit:make"])
    status = measured.cells.set_index(["unit", "first", "last"])["status"]
    assert list(status.loc[FAST]) == ["unavailable", "measured", "measured"]
    assert list(status.loc[NPU]) == ["simulated", "unavailable", "unavailable"]
    assert list(status.loc["my_unit:make"]) == ["measured"] * 3
    assert [line[:7] for line in measured.messages[:3:2]] == ["phase 1", "phase 2"] and measured.available[FAST].usable
    assert (tmp_path / "profiling_report.txt").read_text().startswith("GNN stage profile")
    (tmp_path / "my_unit.py").write_text(MY_UNIT + "# edited\n")
    assert campaign.measure(tmp_path, **asked, blocks=["1"], names=[FAST, "my_unit:make"]).known == 0
    sys.modules.pop("my_unit", None)


def test_a_unit_that_is_not_here_has_its_reason_in_every_cell():
    with LocalUnits([], Settings(), 1.0) as local:
        local.available["openvino:GPU"] = Availability(False, "no GPU", "a driver")
        cells = campaign.cells_of("sage", 4, sizes.read(["5/9"]), [(1, 1)], ["openvino:GPU"])
        (answer,) = local(cells)
    outcome = answer["outcome"]
    assert (outcome["status"], outcome["reason"]) == ("unavailable", "no GPU; what helps: a driver")


def test_the_whole_chain_runs_on_a_real_graph(tmp_path):
    """Measure and analyze: every stage by torch, the fused layer from an exported model, too."""
    models, features = tmp_path / "models", 64
    assert export(sage(features), 1, 7, exporter="handbuilt", folder=models).status == "ready"
    runtimes, settings = ["openvino-handbuilt:CPU", TORCH], Settings(models=str(models), budget_s=0.01)
    at = sizes.read(["graph:digits"])
    cells = campaign.cells_of("sage", features, at, [(n, n) for n in range(1, 8)], [TORCH])
    cells += campaign.cells_of("sage", features, at, [(1, 7)], runtimes)
    with LocalUnits(runtimes, settings, 60.0) as local:
        done = campaign.run(tmp_path / "stages", cells, local)
    assert {answer["outcome"]["status"] for answer in done.records} == {"measured"}
    table = campaign.analyze(tmp_path / "stages")
    assert len(table) == 9 and table["parity_error"].max() < 1e-5


# ---- the command


@pytest.fixture
def params(tmp_path, monkeypatch):
    """A parameter set of one's own, whose results go to tmp_path/out."""
    folder = tmp_path / "mine"
    folder.mkdir()
    text = f"sizes: [30/90]\nfeatures: 8\nbudget_s: 0.01\nunits: [{TORCH}]\noutput_dir: {tmp_path / 'out'}\n"
    (folder / "05_npu_measure.yaml").write_text(text)
    (folder / "06_bandwidth_analysis.yaml").write_text(f"points: 2\nbudget_s: 0.01\noutput_dir: {tmp_path / 'out'}\n")
    return str(folder)


def test_measure_and_analyze_from_the_shell(params, tmp_path, capsys):
    sizes_file = tmp_path / "sizes.json"
    sizes_file.write_text(json.dumps({"test_cases": [{"nodes": 20, "edges": 40}]}))
    options = ["--params", params, "--sizes", str(sizes_file), "--blocks", "7"]
    assert cli.main(["stages", "--measure", *options]) == cli.OK
    printed = capsys.readouterr()
    assert printed.out.startswith("sizes 20/40 (random); blocks 7; units torch:CPU")
    assert "1 cells to measure" in printed.err
    raw = json.loads((tmp_path / "out/stages/raw_measurements.json").read_bytes())["measurements"]
    assert [(key, row["outcome"]["status"]) for key, row in raw.items()] == [("20,40,torch:CPU,7", "measured")]
    assert cli.main(["stages", "--analyze", "--params", params]) == cli.OK
    printed = capsys.readouterr()
    assert "7 ACTIVATE" in printed.out and "lookup_table.json and bandwidth_table.json" in printed.err
    assert (tmp_path / "out/stages/profiling_report.txt").exists()
    lookup = json.loads((tmp_path / "out/tables/lookup_table.json").read_bytes())
    assert list(lookup) == ["20,40,CPU,7"] and lookup["20,40,CPU,7"]["total_time_ms"] > 0


def test_all_exports_measures_and_analyzes_what_is_asked_for(params, tmp_path, monkeypatch, capsys):
    steps, asked = [], {}

    def export_all(layer, at, folder, **options):
        asked.update(layer=layer.name, at=at, folder=folder, **options)
        return [SimpleNamespace(fresh=True, status="failed", name="sage/1", reason="x")]

    monkeypatch.setattr("gnnlab.export.export.export_all", export_all)
    for name in ("measure", "analyze"):
        monkeypatch.setitem(stages_command._STEPS, name, lambda given, folder, name=name: steps.append((name, given)))
    assert cli.main(["stages", "--all", "--params", params]) == cli.OK
    assert [name for name, _ in steps] == ["measure", "analyze"]
    assert (steps[0][1].units, steps[0][1].features) == ([TORCH], 8)
    assert [block for block in asked.pop("blocks") if block[0] != block[1]] == [(1, 5), (1, 7)]
    assert asked == {
        "layer": "sage", "at": [(30, 90)], "static_sums": False, "folder": tmp_path / "out/exported_models"
    }  # fmt: skip
    assert "sage/1: failed, x" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        (TORCH, "no stage was timed by itself"),
        (FAST, "has only blocks that sum over neighbours and copies nothing by itself: no tables of stages"),
    ],
)
def test_fused_blocks_alone_have_a_report_and_no_tables(params, tmp_path, capsys, unit, words):
    options = ["--params", params, "--units", unit, "--blocks", "1-5"]
    assert cli.main(["stages", "--measure", "--analyze", *options]) == cli.OK
    printed = capsys.readouterr()
    assert "1-5 GATHER..NORMALIZE" in printed.out and words in printed.err
    assert not (tmp_path / "out/tables/lookup_table.json").exists()


@pytest.mark.parametrize(
    ("own", "folder"),
    [([], "outputs/quick"), (["--sizes", "30/90"], "outputs/lab"), (["--units", TORCH], "outputs/lab")],
)
def test_what_a_run_left_stays_where_sizes_units_or_blocks_are_ones_own(own, folder, monkeypatch):
    asked = []
    monkeypatch.setattr("gnnlab.lab.results.locked", lambda folder, doing: contextlib.nullcontext(asked.append(folder)))
    monkeypatch.setitem(stages_command._STEPS, "measure", lambda given, folder: asked.append(folder))
    assert cli.main(["stages", "--measure", *own]) == cli.OK
    root = discovery.root()
    assert asked == [root / folder] * 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "nothing to do; give --export, --measure, --analyze, or --all"),
        (["--measure", "--sizes", "nonsense"], "size 'nonsense'"),
        (["--measure", "--sizes", "gone.json"], "could not read"),
        (["--measure", "--blocks", "9"], "stages '9' are not there"),
        (["--all", "--units", "nonsense:CPU"], "unit 'nonsense:CPU' is not known"),
        (["--all", "--units", TORCH, "nope"], "unit 'nope' is not known"),
        (["--analyze"], "measure first"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_exported(params, options, words, capsys, monkeypatch):
    monkeypatch.setattr("gnnlab.export.export.export_all", lambda *_, **__: pytest.fail("exported"))
    assert cli.main(["stages", *options, "--params", params]) == cli.BAD_INPUT
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and words in lines[0]
