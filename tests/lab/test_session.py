"""A notebook's session checks its parameters, records rows, and writes one result file."""

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from nbformat.v4 import new_code_cell, new_notebook
from torch import nn

from gnnlab import Lab
from gnnlab.lab import ledger, results, session, study
from gnnlab.lab.results import Status
from gnnlab.lab.schema import ParameterError
from gnnlab.lab.table import RowError

X = torch.arange(12.0).reshape(4, 3)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A session of a small notebook in a small repository."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "params").mkdir()
    cell = new_code_cell('size: int = 3  # nodes; 1..10\noutput_dir: str = "outputs/quick"  # folder')
    cell.metadata["tags"] = ["parameters"]
    nbformat.write(new_notebook(cells=[cell]), tmp_path / "notebooks" / "01_profile_bottlenecks.ipynb")
    monkeypatch.chdir(tmp_path)
    for module in (session, study):
        monkeypatch.setattr(module, "display", lambda *_, **__: None)
    return Lab("01_profile_bottlenecks", {"size": 4, "output_dir": "outputs/quick"})


def _figure(title):
    fig = Figure()
    fig.add_subplot().plot([1, 2])
    fig.suptitle(title)
    return fig


def test_everything_recorded_is_in_the_file_with_its_samples(lab):
    lab.samples("forward", "mine", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], unit="ms", notes=["noisy"])
    lab.count("symptom_size", {"parameters": 169_856})
    lab.figure(_figure("A finding"), "times", alt="A line that goes up from one to two.", key=True)
    result = results.read(lab.finish())
    assert result.status == "passed" and result.params_set == "quick" and result.parameters["size"] == 4
    forward, counted = result.rows
    assert (forward.value, forward.n, forward.origin, forward.better) == (3.5, 6, "measured", "lower")
    assert forward.notes == ["noisy"] and forward.device.startswith("CPU ") and forward.runtime.startswith("torch ")
    assert (counted.value, counted.interval, counted.origin) == (169_856, "exact", "counted")
    assert results.table_of(lab.path, result).samples_of(forward).tolist() == [1, 2, 3, 4, 5, 6]
    assert result.figures[0].title == "A finding" and (lab.folder / result.figures[0].png).exists()
    assert result.environment["versions"]["torch"] and "finished" in result.environment


def test_nothing_is_written_before_the_end(lab):
    lab.count("a", {"b": 1})
    assert not lab.path.exists()


def test_what_is_recorded_again_replaces_the_first(lab):
    for value in (1, 2):
        lab.count("a", {"b": value})
        lab.figure(_figure(f"figure {value}"), "times", alt="A line that goes up from one to two.")
    assert [row.value for row in lab.table] == [2] and [f.title for f in lab.figures] == ["figure 2"]


def test_a_race_records_every_form_in_every_cell(lab):
    forms = {"base": lambda x: x * 2, "mine": lambda x: x + x, "wrong": lambda x: x}
    raced = lab.race("doubled", forms, {"4 rows": {"x": X}, "2 rows": {"x": X[:2]}}, key="rows", budget_s=0.01)
    assert [row.form for row in raced.rows] == ["base", "A/A", "mine", "wrong"] * 2
    mine = raced.rows[2]
    assert mine.keys == {"rows": "4 rows"} and mine.baseline == "base" and mine.parity_error == 0
    assert mine.ratio_low <= mine.ratio <= mine.ratio_high
    assert len(lab.table.samples_of(mine)) == mine.n >= 12
    assert "differs from that of base" in raced.failed["wrong"] and raced.rows[3].status == "failed"
    assert lab.finish() and ledger.recompute(lab.folder)[:-1] == []  # all but the ledger's file, which is not there


def test_a_reader_who_adds_a_form_sees_it_drawn_and_in_the_table(lab):
    forms = {"base": lambda x: x * 2, "mine": lambda x: x + x}
    raced = lab.race("doubled", forms, {"4 rows": (X,), "2 rows": (X[:2],)}, budget_s=0.01)
    raced.plot()
    assert [f.name for f in lab.figures] == ["doubled"] and "mine" in lab.figures[0].alt
    assert "base" in lab.figures[0].title
    assert "mine" in raced.shown()["form"].tolist()


