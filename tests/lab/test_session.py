"""A notebook's session checks its parameters, records rows, and writes one result file."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import small_notebooks
import torch
from matplotlib.figure import Figure
from torch import nn

from gnnlab import Lab
from gnnlab.errors import GnnlabError, Unavailable
from gnnlab.lab import claims_report, results, session, study
from gnnlab.lab.results import Status
from gnnlab.measure import race
from gnnlab.measure.conditions import under

X = torch.arange(12.0).reshape(4, 3)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A session of a small notebook in a small repository."""
    (tmp_path / "params/quick").mkdir(parents=True)
    cell = 'size: int = 3  # nodes; 1..10\noutput_dir: str = "outputs/quick"  # folder'
    small_notebooks.write(tmp_path / "notebooks/01_profile_bottlenecks.ipynb", cell)
    monkeypatch.chdir(tmp_path)
    for module in (session, study):
        monkeypatch.setattr(module, "display", lambda *_, **__: None)
    return _session()


def _session(folder="outputs/quick", size=4):
    return Lab("01_profile_bottlenecks", {"size": size, "output_dir": folder})


def _figure(title):
    fig = Figure()
    fig.add_subplot().plot([1, 2])
    fig.suptitle(title)
    return fig


def _record(lab, title="A finding"):
    lab.figure(_figure(title), "times", alt="A line that goes up from one to two.", key=True)


def test_everything_recorded_is_in_the_file_with_its_samples_once(lab):
    for value in (1, 169_856):  # what is recorded again replaces the first
        lab.count("symptom_size", {"parameters": value})
        _record(lab, f"Of {value}")
    lab.samples("forward", "mine", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], unit="ms", notes=["noisy"])
    assert results.newest(lab.folder, lab.notebook) == (None, None)  # before the end nothing is
    path = lab.finish()
    result = results.read(path)
    assert result.status == "passed" and result.params_set == "quick" and result.parameters["size"] == 4
    counted, forward = result.rows
    assert (forward.value, forward.n, forward.origin, forward.better) == (3.5, 6, "measured", "lower")
    assert forward.notes == ["noisy"] and forward.device.startswith("CPU ") and forward.runtime.startswith("torch ")
    assert (counted.value, counted.interval, counted.origin) == (169_856, "exact", "counted")
    assert results.table_of(path, result).samples_of(forward).tolist() == [1, 2, 3, 4, 5, 6]
    (figure,) = result.figures
    assert figure.title == "Of 169856" and figure.png == "figures/01_times.png" and (path.parent / figure.png).exists()
    assert result.environment["versions"]["torch"] and "finished" in result.environment


def test_what_is_tried_out_goes_to_a_folder_of_its_own_and_builds_on_what_a_run_left(lab):
    earlier = lab.finish()
    before = earlier.read_bytes()
    (lab.folder / "stages").mkdir()
    mine, other = _session("outputs/lab"), _session("outputs/mine")
    assert mine.requires("01").run == lab._started.run and mine.input("stages") == lab.folder / "stages"
    assert other.input("stages") == other.folder / "stages"
    with pytest.raises(GnnlabError, match="gnnlab run 01"):
        other.requires("01")
    _record(mine)
    (mine.folder / "stages").mkdir()
    for _ in range(2):  # the last cell may be run again
        path = mine.finish()
        (figure,) = results.read(path).figures
        assert (path.parent / figure.png).exists() and path.is_relative_to(mine.folder)
    assert mine.requires("01").run == mine._started.run and lab.requires("01").run == lab._started.run
    assert mine.input("stages") == mine.folder / "stages"
    assert earlier.read_bytes() == before and results.paths(lab.folder) == [earlier]


def test_a_run_by_hand_stands_alone_and_says_how_to_get_its_report(lab, monkeypatch):
    said = []
    monkeypatch.setattr(session, "display", lambda shown, **_: said.append(getattr(shown, "data", "")))
    for _ in range(2):  # cells may have changed between them
        path = _session().finish()
    assert results.newest(lab.folder, lab.notebook) == (path, None) and len(results.paths(lab.folder)) == 2
    assert len(results.runs_of(lab.folder)[0][lab.notebook]) == 1
    assert not said[-1].endswith("`gnnlab report outputs/quick`")  # nbval compares what the last cell shows
    _session().verdicts()
    assert said[-1].endswith(": `gnnlab report outputs/quick`")


def test_sentences_are_shown_as_markdown_and_nothing_where_there_are_none(lab, monkeypatch):
    said = []
    monkeypatch.setattr(session, "display", lambda shown, **_: said.append(shown.data))
    lab.say(*())  # else an empty output would lead the page
    lab.say("`a_` and b_")
    assert said == ["`a_` and b\\_"]


