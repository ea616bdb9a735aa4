"""A plan that is carried out gives what the plain layer gives, in order, whatever its units do."""

import numpy as np
import psutil
import pytest
from synthetic_costs import Synthetic

from gnnlab.campaign.cell_inputs import layer_of
from gnnlab.errors import GnnlabError
from gnnlab.planning.costs import Model
from gnnlab.planning.execution import Executor, carry_out
from gnnlab.planning.partition import Graph
from gnnlab.planning.plans import Space, parse
from gnnlab.planning.unit_workers import UnitWorkers
from gnnlab.profiling.races import relative_error
from gnnlab.workloads.graphsage import sage

CPU, GPU, NPU = UNITS = tuple(f"plan_units:{name}" for name in ("cpu", "gpu", "npu"))
SPACE = Space(UNITS, unable={NPU: {3, 4}}, sharing=(frozenset({CPU, GPU}),))
LAYER = sage(8)
SIZES = [(30, 70), (41, 20), (12, 200)]


def graphs(sizes=SIZES, features=8):
    return [Graph.drawn(*size, features) for size in sizes]


def model(layer=LAYER, units=UNITS, lacking=()):
    return Model(layer, Synthetic(units, layer, lacking))


@pytest.fixture(scope="module")
def workers():
    with UnitWorkers() as made:
        made.start(UNITS)
        yield made


@pytest.mark.parametrize("lacking", [(), [(u, a, b) for u in UNITS for a in range(1, 8) for b in range(a + 1, 8)]])
def test_every_legal_plan_gives_what_the_plain_layer_gives(workers, lacking):
    """All 92, with fused blocks and with single stages; each block on its unit, halves of a graph put together."""
    stream, made = [0, 1, 2, 1, 0], graphs()
    expected = [graph.through(LAYER) for graph in made]
    plans = SPACE.candidates(max_blocks=3, one_unit=True)
    assert len(plans) == 92
    for plan in plans:
        with Executor(plan, model(lacking=lacking), made, workers) as executor:
            found = list(executor.run(stream))
        assert [(r.item, r.graph) for r in found] == list(enumerate(stream)), str(plan)
        assert max(relative_error(expected[r.graph], r.out, str(plan)) for r in found) < 1e-5, str(plan)


def test_an_attention_layer_is_carried_out_too(workers):
    layer, made = layer_of("gat", 8), graphs()
    plan = parse(f'[[["{CPU}","{GPU}"],[1,2,3,4,5],[0.3,0.7]],[["{NPU}"],[6,7]]]')
    with Executor(plan, model(layer), made, workers) as executor:
        for result in executor.run(range(3)):
            assert relative_error(made[result.graph].through(layer), result.out, "gat") < 1e-5


def test_a_part_without_edges_is_carried_out(workers):
    """All edges end in the second half."""
    one = graphs([(20, 30)])[0]
    edge_index = np.stack([one.edge_index[0] % 10, 10 + one.edge_index[1] % 10])
    graph = Graph(one.x, np.ascontiguousarray(edge_index))
    for stages in ("[1,2]", "[1,2,3,4,5]", "[1,2,3,4,5,6,7]"):
        rest = "" if stages.endswith("7]") else f',[["{NPU}"],{[n for n in range(1, 8) if str(n) not in stages]}]'
        with Executor(parse(f'[[["{CPU}","{GPU}"],{stages},[0.5,0.5]]{rest}]'), model(), [graph], workers) as executor:
            assert relative_error(graph.through(LAYER), next(executor.run([0])).out, stages) < 1e-5


def test_units_are_at_work_at_once_and_graphs_in_flight_are_few(workers):
    plan = parse(f'[[["{CPU}"],[1,2,3]],[["{GPU}"],[4,5]],[["{NPU}"],[6,7]]]')
    taken = []

    def stream():
        for item in range(40):
            taken.append(item)
            yield item % 3

    with Executor(plan, model(), graphs(), workers) as executor:
        for result in executor.run(stream()):
            assert len(taken) - result.item <= 4  # one for each block, and one that waits
        trace = executor.burst(12)
    assert len(trace.segments) == 36 and len(trace.left) == 12 and trace.period_ms > 0
    assert [s.graph for s in trace.segments if s.unit == CPU] == list(range(12))


def test_a_stream_that_is_left_or_begun_twice_harms_nothing(workers):
    plan, made = parse(f'[[["{CPU}"],[1,2,3]],[["{GPU}"],[4,5,6,7]]]'), graphs()
    with Executor(plan, model(), made, workers) as executor:
        left = executor.run(range(3))
        assert next(left).item == 0
        with pytest.raises(GnnlabError, match="one stream at a time"):
            next(executor.run([0]))
        left.close()
        assert [result.graph for result in executor.run([2, 1])] == [2, 1]
        unfinished = executor.run([0, 1, 2])
        next(unfinished)
    with Executor(plan, model(), made, workers) as executor:
        assert len(list(executor.run([0, 1]))) == 2