def test_a_race_over_a_number_is_drawn_as_lines(lab):
    forms = {"base": nn.Identity(), "mine": lambda input: input + 0}
    over = {n: {"input": torch.ones(n)} for n in (10, 100, 1000)}
    lab.race("copy", forms, over, key="n", budget_s=0.01).plot("value", x="n")
    assert lab.figures[0].alt.startswith("Lines over n")


def test_rows_of_a_frame_are_recorded_under_the_names_of_their_fields(lab):
    frame = pd.DataFrame(
        {
            "stage": ["GATHER", "GATHER"],
            "form": ["torch", "npu"],
            "samples": [np.arange(1.0, 9.0), None],
            "status": ["ok", "unavailable"],
            "reason": [None, "no NPU"],
            "colour": ["red", "blue"],
        }
    )
    told = {"unit": "ms", "better": "lower", "origin": "measured", "statistic": "median", "device": "NPU x"}
    first, second = lab.record("stages", frame, keys=["stage"], **told).rows
    assert (first.keys, first.value, first.n, first.device) == ({"stage": "GATHER"}, 4.5, 8, "NPU x")
    assert (second.status, second.reason, second.value) == ("unavailable", "no NPU", None)


def test_what_a_row_of_a_frame_leaves_out_is_that_of_this_process(lab):
    frame = pd.DataFrame([{"form": "a", "value": 1.0, "threads": 7}, {"form": "b", "value": 2.0}])
    told = {"unit": "ms", "better": "lower", "origin": "simulated", "statistic": "single", "n": 1}
    first, second = lab.record("s", frame, **told).rows
    assert first.threads == 7 and second.threads == torch.get_num_threads()


def test_a_frame_without_an_origin_is_refused(lab):
    frame = pd.DataFrame({"form": ["a"], "value": [1.0], "low": [0.9], "high": [1.1], "n": [9]})
    with pytest.raises(RowError, match="origin"):
        lab.record("s", frame, unit="ms", better="lower", statistic="median", interval="95 % confidence")


def test_a_device_by_its_kind_becomes_its_name(lab):
    lab.count("a", {"b": 1}, device="cpu")
    assert next(iter(lab.table)).device == lab.conditions("cpu")["device"]


@pytest.mark.parametrize("values", [{"size": 11, "output_dir": "o"}, {"size": "three", "output_dir": "o"}])
def test_a_session_does_not_begin_with_parameters_that_are_not_allowed(lab, values):
    with pytest.raises(ParameterError, match="size"):
        Lab("01_profile_bottlenecks", values)


def test_skipping_writes_the_reason_and_empties_later_cells(lab, monkeypatch):
    class Shell:
        input_transformers_post: list = []  # noqa: RUF012

    monkeypatch.setattr(session, "get_ipython", Shell)
    lab.skip("no CUDA device here")
    result = results.read(lab.path)
    assert (result.status, result.reason) == (Status.SKIPPED, "no CUDA device here")
    assert Shell.input_transformers_post[-1](["measure()\n"]) == ["pass\n"]


def test_the_cpu_is_always_there(lab):
    lab.require_device("cpu")
    assert not lab.path.exists()


def test_results_of_another_notebook_that_are_missing_name_the_one_to_run(lab):
    with pytest.raises(results.ResultError, match="gnnlab run 04"):
        lab.need("04")
    lab.finish()
    assert lab.need("01").notebook == "01_profile_bottlenecks"


def test_verdicts_are_those_of_this_run(lab):
    lab.count("symptom_size", {"parameters": 169_856})
    found = {judged.id: judged for judged in lab.judged()}
    assert found["gat.parameters"].verdict == "reproduced" and found["gat.output"].verdict == "untestable here"
    table = study.ledger_frame(lab.judged())
    assert table.loc["gat.parameters", "measured here"] == "169,856 count"


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        ((1.4234, 1.4012, 1.4456, 30), "1.423 (1.401 to 1.446)"),
        ((8.0, None, None, 2), "8"),
        ((120.0, 120.0, 120.0, 1), "120"),
        ((193.4, 190.2, 195.1, 9), "193.4 (190.2 to 195.1)"),
    ],
)
def test_an_estimate_has_the_digits_that_its_interval_is_worth(estimate, text):
    assert study.estimate_text(study.Estimate(*estimate)) == text