def test_outputs_may_go_below_the_home_of_the_user_and_under_the_runner_wait_where_it_says(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    mine = _session("~/mine")
    assert mine.folder == tmp_path / "home/mine" and mine.finish().is_relative_to(mine.folder)
    monkeypatch.setenv("GNNLAB_RUN", str(tmp_path / "waits"))
    under_runner = _session()
    assert under_runner.finish() == tmp_path / "waits/result.json" and under_runner.finish().exists()
    assert results.paths(lab.folder) == []


def test_a_race_records_every_variant_in_every_cell_and_what_it_is_a_choice_for(lab):
    variants = {"base": nn.Identity(), "mine": lambda input: input + 0, "wrong": lambda input: input * 2}
    over = {n: {"input": torch.ones(n)} for n in (10, 100)}
    raced = lab.race("copy", variants, over, key="rows", budget_s=0.01)
    assert [row.variant for row in raced.rows] == ["base", "A/A", "mine", "wrong"] * 2
    mine = raced.rows[2]
    assert mine.keys == {"rows": 10} and mine.baseline == "base" and mine.parity_error == 0
    assert mine.ratio_low <= mine.ratio <= mine.ratio_high and len(lab.table.samples_of(mine)) == mine.n >= 12
    assert "differs from that of base" in raced.failed["wrong"] and raced.rows[3].status == "failed"
    raced.plot()
    raced.plot("value", x="rows")
    assert [f.name for f in lab.figures] == ["copy", "copy-value"] and lab.figures[1].alt.startswith("Lines over rows")
    assert "mine" in lab.figures[0].alt and "base" in lab.figures[0].title
    lab.race("unsaid", variants, {"4 rows": (X,)}, budget_s=0.01)
    path = lab.finish()
    result = results.read(path)
    table = results.table_of(path, result)
    assert not [line for row in table for line in claims_report.differences(row, table)]


def test_a_variant_says_of_itself_what_computes_it_whatever_it_is_bound_to(lab):
    def absent(x):
        raise Unavailable("no such device here")

    scaled = under(lambda x, by: x * by, runtime="by hand", threads=1, precision="int8")
    variants = {"base": lambda x: x * 2, "bound": partial(scaled, by=2.0), "absent": absent}
    rows = {row.variant: row for row in lab.race("doubled", variants, {"4": (X,)}, budget_s=0.01).rows}
    assert (rows["bound"].runtime, rows["bound"].threads, rows["bound"].precision) == ("by hand", 1, "int8")
    assert rows["base"].precision == "float32" and rows["A/A"].runtime == rows["base"].runtime
    assert (rows["absent"].status, rows["absent"].reason) == ("unavailable", "no such device here")


def test_rows_of_a_frame_are_recorded_under_the_names_of_their_fields(lab):
    columns = ["stage", "variant", "samples", "status", "reason", "threads", "colour"]
    measured = ["GATHER", "torch", np.arange(1.0, 9.0), "ok", None, 7, "red"]
    frame = pd.DataFrame([measured, ["GATHER", "npu", None, "unavailable", "no NPU", None, "blue"]], columns=columns)
    alike = {"unit": "ms", "better": "lower", "origin": "measured", "statistic": "median", "device": "NPU x"}
    first, second = lab.record("stages", frame, keys=["stage"], **alike).rows
    assert (first.keys, first.value, first.n, first.device) == ({"stage": "GATHER"}, 4.5, 8, "NPU x")
    assert (first.threads, second.threads) == (7, 0)  # those of the frame, or of this process on such a device
    assert (second.status, second.reason, second.value) == ("unavailable", "no NPU", None)


@pytest.mark.parametrize(("device", "name"), [("cpu", "CPU c"), ("cuda", "CUDA g0"), ("cuda:1", "CUDA g1")])
def test_a_device_by_its_kind_becomes_its_name(lab, device, name):
    lab.environment["devices"] = [{"kind": k, "name": n} for k, n in (("CPU", "c"), ("CUDA", "g0"), ("CUDA", "g1"))]
    (row,) = lab.count("a", {"b": 1}, device=device).rows
    assert (row.device, row.threads) == (name, torch.get_num_threads() if name == "CPU c" else 0)


def test_a_session_does_not_begin_with_parameters_that_are_not_allowed(lab):
    with pytest.raises(GnnlabError, match="size"):
        _session("o", size=11)


def test_skipping_writes_the_reason_and_empties_later_cells(lab, monkeypatch):
    class Shell:
        input_transformers_post: list = []  # noqa: RUF012

    monkeypatch.setattr(session, "get_ipython", Shell)
    lab.require_device("cpu")
    assert results.paths(lab.folder) == []
    lab.skip("no CUDA device here")
    result = results.read(results.paths(lab.folder)[0])
    assert (result.status, result.reason) == (Status.SKIPPED, "no CUDA device here")
    assert Shell.input_transformers_post[-1](["measure()\n"]) == ["pass\n"]


def test_verdicts_are_those_of_this_run(lab, monkeypatch):
    lab.count("symptom_size", {"parameters": 169_856})
    displayed = []
    monkeypatch.setattr(session, "display", displayed.append)
    lab.verdicts()
    assert list(displayed[0].loc["gat.parameters", ["measured here", "verdict"]]) == ["169,856", "reproduced"]
    assert displayed[0].loc["gat.output", "verdict"] == "untestable here"


def test_rows_name_the_card_that_was_waited_for_and_products_that_are_less_exact(lab, monkeypatch):
    lab.environment["devices"] = [{"kind": "CPU", "name": "P"}, {"kind": "CUDA", "name": "NVIDIA H100"}]
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        lab.samples("forward", "mine", [1.0] * 6, unit="ms", device="cuda:0")
        model = nn.Linear(3, 2)
        on_cpu = lab.race("raced", {"a": model, "b": under(model, threads=1)}, {"x": (X,)}, budget_s=0.01)
    finally:
        torch.set_float32_matmul_precision(before)
    (row,) = lab.study("forward").rows
    assert (row.device, row.precision) == ("CUDA NVIDIA H100", "float32, matmul precision high (TF32)")
    assert {(one.device, one.precision) for one in on_cpu.rows} == {("CPU P", "float32, matmul precision high")}
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(race, "device_of", lambda *_: torch.device("cuda", 0))
    on_card = lab.race("there", {"a": abs, "b": abs}, {"x": (X,)}, budget_s=0.01)
    assert [row.device for row in on_card.rows] == ["CUDA NVIDIA H100"] * 3
