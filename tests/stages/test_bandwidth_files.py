import json

import numpy as np
import pytest
from planted_campaign import FEATURES, LAYER, SIZES, TRUTH, cells, leave, timed

from gnnlab.stages.bandwidth import study_tables, tables
from gnnlab.stages.bandwidth.planted_truth import sweep
from gnnlab.stages.bandwidth.transfer import Curve, Transfers
from gnnlab.stages.campaign.cells import Cell
from gnnlab.stages.errors import StageError

CURVE = Curve.fit(sweep(TRUTH, [256 * 4**k for k in range(9)], noise=0.0, seed=0))
TRANSFERS = Transfers(CURVE, {"torch:CPU": CURVE, "onnxruntime:CPU": CURVE}, {"torch:CPU": CURVE})


@pytest.fixture
def stages(tmp_path):
    return leave(tmp_path / "stages")


@pytest.fixture
def written(stages, tmp_path):
    folder = tmp_path / "tables"
    found, rates = tables.write(folder, tables.measured_cells(stages), TRANSFERS)
    return folder, found, rates


def test_the_tables_have_the_studys_format(written):
    folder, found, _ = written
    lookup = json.loads((folder / "lookup_table.json").read_text())
    assert len(lookup) == len(found) == len(SIZES) * 7
    entry = lookup["100,400,CPU,1"]
    assert list(entry) == ["compute_time_ms", "transfer_time_ms", "total_time_ms", "std_ms"]
    assert all(type(value) is float for value in entry.values())
    rates = json.loads((folder / "bandwidth_table.json").read_text())
    assert rates["CPU_stage1"] == pytest.approx(10_000, rel=0.01) and all(type(v) is float for v in rates.values())
    assert study_tables.read_lookup(folder / tables.LOOKUP) == lookup
    assert study_tables.read_bandwidth(folder / tables.BANDWIDTH) == rates


def test_transfer_is_the_measured_copy_and_compute_what_remains(written):
    for row in written[1].itertuples():
        transfer = TRUTH.bandwidth.ms(LAYER.bytes_moved(row.stage, row.nodes, row.edges))
        compute = TRUTH.compute_ms(LAYER.flops(row.stage, row.stage, row.nodes, row.edges))
        assert row.compute_time_ms + row.transfer_time_ms == pytest.approx(row.total_time_ms)
        assert row.compute_time_ms == pytest.approx(compute, rel=0.15), row.key
        assert row.transfer_time_ms == pytest.approx(transfer, abs=0.15 * row.total_time_ms), row.key


def test_a_stage_that_takes_no_longer_than_a_copy_says_so(tmp_path):
    def quick(cell):
        return timed(1e-6 if cell.first == 2 else 1.0)

    stages = leave(tmp_path, answer=quick)
    found = study_tables.entries(tables.measured_cells(stages), TRANSFERS, {"CPU": "torch:CPU"})
    second = found[found["stage"] == 2]
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
    assert rates["CPU_stage1"]["mb_s_low"] < 10_000 < rates["CPU_stage1"]["mb_s_high"]
    for key in set(rates) - set(json.loads((folder / "bandwidth_table.json").read_text())):
        assert rates[key]["mb_s_low"] is None and rates[key]["why"]


def test_a_bandwidth_that_cannot_be_told_is_left_out_and_explained(stages):
    slow = Curve.fit(sweep(TRUTH, [256, 512], noise=0.0, seed=0))  # the launch is all of it
    found = tables.measured_cells(stages)
    entries = study_tables.entries(found, Transfers(slow, {}, {}), {"CPU": "torch:CPU"})
    rates = study_tables.bandwidths(entries, found, Transfers(slow, {}, {}))
    assert rates["mb_s"].isna().all() and (rates["why"] == "no copies through it were measured").all()
    assert entries["diagnosis"].str.contains("all of it is under compute").all()


