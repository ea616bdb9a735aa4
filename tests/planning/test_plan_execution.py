"""A plan that is carried out gives what the plain layer gives, whatever its units do."""

import os
import signal
from itertools import pairwise

import numpy as np
import psutil
import pytest
import torch
from synthetic_costs import costs

from gnnlab.campaign.cell_inputs import layer_of
from gnnlab.errors import GnnlabError
from gnnlab.planning.execution import Executor, carry_out
from gnnlab.planning.partition import Graph, shared
from gnnlab.planning.pipeline import window
from gnnlab.planning.plans import Space, parse
from gnnlab.planning.unit_processes import UnitProcesses
from gnnlab.profiling.races import relative_error
from gnnlab.workloads.graphsage import sage

CPU, GPU, NPU = UNITS = tuple(f"plan_units:{name}" for name in ("cpu", "gpu", "npu"))
SPACE = Space(UNITS, unable={NPU: {3, 4}}, sharing=(frozenset({CPU, GPU}),))
LAYER = sage(8)
SIZES = [(30, 70), (41, 20), (12, 200)]
SINGLE_STAGES = [(u, a, b) for u in UNITS for a in range(1, 8) for b in range(a + 1, 8)]


def graphs(sizes=SIZES, features=8):
    return [Graph.drawn(*size, features) for size in sizes]


def of(layer=LAYER, units=UNITS, lacking=()):
    return costs(units, layer, lacking)


@pytest.fixture(scope="module")
def processes():
    with UnitProcesses(UNITS) as units:
        units.start()
        yield units


@pytest.mark.parametrize("lacking", [(), SINGLE_STAGES])
def test_every_legal_plan_gives_what_the_plain_layer_gives(processes, lacking):
    """All 92, with fused blocks and with single stages; streams of several lengths, so that slots are used again."""
    made = graphs()
    expected = [graph.through(LAYER) for graph in made]
    plans = SPACE.candidates(max_blocks=3, one_unit=True)
    assert len(plans) == 92
    for plan in plans:
        with Executor(plan, of(lacking=lacking), made, processes) as executor:
            for stream in ([0, 1, 2, 1, 0], [2], [0, 1, 2, 0, 1, 2, 0, 2]):
                executor.stream(stream)
                assert relative_error(expected[stream[-1]], executor.last(), str(plan)) < 1e-5, str(plan)


@pytest.mark.parametrize("stages", [[1, 2], [1, 2, 3, 4, 5], [2, 3], [3, 4, 5, 6]])
@pytest.mark.parametrize("name", ["sage", "gat"])
def test_units_share_any_stages_of_any_layer(processes, name, stages):
    """Values of nodes and of edges are put together from the parts; the stages around them run on the NPU."""
    layer, made = layer_of(name, 8), graphs()
    rest = [range(1, stages[0]), range(stages[-1] + 1, 8)]
    shared_block = [[CPU, GPU], stages, [0.3, 0.7]]
    for around in rest:
        if around and len(around) + len(stages) == 7:
            blocks = sorted([shared_block, [[NPU], list(around)]], key=lambda block: block[1])
            with Executor(parse(blocks), of(layer), made, processes) as executor:
                assert max(executor.differs(number) for number in range(3)) < 1e-5


def test_a_part_without_edges_is_carried_out(processes):
    """All edges end in one node."""
    one = graphs([(20, 30)])[0]
    graph = Graph(one.x, np.ascontiguousarray(np.stack([one.edge_index[0], np.full(30, 3)])))
    for text in (f"1-2 on {CPU} and {GPU} (0.5, 0.5), 3-7 on {NPU}", f"1-7 on {CPU} and {GPU} (0.5, 0.5)"):
        with Executor(parse(text), of(), [graph], processes) as executor:
            assert executor.differs(0) < 1e-5


def test_units_are_at_work_at_once_and_graphs_in_flight_are_few(processes):
    plan = parse(f"1-3 on {CPU}, 4-5 on {GPU}, 6-7 on {NPU}")
    with Executor(plan, of(), graphs(), processes) as executor:
        trace = executor.burst(12)
    assert len(trace.segments) == 36 and len(trace.left) == 12 and trace.period_ms > 0
    assert [s.graph for s in trace.segments if s.unit == CPU] == list(range(12))
    begun = {s.graph: s.start_ms for s in trace.segments if s.block == 0}
    assert all(begun[graph] >= trace.left[graph - window(3)] for graph in range(window(3), 12))
    for graph in range(12):
        parts = sorted((s for s in trace.segments if s.graph == graph), key=lambda s: s.block)
        assert all(one.end_ms <= following.start_ms for one, following in pairwise(parts))


