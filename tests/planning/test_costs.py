"""Costs of plans carry the bytes that really go along, the calls that are really made, the halos of real graphs."""

import pytest
from synthetic_costs import UNITS, Synthetic

from gnnlab.errors import GnnlabError
from gnnlab.planning.costs import Model, cover, halo_ends, looks_at_edges
from gnnlab.planning.partition import by_ranges
from gnnlab.planning.plans import Block, Space, parse
from gnnlab.workloads.graphsage import gat, random_inputs, sage

LAYER = sage(16)
N, E = 400, 900


def model(layer=LAYER, separate=(), **options):
    return Model(layer, Synthetic(layer=layer, **options), frozenset(separate))


@pytest.mark.parametrize("layer", [LAYER, gat(8, 2, 4)], ids=["sage", "gat"])
@pytest.mark.parametrize("after", range(1, 7))
def test_moved_bytes_are_those_of_the_real_tensors(layer, after):
    values = layer.trace(**random_inputs(N, E, layer.features))
    size = {name: tensor.numel() * tensor.element_size() for name, tensor in values.items()}
    block = Block(("CPU",), 1, after)
    made = [stage.writes for stage in layer.stages[:after]]
    needed = {name for stage in layer.stages[after:] for name in stage.reads}
    travels = sum(size[name] for name in ["x", "edge_index", *made] if name in needed)
    assert model(layer, separate=["NPU"]).moved_bytes(block, "CPU", "NPU", N, E) == travels
    assert model(layer).moved_bytes(block, "CPU", "NPU", N, E) == sum(size[name] for name in made if name in needed)


def test_a_block_is_one_call_where_it_was_measured_and_the_fewest_else():
    singles = {(n, n) for n in range(1, 8)}
    assert cover(singles | {(1, 7), (1, 5)}, 1, 7) == ((1, 7),)
    assert cover(singles | {(1, 5), (6, 7)}, 1, 7) == ((1, 5), (6, 7))
    assert cover(singles | {(1, 5), (2, 7)}, 1, 7) == ((1, 1), (2, 7))
    assert cover({(1, 5), (7, 7)}, 1, 7) is None and cover(singles, 3, 3) == ((3, 3),)
    fused, parts = model(), model(lacking=[("CPU", 1, 7)])
    plan = parse('[[["CPU"],[1,2,3,4,5,6,7]]]')
    assert [len(m.steps(plan, N, E)[0][0].calls) for m in (fused, parts)] == [1, 2]
    assert parts.steps(plan, N, E)[0][0].times(parts.costs) > fused.steps(plan, N, E)[0][0].times(fused.costs)


def test_a_part_drops_its_halo_before_weights_are_applied():
    shared = parse('[[["CPU","GPU"],[1,2,3,4,5,6,7],[0.3,0.7]]]')
    edge_index = random_inputs(N, E, 16)["edge_index"].numpy()
    made = model()
    parts = by_ranges(edge_index, N, (0.3, 0.7))
    steps = made.steps(shared, N, E, shares=lambda ratios: [part.share for part in parts])
    for step, part in zip(steps[0], parts, strict=True):
        before, behind = step.calls
        assert (before.first, before.last, behind.first, behind.last) == (1, 5, 6, 7)
        assert before.nodes == len(part.nodes) > behind.nodes == part.targets and before.edges == len(part.edges)
        gathered = made.gathered_bytes(shared.blocks[0], part.share)
        assert gathered == part.nodes.size * 16 * 4
    rows = made.steps(parse('[[["CPU"],[1,2,3,4,5]],[["GPU","CPU"],[6,7],[0.5,0.5]]]'), N, E)[1]
    assert [call.nodes for step in rows for call in step.calls] == [200, 200]


def test_where_a_halo_ends_follows_from_the_layer():
    assert halo_ends(LAYER) == 5 and halo_ends(gat(8, 2, 4)) is None
    assert looks_at_edges(LAYER, 1, 2) and looks_at_edges(LAYER, 3, 3) and not looks_at_edges(LAYER, 5, 7)


def test_devices_with_a_memory_of_their_own_are_sent_the_graph_and_the_whole_cut():
    plan = parse('[[["NPU"],[1,2]],[["CPU"],[3,4,5,6,7]]]')
    near, far = model(), model(separate=["NPU"])
    first = [m.steps(plan, N, E)[0][0].copies_ms for m in (near, far)]
    moved = LAYER.cut_bytes(0, N, E) + LAYER.cut_bytes(2, N, E)
    assert first[1] == pytest.approx(0.02 + moved / 5e6) and first[0] < first[1]


def test_every_candidate_has_steps_for_each_of_its_units():
    made = model()
    for plan in Space(UNITS, unable={"NPU": {3, 4}}).candidates(max_blocks=3, one_unit=True):
        steps = made.steps(plan, N, E)
        assert [tuple(s.unit for s in group) for group in steps] == [block.units for block in plan.blocks]
        assert all(step.times(made.costs)[0] > 0 for group in steps for step in group)


def test_a_missing_time_is_named_in_one_line():
    lacking = [("CPU", a, b) for a in range(1, 8) for b in range(a, 8) if a <= 6 <= b]
    made, plan = model(lacking=lacking), parse('[[["CPU"],[1,2,3,4,5,6,7]]]')
    assert not made.runs(plan)
    with pytest.raises(GnnlabError, match="no time of stages 1-7 on CPU"):
        made.steps(plan, N, E)
