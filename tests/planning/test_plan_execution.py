"""A plan that is carried out gives what the plain layer gives, whatever its units do."""

import os
import signal
from itertools import pairwise

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from synthetic_costs import costs

from gnnlab.campaign.cells import layer_of
from gnnlab.errors import GnnlabError
from gnnlab.planning.execution import Executor, plain, split
from gnnlab.planning.planner import Planner
from gnnlab.planning.plans import parse
from gnnlab.planning.steps import window
from gnnlab.planning.unit_processes import UnitProcesses
from gnnlab.workloads.graphsage import random_inputs, sage
from gnnswap import parity

CPU, GPU, NPU = UNITS = tuple(f"plan_units:{name}" for name in ("cpu", "gpu", "npu"))
LAYER = sage(8)
SINGLE_STAGES = [(u, a, b) for u in UNITS for a in range(1, 8) for b in range(a + 1, 8)]


def graphs(nodes=30, edges=70, count=3):
    return [random_inputs(nodes, edges, 8, seed) for seed in range(count)]


def of(layer=LAYER, units=UNITS, lacking=()):
    return costs(units, layer, lacking)


@pytest.fixture(scope="module")
def processes():
    with UnitProcesses(UNITS) as units:
        yield units


@pytest.mark.parametrize(("lacking", "name"), [((), "sage"), (SINGLE_STAGES, "sage"), ((), "gat")])
def test_candidates_give_what_the_plain_layer_gives(processes, lacking, name):
    """With fused blocks and with single stages; streams of several lengths, so that slots are used again."""
    layer, inputs = layer_of(name, 8), graphs()
    expected, known = [plain(layer, graph) for graph in inputs], of(layer, lacking=lacking)
    candidates = Planner(known, ratios=(0.3,)).rank(30, 70).table.index
    plans = sorted(candidates, key=lambda plan: -sum(block.shared for block in plan.blocks))[::12]
    assert {len(plan.units) for plan in plans} >= {2, 3} and any(block.shared for block in plans[0].blocks)
    for plan in plans:
        with Executor(plan, known, inputs, processes) as executor:
            for stream in ([2], [0, 1, 2, 0, 1, 2, 0, 2]):
                executor.stream(stream)
                assert parity.error(executor.last(), expected[stream[-1]]) < 1e-5, str(plan)


def test_a_part_without_edges_is_carried_out(processes):
    """All edges end in one node."""
    graph = graphs(20, 30)[0]
    graph["edge_index"][1] = 3
    with Executor(parse(f"1-7 on {CPU} and {GPU} (0.5, 0.5)"), of(), [graph], processes) as executor:
        assert executor.check(0) < 1e-5


def test_units_are_at_work_at_once_and_graphs_in_flight_are_few(processes):
    plan = parse(f"1-3 on {CPU}, 4-5 on {GPU}, 6-7 on {NPU}")
    with Executor(plan, of(), graphs(), processes) as executor:
        segments = executor.stream([0, 1, 2] * 4)
    left = segments.groupby("graph")["end_ms"].max()
    assert len(segments) == 36 and segments.loc[segments["unit"] == CPU, "graph"].tolist() == list(range(12))
    begun = segments[segments["block"] == 0].set_index("graph")["start_ms"]
    assert all(begun[graph] >= left[graph - window(3)] for graph in range(window(3), 12))
    for _, parts in segments.sort_values("block").groupby("graph"):
        assert all(one.end_ms <= following.start_ms for one, following in pairwise(parts.itertuples()))


@pytest.mark.parametrize(
    ("unit", "timeout_s", "words"),
    [
        ("plan_units:raises", 60, r"raises: failed at graph 5 of the stream \(stages 6-7\): .*out of power"),
        ("plan_units:exits", 60, "exits: the process exited with code 7"),
        ("plan_units:hangs", 2, "hangs gave no answer within 2 s"),
    ],
)
def test_a_unit_that_fails_dies_or_hangs_ends_the_stream_with_its_name(unit, timeout_s, words):
    """In its sixth call."""
    plan, inputs = parse(f"1-5 on {CPU}, 6-7 on {unit}"), graphs(60, 90, count=1)
    with UnitProcesses((CPU, unit)) as units:
        executor = Executor(plan, of(units=(CPU, unit)), inputs, units)
        units.timeout_s = timeout_s
        with refused(words):
            executor.run(9)
        assert not units.running


def test_processes_end_with_the_one_that_started_them_and_what_was_lost_starts_anew():
    with UnitProcesses((CPU,)) as units, Executor(parse(f"1-7 on {CPU}"), of(), graphs(), units) as executor:
        pid = units.ask({CPU: (os.getpid,)})[CPU]
        assert pid in {child.pid for child in psutil.Process().children()}
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(GnnlabError, match="died of SIGKILL"):
            units.ask({CPU: (os.getpid,)})
        assert units.ask({CPU: (os.getpid,)})[CPU] != pid
        with pytest.raises(GnnlabError, match="open the plan again"):
            executor.run(1)
    assert not units.running and not psutil.pid_exists(pid)


@pytest.mark.skipif(not hasattr(psutil.Process, "cpu_affinity"), reason="this system pins no process")
def test_a_unit_is_pinned_to_the_core_of_its_plan(processes):
    cores = psutil.Process().cpu_affinity()
    with Executor(parse(f"1-7 on {CPU}"), of(), graphs(), processes, places={CPU: len(cores) - 1}) as executor:
        executor.run(1)
        pid = processes.ask({CPU: (os.getpid,)})[CPU]
        assert psutil.Process(pid).cpu_affinity() == cores[-1:]


def test_what_cannot_be_carried_out_is_refused_in_one_line(processes, monkeypatch):
    plan, lacking = parse(f"1-7 on {CPU}"), [(CPU, a, b) for a in range(1, 8) for b in range(a, 8)]
    edges_handed = parse(f"1-2 on {CPU} and {GPU} (0.5, 0.5), 3-7 on {NPU}")
    for act, words in (
        (lambda: Executor(plan, of(), graphs(5, 0), processes), "5 nodes and 0 edges"),
        (lambda: Executor(plan, of(sage(8, seed=1)), graphs(), processes), "weights of its own"),
        (lambda: Executor(plan, of(sage(8, 4)), graphs(), processes), "weights of its own"),
        (lambda: Executor(plan, of(lacking=lacking), graphs(), processes), "no time of stages 1-7"),
        (lambda: Executor(edges_handed, of(), graphs(), processes), "hand on values of edges"),
    ):
        with refused(words):
            act()
    monkeypatch.setattr(torch.Tensor, "share_memory_", lambda self: (_ for _ in ()).throw(RuntimeError("no space")))
    with pytest.raises(GnnlabError, match=r"no shared memory for a graph \(RuntimeError: no space\)"):
        Executor(plan, of(), graphs(), processes)


@given(nodes=st.integers(50, 500), ratio=st.floats(0.1, 0.9), skew=st.floats(0, 3), seed=st.integers(0, 99))
def test_rows_are_split_as_nearly_to_a_ratio_as_whole_nodes_can_be(nodes, ratio, skew, seed):
    weights = np.random.default_rng(seed).integers(1, 10, nodes) * np.linspace(1, 1 + skew, nodes)
    assert abs(weights[: split(weights, ratio)].sum() - ratio * weights.sum()) <= weights.max()
    assert split(np.array([0, 0, 9]), 0.5) in (1, 2) and split(np.ones(2), 0.99) == 1  # each unit has a row
    with pytest.raises(GnnlabError, match="one node cannot be shared"):
        split(np.ones(1), 0.5)