@pytest.mark.parametrize(
    ("unit", "timeout_s", "words"),
    [
        ("plan_units:raises", 60, r"raises: failed at graph 5 of the stream \(stages 6-7\): .*out of power"),
        ("plan_units:exits", 60, "exits: the process exited with code 7"),
        ("plan_units:hangs", 2, "hangs gave no answer within 2 s"),
    ],
)
def test_a_unit_that_fails_dies_or_hangs_ends_the_stream_with_its_name(unit, timeout_s, words):
    """In its sixth call; whoever opens the plan again gets new processes."""
    plan = parse(f"1-5 on {CPU}, 6-7 on {unit}")
    with UnitProcesses((CPU, unit)) as units:
        executor = Executor(plan, of(units=(CPU, unit)), graphs([(60, 90)]), units)
        units.timeout_s = timeout_s
        with pytest.raises(GnnlabError, match=words) as error:
            executor.burst(9)
        assert "\n" not in str(error.value) and not units.running
        units.timeout_s = 60
        with pytest.raises(GnnlabError, match="open the plan again"):
            executor.burst(1)
        with Executor(plan, of(units=(CPU, unit)), graphs([(60, 90)]), units) as again:
            assert again.differs(0) < 1e-5


def test_processes_end_with_the_one_that_started_them(processes):
    children = {process.pid for process in processes._processes.values()}
    assert children <= {child.pid for child in psutil.Process().children(recursive=True)}
    units = UnitProcesses((CPU,))
    units.start()
    pid = units._processes[CPU].pid
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(GnnlabError, match="died of SIGKILL"):
        units.ask({CPU: (os.getpid,)})
    assert units.ask({CPU: (os.getpid,)})[CPU] != pid
    units.close()
    assert not units.running


@pytest.mark.skipif(not hasattr(psutil.Process, "cpu_affinity"), reason="this system pins no process")
def test_a_unit_is_pinned_to_the_core_of_its_plan(processes):
    core = psutil.Process().cpu_affinity()[-1]
    place = psutil.Process().cpu_affinity().index(core)
    with Executor(parse(f"1-7 on {CPU}"), of(), graphs(), processes, places={CPU: place}) as executor:
        executor.burst(1)
        assert psutil.Process(processes._processes[CPU].pid).cpu_affinity() == [core]


def test_a_graph_is_carried_out_once(processes):
    graph = graphs([(700, 3000)])[0]
    done = carry_out(parse(f"1-5 on {CPU} and {GPU} (0.5, 0.5), 6-7 on {NPU}"), of(), graph, processes, None)
    assert relative_error(graph.through(LAYER), done.out, "out") == done.parity_error < 1e-5 and done.ms > 0
    row = done.row()
    assert (row["size"], row["origin"], row["n"]) == ("700/3000", "measured", 1)


def test_what_cannot_be_carried_out_is_refused_in_one_line(processes, monkeypatch):
    plan = parse(f"1-7 on {CPU}")
    x, edges = np.zeros((3, 8), np.float32), np.zeros((2, 4), np.int64)
    lacking = [(CPU, a, b) for a in range(1, 8) for b in range(a, 8)]
    for act, words in (
        (lambda: Executor(plan, of(), [], processes), "0 graphs"),
        (lambda: Executor(plan, of(), graphs(features=9), processes), "8 features"),
        (lambda: Executor(plan, of(sage(8, seed=1)), graphs(), processes), "other weights"),
        (lambda: Graph(x.astype(np.float64), edges), "float32 is needed"),
        (lambda: Graph(x, edges[:, :0]), "int64 is needed"),
        (lambda: Graph(x, edges + 3), "the graph has 0 to 2"),
        (lambda: Graph(x, edges - 1), "the graph has 0 to 2"),
        (lambda: Executor(parse("1-7 on TPU"), of(units=("TPU",)), graphs(), processes), "not known"),
        (lambda: Executor(plan, of(lacking=lacking), graphs(), processes), "no way"),
    ):
        with pytest.raises(GnnlabError, match=words) as error:
            act()
        assert "\n" not in str(error.value)
    monkeypatch.setattr(torch.Tensor, "share_memory_", lambda self: (_ for _ in ()).throw(RuntimeError("no space")))
    with pytest.raises(GnnlabError, match=r"no shared memory of 0.00 MB \(RuntimeError: no space\)"):
        shared(x)
