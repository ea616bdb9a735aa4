import json

import numpy as np
import pandas as pd
import pytest
from planted_campaign import FEATURES, LAYER, SIZES, TRUTH, cells, leave, no_time, timed
from refusals import refused

from gnnlab.prediction import tables
from gnnlab.prediction.bandwidth import measured_cells
from gnnlab.prediction.copies import PLAIN_COPY
from gnnlab.prediction.planted_truth import sweep
from gnnlab.prediction.regression import s4_studies
from gnnlab.prediction.tables import S4Tables

SWEEP = sweep(TRUTH, [256 * 4**k for k in range(9)], noise=0.0, seed=0)
COPIES = pd.concat([SWEEP.assign(unit=unit) for unit in (PLAIN_COPY, "torch:CPU", "onnxruntime:CPU")])


def tables_of(stages, copies=COPIES):
    return S4Tables(measured_cells(stages), copies)


@pytest.fixture
def stages(tmp_path):
    return leave(tmp_path / "stages")


@pytest.fixture
def written(stages, tmp_path):
    folder, planted = tmp_path / "tables", tables_of(stages)
    counts = planted.write(folder)
    assert counts["times"] == len(planted.entries) and counts["bandwidths"] + counts["stages without bandwidth"] == 7
    return folder, planted


def test_the_tables_have_the_studys_format(written):
    folder, planted = written
    lookup = json.loads((folder / tables.LOOKUP).read_text())
    assert len(lookup) == len(planted.entries) == len(SIZES) * 7
    entry = lookup["100,400,CPU,1"]
    assert list(entry) == ["compute_time_ms", "transfer_time_ms", "total_time_ms", "std_ms"]
    assert all(type(value) is float for value in entry.values())
    rates = json.loads((folder / tables.BANDWIDTH).read_text())
    assert rates["CPU_stage1"] == pytest.approx(10_000, rel=0.01) and all(type(v) is float for v in rates.values())
    entries = tables.read_lookup(folder / tables.LOOKUP).set_index(["nodes", "edges", "processor", "stage"])
    assert {",".join(map(str, key)): row for key, row in entries.to_dict("index").items()} == lookup
    assert tables.read_bandwidth(folder / tables.BANDWIDTH) == rates


def test_transfer_is_the_measured_copy_and_compute_what_remains(written):
    for row in written[1].entries.itertuples():
        transfer = TRUTH.moving_ms(LAYER.bytes_moved(row.number, row.nodes, row.edges))
        compute = TRUTH.compute_ms(LAYER.flops(row.number, row.number, row.nodes, row.edges))
        assert row.compute_time_ms + row.transfer_time_ms == pytest.approx(row.total_time_ms)
        assert row.compute_time_ms == pytest.approx(compute, rel=0.15), row.key
        assert row.transfer_time_ms == pytest.approx(transfer, abs=0.15 * row.total_time_ms), row.key


def test_the_studys_line_of_measured_cells_is_wrong_where_arithmetic_grows_as_bytes_do(written):
    studies = s4_studies(written[1], lambda size, ms: np.polyfit(size, ms, deg=1))
    rows = studies["bandwidth"].set_index(["stage", "form"])
    s4, copy = rows.loc["6 TRANSFORM", "S4"], rows.loc["6 TRANSFORM", "measured copy"]
    assert s4["value"] < copy["value"] / 2
    assert set(rows["device"]) == {"CPU planted"} and len(studies["intercept_ratio"]) == 7


def test_a_stage_that_takes_no_longer_than_a_copy_says_so(tmp_path):
    entries = tables_of(leave(tmp_path, answer=lambda cell: timed(1e-6 if cell.first == 2 else 1.0))).entries
    second = entries[entries["number"] == 2]
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


def test_a_bandwidth_without_copies_is_left_out_and_explained(stages):
    planted = tables_of(stages, SWEEP.assign(unit=PLAIN_COPY))
    assert planted.rates["gb_s"].isna().all() and (planted.rates["why"] == tables.NO_COPIES).all()
    assert (planted.entries["transfer_time_ms"] == 0).all() and (planted.entries["diagnosis"] == tables.NO_COPIES).all()


