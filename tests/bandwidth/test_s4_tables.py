"""S4's two tables: made of synthetic measurements and copies, and read from anyone's hand."""

import json

import numpy as np
import pandas as pd
import pytest
from refusals import refused
from synthetic_latencies import DEVICE, SIZES, SMALL, TRUTH, configs, copies, leave, outcome

from gnnlab.bandwidth import tables
from gnnlab.bandwidth.copies import PLAIN_COPY
from gnnlab.bandwidth.line import s4_studies
from gnnlab.bandwidth.tables import BANDWIDTH, LOOKUP, S4Tables, read_bandwidth, read_lookup
from gnnlab.stages import journal
from gnnlab.stages.measurement import without_time

TWO = (DEVICE, "onnxruntime:CPU")
SWEEP = [256 * 4**k for k in range(9)]
COPIES = pd.concat([copies(SWEEP, device=name) for name in (PLAIN_COPY, "onnxruntime:CPU")])


def tables_of(folder, copied=COPIES, **changes):
    return S4Tables(journal.read(leave(folder / "stages", **changes)), copied)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The tables of two devices, what they count, and by name all files that were written."""
    folder = tmp_path_factory.mktemp("written")
    made = tables_of(folder, asked=configs(devices=TWO))
    counts = made.write(folder)
    return folder, made, counts, {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_the_tables_have_the_studys_format_and_are_read_as_they_were_written(written):
    folder, made, counts, files = written
    lookup, rates = files[LOOKUP], files[BANDWIDTH]
    assert counts == {"times": len(lookup), "bandwidths": len(rates), "stages without bandwidth": 7 - len(rates)}
    assert len(lookup) == len(made.entries) == len(SIZES) * 7
    entry = lookup["100,400,CPU,1"]
    assert list(entry) == ["compute_time_ms", "transfer_time_ms", "total_time_ms", "std_ms"]
    assert all(type(value) is float for value in [*entry.values(), *rates.values()])
    assert rates["CPU_stage1"] == pytest.approx(10_000, rel=0.01)
    entries = read_lookup(folder / LOOKUP).set_index(["nodes", "edges", "processor", "stage"])
    assert {",".join(map(str, key)): row for key, row in entries.to_dict("index").items()} == lookup
    assert read_bandwidth(folder / BANDWIDTH) == rates


def test_what_is_to_know_of_the_tables_stands_beside_them(written):
    files = written[-1]
    about, rates = (files[f"{name}_table.about.json"] for name in ("lookup", "bandwidth"))
    (device,) = about["devices"]  # the faster of the two
    assert device == rates["devices"][0] and device["device"] == DEVICE and device["chip"] == "synthetic"
    entry = about["entries"]["100,400,CPU,1"]
    assert list(entry) == ["device", "origin", "ms_low", "ms_high", "diagnosis"] and entry["origin"] == "measured"
    assert set(rates["entries"]) == {f"CPU_stage{n}" for n in range(1, 8)}
    for key, entry in rates["entries"].items():
        if key in files[BANDWIDTH]:
            assert entry["gb_s_low"] < 10 < entry["gb_s_high"] and not entry["diagnosis"]
        else:
            assert entry["gb_s_low"] is None and entry["diagnosis"]


def test_transfer_is_the_measured_copy_and_compute_what_remains(written):
    for row in written[1].entries.itertuples():
        transfer = TRUTH.moving_ms(SMALL.bytes_moved(row.first, row.nodes, row.edges))
        compute = TRUTH.compute_ms(SMALL.flops(row.first, row.first, row.nodes, row.edges))
        assert row.compute_time_ms + row.transfer_time_ms == pytest.approx(row.total_time_ms)
        assert row.compute_time_ms == pytest.approx(compute, rel=0.15), row.key
        assert row.transfer_time_ms == pytest.approx(transfer, abs=0.15 * row.total_time_ms), row.key


def test_the_studys_line_of_measured_stages_is_wrong_where_arithmetic_grows_as_bytes_do(written):
    studies = s4_studies(written[1], lambda size, ms: np.polyfit(size, ms, deg=1))
    rows = studies["bandwidth"].set_index(["stage", "variant"])
    assert rows.loc[("6 TRANSFORM", "S4"), "value"] < rows.loc[("6 TRANSFORM", "measured copy"), "value"] / 2
    assert set(rows["device"]) == {"CPU synthetic"} and len(studies["intercept_ratio"]) == 7


def test_a_stage_that_takes_no_longer_than_a_copy_says_so(tmp_path):
    entries = tables_of(tmp_path, answer=lambda config: outcome(config, 1e-6 if config.first == 2 else 1.0)).entries
    second = entries[entries["first"] == 2]
    assert (second["compute_time_ms"] == 0).all() and (second["diagnosis"] == tables.NO_REST).all()
    assert (second["transfer_time_ms"] == second["total_time_ms"]).all()


def test_a_bandwidth_without_copies_is_left_out_and_explained(tmp_path):
    """A plain copy tells nothing of a device with memory of its own."""
    made = tables_of(tmp_path, asked=configs(devices=["torch:CUDA"]))
    assert made.rates["gb_s"].isna().all() and (made.rates["diagnosis"] == tables.NO_COPIES).all()
    assert (made.entries["transfer_time_ms"] == 0).all() and (made.entries["diagnosis"] == tables.NO_COPIES).all()


def test_an_entry_is_of_the_random_graph_of_its_size(tmp_path):
    asked = [*configs(), *configs(SIZES[:1], graph="mine")]
    made = tables_of(tmp_path, asked=asked, answer=lambda each: outcome(each, 99.0 if each.graph == "mine" else None))
    assert made.entries["key"].is_unique and made.entries["total_time_ms"].max() < 99


def test_without_times_of_single_stages_there_is_no_table(tmp_path):
    with refused("no stage was timed by itself"):
        tables_of(tmp_path, answer=lambda config: without_time("unavailable", "no device"))


# ---- of anyone's hand -----------------------------------------------------------------------------------------------


def put(path, data):
    """A file of JSON, or of a text as it is."""
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def entry(**changes):
    return {"compute_time_ms": 1.0, "transfer_time_ms": 0.5, "total_time_ms": 1.5, "std_ms": 0.1} | changes


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"1,1,CPU,1": entry(total_time_ms=-1.5)}, "1,1,CPU,1, total_time_ms: -1.5; a number above 0 is needed"),
        ({"1,1,CPU,1": entry(std_ms=float("nan"))}, "std_ms: nan; a number of 0 or more"),
        ({"1,1,CPU,1": entry(std_ms=True)}, "std_ms: True"),
        ({"1,1,CPU,1": entry(compute_time_ms="1")}, "compute_time_ms: '1'"),
        ({"1,1,CPU,1": entry(compute_time_ms=1e9, total_time_ms=1)}, "1,1,CPU,1 contradicts itself: compute 1e.09"),
        ({"1,1,CPU,1": entry(total_time_ms=1.52)}, "contradicts itself"),
        ({"1,1,CPU,1": {"latency_ms": 3}}, "has no time; give total_time_ms"),
        ({"1,1,CPU,1": 3}, "1,1,CPU,1: 3 has no time"),
        *(({key: entry()}, f"key .{key[:20]}.* is not understood") for key in ("1,1,TPU,1", "1,1,CPU,8", "1,1,CPU,0")),
        *(({key: entry()}, "is not understood; write") for key in ("0,1,CPU,1", "-1,1,CPU,1", f"{'9' * 23},1,CPU,1")),
        ({"CPU_stage1": entry()}, "is not understood; write"),
        ([], "holds no object"),
        ({}, "is empty; measure first"),
    ],
)
def test_a_lookup_table_of_another_hand_is_checked(tmp_path, data, message):
    path = put(tmp_path / LOOKUP, data)
    with refused(f"{LOOKUP}.*{message}"):
        read_lookup(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        *(({"CPU_stage1": value}, "CPU_stage1: .*above 0") for value in (0, float("nan"), "fast", None, True, 10**400)),
        *(({key: 3}, f"'{key}' is not understood") for key in ("speed", "CPU_stage8")),
        ([3], "holds no object"),
        ('{"CPU_stage1": 3, "CPU_stage2": 4, "CPU_stage1": 5}', "has the key 'CPU_stage1' twice"),
        ('{"CPU_stage1": 3', "is damaged; give a table in S4's format"),
    ],
)
def test_a_bandwidth_table_of_another_hand_is_checked(tmp_path, data, message):
    path = put(tmp_path / BANDWIDTH, data)
    with refused(f"{BANDWIDTH}.*{message}"):
        read_bandwidth(path)


def test_a_number_that_a_table_lacks_is_not_there_and_never_filled_in(tmp_path):
    data = {"1,1,CPU,1": {"total_time_ms": 2}, "1,1,GPU,2": {"compute_time_ms": 0, "transfer_time_ms": 1, "note": "x"}}
    table, nan = read_lookup(put(tmp_path / LOOKUP, data)), float("nan")
    np.testing.assert_equal(table[tables.FIELDS].to_numpy(), [[nan, nan, 2, nan], [0, 1, nan, nan]])
    assert table["nodes"].dtype == int and list(table["processor"]) == ["CPU", "GPU"]


def test_a_byte_order_mark_is_no_damage(tmp_path):
    assert read_bandwidth(put(tmp_path / BANDWIDTH, '\ufeff{"CPU_stage1": 3}')) == {"CPU_stage1": 3}