def test_simulated_units_are_in_the_studys_tables_only_where_named(tmp_path):
    def answer(cell):
        return timed(1.0, status="simulated" if cell.unit == "simulated:GPU" else "measured")

    stages = leave(tmp_path, answer=answer, cells=cells(units=("torch:CPU", "simulated:GPU")))
    found = tables.measured_cells(stages)
    assert study_tables.processor_units(found) == {"CPU": "torch:CPU"}
    named = study_tables.processor_units(found, study_tables.declared(["GPU=simulated:GPU"]))
    assert named == {"CPU": "torch:CPU", "GPU": "simulated:GPU"}
    assert set(study_tables.entries(found, TRANSFERS, named).groupby("processor")["origin"].first()) == {
        "measured",
        "simulated",
    }


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["GPU"], "names no unit for a processor; write CPU or GPU or NPU=unit"),
        (["TPU=torch:CPU"], "names no unit"),
        (["GPU=torch:CPU"], "torch:CPU as GPU: it is a unit of the CPU"),
        (["CPU=fast:CPU"], "fast:CPU as CPU: no stage was measured on it"),
        (["CPU=nothing:CPU"], "unit 'nothing:CPU' is not known"),
    ],
)
def test_a_unit_that_cannot_stand_for_a_processor_is_refused(stages, texts, message):
    with pytest.raises(StageError, match=message):
        study_tables.processor_units(tables.measured_cells(stages), study_tables.declared(texts))


def test_tables_are_loaded_as_they_were_written(written, stages):
    predictor, transfers = tables.load_tables(written[0])
    assert predictor.layer.features == FEATURES and set(predictor.units) == {"torch:CPU", "onnxruntime:CPU"}
    assert transfers == TRANSFERS
    direct = tables.measured_cells(stages)
    row = direct[(direct["unit"] == "torch:CPU") & (direct["stage"].str.startswith("1-5"))].iloc[0]
    found = predictor.predict("torch:CPU", 1, 5, int(row["nodes"]), int(row["edges"]))
    assert found.time_ms == pytest.approx(row["ms"], rel=1e-12) and found.origin == "measured"
    assert predictor.predict("torch:CPU", 1, 5, 300, 1000).origin == "interpolated"
    with pytest.raises(StageError, match="outside the sizes measured"):
        tables.load_tables(written[0], refuse_outside=True).predictor.predict("torch:CPU", 1, 5, 9, 9)


BROKEN = {
    "negative": (lambda o: o | {"median_ms": -1.0}, "no finite numbers"),
    "zero": (lambda o: o | {"median_ms": 0.0}, "positive ones are needed"),
    "NaN": (lambda o: o | {"median_ms": float("nan")}, "no finite numbers"),
    "a sample NaN": (lambda o: o | {"samples_ms": [1.0, float("nan")]}, "no finite numbers"),
    "text": (lambda o: o | {"std_ms": "fast"}, "positive ones are needed"),
    "no interval": (lambda o: o | {"ci_ms": None}, "positive ones are needed"),
    "another schema": (lambda o: {"latency": 3}, "no outcome of a cell"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_measurement_that_makes_no_sense_is_named_in_one_line(stages, name):
    spoil, message = BROKEN[name]
    path = stages / "raw_measurements.json"
    data = json.loads(path.read_text())
    key = "200,800,torch:CPU,3"
    data["measurements"][key]["outcome"] = spoil(data["measurements"][key]["outcome"])
    path.write_text(json.dumps(data))
    with pytest.raises(StageError, match=message) as refused:
        tables.measured_cells(stages)
    assert key in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: m | {"200,800,torch:CPU,3": {"cell": {}, "outcome": {}}},
        lambda m: m | {"200,800,torch:CPU,3": m["200,800,torch:CPU,4"]},
        lambda m: m | {"200,800,torch:CPU,3": 7},
        lambda m: list(m),
        lambda m: {},
    ],
)
def test_measurements_of_another_schema_are_refused_in_one_line(stages, spoil):
    path = stages / "raw_measurements.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"measurements": spoil(data["measurements"])}))
    with pytest.raises(StageError) as refused:
        tables.measured_cells(stages)
    assert "\n" not in str(refused.value)


def test_missing_measurements_say_what_to_do(tmp_path):
    with pytest.raises(StageError, match="measure first"):
        tables.measured_cells(tmp_path)
    with pytest.raises(StageError, match="run notebook 06 first"):
        tables.load_tables(tmp_path)


