"""A session checks its parameters, collects, and writes one result file."""

import nbformat
import pandas as pd
import pytest
from matplotlib.figure import Figure
from nbformat.v4 import new_code_cell, new_notebook

from gnnlab.lab import results, session
from gnnlab.lab.results import Status
from gnnlab.lab.schema import ParameterError
from gnnlab.profiling.runtime import RuntimeStats


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A session of a small notebook in a small repository."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "params").mkdir()
    cell = new_code_cell('size: int = 3  # nodes; 1..10\noutput_dir: str = "outputs/quick"  # folder')
    cell.metadata["tags"] = ["parameters"]
    nbformat.write(new_notebook(cells=[cell]), tmp_path / "notebooks" / "01_profile_bottlenecks.ipynb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "display", lambda *_, **__: None)
    return session.begin("01_profile_bottlenecks", {"size": 4, "output_dir": "outputs/quick"})


def test_everything_collected_is_in_the_file(lab):
    lab.measurement("forward", [1.0, 2.0, 3.0, 4.0], unit="ms", notes=["noisy"])
    lab.metric("share", 0.5, "share", ci=(0.4, 0.6), n=9, better="higher")
    lab.claim("gat.parameters", 169_856, why="counted")
    lab.figure(_figure("A finding"), "times", alt="A line that goes up from one to two.", key=True)
    result = results.read(lab.finish())
    assert result.status == "passed" and result.params_set == "quick" and result.parameters["size"] == 4
    assert result.metrics["forward"].value == 2.5 and result.metrics["forward"].better == "lower"
    assert result.measurements[0].samples == [1, 2, 3, 4] and result.measurements[0].notes == ["noisy"]
    assert result.measurements[0].conditions.processing_unit == "CPU"
    assert result.claims[0].verdict == "reproduced"
    assert result.figures[0].title == "A finding" and (lab.folder / result.figures[0].png).exists()
    assert result.environment["versions"]["torch"] and "finished" in result.environment


def _figure(title):
    fig = Figure()
    fig.add_subplot().plot([1, 2])
    fig.suptitle(title)
    return fig


def test_nothing_is_written_before_the_end(lab):
    lab.metric("a", 1, "ms")
    assert not lab.path.exists()


def test_a_claim_or_figure_recorded_again_replaces_the_first(lab):
    lab.claim("gat.parameters", 1, why="wrong")
    lab.claim("gat.parameters", 169_856, why="right")
    for title in ("first", "second"):
        lab.figure(_figure(title), "times", alt="A line that goes up from one to two.")
    assert [c.why for c in lab.claims] == ["right"] and [f.title for f in lab.figures] == ["second"]


def test_tables_of_times_and_of_numbers_become_measurements_and_metrics(lab):
    stats = RuntimeStats.of([1.0, 1.1], ("a note",))
    lab.measurements_of(pd.DataFrame([{"workload": "w", "phase": "forward", "stats": stats}]))
    table = pd.DataFrame([{"workload": "w", "gflop": 2.0, "reached": 0.5, "reached_low": 0.4, "reached_high": 0.6}])
    lab.metrics_of(table, index=["workload"], columns={"gflop": "GFLOP", "reached": "share"})
    assert lab.measurements[0].name == "w: forward" and lab.measurements[0].notes == ["a note"]
    assert lab.metrics["w: gflop"].ci is None and lab.metrics["w: reached"].ci == (0.4, 0.6)


def test_a_claim_of_another_notebook_is_refused(lab):
    with pytest.raises(ValueError, match="belongs to notebook 02"):
        lab.claim("gat.expand", 1.0, why="measured")


@pytest.mark.parametrize("values", [{"size": 11, "output_dir": "o"}, {"size": "three", "output_dir": "o"}])
def test_a_session_does_not_begin_with_parameters_that_are_not_allowed(lab, values):
    with pytest.raises(ParameterError, match="size"):
        session.begin("01_profile_bottlenecks", values)


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
        session.need(lab.folder, "04")
    lab.finish()
    assert session.need(lab.folder, "01").notebook == "01_profile_bottlenecks"


def test_the_table_of_claims_reads_as_the_ledger(lab):
    lab.claim("gat.parameters", 169_856, why="counted")
    lab.claim("goal.aa_false_difference", 1.0, ci=(0.9, 1.2), n=130, why="130 comparisons")
    table = lab.claims_table()
    assert list(table["verdict"]) == ["reproduced", "reproduced"]
    assert list(table["measured here"]) == ["169,856 count", "1 % (0.9 to 1.2, n = 130)"]
