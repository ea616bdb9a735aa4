import json

import numpy as np
import pytest
from planted_campaign import FEATURES, LAYER, SIZES, TRUTH, cells, leave, timed

from gnnlab.campaign.cells import Cell
from gnnlab.errors import GnnlabError
from gnnlab.prediction import tables
from gnnlab.prediction.bandwidth import COMPARED, BandwidthFindings
from gnnlab.prediction.measured import first_cell, measured_cells
from gnnlab.prediction.planted_truth import sweep
from gnnlab.prediction.regression import regress
from gnnlab.prediction.transfer import CopyCurve, MeasuredTransfers

CURVE = CopyCurve.fit(sweep(TRUTH, [256 * 4**k for k in range(9)], noise=0.0, seed=0))
TRANSFERS = MeasuredTransfers(CURVE, {"torch:CPU": CURVE, "onnxruntime:CPU": CURVE})


def of(stages, transfers=TRANSFERS, **declared):
    """What was measured: a planted campaign, and these transfers."""
    cells = measured_cells(stages)
    chosen = tables.processor_units(cells, [f"{processor}={unit}" for processor, unit in declared.items()])
    compared = cells.iloc[:0].assign(kind="", predicted_ms=0.0, low_ms=0.0, high_ms=0.0, fitted=0, form="")
    return BandwidthFindings(cells, compared[COMPARED], None, transfers, chosen, None)


@pytest.fixture
def stages(tmp_path):
    return leave(tmp_path / "stages")


@pytest.fixture
def written(stages, tmp_path):
    folder, found = tmp_path / "tables", of(stages)
    said = tables.write(folder, found)
    assert said["times"] == len(found.entries) and said["bandwidths"] + said["stages without bandwidth"] == 7
    return folder, found


def test_the_tables_have_the_studys_format(written):
    folder, found = written
    lookup = json.loads((folder / tables.LOOKUP).read_text())
    assert len(lookup) == len(found.entries) == len(SIZES) * 7
    entry = lookup["100,400,CPU,1"]
    assert list(entry) == ["compute_time_ms", "transfer_time_ms", "total_time_ms", "std_ms"]
    assert all(type(value) is float for value in entry.values())
    rates = json.loads((folder / tables.BANDWIDTH).read_text())
    assert rates["CPU_stage1"] == pytest.approx(10_000, rel=0.01) and all(type(v) is float for v in rates.values())
    entries = tables.read_lookup(folder / tables.LOOKUP)
    assert {",".join(map(str, key)): value.model_dump() for key, value in entries.items()} == lookup
    assert tables.read_bandwidth(folder / tables.BANDWIDTH) == rates


def test_transfer_is_the_measured_copy_and_compute_what_remains(written):
    for row in written[1].entries.itertuples():
        transfer = TRUTH.moving_ms(LAYER.bytes_moved(row.number, row.nodes, row.edges))
        compute = TRUTH.compute_ms(LAYER.flops(row.number, row.number, row.nodes, row.edges))
        assert row.compute_time_ms + row.transfer_time_ms == pytest.approx(row.total_time_ms)
        assert row.compute_time_ms == pytest.approx(compute, rel=0.15), row.key
        assert row.transfer_time_ms == pytest.approx(transfer, abs=0.15 * row.total_time_ms), row.key


def test_the_studys_line_of_measured_cells_is_wrong_where_arithmetic_grows_as_bytes_do(written):
    lines = regress(written[1], lambda moved_bytes, ms: np.polyfit(moved_bytes, ms, deg=1))
    found = lines.bandwidth().set_index(["stage", "form"])
    s4, copy = found.loc["6 TRANSFORM", "S4"], found.loc["6 TRANSFORM", "measured copy"]
    assert s4["value"] < copy["value"] / 2
    assert set(found["device"]) == {"CPU planted"} and len(lines.intercept_ratio()) == 7


def test_a_stage_that_takes_no_longer_than_a_copy_says_so(tmp_path):
    found = of(leave(tmp_path, answer=lambda cell: timed(1e-6 if cell.first == 2 else 1.0))).entries
    second = found[found["number"] == 2]
    assert (second["compute_time_ms"] == 0).all() and second["diagnosis"].str.contains("no compute").all()
    assert (second["transfer_time_ms"] == second["total_time_ms"]).all()


