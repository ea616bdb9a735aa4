import json

import numpy as np
import pandas as pd
import pytest
from refusals import refused
from synthetic_latencies import DEVICE, SIZES, SMALL, TRUTH, configs, copies, leave, no_time, outcome

from gnnlab.bandwidth import tables
from gnnlab.bandwidth.copies import PLAIN_COPY
from gnnlab.bandwidth.line import s4_studies
from gnnlab.bandwidth.tables import BANDWIDTH, LOOKUP, S4Tables, read_bandwidth, read_lookup
from gnnlab.stages import journal

TWO = (DEVICE, "onnxruntime:CPU")
SWEEP = [256 * 4**k for k in range(9)]
COPIES = pd.concat([copies(SWEEP, device=name) for name in (PLAIN_COPY, *TWO)])


def tables_of(folder, copied=COPIES, **changes):
    return S4Tables(journal.read(leave(folder / "stages", **changes)), copied)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    made = tables_of(folder, asked=configs(devices=TWO))
    counts = made.write(folder)
    assert counts["times"] == len(made.entries) and counts["bandwidths"] + counts["stages without bandwidth"] == 7
    return folder, made


def test_the_tables_have_the_studys_format_and_are_read_as_they_were_written(written):
    folder, made = written
    lookup, rates = (json.loads((folder / name).read_text()) for name in (LOOKUP, BANDWIDTH))
    assert len(lookup) == len(made.entries) == len(SIZES) * 7
    entry = lookup["100,400,CPU,1"]
    assert list(entry) == ["compute_time_ms", "transfer_time_ms", "total_time_ms", "std_ms"]
    assert all(type(value) is float for value in [*entry.values(), *rates.values()])
    assert rates["CPU_stage1"] == pytest.approx(10_000, rel=0.01)
    entries = read_lookup(folder / LOOKUP).set_index(["nodes", "edges", "processor", "stage"])
    assert {",".join(map(str, key)): row for key, row in entries.to_dict("index").items()} == lookup
    assert read_bandwidth(folder / BANDWIDTH) == rates


def test_transfer_is_the_measured_copy_and_compute_what_remains(written):
    for row in written[1].entries.itertuples():
        transfer = TRUTH.moving_ms(SMALL.bytes_moved(row.number, row.nodes, row.edges))
        compute = TRUTH.compute_ms(SMALL.flops(row.number, row.number, row.nodes, row.edges))
        assert row.compute_time_ms + row.transfer_time_ms == pytest.approx(row.total_time_ms)
        assert row.compute_time_ms == pytest.approx(compute, rel=0.15), row.key
        assert row.transfer_time_ms == pytest.approx(transfer, abs=0.15 * row.total_time_ms), row.key


def test_the_studys_line_of_measured_stages_is_wrong_where_arithmetic_grows_as_bytes_do(written):
    studies = s4_studies(written[1], lambda size, ms: np.polyfit(size, ms, deg=1))
    rows = studies["bandwidth"].set_index(["stage", "form"])
    assert rows.loc[("6 TRANSFORM", "S4"), "value"] < rows.loc[("6 TRANSFORM", "measured copy"), "value"] / 2
    assert set(rows["device"]) == {"CPU synthetic"} and len(studies["intercept_ratio"]) == 7


def test_a_stage_that_takes_no_longer_than_a_copy_says_so(tmp_path):
    entries = tables_of(tmp_path, answer=lambda config: outcome(config, 1e-6 if config.first == 2 else 1.0)).entries
    second = entries[entries["number"] == 2]
    assert (second["compute_time_ms"] == 0).all() and (second["diagnosis"] == tables.NO_REST).all()
    assert (second["transfer_time_ms"] == second["total_time_ms"]).all()


def test_what_is_to_know_of_the_tables_stands_beside_them(written):
    about, rates = (
        json.loads((written[0] / f"{name}_table.about.json").read_text()) for name in ("lookup", "bandwidth")
    )
    (device,) = about["devices"]  # the faster of the two
    assert device == rates["devices"][0] and device["device"] == DEVICE and device["chip"] == "synthetic"
    entry = about["entries"]["100,400,CPU,1"]
    assert list(entry) == ["device", "origin", "low_ms", "high_ms", "diagnosis"] and entry["origin"] == "measured"
    assert set(rates["entries"]) == {f"CPU_stage{n}" for n in range(1, 8)}
    assert rates["entries"]["CPU_stage1"]["gb_s_low"] < 10 < rates["entries"]["CPU_stage1"]["gb_s_high"]
    for key in set(rates["entries"]) - set(json.loads((written[0] / BANDWIDTH).read_text())):
        assert rates["entries"][key]["gb_s_low"] is None and rates["entries"][key]["diagnosis"]


