"""Tables and sentences of a campaign on planted outcomes: they follow the numbers, and nothing is filled in."""

import numpy as np
import pandas as pd
import pytest

from gnnlab.profiling.roofline import Ceilings
from gnnlab.stages.campaign import study_reading as reading
from gnnlab.stages.campaign import table as tables
from gnnlab.stages.campaign.campaign import Answer, as_json
from gnnlab.stages.campaign.cells import Cell, Outcome
from gnnlab.stages.errors import StageError
from gnnlab.stages.units.unit import Availability

TORCH, ORT, FAST, NPU, GPU = "torch:CPU", "onnxruntime:CPU", "fast:CPU", "simulated:NPU", "openvino:GPU"


def timed(ms, half=0.01, status="measured", **changes):
    samples = tuple(ms * np.linspace(1 - half, 1 + half, 25))
    about = {"median_ms": ms, "ci_ms": (ms * (1 - half), ms * (1 + half)), "std_ms": 0.0, "parity_error": 0.0}
    return Outcome(status, samples_ms=samples, precision="float32", threads=1, device="d", **(about | changes))


def answer(unit, first, outcome, size=(10, 20), last=None, took_s=0.5):
    return Answer(Cell("sage", 4, *size, first, last or first, unit), outcome, took_s=took_s)


def missing(why="no such device"):
    return Outcome("unavailable", why)


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
    few = Outcome("measured", samples_ms=(1.0,) * 5, median_ms=1.0, ci_ms=(1.0, 1.0), std_ms=0.0)
    found = table([answer(TORCH, 1, timed(1.0, half=0.03)), answer(TORCH, 2, few)])
    assert not found["within"].any()


def test_no_measurements_are_refused():
    with pytest.raises(StageError, match="measure first"):
        tables.table({})


def test_a_winner_is_told_with_its_interval_and_a_tie_as_no_difference(cells):
    won = tables.winners(cells).set_index("stage")
    first = won.loc["1 GATHER"]
    assert (first["unit"], first["next"], first["sizes"]) == (ORT, TORCH, 2)
    assert first["ratio"] == pytest.approx(2) and 1.9 < first["ci_low"] < 2 < first["ci_high"] < 2.1
    assert won.loc["2 MESSAGE", "ci_low"] < 1
    text = reading.winners(tables.winners(cells))
    assert f"1 GATHER: {ORT}, 2 times as fast as {TORCH}" in text and f"no difference seen to {TORCH}" in text
    assert "1 GATHER" in reading.winners_title(tables.winners(cells))


def test_a_unit_that_lacks_a_size_cannot_win(cells):
    fast = table([answer(FAST, 1, timed(0.1))])
    assert tables.winners(pd.concat([cells, fast], ignore_index=True)).iloc[0]["unit"] == ORT


def test_simulated_units_win_nothing_on_the_cpu(cells):
    assert NPU not in set(tables.winners(cells)["unit"]) | set(tables.relative(cells)["unit"])
    assert tables.relative(cells)["times"].min() == 1


def test_the_sum_of_stages_is_compared_with_the_fused_block_of_the_same_unit(cells):
    found = tables.sums(cells)
    assert list(found["unit"]) == [TORCH] * 2 and list(found["ratio"]) == pytest.approx([2, 2])
    assert (found["ci_low"] < 2).all() and (found["ci_high"] > 2).all()
    assert "take 2 times as long as fused" in reading.sums(found)
    assert reading.sums_title(found) == "The stages one by one take 2 to 2 times as long as fused, on measured units"
    assert list(reading.sums_table(found).columns) == ["10/20", "30/60"]


def test_gaps_say_why_and_the_cpu_stands_beside_as_a_cpu(cells):
    text = reading.gaps(cells)
    assert f"- {GPU}, stages 1: unavailable, no such device (2 cells)" in text
    beside = reading.beside(cells).set_index(["unit", "size"])
    assert beside.loc[(GPU, "10/20"), "a CPU takes"].endswith(ORT)
    assert beside.loc[(NPU, "10/20"), "a CPU takes"] == "none"
    assert reading.gaps(tables.timed(cells)) == "Every cell has a time."


def test_the_share_of_the_roofline_is_that_of_measured_cpu_cells(cells):
    limits = Ceilings([(2**10, 1.0), (2**28, 1.0)], 1.0, "float32", 1, "cpu")
    roof = tables.roofed(cells, limits)
    assert set(roof["unit"]) == {TORCH, ORT}
    first = roof.iloc[0]
    moved = 4 * 10 * 4 + 16 * 20 + 4 * 20 * 4  # 4 N F + 16 E + 4 E F
    assert first["bytes"] == moved and first["reached"] == pytest.approx(moved / 1e9 * 1e3 / first["ms"])
    assert first["reached_low"] < first["reached"] < first["reached_high"]
    assert reading.roof_table(roof).shape == (3, 3) and "reaches most of its roofline" in reading.roof(roof)


def test_the_report_names_everything_and_stars_what_is_simulated(cells):
    text = reading.report(cells, ["a message"])
    for words in (
        "a message",
        "10/20, 30/60",
        f"{NPU}*",
        "simulated from published constants",
        "no such device",
        "none",
    ):
        assert words in text
    assert f"{TORCH}*" not in text


def test_a_table_without_times_has_a_report_too_and_skips_the_notebook():
    cells = table([answer(GPU, 1, missing())])
    assert "no such device" in reading.report(cells)
    skipped = []
    reading.need_times(cells, skipped.append)
    assert skipped == [f"no cell has a time: {GPU}: no such device"]
    assert reading.winners(tables.winners(cells)).startswith("Nothing to compare")
    assert reading.sums(tables.sums(cells)).startswith("No block")


def test_titles_follow_the_numbers(cells):
    title = reading.latency_title(cells)
    assert title.startswith("2 MESSAGE takes longest on the CPU, 59%")
    assert reading.latency(cells).startswith(
        "10 of 16 cells measured, 10 with an interval within 2 %; 4 unavailable; 2 sim"
    )
    assert reading.interval_table(cells).shape == (8, 3)


def test_units_are_shown_with_what_they_need():
    found = {TORCH: Availability(True, device="a CPU", version="1"), GPU: Availability(False, "no GPU", "a driver")}
    assert list(reading.units_rows(found)["here"]) == ["a CPU, 1", "not here, no GPU; what helps: a driver"]
