"""The table of a campaign and its report on planted outcomes: they follow the numbers, and nothing is filled in."""

import numpy as np
import pandas as pd
import pytest

from gnnlab.campaign import report
from gnnlab.campaign import table as tables
from gnnlab.campaign.campaign import CellAnswer, as_json
from gnnlab.campaign.cells import Cell, CellResult
from gnnlab.campaign.measure import Measured
from gnnlab.errors import GnnlabError

TORCH, ORT, FAST, NPU, GPU = "torch:CPU", "onnxruntime:CPU", "fast:CPU", "simulated:NPU", "openvino:GPU"


def timed(ms, half=0.01, status="measured", **changes):
    samples = tuple(ms * np.linspace(1 - half, 1 + half, 25))
    about = {"median_ms": ms, "ci_ms": (ms * (1 - half), ms * (1 + half)), "std_ms": 0.0, "parity_error": 0.0}
    return CellResult(status, samples_ms=samples, precision="float32", threads=1, device="d", **(about | changes))


def answer(unit, first, outcome, size=(10, 20), last=None, took_s=0.5):
    return CellAnswer(Cell("sage", 4, *size, first, last or first, unit), outcome, took_s=took_s)


def missing(why="no such device"):
    return CellResult("unavailable", why)


def table(answers):
    rows = [as_json(a) for a in answers]
    return tables.table({row.pop("key"): row for row in rows})


@pytest.fixture
def cells():
    """torch is twice as slow as ONNX Runtime at stage 1, as fast at stage 2; fused 1-2 takes 2 ms; no GPU."""
    answers = []
    for size in ((10, 20), (30, 60)):
        answers += [answer(TORCH, 1, timed(2.0), size), answer(ORT, 1, timed(1.0), size)]
        answers += [answer(TORCH, 2, timed(2.0), size), answer(ORT, 2, timed(1.99), size)]
        answers += [answer(TORCH, 1, timed(2.0), size, last=2), answer(NPU, 1, timed(0.1, status="simulated"), size)]
        answers += [answer(GPU, 1, missing(), size), answer(NPU, 3, missing("no sums"), size)]
    return table(answers)


def test_a_row_says_all_of_its_cell(cells):
    row = cells[(cells["unit"] == ORT) & (cells["first"] == 2)].iloc[1]
    assert (row["stage"], row["size"], row["processor"], row["origin"]) == ("2 MESSAGE", "30/60", "CPU", "measured")
    assert (row["ms"], row["n"], row["within"], row["key"]) == (1.99, 25, True, f"30,60,{ORT},2")
    assert list(dict.fromkeys(cells["stage"])) == ["1 GATHER", "2 MESSAGE", "3 REDUCE_SUM", "1-2 GATHER..MESSAGE"]
    gap = cells[cells["unit"] == GPU].iloc[0]
    assert np.isnan(gap["ms"]) and gap["n"] == 0 and not gap["within"] and gap["reason"] == "no such device"


def test_a_wide_interval_and_few_samples_are_not_within(cells):
    few = CellResult("measured", samples_ms=(1.0,) * 5, median_ms=1.0, ci_ms=(1.0, 1.0), std_ms=0.0)
    found = table([answer(TORCH, 1, timed(1.0, half=0.03)), answer(TORCH, 2, few)])
    assert not found["within"].any()


def test_no_measurements_are_refused():
    with pytest.raises(GnnlabError, match="measure first"):
        tables.table({})


def test_a_winner_is_told_with_its_interval_and_a_tie_as_no_difference(cells):
    won = tables.winners(cells).set_index("stage")
    first = won.loc["1 GATHER"]
    assert (first["unit"], first["next"], first["sizes"]) == (ORT, TORCH, 2)
    assert first["ratio"] == pytest.approx(2) and 1.9 < first["ci_low"] < 2 < first["ci_high"] < 2.1
    assert won.loc["2 MESSAGE", "ci_low"] < 1


def test_a_unit_that_lacks_a_size_cannot_win(cells):
    fast = table([answer(FAST, 1, timed(0.1))])
    assert tables.winners(pd.concat([cells, fast], ignore_index=True)).iloc[0]["unit"] == ORT


def test_simulated_units_win_nothing_on_the_cpu(cells):
    assert NPU not in set(tables.winners(cells)["unit"])


def test_the_sum_of_stages_is_compared_with_the_fused_block_of_the_same_unit(cells):
    found = tables.sum_rows(cells)
    assert list(found["form"]) == [TORCH] * 2 and list(found["value"]) == pytest.approx([2, 2])
    assert (found["low"] < 2).all() and (found["high"] > 2).all()


def test_gaps_say_why_and_the_cpu_stands_beside_as_a_cpu(cells):
    gap = tables.gaps(cells).set_index("unit").loc[GPU]
    assert (gap["stages"], gap["status"], gap["reason"], gap["cells"]) == ("1", "unavailable", "no such device", 2)
    beside = tables.beside(cells).set_index(["unit", "size"])
    assert beside.loc[(GPU, "10/20"), "cpu_unit"] == ORT and np.isnan(beside.loc[(NPU, "10/20"), "cpu_ms"])
    assert tables.gaps(tables.timed(cells)).empty


def test_the_report_names_everything_and_stars_what_is_simulated(cells):
    text = report.report(cells, ["a message"])
    for words in (
        "a message",
        "10/20, 30/60",
        f"{NPU}*",
        "simulated from published constants",
        "no such device",
    ):
        assert words in text
    assert f"{TORCH}*" not in text


def test_a_table_without_times_has_a_report_too_and_skips_the_notebook():
    cells = table([answer(GPU, 1, missing())])
    assert "no such device" in report.report(cells)
    skipped = []
    Measured(cells, None, {}).need_times(skipped.append)
    assert skipped == [f"no cell has a time: {GPU}: no such device"]
    assert tables.winners(cells).empty and tables.sum_rows(cells).empty
