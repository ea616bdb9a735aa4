"""Costs from tables: this machine's, and some in S4's format that were made elsewhere."""

import json
from types import SimpleNamespace

import pytest
from synthetic_costs import Formula, costs

from gnnlab import cli
from gnnlab.campaign.cells import layer_of
from gnnlab.errors import GnnlabError
from gnnlab.planning import costs as costs_module
from gnnlab.planning.costs import FITTED, READ, SIMULATED_UNITS, load_costs, read_costs
from gnnlab.planning.planner import Planner
from gnnlab.planning.plans import parse

SIZES = [(n, e) for n in (1000, 2000, 4000) for e in (1000, 5000, 20000)]
ABLE = {"CPU": range(1, 8), "GPU": range(1, 8), "NPU": (2, 5, 6, 7)}
FIXED_MS, PER_NODE_MS = {"CPU": 0.2, "GPU": 0.5, "NPU": 0.3}, {"CPU": 1e-3, "GPU": 2e-4, "NPU": 1e-4}
RATES = {"CPU_stage1": 16e3, "CPU_stage2": 16e3, "GPU_stage1": 2000, "GPU_stage2": 2000, "NPU_stage2": 4000}


CPU, OTHER = PLANNED = ("plan_units:cpu", "plan_units:gpu")
LAYER = layer_of("sage", 8)


def test_simulated_units_are_known_by_their_constants_and_run_what_they_can():
    gpu, npu = SIMULATED_UNITS
    with_them = costs((CPU,), LAYER).with_simulated()
    assert with_them.units == (CPU, gpu, npu) and with_them.devices == with_them.separate == {gpu, npu}
    simulated = with_them.predict(gpu, 1, 7, 50, 90)
    assert simulated.origin == "simulated" and 0 < simulated.low_ms < simulated.time_ms < simulated.high_ms
    assert not any(first <= 3 <= last for first, last in with_them.blocks(npu))
    assert (1, 7) in costs((CPU,), LAYER).with_simulated(npu_cannot=()).blocks(npu)
    assert with_them.with_bandwidth(0.5).transfer_ms(CPU, gpu, 1e6) == 2 * with_them.transfer_ms(CPU, gpu, 1e6) > 0
    assert with_them.transfer_ms(CPU, CPU, 1e6) == with_them.transfer_ms(CPU, gpu, 0) == 0


def test_units_come_in_one_order_however_they_are_named(monkeypatch, tmp_path):
    known = ("openvino:CPU", "fast:CPU", "torch:CPU")
    tables = Formula(known, LAYER), SimpleNamespace(plain=SimpleNamespace(ms=lambda size_bytes: 2 * size_bytes))
    monkeypatch.setattr(costs_module, "load_tables", lambda folder: tables)
    for named in (["torch:CPU", "openvino:CPU"], ["openvino:CPU", "torch:CPU"]):
        loaded = load_costs(tmp_path, named)
        assert loaded.units == ("openvino:CPU", "torch:CPU") and loaded.only("torch:CPU").units == ("torch:CPU",)
    assert loaded.transfer_ms("torch:CPU", "openvino:CPU", 3) == 6 and not loaded.devices
    with pytest.raises(GnnlabError, match=r"no times of onnxruntime:CPU .* it has those of openvino:CPU, fast:CPU"):
        load_costs(tmp_path, ["onnxruntime:CPU"])


# ---- S4's tables -----------------------------------------------------------------------------------------------------


def total_ms(processor, stage, nodes, edges):
    return FIXED_MS[processor] + PER_NODE_MS[processor] * stage * (nodes + edges)


@pytest.fixture
def written(tmp_path):
    """Writes both tables; gives their paths."""

    def write(rates=RATES, sizes=SIZES, **more):
        entries = {
            f"{n},{e},{processor},{stage}": {"total_time_ms": total_ms(processor, stage, n, e), **more}
            for n, e in sizes
            for processor, stages in ABLE.items()
            for stage in stages
        }
        paths = tmp_path / "lookup.json", tmp_path / "bandwidth.json"
        for path, data in zip(paths, (entries, rates), strict=True):
            path.write_text(json.dumps(data))
        return paths

    return write