def test_companions_tell_unit_origin_interval_and_diagnosis(written):
    folder = written[0]
    about = json.loads((folder / "lookup_table.about.json").read_text())
    assert about["units"] == {"CPU": "torch:CPU"} and about["lacking"] == []  # the faster of the two
    entry = about["entries"]["100,400,CPU,1"]
    assert {"unit", "origin", "low_ms", "high_ms", "diagnosis"} <= set(entry) and entry["origin"] == "measured"
    rates = json.loads((folder / "bandwidth_table.about.json").read_text())["entries"]
    assert set(rates) == {f"CPU_stage{n}" for n in range(1, 8)}
    assert rates["CPU_stage1"]["gb_s_low"] < 10 < rates["CPU_stage1"]["gb_s_high"]
    for key in set(rates) - set(json.loads((folder / tables.BANDWIDTH).read_text())):
        assert rates[key]["gb_s_low"] is None and rates[key]["why"]


def test_a_bandwidth_that_cannot_be_told_is_left_out_and_explained(stages):
    slow = CopyCurve.fit(sweep(TRUTH, [256, 512], noise=0.0, seed=0))  # the launch is all of it
    found = of(stages, MeasuredTransfers(slow, {}))
    assert found.rates["gb_s"].isna().all() and (found.rates["why"] == "no copies through it were measured").all()
    assert found.entries["diagnosis"].str.contains("counts as compute").all()


def test_simulated_units_are_in_the_studys_tables_only_where_named(tmp_path):
    def answer(cell):
        return timed(1.0, status="simulated" if cell.unit == "simulated:GPU" else "measured")

    stages = leave(tmp_path, answer=answer, cells=cells(units=("torch:CPU", "simulated:GPU")))
    assert of(stages).chosen == {"CPU": "torch:CPU"}
    named = of(stages, GPU="simulated:GPU")
    assert named.chosen == {"CPU": "torch:CPU", "GPU": "simulated:GPU"}
    assert set(named.entries.groupby("processor")["origin"].first()) == {"measured", "simulated"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("GPU", "names no unit for a processor; write CPU or GPU or NPU=unit"),
        ("TPU=torch:CPU", "names no unit"),
        ("GPU=torch:CPU", "torch:CPU as GPU: it is a unit of the CPU"),
        ("CPU=fast:CPU", "fast:CPU as CPU: no stage was measured on it"),
        ("CPU=nothing:CPU", "unit 'nothing:CPU' is not known"),
    ],
)
def test_a_unit_that_cannot_stand_for_a_processor_is_refused(stages, text, message):
    with pytest.raises(GnnlabError, match=message):
        tables.processor_units(measured_cells(stages), [text])


def test_tables_are_loaded_as_they_were_written(written):
    predictor, transfers = tables.load_tables(written[0])
    assert predictor.layer.features == FEATURES and set(predictor.units) == {"torch:CPU", "onnxruntime:CPU"}
    assert transfers == TRANSFERS
    direct = written[1].grid
    row = direct[(direct["unit"] == "torch:CPU") & (direct["stage"].str.startswith("1-5"))].iloc[0]
    found = predictor.predict("torch:CPU", 1, 5, int(row["nodes"]), int(row["edges"]))
    assert found.time_ms == pytest.approx(row["ms"], rel=1e-12) and found.origin == "measured"
    assert predictor.predict("torch:CPU", 1, 5, 300, 1000).origin == "interpolated"
    assert predictor.predict("torch:CPU", 1, 5, 9, 9).origin == "extrapolated"


def test_missing_measurements_say_what_to_do(tmp_path):
    with pytest.raises(GnnlabError, match="measure first"):
        measured_cells(tmp_path)
    with pytest.raises(GnnlabError, match="first: gnnlab run 04 05 06"):
        tables.load_tables(tmp_path)


def test_cells_without_a_time_are_listed_and_the_table_goes_on(tmp_path):
    def changes(cell):
        gone = cell.unit == "torch:CPU" and cell.first == cell.last == 3 and cell.nodes == 400
        none = {"samples_ms": (), "median_ms": None, "ci_ms": None, "std_ms": None}
        return {"status": "timeout", "reason": "no answer within 60 s", **none} if gone else {}

    found = of(leave(tmp_path, changes), CPU="torch:CPU")
    (line,) = tables.missing(found.grid)
    assert line.startswith("torch:CPU has no time for 3 REDUCE_SUM at 400/400") and "no answer within 60 s" in line
    assert tables.write(tmp_path / "tables", found)["gaps"] == 1
    assert json.loads((tmp_path / "tables/lookup_table.about.json").read_text())["lacking"] == [line]
    assert len(found.entries) == len(SIZES) * 7 - 4 and np.isfinite(found.entries["total_time_ms"]).all()