def test_cells_without_a_time_are_listed_and_the_table_goes_on(tmp_path):
    def changes(cell):
        gone = cell.unit == "torch:CPU" and cell.first == cell.last == 3 and cell.nodes == 400
        none = {"samples_ms": (), "median_ms": None, "ci_ms": None, "std_ms": None}
        return {"status": "timeout", "reason": "no answer within 60 s", **none} if gone else {}

    found = tables.measured_cells(leave(tmp_path, changes))
    (line,) = tables.missing(found)
    assert line.startswith("torch:CPU has no time for 3 REDUCE_SUM at 400/400") and "no answer within 60 s" in line
    entries, _ = tables.write(tmp_path / "tables", found, TRANSFERS, declared={"CPU": "torch:CPU"})
    assert len(entries) == len(SIZES) * 7 - 4 and np.isfinite(entries["total_time_ms"]).all()
    with pytest.raises(StageError, match="lacks 400,1600,CPU,3, which it has at other sizes"):
        study_tables.read_lookup(tmp_path / "tables" / tables.LOOKUP)


def entry(**changes):
    return {"compute_time_ms": 1.0, "transfer_time_ms": 0.5, "total_time_ms": 1.5, "std_ms": 0.1} | changes


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"1,1,CPU,1": entry(total_time_ms=-1.5)}, "none of them negative or NaN"),
        ({"1,1,CPU,1": entry(std_ms=float("nan"))}, "none of them negative or NaN"),
        ({"1,1,CPU,1": {"latency_ms": 3}}, "it needs compute_time_ms"),
        ({"1,1,TPU,1": entry()}, "is not understood; write"),
        ({"CPU_stage1": entry()}, "is not understood; write"),
        ({"1,1,CPU,1": entry(), "1,1,CPU,2": entry(), "2,2,CPU,1": entry()}, "lacks 2,2,CPU,2"),
        ([], "is no table"),
        ({}, "is empty; measure first"),
    ],
)
def test_a_lookup_table_of_another_hand_is_checked(tmp_path, data, message):
    path = tmp_path / "lookup_table.json"
    path.write_text(json.dumps(data))
    with pytest.raises(StageError, match=message) as refused:
        study_tables.read_lookup(path)
    assert "\n" not in str(refused.value)


def test_a_bandwidth_table_may_be_empty_where_nothing_could_be_told(tmp_path):
    (tmp_path / "bandwidth_table.json").write_text("{}")
    assert study_tables.read_bandwidth(tmp_path / "bandwidth_table.json") == {}


@pytest.mark.parametrize("value", [0, -1, float("nan"), "fast", None, True])
def test_a_bandwidth_that_is_none_is_refused(tmp_path, value):
    path = tmp_path / "bandwidth_table.json"
    path.write_text(json.dumps({"CPU_stage1": value}))
    with pytest.raises(StageError, match=r"positive MB/s"):
        study_tables.read_bandwidth(path)


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        (tables.TIMES, lambda d: d | {"schema_version": 2}, "has schema 2, this version reads 1"),
        (tables.TIMES, lambda d: d | {"times": [d["times"][0] | {"ms": -1}]}, "takes -1 ms; a positive time is needed"),
        (tables.TIMES, lambda d: d | {"times": [d["times"][0] | {"ms": None}]}, "a positive time is needed"),
        (tables.TIMES, lambda d: d | {"times": 3}, "not as this version writes it"),
        (tables.TIMES, lambda d: d | {"layer": "resnet"}, "layer 'resnet' is not known|not as this version writes it"),
        (tables.TRANSFERS, lambda d: {"schema_version": 1}, "no measured transfers"),
        (tables.TRANSFERS, lambda d: [1], "has schema 'list'"),
    ],
)
def test_damaged_tables_are_refused_in_one_line(written, name, spoil, message):
    path = written[0] / name
    path.write_text(json.dumps(spoil(json.loads(path.read_text()))))
    with pytest.raises(StageError, match=message) as refused:
        tables.load_tables(written[0])
    assert "\n" not in str(refused.value)


def test_a_file_that_is_cut_is_refused(written):
    path = written[0] / tables.TIMES
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(StageError, match="is damaged"):
        tables.load_tables(written[0])


def test_nothing_measured_gives_no_table(tmp_path):
    none = {"status": "unavailable", "reason": "no device", "samples_ms": (), "median_ms": None, "ci_ms": None,
            "std_ms": None}  # fmt: skip
    found = tables.measured_cells(leave(tmp_path, lambda cell: none))
    with pytest.raises(StageError, match="no cell has a time"):
        tables.write(tmp_path / "tables", found, TRANSFERS)
    assert not (tmp_path / "tables").exists()


def test_the_first_cell_tells_the_conditions(stages):
    assert isinstance(tables.first_cell(stages), Cell) and tables.first_cell(stages).features == FEATURES