def test_a_total_alone_is_a_time_and_its_origin_says_that_it_was_read(written):
    of = read_costs(*written())
    assert of.units == ("CPU", "GPU", "NPU") and of.separate == {"GPU", "NPU"}
    read, fitted = of.predict("GPU", 3, 3, 2000, 5000), of.predict("GPU", 3, 3, 3000, 9000)
    assert (read.time_ms, read.origin) == (total_ms("GPU", 3, 2000, 5000), READ)
    assert fitted.time_ms == pytest.approx(total_ms("GPU", 3, 3000, 9000), rel=0.1) and fitted.origin == FITTED
    assert of.predict("GPU", 3, 3, 90_000, 9000).origin == "extrapolated"


def test_the_noise_of_an_entry_is_its_interval_where_it_is_given(written):
    known = read_costs(*written(std_ms=0.05)).predict("CPU", 1, 1, 1000, 1000)
    assert (known.low_ms, known.high_ms) == pytest.approx((known.time_ms - 0.098, known.time_ms + 0.098), abs=1e-3)
    silent = read_costs(*written()).predict("CPU", 1, 1, 1000, 1000)
    assert silent.low_ms == silent.time_ms == silent.high_ms


@pytest.mark.parametrize(
    ("source", "target", "ms"),
    [("CPU", "GPU", 4.0), ("host", "NPU", 2.0), ("NPU", "GPU", 4.0), ("host", "CPU", 0.0), ("GPU", "GPU", 0.0)],
)
def test_a_hand_over_takes_its_bytes_over_the_lesser_of_both_bandwidths(written, source, target, ms):
    assert read_costs(*written()).transfer_ms(source, target, 8e6) == pytest.approx(ms)
    with pytest.raises(GnnlabError, match="says nothing of the GPU; add GPU_stageN"):
        read_costs(*written({"CPU_stage1": 16e3})).transfer_ms("CPU", "GPU", 8e6)


def test_the_plan_leaves_to_each_processor_what_it_does_best(written):
    of = read_costs(*written(sizes=SIZES))
    chosen = Planner(of, graphs=1).rank(4000, 20_000).chosen
    assert chosen.units[-1] == "NPU" and {7} <= set(chosen.blocks[-1].stages)
    with pytest.raises(GnnlabError, match="NPU cannot run stage 1, 3, 4"):
        Planner(of).space.check(parse("1-7 on NPU"))


def test_sizes_that_are_too_few_to_fit_are_planned_and_no_others(written):
    of = read_costs(*written(sizes=SIZES[:1]))
    assert not any(block.shared for plan in Planner(of).rank(1000, 1000).table.index for block in plan.blocks)
    with pytest.raises(GnnlabError, match=r"no times at 1500/1000 and too few sizes .* there are 1000/1000"):
        Planner(of).rank(1500, 1000)


def test_the_command_says_whose_times_they_are(written, capsys):
    lookup, bandwidth = map(str, written())
    at = ("plan", "--nodes", "1000", "--edges", "1000")
    code = cli.main([*at, "--lookup", lookup, "--bandwidth", bandwidth, "--plan", "1-5 on GPU, 6-7 on NPU"])
    out = capsys.readouterr().out
    assert code == 0 and "none was measured here" in out and "no std_ms" in out and "times read" in out
    for more, words in (
        (["--lookup", lookup], "need both"),
        (["--lookup", lookup, "--bandwidth", bandwidth, "--units", "fast:CPU"], "give one of the two"),
        (["--lookup", str(bandwidth), "--bandwidth", bandwidth], "is not understood"),
        (["--lookup", "nowhere.json", "--bandwidth", bandwidth], "could not read nowhere.json"),
    ):
        assert cli.main([*at, *more]) == 2
        err = capsys.readouterr().err
        assert words in err and err.count("\n") == 1
