"""The table of a planted campaign, its rows and its report: they follow the numbers, and nothing is filled in."""

from dataclasses import replace

import pandas as pd
import pytest
from planted_campaign import timed as planted
from table_rows import as_rows

from gnnlab.campaign import checkpoints, sizes
from gnnlab.campaign import table as tables
from gnnlab.campaign.cells import Cell, CellResult
from gnnlab.campaign.checkpoints import record
from gnnlab.errors import GnnlabError
from gnnlab.units import registry
from gnnlab.units.unit import Availability

TORCH, ORT, FAST, NPU, GPU = "torch:CPU", "onnxruntime:CPU", "fast:CPU", "simulated:NPU", "openvino:GPU"
HERE = Availability(True, device="chip", version="runtime 1")


def timed(ms, half=0.01, status="measured", **changes):
    about = {"device": "chip", "runtime_version": "runtime 1", "threads": 2}
    return replace(planted(ms, half, status), **about | changes)


def missing(status="unavailable", why="no such device", **changes):
    return CellResult(status, why, precision="float32", threads=2, **changes)


def answer(unit, first, outcome, size=(10, 20), last=None, took_s=0.5, features=500):
    return record(Cell("sage", features, *size, first, last or first, unit), outcome, took_s=took_s)


def table(*answers):
    return tables.table({each["key"]: each for each in answers})


# ---- cells


def test_a_cell_is_a_row_with_every_sample_and_its_conditions():
    (row,) = as_rows(tables.cell_rows(table(answer(TORCH, 2, timed(2.0))), {TORCH: HERE}), "size", "stage")
    assert (row.origin, row.statistic, row.unit, row.n) == ("measured", "median", "ms", 25)
    assert row.keys == {"size": "10/20", "stage": "2 MESSAGE"} and row.form == TORCH
    assert (row.device, row.runtime, row.precision, row.threads) == ("CPU chip", "runtime 1", "float32", 2)


def test_the_conclusion_names_the_fastest_the_longest_stage_and_what_the_machine_did():
    times = {(TORCH, 1): 1.0, (FAST, 1): 2.0, (TORCH, 6): 4.0, (FAST, 6): 3.0, (TORCH, 7): 1.0, (FAST, 7): 2.0}
    fused = [answer(unit, 1, timed(ms), last=7) for unit, ms in ((TORCH, 9.0), (FAST, 7.0))]
    stages = [answer(unit, first, timed(ms)) for (unit, first), ms in times.items()]
    cells = table(*stages, *fused, answer(GPU, 1, missing()))
    reference = pd.DataFrame({"phase": ["1", "1"], "form": ["before", "after"], "samples": [[2.0], [2.6]]})
    said = tables.conclusion(cells, reference)
    assert said[:3] == [
        f"**No runtime of this CPU is fastest everywhere: of 4 stages and blocks, {TORCH} at 2, {FAST} at 2.**",
        "At 10/20, 6 TRANSFORM takes 60 % of the time of single stages, each on its fastest runtime.",
        f"In one block, 1-7 GATHER..ACTIVATE is fastest on {FAST}.",
    ]
    assert said[3].startswith("1 of 9 cells have no time") and "changed by 30 %" in said[4]
    (lost,) = tables.conclusion(table(answer(GPU, 1, missing())), reference[:0])
    assert lost.startswith("1 of 1 cells have no time")


def test_a_cell_without_a_time_has_a_reason_and_no_number():
    outcomes = [missing("unavailable"), missing("timeout"), missing("wrong", parity_error=0.5), missing("failed")]
    cells = table(*(answer(TORCH, first, outcome) for first, outcome in enumerate(outcomes, 1)))
    rows = as_rows(tables.cell_rows(cells, {TORCH: HERE}), "size", "stage")
    assert [row.status for row in rows] == ["unavailable", "timeout", "failed", "failed"]
    assert all(row.reason and row.value is None and row.n == 0 and row.device == "CPU chip" for row in rows)
    probed = {GPU: Availability(False, "no GPU", version="OpenVINO 1")}  # no chip, and no threads of a CPU
    (row,) = as_rows(tables.cell_rows(table(answer(GPU, 1, missing())), probed), "size", "stage")
    assert (row.device, row.runtime, row.threads) == ("GPU (none here)", "OpenVINO 1", 0)


def test_simulated_cells_are_never_measured_and_say_that_their_spread_is_drawn():
    about = {"device": "chip (simulated)", "precision": "float16", "runtime_version": "simulated"}
    simulated = timed(0.1, status="simulated", **about)
    (row,) = as_rows(tables.cell_rows(table(answer(NPU, 1, simulated)), {NPU: HERE}), "size", "stage")
    assert (row.origin, row.device, row.precision, row.threads) == ("simulated", "NPU chip (simulated)", "float16", 0)
    assert row.runtime == "published constants" and tables.DRAWN in row.notes