def test_tables_are_loaded_as_they_were_written(written):
    predictor, transfers = tables.load_tables(written[0])
    assert predictor.layer.features == FEATURES and set(predictor.units) == {"torch:CPU", "onnxruntime:CPU"}
    assert transfers == written[1].transfers
    row = written[1].grid.query("unit == 'torch:CPU' and first == 1 and last == 5").iloc[0]
    known = predictor.predict("torch:CPU", 1, 5, int(row["nodes"]), int(row["edges"]))
    assert known.time_ms == pytest.approx(row["ms"], rel=1e-12) and known.origin == "measured"
    assert predictor.predict("torch:CPU", 1, 5, 300, 1000).origin == "interpolated"
    assert predictor.predict("torch:CPU", 1, 5, 9, 9).origin == "extrapolated"


def test_cells_without_a_time_are_listed_and_the_table_goes_on(tmp_path):
    def changes(cell):
        gone = cell.unit == "torch:CPU" and cell.first == cell.last == 3 and cell.nodes == 400
        return no_time("timeout", "no answer within 60 s") if gone else {}

    planted = tables_of(leave(tmp_path, changes, cells=cells(units=["torch:CPU"])))
    assert planted.write(tmp_path / "tables")["gaps"] == 1
    (gap,) = json.loads((tmp_path / "tables/lookup_table.about.json").read_text())["lacking"]
    assert list(gap.values()) == ["torch:CPU", "timeout", "no answer within 60 s", 4, "3"]
    assert len(planted.entries) == len(SIZES) * 7 - 4 and np.isfinite(planted.entries["total_time_ms"]).all()


def entry(**changes):
    return {"compute_time_ms": 1.0, "transfer_time_ms": 0.5, "total_time_ms": 1.5, "std_ms": 0.1} | changes


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"1,1,CPU,1": entry(total_time_ms=-1.5)}, "total_time_ms: Input should be greater than 0, got -1.5"),
        ({"1,1,CPU,1": entry(std_ms=float("nan"))}, "std_ms: Input should be a finite number"),
        ({"1,1,CPU,1": entry(std_ms=True)}, "std_ms: Input should be a valid number, got True"),
        ({"1,1,CPU,1": {"latency_ms": 3}}, "total_time_ms: Field required"),
        ({"1,1,TPU,1": entry()}, "key '1,1,TPU,1' is not understood; write \"nodes,edges,PU,stage\""),
        ({"CPU_stage1": entry()}, "is not understood; write"),
        ([], "valid dictionary"),
        ({}, "is empty; measure first"),
    ],
)
def test_a_lookup_table_of_another_hand_is_checked(tmp_path, data, message):
    (tmp_path / tables.LOOKUP).write_text(json.dumps(data))
    with refused(message):
        tables.read_lookup(tmp_path / tables.LOOKUP)


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        *(({"CPU_stage1": value}, "CPU_stage1: Input should be") for value in (0, float("nan"), "fast", None, True)),
        ({"speed": 3}, "'speed' is not understood"),
        ([3], "valid dictionary"),
    ],
)
def test_a_bandwidth_table_of_another_hand_is_checked(tmp_path, rates, words):
    (tmp_path / tables.BANDWIDTH).write_text(json.dumps(rates))
    with refused(words):
        tables.read_bandwidth(tmp_path / tables.BANDWIDTH)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text[:-9], "is damaged; run notebooks 04, 05 and 06 first: gnnlab run 04 05 06"),
        (lambda text: text.replace('"schema_version": 4', '"schema_version": 1'), "of another version"),
        (lambda text: "[]", "of another version"),
        (lambda text: text.replace(PLAIN_COPY, "torch:CPU"), "no sweep of plain copies"),
    ],
)
def test_damaged_tables_are_refused_in_one_line(written, spoil, message):
    path = written[0] / tables.TIMES
    text = json.dumps(json.loads(path.read_text()))
    path.write_text(spoil(text))
    with refused(message):
        tables.load_tables(written[0])


def test_nothing_measured_gives_no_table(tmp_path):
    with refused("no stage was timed by itself"):
        tables_of(leave(tmp_path, lambda cell: no_time("unavailable", "no device")))