def entry(**changes):
    return {"compute_time_ms": 1.0, "transfer_time_ms": 0.5, "total_time_ms": 1.5, "std_ms": 0.1} | changes


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"1,1,CPU,1": entry(total_time_ms=-1.5)}, "total_time_ms: Input should be greater than 0, got -1.5"),
        ({"1,1,CPU,1": entry(std_ms=float("nan"))}, "std_ms: Input should be a finite number"),
        ({"1,1,CPU,1": entry(std_ms=True)}, "std_ms: Input should be a valid number, got True"),
        ({"1,1,CPU,1": {"latency_ms": 3}}, "total_time_ms: Field required"),
        ({"1,1,TPU,1": entry()}, "is not understood; write"),
        ({"CPU_stage1": entry()}, "is not understood; write"),
        ([], "valid dictionary"),
        ({}, "is empty; measure first"),
    ],
)
def test_a_lookup_table_of_another_hand_is_checked(tmp_path, data, message):
    (tmp_path / tables.LOOKUP).write_text(json.dumps(data))
    with pytest.raises(GnnlabError, match=message) as refused:
        tables.read_lookup(tmp_path / tables.LOOKUP)
    assert "\n" not in str(refused.value)


def read_rates(folder, rates):
    (folder / tables.BANDWIDTH).write_text(json.dumps(rates))
    return tables.read_bandwidth(folder / tables.BANDWIDTH)


def test_a_bandwidth_table_may_be_empty_where_nothing_could_be_told(tmp_path):
    assert read_rates(tmp_path, {}) == {}


@pytest.mark.parametrize("value", [0, -1, float("nan"), "fast", None, True])
def test_a_bandwidth_that_is_none_is_refused(tmp_path, value):
    with pytest.raises(GnnlabError, match="CPU_stage1: Input should be"):
        read_rates(tmp_path, {"CPU_stage1": value})


def spoilt(data, **changes):
    """A sweep of two sizes with these columns."""
    columns = {"size_bytes": [1.0, 2.0], "at_ms": [1.0, 3.0], "low_ms": [1.0, 2.0], "high_ms": [1.0, 4.0], "n": 9}
    return data | {"transfers": data["transfers"] | {"plain": columns | changes}}


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        (tables.TIMES, lambda d: d | {"schema_version": 1}, "schema_version: Input should be 3, got 1"),
        (tables.TIMES, lambda d: d | {"times": [d["times"][0] | {"ms": -1}]}, "ms: Input should be greater than 0"),
        (tables.TIMES, lambda d: d | {"times": [d["times"][0] | {"ms": None}]}, "ms: Input should be a valid number"),
        (tables.TIMES, lambda d: d | {"times": 3}, "times: Input should be a valid list"),
        (tables.TIMES, lambda d: d | {"layer": "resnet"}, "layer 'resnet' is not known"),
        (tables.TIMES, lambda d: {"schema_version": 3}, "Field required"),
        (tables.TIMES, lambda d: d | {"transfers": d["transfers"] | {"plain": 3}}, "plain: Input should be"),
        (tables.TIMES, lambda d: spoilt(d, at_ms=[2.0, 1.0]), "whose sizes or times fall"),
        (tables.TIMES, lambda d: spoilt(d, at_ms=[-1.0, 1.0]), "each with a time above 0"),
        (tables.TIMES, lambda d: spoilt(d, high_ms=[1.0]), "inhomogeneous|at least two sizes"),
    ],
)
def test_damaged_tables_are_refused_in_one_line(written, name, spoil, message):
    path = written[0] / name
    path.write_text(json.dumps(spoil(json.loads(path.read_text()))))
    with pytest.raises(GnnlabError, match=message) as refused:
        tables.load_tables(written[0])
    assert "\n" not in str(refused.value)


def test_a_file_that_is_cut_is_refused(written):
    path = written[0] / tables.TIMES
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(GnnlabError, match="is damaged"):
        tables.load_tables(written[0])


def test_nothing_measured_gives_no_table(tmp_path):
    none = {"status": "unavailable", "reason": "no device", "samples_ms": (), "median_ms": None, "ci_ms": None,
            "std_ms": None}  # fmt: skip
    with pytest.raises(GnnlabError, match="no cell has a time"):
        tables.write(tmp_path / "tables", of(leave(tmp_path, lambda cell: none)))
    assert not (tmp_path / "tables").exists()


def test_the_first_cell_tells_the_conditions(stages):
    assert isinstance(first_cell(stages), Cell) and first_cell(stages).features == FEATURES