@pytest.mark.parametrize(("half", "notes", "marks"), [(0.01, (), 0), (0.03, (), 1), (0.03, ("interval is ±3.0 %",), 1)])
def test_a_wide_interval_is_marked_once_and_a_narrow_one_never(half, notes, marks):
    cells = table(answer(TORCH, 1, timed(1.0, half=half, notes=notes)))
    (row,) = as_rows(tables.cell_rows(cells, {TORCH: HERE}), "size", "stage")
    assert sum(note.startswith("interval is") for note in row.notes) == marks


def test_the_share_of_a_bound_is_that_of_each_sample_measured_on_this_cpu_and_tells_what_its_interval_lacks():
    cells = table(answer(TORCH, 1, timed(2.0, half=0.1)), answer(NPU, 1, timed(1.0, status="simulated")))
    rows = tables.roof_rows(cells, lambda first, last, nodes, edges: first * last * nodes / edges, samples=9)
    (row,) = as_rows(rows, "size", "stage")
    assert row.form == TORCH and row.unit == "share" and row.value == pytest.approx(0.5 / 2)
    assert row.low < row.value < row.high and any("best of 9 samples" in n for n in row.notes)
    assert tables.roof_rows(cells[cells["unit"] == NPU], lambda *_: 1.0, 9).empty


def test_sums_are_rows_with_their_interval_and_the_origin_of_their_cells():
    answers = [
        answer(unit, n, timed(2.0, status=s)) for unit, s in ((TORCH, "measured"), (NPU, "simulated")) for n in (1, 2)
    ]
    answers += [answer(TORCH, 1, timed(2.0), last=2), answer(NPU, 1, timed(1.0, status="simulated"), last=2)]
    rows = {row.form: row for row in as_rows(tables.sum_rows(table(*answers)), "size", "block")}
    assert rows[TORCH].value == pytest.approx(2) and rows[TORCH].low < 2 < rows[TORCH].high and rows[TORCH].n == 25
    assert (rows[TORCH].origin, rows[TORCH].device, rows[TORCH].threads) == ("measured", "CPU chip", 2)
    assert (rows[NPU].origin, rows[NPU].threads, rows[NPU].notes) == ("simulated", 0, [tables.DRAWN])


# ---- what a reader asks


@pytest.fixture
def cells():
    """torch is twice as slow as ONNX Runtime at stage 1, as fast at stage 2; fused 1-2 takes 2 ms; no GPU."""
    answers = []
    for size in ((10, 20), (30, 60)):
        answers += [answer(TORCH, 1, timed(2.0), size), answer(ORT, 1, timed(1.0), size)]
        answers += [answer(TORCH, 2, timed(2.0), size), answer(ORT, 2, timed(1.99), size)]
        answers += [answer(TORCH, 1, timed(2.0), size, last=2), answer(NPU, 1, timed(0.1, status="simulated"), size)]
        answers += [answer(GPU, 1, missing(), size), answer(NPU, 3, missing(why="no sums"), size)]
    return table(*answers)


def test_stages_come_before_what_is_fused_and_a_wide_interval_or_few_samples_are_not_within(cells):
    assert list(dict.fromkeys(cells["stage"])) == ["1 GATHER", "2 MESSAGE", "3 REDUCE_SUM", "1-2 GATHER..MESSAGE"]
    few = CellResult("measured", samples_ms=(1.0,) * 5, median_ms=1.0, ci_ms=(1.0, 1.0), std_ms=0.0)
    assert not table(answer(TORCH, 1, timed(1.0, half=0.03)), answer(TORCH, 2, few))["within"].any()


def test_gains_are_over_torch_at_each_stage_and_say_over_how_many_sizes(cells):
    first, second = as_rows(tables.gain_rows(cells), "stage")  # none of the simulated NPU
    assert (first.keys, first.form, first.baseline) == ({"stage": "1 GATHER"}, ORT, TORCH)
    assert first.value == first.ratio == pytest.approx(2) and first.low < 2 < first.high and first.n == 25
    assert "over 2 sizes" in first.notes and second.keys == {"stage": "2 MESSAGE"}
    assert second.ratio == pytest.approx(2 / 1.99) and second.ratio_low < 1