def test_a_bandwidth_without_copies_is_left_out_and_explained(tmp_path):
    made = tables_of(tmp_path, copies(SWEEP))
    assert made.rates["gb_s"].isna().all() and (made.rates["diagnosis"] == tables.NO_COPIES).all()
    assert (made.entries["transfer_time_ms"] == 0).all() and (made.entries["diagnosis"] == tables.NO_COPIES).all()


def test_an_entry_is_of_the_random_graph_of_its_size(tmp_path):
    asked = [*configs(), *configs(SIZES[:1], graph="mine")]
    made = tables_of(tmp_path, asked=asked, answer=lambda each: outcome(each, 99.0 if each.graph == "mine" else None))
    assert made.entries["key"].is_unique and made.entries["total_time_ms"].max() < 99


def test_without_times_of_single_stages_there_is_no_table(tmp_path):
    with refused("no stage was timed by itself"):
        tables_of(tmp_path, answer=lambda config: no_time("unavailable", "no device"))


# ---- of anyone's hand -----------------------------------------------------------------------------------------------


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
        ({"1,1,CPU,1": {"latency_ms": 3}}, "no time; give total_time_ms"),
        ({"1,1,CPU,1": 3}, "3 is no entry"),
        *(({key: entry()}, f"key .{key[:20]}.* is not understood") for key in ("1,1,TPU,1", "1,1,CPU,8", "1,1,CPU,0")),
        *(({key: entry()}, "is not understood; write") for key in ("0,1,CPU,1", "-1,1,CPU,1", f"{'9' * 23},1,CPU,1")),
        ({"CPU_stage1": entry()}, "is not understood; write"),
        ([], "holds no object"),
        ({}, "is empty; measure first"),
    ],
)
def test_a_lookup_table_of_another_hand_is_checked(tmp_path, data, message):
    (tmp_path / LOOKUP).write_text(json.dumps(data))
    with refused(f"{LOOKUP}.*{message}"):
        read_lookup(tmp_path / LOOKUP)


def test_a_number_that_a_table_lacks_is_not_there_and_never_filled_in(tmp_path):
    data = {"1,1,CPU,1": {"total_time_ms": 2}, "1,1,GPU,2": {"compute_time_ms": 0, "transfer_time_ms": 1, "note": "x"}}
    (tmp_path / LOOKUP).write_text(json.dumps(data))
    table = read_lookup(tmp_path / LOOKUP)
    nan = float("nan")
    np.testing.assert_equal(table[tables.FIELDS].to_numpy(), [[nan, nan, 2, nan], [0, 1, nan, nan]])
    assert table["nodes"].dtype == int and list(table["processor"]) == ["CPU", "GPU"]


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        *(({"CPU_stage1": value}, "CPU_stage1: .*above 0") for value in (0, float("nan"), "fast", None, True, 10**400)),
        ({"speed": 3}, "'speed' is not understood"),
        ({"CPU_stage8": 3}, "'CPU_stage8' is not understood"),
        ([3], "holds no object"),
    ],
)
def test_a_bandwidth_table_of_another_hand_is_checked(tmp_path, rates, words):
    (tmp_path / BANDWIDTH).write_text(json.dumps(rates))
    with refused(words):
        read_bandwidth(tmp_path / BANDWIDTH)


def test_a_byte_order_mark_is_no_damage_and_a_key_that_stands_twice_is_refused(tmp_path):
    path = tmp_path / BANDWIDTH
    path.write_text('{"CPU_stage1": 3}', encoding="utf-8-sig")
    assert read_bandwidth(path) == {"CPU_stage1": 3}
    path.write_text('{"CPU_stage1": 3, "CPU_stage2": 4, "CPU_stage1": 5}')
    with refused("has the key 'CPU_stage1' twice"):
        read_bandwidth(path)
    path.write_text('{"CPU_stage1": 3')
    with refused("is damaged; give a table in S4's format"):
        read_bandwidth(path)
