"""`gnnlab stages`: S4's flow by hand, from options and parameters to its files."""

import contextlib
import json

import pytest

from gnnlab import cli
from gnnlab.commands.stages import STEPS
from gnnlab.lab import discovery

TORCH = "torch:CPU"


@pytest.fixture
def params(tmp_path):
    """A parameter set of one's own, whose results go to tmp_path/out."""
    folder, out = tmp_path / "mine", tmp_path / "out"
    folder.mkdir()
    small = f"sizes: [30x90]\nfeatures: 16\nbudget_s: 0.01\ndevices: [{TORCH}]\noutput_dir: {out}\n"
    (folder / "05_npu_measure.yaml").write_text(small)
    (folder / "06_bandwidth_analysis.yaml").write_text(f"points: 2\nbudget_s: 0.01\noutput_dir: {out}\n")
    return str(folder)


def test_phase_1_then_phase_2_then_analyze_keep_all_that_was_measured(params, tmp_path, command):
    """Fault 2: measuring phase 2 alone emptied phase 1's checkpoint, and the tables were of the NPU alone."""

    def keys(name):
        return set(json.loads((tmp_path / "out/stages" / name).read_bytes())["measurements"])

    options = ["--params", params, "--blocks", "7"]
    code, printed, said = command("stages", "--measure", *options)
    assert code == cli.OK and printed.startswith(f"sizes 30x90 (random); blocks 7; devices {TORCH}")
    assert "phase 1, CPU and GPU: 1 to measure" in said and "checkpoint_npu.json is not written" in said
    before = (tmp_path / "out/stages/checkpoint_cpugpu.json").read_bytes()
    code, _, said = command("stages", "--measure", *options, "--devices", "fake_devices:npu")
    assert code == cli.OK and "phase 2, NPU: 1 to measure" in said
    assert (tmp_path / "out/stages/checkpoint_cpugpu.json").read_bytes() == before
    both = {f"30,90,{device},7,sage-16" for device in (TORCH, "fake_devices:npu")}
    assert keys("raw_measurements.json") == keys("checkpoint_cpugpu.json") | keys("checkpoint_npu.json") == both
    code, printed, said = command("stages", "--analyze", *options)
    assert code == cli.OK and "7 ACTIVATE" in printed and "lookup_table.json and bandwidth_table.json" in said
    assert (tmp_path / "out/stages/profiling_report.txt").exists()
    lookup = json.loads((tmp_path / "out/tables/lookup_table.json").read_bytes())
    assert set(lookup) == {"30,90,CPU,7", "30,90,NPU,7"} and lookup["30,90,CPU,7"]["total_time_ms"] > 0


def test_all_exports_measures_and_analyzes_what_is_asked_for(params, tmp_path, monkeypatch, command):
    steps = []

    def export_all(layer, at, folder, **options):
        steps.append((layer.name, at, folder, options))
        return []

    monkeypatch.setattr("gnnlab.stages.export.export_all", export_all)
    for name in ("measure", "analyze"):
        monkeypatch.setitem(STEPS, name, lambda given, folder, name=name: steps.append((name, given)))
    assert command("stages", "--all", "--params", params, "--blocks", "stages", "1-5")[0] == cli.OK
    (layer, at, folder, options), (first, given), (second, _) = steps
    assert (layer, at, folder) == ("sage", [(30, 90)], tmp_path / "out/exported_models")
    assert (1, 5) in options["blocks"] and options["static_sums"] is False
    assert (first, second, given.devices, given.features) == ("measure", "analyze", [TORCH], 16)


def test_fused_blocks_alone_have_a_report_and_no_tables(params, tmp_path, command):
    options = ["--params", params, "--devices", "fast:CPU", "--blocks", "1-5"]
    code, printed, said = command("stages", "--measure", "--analyze", *options)
    assert code == cli.OK and "1-5 GATHER..NORMALIZE" in printed and "no stage was timed by itself" in said
    assert not (tmp_path / "out/tables/lookup_table.json").exists()


@pytest.mark.parametrize(
    ("own", "folder"),
    [([], "outputs/quick"), (["--sizes", "30x90"], "outputs/lab"), (["--devices", TORCH], "outputs/lab")],
)
def test_what_a_run_left_stays_where_sizes_devices_or_blocks_are_ones_own(own, folder, monkeypatch):
    asked = []
    monkeypatch.setattr("gnnlab.lab.results.locked", lambda folder, doing: contextlib.nullcontext(asked.append(folder)))
    monkeypatch.setitem(STEPS, "measure", lambda given, folder: asked.append(folder))
    assert cli.main(["stages", "--measure", *own]) == cli.OK
    assert asked == [discovery.root() / folder] * 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "nothing to do; give --export, --measure, --analyze, or --all"),
        (["--measure", "--sizes", "30/90"], "write 30x90"),
        (["--measure", "--sizes", "gone.json"], "could not read"),
        (["--measure", "--blocks", "9"], "stages '9' are not there"),
        (["--all", "--devices", TORCH, "nope"], "device 'nope' is not known"),
        (["--analyze"], "measure first"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_exported(params, options, words, command, monkeypatch):
    monkeypatch.setattr("gnnlab.stages.export.export_all", lambda *_, **__: pytest.fail("exported"))
    code, _, said = command("stages", *options, "--params", params)
    lines = said.strip().splitlines()
    assert code == cli.BAD_INPUT and len(lines) == 1 and words in lines[0]