def test_a_unit_that_lacks_a_size_has_no_gain_and_without_torch_another_is_the_baseline(cells):
    more = table(answer(FAST, 1, timed(0.1)), *(answer(FAST, 2, timed(0.1), size) for size in ((10, 20), (30, 60))))
    rows = as_rows(tables.gain_rows(pd.concat([cells[cells["unit"] != TORCH], more], ignore_index=True)), "stage")
    assert [(row.keys["stage"], row.form, row.baseline) for row in rows] == [("2 MESSAGE", FAST, ORT)]


def test_gaps_say_why_and_of_which_stages(cells):
    more = table(*(answer(GPU, first, missing(), (1, 1), last) for first, last in ((1, 5), (2, 2), (1, 1))))
    gap = tables.gaps(pd.concat([cells, more], ignore_index=True)).set_index("unit").loc[GPU]
    assert (gap["status"], gap["reason"], gap["cells"]) == ("unavailable", "no such device", 5)
    assert gap["stages"] == "1, 2, 1-5" and tables.gaps(tables.timed(cells)).empty


def test_the_report_names_everything_and_stars_what_is_simulated(cells):
    text = checkpoints.report(cells, ["a message"])
    for words in ("a message", "10/20, 30/60", f"{NPU}*", "simulated from published constants", "no such device"):
        assert words in text
    assert f"{TORCH}*" not in text


def test_a_table_without_times_has_a_report_too_and_skips_the_notebook():
    cells = table(answer(GPU, 1, missing()))
    assert "no such device" in checkpoints.report(cells)
    skipped = []
    tables.need_times(cells, skipped.append)
    assert skipped == [f"no cell has a time: {GPU}: no such device"]
    assert tables.gain_rows(cells).empty and tables.sum_rows(cells).empty
    with pytest.raises(GnnlabError, match="measure first"):
        tables.table({})


# ---- what the campaign took


ALL = {name: Availability(False) for name, unit in registry.all_units().items() if unit.origin == "measured"}


def whole(unit, took_s, features=500, **changes):
    return [
        answer(unit, stage, timed(1.0, **changes), (s.nodes, s.edges), took_s=took_s, features=features)
        for s in sizes.read(["study"])
        for stage in range(1, 8)
    ]


def campaign_time(answers, available, known=0):
    minutes, hours = as_rows(tables.duration_rows(table(*answers), available, known))
    assert (minutes.form, hours.form) == ("this campaign", "as many cells as S4 measured")
    return minutes, hours


def test_minutes_are_one_sample_without_an_interval_of_the_stages_of_every_usable_unit():
    available = ALL | {TORCH: HERE, ORT: HERE, NPU: HERE}
    others = [answer(TORCH, 1, timed(1.0), last=5, took_s=1e6)]
    others += [answer(NPU, 1, timed(1.0, status="simulated"), took_s=1e6)]
    row, _ = campaign_time(whole(TORCH, 0.5) + whole(ORT, 0.5, half=0.03) + others, available)
    assert row.value == pytest.approx(210 * 0.5 / 60) and (row.n, row.interval, row.statistic) == (1, "none", "single")
    assert row.notes[0] == "210 cells of 2 units, 105 intervals within 2 %"
    for answers, units, known in (  # fewer cells, units, features than needed; some of them known before
        (whole(TORCH, 0.1), available, 0),
        (whole(TORCH, 0.1), {TORCH: HERE}, 0),
        (whole(TORCH, 0.1, features=8), ALL | {TORCH: HERE}, 0),
        (whole(TORCH, 0.1), ALL | {TORCH: HERE}, 3),
    ):
        row, _ = campaign_time(answers, units, known)
        assert row.status == "unavailable" and "of every unit that is usable here" in row.reason


def test_hours_are_extrapolated_from_whole_units_which_are_what_is_resampled():
    available = ALL | {TORCH: HERE, ORT: HERE, FAST: HERE}
    more = [answer(TORCH, 1, timed(1.0), last=5, took_s=1e6)]
    three = whole(TORCH, 1.0) + whole(ORT, 3.0) + whole(FAST, 2.0)
    _, row = campaign_time(three + more, available)
    assert row.value == pytest.approx(2 * 315 / 3600)
    assert (row.origin, row.statistic, row.n) == ("extrapolated", "estimate", 315)
    assert row.low <= 1 * 315 / 3600 and row.high >= 3 * 315 / 3600 and "scaled to S4's 315" in row.notes[0]
    for fewer in (whole(TORCH, 1.0), whole(TORCH, 1.0) + whole(ORT, 1.0)):
        _, alone = campaign_time(fewer, available)
        assert alone.interval == "none" and alone.value == pytest.approx(315 / 3600)
    _, few = campaign_time([answer(TORCH, 1, timed(1.0))], available)
    assert few.status == "unavailable" and "15 sizes" in few.reason
