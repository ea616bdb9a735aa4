"""A plan that is executed gives what the plain layer gives, whatever its devices do."""

import os
import signal

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from synthetic_costs import costs

from gnnlab.errors import GnnlabError, ParityError
from gnnlab.plans.execute import CheckedGraph, Executor, execute_once, split
from gnnlab.plans.plans import parse
from gnnlab.plans.processes import DeviceProcesses
from gnnlab.plans.rank import Planner
from gnnlab.stages.sizes import layer_of
from gnnlab.workloads.graphsage import random_inputs
from gnnswap.parity import RTOL_FLOAT32

CPU, GPU, NPU = DEVICES = tuple(f"plan_devices:{name}" for name in ("cpu", "gpu", "npu"))
LAYER = layer_of("sage", 8)
SINGLE_STAGES = [(device, a, b) for device in DEVICES for a in range(1, 8) for b in range(a + 1, 8)]


def cases(nodes=30, edges=70, count=3, layer=LAYER):
    return [CheckedGraph.of(layer, random_inputs(nodes, edges, 8, seed)) for seed in range(count)]


def of(layer=LAYER, devices=DEVICES, lacking=()):
    return costs(devices, layer, lacking)


@pytest.fixture(scope="module")
def processes():
    with DeviceProcesses(DEVICES) as devices:
        yield devices


@pytest.mark.parametrize("lacking", [(), SINGLE_STAGES])
def test_candidates_give_what_the_plain_layer_gives(processes, lacking):
    """With fused blocks and with single stages; streams of several lengths, so that slots are used again."""
    graphs, known = cases(), of(lacking=lacking)
    candidates = Planner(known, ratios=(0.3,)).rank(30, 70).table.index
    plans = sorted(candidates, key=lambda plan: -sum(block.shared for block in plan.blocks))[::12]
    assert {len(plan.devices) for plan in plans} >= {2, 3} and any(block.shared for block in plans[0].blocks)
    for plan in plans:
        with Executor(plan, known, graphs, processes) as executor:
            assert executor.check() <= RTOL_FLOAT32
            for count in (1, 8, 11):
                graphs[(count - 1) % 3].require_equal(executor.run(count), str(plan))


def test_more_graphs_than_slots_keep_their_own_values(processes):
    plan = parse(f"1-3 on {CPU}, 4-5 on {GPU}, 6-7 on {NPU}")
    with Executor(plan, of(), cases(count=5), processes) as executor:
        for count in range(1, 14):
            executor.cases[(count - 1) % 5].require_equal(executor.run(count), f"{count} graphs through four slots")


def test_a_part_without_edges_is_executed(processes):
    """All edges end in one node."""
    graph = random_inputs(20, 30, 8, 0)
    graph["edge_index"][1] = 3
    ms, error = execute_once(parse(f"1-7 on {CPU} and {GPU} (0.5, 0.5)"), of(), graph, processes, None)
    assert error <= RTOL_FLOAT32 and ms > 0


def test_a_result_is_compared_with_float64_as_precisely_as_torch_computes_itself():
    """A star's sum of 60,000 numbers: two right results in float32 differ by more than 1e-5 (fault 9)."""
    source = torch.arange(60_000)
    x = torch.rand(60_000, 8, generator=torch.Generator().manual_seed(0))
    case = CheckedGraph.of(LAYER, {"x": x, "edge_index": torch.stack([source, torch.zeros_like(source)])})
    off = case.expected - case.truth
    in_another_order = case.expected + 2 * np.abs(off).max() * np.sign(off)
    assert case.require_equal(in_another_order, "in another order") <= RTOL_FLOAT32
    with pytest.raises(ParityError, match="wrong: is off the layer in float64 by"):
        case.require_equal(case.expected + 1e-3 * np.abs(case.truth).max(), "wrong")


@pytest.mark.parametrize(
    ("plan", "timeout_s", "words"),
    [
        ("1-7 on plan_devices:raises", 60, r"raises: failed at graph 5 of the stream \(stages 1-7\): .*out of power"),
        (f"1-5 on {CPU}, 6-7 on plan_devices:exits", 60, "exits: the process exited with code 7"),
        ("1-7 on plan_devices:hangs", 2, "hangs gave no answer within 2 s"),
    ],
)
def test_a_device_that_fails_dies_or_hangs_ends_the_stream_with_its_name(plan, timeout_s, words):
    """In its sixth call."""
    plan = parse(plan)
    with DeviceProcesses(plan.devices) as alone:
        executor = Executor(plan, of(devices=plan.devices), cases(60, 90, count=1), alone)
        alone.timeout_s = timeout_s
        with refused(words):
            executor.run(9)
        assert not alone.running


def test_processes_end_with_the_one_that_started_them_and_a_lost_one_takes_the_others_along():
    with DeviceProcesses((CPU, GPU)) as two, Executor(parse(f"1-7 on {CPU}"), of(), cases(), two) as executor:
        pids = two.ask({CPU: (os.getpid,), GPU: (os.getpid,)})
        assert {*pids.values()} <= {child.pid for child in psutil.Process().children()}
        os.kill(pids[CPU], signal.SIGKILL)
        with refused("died of SIGKILL"):
            executor.run(1)
        assert not two.running and not any(map(psutil.pid_exists, pids.values()))
        with refused("the processes of plan_devices:cpu have ended; start others"):
            executor.run(1)


@pytest.mark.skipif(not hasattr(psutil.Process, "cpu_affinity"), reason="this system pins no process")
def test_a_device_is_pinned_to_the_core_of_its_plan(processes):
    cores = psutil.Process().cpu_affinity()
    with Executor(parse(f"1-7 on {CPU}"), of(), cases(), processes, cores={CPU: len(cores) - 1}) as executor:
        executor.run(1)
        pid = processes.ask({CPU: (os.getpid,)})[CPU]
        assert psutil.Process(pid).cpu_affinity() == cores[-1:]


def test_what_cannot_be_executed_is_refused_in_one_line(processes, monkeypatch):
    plan, lacking = parse(f"1-7 on {CPU}"), [(CPU, a, b) for a in range(1, 8) for b in range(a, 8)]
    with refused("no time of stages 1-7"):
        Executor(plan, of(lacking=lacking), cases(), processes)
    with refused("hand on values of edges"):
        Executor(parse(f"1-2 on {CPU} and {GPU} (0.5, 0.5), 3-7 on {NPU}"), of(), cases(), processes)
    monkeypatch.setattr(torch.Tensor, "share_memory_", lambda self: (_ for _ in ()).throw(RuntimeError("no space")))
    with refused(r"no shared memory for a graph \(RuntimeError: no space\)"):
        cases()


@given(nodes=st.integers(50, 500), ratio=st.floats(0.1, 0.9), skew=st.floats(0, 3), seed=st.integers(0, 99))
def test_rows_are_split_as_nearly_to_a_ratio_as_whole_nodes_can_be(nodes, ratio, skew, seed):
    weights = np.random.default_rng(seed).integers(1, 10, nodes) * np.linspace(1, 1 + skew, nodes)
    assert abs(weights[: split(weights, ratio)].sum() - ratio * weights.sum()) <= weights.max()
    assert split(np.array([0, 0, 9]), 0.5) in (1, 2) and split(np.ones(2), 0.99) == 1  # each device has a row
    with pytest.raises(GnnlabError, match="one node cannot be shared"):
        split(np.ones(1), 0.5)
