"""Each cell of the growth of a model is measured apart, and what does not fit or computes something else says so."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from gnnlab.errors import GnnlabError
from gnnlab.optimize import growth
from gnnlab.worker import Answer


@pytest.fixture
def measure(monkeypatch):
    """Measures cells whose worker answers from a function of what it is asked, without a process."""

    def run(model, answer):
        def worker(keep_memory):
            assert not keep_memory  # else PyG would be faster than a user sees it
            return nullcontext(SimpleNamespace(call=lambda target, arguments, timeout_s: answer(**arguments)))

        monkeypatch.setattr(growth, "Worker", worker)
        return growth.measure([model], ["20/100"])

    return run


def value(norm=1.0):
    return Answer("done", {"samples": [2.0, 1.0, 4.0], "first": 6.0, "peak": 10.0, "norm": norm})


@pytest.mark.parametrize("phase", growth.PHASES)
@pytest.mark.parametrize("model", growth.MODELS)
def test_a_cell_computes_the_same_with_fast_layers_and_knows_what_it_holds(model, phase):
    cell = {"model": model, "nodes": 300, "edges": 1200, "phase": phase, "threads": 1, "seconds": 0.0}
    plain, fast = (growth.cell(form=form, **cell) for form in growth.FORMS)
    assert fast["norm"] == pytest.approx(plain["norm"], rel=1e-5)
    least = 4 * 300 * (growth.FEATURES + growth.HIDDEN) / 2**20  # what goes in and what comes out
    assert all(one["peak"] > least and len(one["samples"]) == growth.FEWEST for one in (plain, fast))


def test_a_cell_has_its_time_its_memory_and_its_first_call(measure):
    frame = measure("GCN", lambda **asked: value())
    assert list(frame["form"].unique()) == ["GCN, PyG", "GCN, gnnlab"] and len(frame) == 2 * 2 * 3
    one = frame[(frame["form"] == "GCN, gnnlab") & (frame["phase"] == "forward")].set_index("quantity")
    assert one.loc["time", "samples"] == [2.0, 1.0, 4.0] and one.loc["peak memory", "value"] == 10.0
    assert one.loc["first call over a later one", "value"] == 3.0
    assert set(growth.KEYS) <= set(frame.columns) and set(frame["edges"]) == {100}


def test_what_does_not_fit_is_left_out_and_says_so(measure):
    full = Answer("failed", reason="used 9.00 GB of memory, allowed are 8.00 GB")
    frame = measure("GAT", lambda form, **asked: full if form == "PyG" else value())
    lost = frame[frame["form"] == "GAT, PyG"]
    assert set(lost["status"]) == {"failed"} and set(lost["reason"]) == {full.reason} and len(lost) == 2
    assert frame[frame["form"] == "GAT, gnnlab"]["status"].isna().all()


def test_a_fast_form_that_gives_something_else_is_not_timed(measure):
    frame = measure("SAGE", lambda form, **asked: value(1.0 if form == "PyG" else 1.01))
    (why,) = set(frame[frame["form"] == "SAGE, gnnlab"]["reason"])
    assert why == "differs from PyG by 1.0e-02, relative"


@pytest.mark.parametrize(("models", "sizes"), [(["GCM"], ["20/100"]), (["GCN"], ["20"]), (["GCN"], ["0/10"])])
def test_what_cannot_be_measured_is_refused_before_anything_is(models, sizes):
    with pytest.raises(GnnlabError, match=r"no such model; there are GCN|write nodes/edges"):
        growth.measure(models, sizes)
