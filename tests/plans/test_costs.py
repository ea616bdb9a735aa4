"""Costs from tables: this machine's journals, and tables in S4's format that were made elsewhere."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest
from refusals import refused
from synthetic_costs import Formula

from gnnlab import cli
from gnnlab.plans import costs as costs_module
from gnnlab.plans.costs import READ, Costs
from gnnlab.plans.plans import parse
from gnnlab.plans.rank import Planner
from gnnlab.stages.sizes import layer_of

SIZES = [(n, e) for n in (1000, 2000, 4000) for e in (1000, 5000, 20000)]
ABLE = {"CPU": range(1, 8), "GPU": range(1, 8), "NPU": (2, 5, 6, 7)}
FIXED_MS, PER_NODE_MS = {"CPU": 0.2, "GPU": 0.5, "NPU": 0.3}, {"CPU": 1e-3, "GPU": 2e-4, "NPU": 1e-4}
RATES = {"CPU_stage1": 16e3, "CPU_stage2": 16e3, "GPU_stage1": 2000, "GPU_stage2": 2000, "NPU_stage2": 4000}


@pytest.fixture
def journals(monkeypatch):
    """Stands in for the journals of two devices."""
    known = ("openvino:CPU", "fast:CPU")
    fit = pd.DataFrame({"layer": ["sage"], "features": 8, "precision": "float32", "threads": 1})
    monkeypatch.setattr(costs_module, "read", lambda tables, stages: (fit, None, None, []))
    transfers = SimpleNamespace(plain=SimpleNamespace(ms=lambda size_bytes: 2 * size_bytes))
    monkeypatch.setattr(costs_module.Transfers, "fit", lambda copies: transfers)
    lacking = [("fast:CPU", a, b) for a, b in layer_of("sage", 8).blocks() if (a, b) not in ((1, 5), (1, 7))]
    predictor = Formula(known, layer_of("sage", 8), lacking)
    monkeypatch.setattr(costs_module.TimePredictor, "fit", lambda layer, fit, transfers: predictor)
    return fit


def test_devices_come_in_one_order_and_one_without_times_is_named_with_what_it_lacks(journals, tmp_path):
    for named in (["openvino:NPU", "fast:CPU", "openvino:CPU"], ["openvino:CPU", "fast:CPU", "openvino:NPU"]):
        of = Costs.measured(tmp_path, tmp_path, named)
        assert of.devices == ("openvino:CPU", "fast:CPU", "openvino:NPU")
    assert of.lacking(50, 90) == {
        "fast:CPU": "times of 1-5, 1-7 alone",
        "openvino:NPU": "no times at 50x90",
    }
    assert of.transfer_ms("fast:CPU", "openvino:CPU", 3) == 6 and of.transfer_ms("fast:CPU", "fast:CPU", 3) == 0
    assert Costs.measured(tmp_path, tmp_path).devices == ("openvino:CPU", "fast:CPU")
    with refused(r"no times of onnxruntime:CPU .* it has those of openvino:CPU, fast:CPU"):
        Costs.measured(tmp_path, tmp_path, ["onnxruntime:CPU"])
    journals["threads"] = 2
    with refused("plans need float32 and one thread"):
        Costs.measured(tmp_path, tmp_path)


def compute_ms(processor, stage, nodes, edges):
    return FIXED_MS[processor] + PER_NODE_MS[processor] * stage * (nodes + edges)


@pytest.fixture
def put(tmp_path):
    """Writes both tables; gives their paths."""

    def put(entries, rates=RATES):
        paths = tmp_path / "lookup.json", tmp_path / "bandwidth.json"
        for path, data in zip(paths, (entries, rates), strict=True):
            path.write_text(json.dumps(data))
        return paths

    return put


def entries(sizes=SIZES, **more):
    return {
        f"{n},{e},{processor},{stage}": {"compute_time_ms": compute_ms(processor, stage, n, e), **more}
        for n, e in sizes
        for processor, stages in ABLE.items()
        for stage in stages
    }


def test_plans_from_tables_look_compute_times_up_and_move_bytes_by_bandwidth(put):
    """Not the totals, which hold a transfer for every stage: these would leave all to the CPU, for 35 ms."""
    times = {"CPU": (4.0, 1.0), "GPU": (1.0, 9.0)}
    given = {
        f"1000,5000,{processor},{stage}": {"compute_time_ms": a, "transfer_time_ms": b, "total_time_ms": a + b}
        for processor, (a, b) in times.items()
        for stage in range(1, 8)
    }
    of = Costs.from_tables(*put(given, {"CPU_stage1": 20_000, "GPU_stage1": 2000}))
    ranking = Planner(of, graphs=1).rank(1000, 5000)
    assert ranking.chosen == parse("1-7 on GPU") and of.lacking(1000, 5000) == {}
    moved_mb = (4 * 1000 * 500 + 16 * 5000 + 4 * 1000 * 500) / 1e6  # x and edge_index there, the result back
    assert ranking.table["ms"].iloc[0] == pytest.approx(7 * 1.0 + moved_mb / 2000 * 1e3)
    assert ranking.table.loc[parse("1-7 on CPU"), "ms"] == pytest.approx(28)


def test_a_total_alone_counts_without_its_transfer_where_that_is_known(put):
    """Stage 6 moves 12 N F bytes, 6 MB at 1000 nodes: 3 ms at 2000 MB/s."""
    given = {f"1000,1000,GPU,{stage}": {"total_time_ms": total} for stage, total in ((5, 5.0), (6, 5.0), (7, 0.5))}
    of = Costs.from_tables(*put(given, {"GPU_stage6": 2000, "GPU_stage7": 2000, "CPU_stage1": 9000}))
    took = [of.predict("GPU", stage, stage, 1000, 1000) for stage in (5, 6, 7)]
    assert [time.time_ms for time in took] == pytest.approx([5.0, 2.0, 0.5])
    assert {time.origin for time in took} == {READ}
    assert "All of total_time_ms counts as compute time for stages of GPU 5, 7." in of.notes
    assert of.lacking(1000, 1000)["GPU"] == "no times of stages 1, 2, 3, 4 at 1000x1000"


def test_between_sizes_a_time_is_predicted_and_the_noise_of_an_entry_is_its_interval(put):
    of = Costs.from_tables(*put(entries(std_ms=0.05)))
    known, between = of.predict("GPU", 3, 3, 2000, 5000), of.predict("GPU", 3, 3, 3000, 9000)
    assert (known.time_ms, known.origin) == (compute_ms("GPU", 3, 2000, 5000), READ)
    assert (known.low_ms, known.high_ms) == pytest.approx((known.time_ms - 0.098, known.time_ms + 0.098), abs=1e-3)
    assert between.time_ms == pytest.approx(compute_ms("GPU", 3, 3000, 9000), rel=0.1)
    assert between.origin == "interpolated" and of.predict("GPU", 3, 3, 90_000, 9000).origin == "extrapolated"
    silent = Costs.from_tables(*put(entries()))
    assert silent.predict("CPU", 1, 1, 1000, 1000).low_ms == silent.predict("CPU", 1, 1, 1000, 1000).high_ms
    assert [any("no std_ms" in note for note in each.notes) for each in (silent, of)] == [True, False]


@pytest.mark.parametrize(
    ("source", "target", "ms"), [("CPU", "GPU", 4.0), ("NPU", "CPU", 2.0), ("NPU", "GPU", 4.0), ("GPU", "GPU", 0.0)]
)
def test_a_hand_over_takes_its_bytes_over_the_lesser_of_both_bandwidths(put, source, target, ms):
    assert Costs.from_tables(*put(entries())).transfer_ms(source, target, 8e6) == pytest.approx(ms)


def test_what_the_tables_lack_is_named_by_device(put, capsys):
    """Also by the command. Without a bandwidth no plan hands over to the GPU, and none is left out in silence."""
    lookup, bandwidth = put(entries(SIZES[:2]), {"CPU_stage1": 16e3, "NPU_stage2": 4000})
    of = Costs.from_tables(lookup, bandwidth)
    lacking = of.lacking(1000, 5000)
    assert lacking == {
        "GPU": "no bandwidth of the GPU (GPU_stageN, MB/s): plans that hand over to it are not costed",
        "NPU": "no times of stages 1, 3, 4 at 1000x5000",
    }
    at = ("plan", "--nodes", "1000", "--edges", "5000", "--lookup", str(lookup), "--bandwidth", str(bandwidth))
    assert cli.main(at) == 0
    printed = capsys.readouterr().out
    assert all(f"{device}: {what}." in printed for device, what in lacking.items()) and "none was measured" in printed
    assert not any("GPU" in plan.devices for plan in Planner(of).rank(1000, 5000).table.index)
    assert cli.main([*at, "--plan", "1-5 on CPU, 6-7 on GPU"]) == 2
    assert "no bandwidth of the GPU (GPU_stageN, MB/s)" in capsys.readouterr().err


def test_sizes_that_are_too_few_to_fit_are_planned_and_no_others(put):
    planner = Planner(Costs.from_tables(*put(entries(SIZES[:1]))))
    assert not any(block.shared for plan in planner.rank(1000, 1000).table.index for block in plan.blocks)
    with refused("no plan of CPU, GPU, NPU can be costed: CPU: no times at 1500x1000"):
        planner.rank(1500, 1000)
    with refused("no times at 1500x1000 and too few sizes to fit between them; there are 1000x1000"):
        planner.rank(1500, 1000, also=[parse("1-7 on CPU")])


def test_the_command_refuses_tables_in_one_line(put, command):
    lookup, bandwidth = put(entries())
    for files, more, words in (
        ((lookup,), (), "need both"),
        ((lookup, bandwidth), ("--devices", "fast:CPU"), "give one of the two"),
        ((bandwidth, bandwidth), (), "is not understood"),
        (("nowhere.json", bandwidth), (), "nowhere.json"),
        ((lookup, bandwidth), ("--plan", "1-7 on NPU"), "NPU has no stage 1, 3, 4"),
    ):
        tables = [word for pair in zip(("--lookup", "--bandwidth"), map(str, files), strict=False) for word in pair]
        code, _, error = command("plan", "--nodes", "1000", "--edges", "1000", *tables, *more)
        assert code == 2 and words in error and error.count("\n") == 1
