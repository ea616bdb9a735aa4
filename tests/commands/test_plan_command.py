"""`gnnlab plan` says which plan and why, executes it, and answers bad input with one line."""

import json
import shlex
from contextlib import nullcontext
from functools import partial

import pytest
from synthetic_costs import costs

from gnnlab.commands import plan as plan_command
from gnnlab.lab import discovery
from gnnlab.plans import execute
from gnnlab.plans.costs import Costs
from gnnlab.plans.processes import DeviceProcesses
from gnnlab.stages.sizes import layer_of

DEVICES = ("plan_devices:cpu", "plan_devices:gpu", "plan_devices:npu")
PLAN = '[[["plan_devices:gpu"],[1,2]],[["plan_devices:cpu"],[3,4,5,6,7]]]'
SHARED = "1-5 on plan_devices:gpu and plan_devices:cpu (0.5, 0.5), 6-7 on plan_devices:npu"
WORDS = "1-2 on plan_devices:gpu, 3-7 on plan_devices:cpu"
EXAMPLES = [line.strip() for line in plan_command.__doc__.splitlines() if line.startswith("  gnnlab plan")]
QUICK = {  # blocks with times after gnnlab run 04 05 06
    "openvino:CPU": [*((n, n) for n in range(1, 8)), (1, 5), (1, 7)],
    "onnxruntime:CPU": [*((n, n) for n in range(1, 8)), (1, 5), (1, 7)],
    "fast:CPU": [(3, 3), (1, 5), (1, 7)],
}


@pytest.fixture(scope="module")
def processes():
    """Started once for all tests."""
    with DeviceProcesses(DEVICES) as devices:
        yield devices


@pytest.fixture
def plan(processes, monkeypatch, tmp_path, command):
    """Runs the command on synthetic times: code, what it printed, what it said beside."""
    real = discovery.results_of
    monkeypatch.setattr(discovery, "results_of", lambda name: tmp_path if name == "quick" else real(name))
    monkeypatch.setattr(Costs, "measured", lambda *given: costs(DEVICES, layer_of("sage", 8)))
    monkeypatch.setattr("gnnlab.plans.processes.DeviceProcesses", lambda devices: nullcontext(processes))
    return partial(command, "plan")


def test_the_plan_is_printed_with_its_reasons(plan):
    code, out, err = plan("--nodes", "40", "--edges", "100")
    known = f"times of {', '.join(DEVICES)}; sizes: 3, from 20x40 to 80x300."
    words = (known, "40x100: ", "Expected", "one device", "chosen", "plans of at most 2 blocks were compared")
    assert code == 0 and err == "" and all(word in out for word in words)
    out = plan("--nodes", "4000", "--edges", "9000", "--blocks", "3")[1]
    assert "extrapolated" in out and "take the times with care" in out and "of at most 3 blocks" in out


@pytest.mark.parametrize("more", [("--plan", PLAN), ("--plan", WORDS), ("--plan", SHARED), ("--objective", "latency")])
def test_a_graph_is_planned_and_the_plan_executed(plan, more):
    code, out, _ = plan("--graph", "karate", "--execute", *more)
    words = ("karate: 156 edges, 34 nodes", "the lab's own layer (", "its result is off the layer in float64 by")
    assert code == 0 and all(word in out for word in words)
    assert ("--plan" not in more) or more[1] in out


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_of_the_help_runs_on_the_times_of_the_quick_set(plan, example, monkeypatch, tmp_path):
    layer = layer_of("sage", 500)
    lacking = [(name, *block) for name, there in QUICK.items() for block in layer.blocks() if block not in there]
    monkeypatch.setattr(Costs, "measured", lambda *given: costs(tuple(QUICK), layer, lacking))
    monkeypatch.setattr(execute, "execute_once", lambda *given: (1.0, 1e-7))
    entries = {f"1000,5000,{p},{n}": {"total_time_ms": 1.0} for p in ("CPU", "GPU") for n in range(1, 8)}
    for name, data in (("lookup_table", entries), ("bandwidth_table", {"CPU_stage1": 9e3, "GPU_stage1": 2e3})):
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
        example = example.replace(f"{name}.json", str(tmp_path / f"{name}.json"))
    code, out, err = plan(*shlex.split(example)[2:])
    assert (code, err) == (0, "") and "Expected" in out
    assert "fast:CPU: times of" in out or "--lookup" in example


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "which graph"),
        ("--nodes 5", "which graph"),
        ("--nodes 5 --edges 5 --graph karate", "which graph"),
        ("--nodes 5 --edges 5 --execute", "nothing to execute"),
        ("--nodes 0 --edges 5", "whole number above 0"),
        ("--nodes 5 --edges 5 --blocks 8", "number from 1 to 7"),
        ("--graph 'no such'", "no such"),
        ("--nodes 40 --edges 90 --plan '1-7 on TPU'", "'TPU' is unknown"),
        ("--nodes 40 --edges 90 --plan nonsense", "not understood"),
        ("--nodes 40 --edges 90 --params nowhere", "nowhere"),
    ],
)
def test_bad_input_is_one_line(plan, arguments, words):
    code, _, err = plan(*shlex.split(arguments))
    *usage, last = err.strip().splitlines()
    assert code == 2 and words in last and last.startswith("gnnlab") and len(usage) <= 1