@pytest.mark.parametrize("block", [0, 1, 2])
def test_a_unit_that_fails_in_mid_stream_costs_no_result_before_it(workers, block):
    units = [CPU, GPU, NPU]
    units[block] = "plan_units:raises"
    plan = parse([[[unit], stages] for unit, stages in zip(units, ([1, 2], [3, 4, 5], [6, 7]), strict=True)])
    made = graphs()
    with Executor(plan, model(units=units), made, workers) as executor:
        got = []
        # the unit fails in its sixth call on a graph: with three graphs in turn that is item 15
        with pytest.raises(
            GnnlabError, match=r"plan_units:raises failed at graph 15 .*out of power; the 15 before"
        ) as e:
            got.extend(executor.run(i % 3 for i in range(30)))
        assert "\n" not in str(e.value)
        for result in executor.run([]):
            pytest.fail(f"nothing was asked for, {result} came")
    with Executor(plan, model(units=units), made, workers) as executor:
        results = executor.run(i % 3 for i in range(30))
        for item in range(15):
            result = next(results)
            assert result.item == item and relative_error(made[item % 3].through(LAYER), result.out, "out") < 1e-5


@pytest.mark.parametrize(
    ("unit", "timeout_s", "words"),
    [
        ("plan_units:exits", 60, "failed at graph 5 .*exited with code 7"),
        ("plan_units:hangs", 5, "gave no answer within 5 s"),  # what answers does so within that on a busy machine, too
    ],
)
def test_a_process_that_dies_or_hangs_costs_no_result_before_it(workers, unit, timeout_s, words):
    plan = parse(f'[[["{CPU}"],[1,2,3,4,5]],[["{unit}"],[6,7]]]')
    made, got = graphs([(60, 90)]), []
    with Executor(plan, model(units=(CPU, unit)), made, workers, timeout_s=timeout_s) as executor:
        with pytest.raises(GnnlabError, match=words) as error:
            for result in executor.run([0] * 9):
                got.append(result.item)
        assert got == [0, 1, 2, 3, 4] and "\n" not in str(error.value)
        with pytest.raises(GnnlabError, match=r"exited with code|was ended"):
            next(executor.run([0]))


def test_a_process_that_died_is_replaced(workers):
    plan = parse('[[["plan_units:exits"],[1,2,3,4,5,6,7]]]')
    with Executor(plan, model(units=("plan_units:exits",)), graphs([(60, 90)]), workers) as executor:
        assert len(list(executor.run([0] * 5))) == 5


@pytest.mark.skipif(not hasattr(psutil.Process, "cpu_affinity"), reason="this system pins no process")
def test_a_process_that_replaces_a_dead_one_is_pinned_too(workers):
    core, pids = psutil.Process().cpu_affinity()[-1], []
    for _ in range(2):
        workers.pin({CPU: core})
        pids.append(workers[CPU].call("os:getpid", timeout_s=60).get())
        assert psutil.Process(pids[-1]).cpu_affinity() == [core]
        psutil.Process(pids[-1]).kill()
        workers[CPU]._process.popen.wait(60)  # a task that a dying process had begun would be its last
        assert workers[CPU].call("os:getpid", timeout_s=60).get() != pids[-1]  # a new one, without a word
    assert pids[0] != pids[1]


def test_a_large_graph_streamed_in_parts_gives_the_whole(workers):
    graph = graphs([(700, 3000)])[0]
    plan = parse(f'[[["{CPU}","{GPU}"],[1,2,3,4,5],[0.5,0.5]],[["{NPU}"],[6,7]]]')
    for parts in (1, 5):
        done = carry_out(plan, model(), graph, workers, models=None, parts=parts)
        assert relative_error(graph.through(LAYER), done.out, "parts") == done.parity_error < 1e-5 and done.ms > 0
        row = done.row()
        assert (row["size"], row["origin"], row["n"]) == ("700/3000", "measured", 1)


def test_what_cannot_be_carried_out_is_refused_in_one_line(workers):
    plan = parse(f'[[["{CPU}"],[1,2,3,4,5,6,7]]]')
    x, edges = np.zeros((3, 8), np.float32), np.zeros((2, 4), np.int64)
    for act, words in (
        (lambda: Executor(plan, model(), [], workers), "0 graphs"),
        (lambda: Executor(plan, model(), graphs(features=9), workers), "8 features"),
        (lambda: Executor(plan, model(sage(8, seed=1)), graphs(), workers), "other weights"),
        (lambda: Graph(x.astype(np.float64), edges), "float32 is needed"),
        (lambda: Graph(x, edges[:, :0]), "int64 is needed"),
        (lambda: Graph(x, edges + 3), "the graph has 0 to 2"),
        (lambda: Graph(x, edges - 1), "the graph has 0 to 2"),
        (
            lambda: Executor(parse('[[["TPU"],[1,2,3,4,5,6,7]]]'), model(units=("TPU",)), graphs(), workers),
            "not known",
        ),
        (
            lambda: Executor(
                plan, model(lacking=[(CPU, a, b) for a in range(1, 8) for b in range(a, 8)]), graphs(), workers
            ),
            "no way",
        ),
    ):
        with pytest.raises(GnnlabError, match=words) as error:
            act()
        assert "\n" not in str(error.value)
