"""What the edges alone decide is computed once for each set of edges."""

import torch

from gnnlab.rewrite.traced_structure import KEPT_GRAPHS, KeptStructure


def kept():
    return KeptStructure(lambda edges, factor: [edges[0] * factor], [1, 2], lambda x, edges, factor, made: x + made)


def test_the_same_edges_are_known_and_changed_ones_seen_also_in_place():
    model, edges = kept(), torch.tensor([[1, 2], [3, 4]])
    assert model(10, edges, 2).tolist() == [12, 14]
    model(10, edges, 2)
    model(10, edges.clone(), 2)
    assert model.computed == 1
    edges[0, 0] = 5
    assert model(10, edges, 2).tolist() == [20, 14] and model.computed == 2
    assert model(10, edges, 3).tolist() == [25, 16] and model.computed == 3


def test_a_view_that_is_kept_does_not_change_with_the_edges_it_was_made_of():
    model = KeptStructure(lambda edges: [edges[0]], [0], lambda edges, made: made.tolist())
    edges = torch.tensor([[1, 2], [3, 4]])
    first = edges.clone()
    model(edges)
    edges.fill_(9)
    assert model(edges) == [9, 9] and model(first) == [1, 2] and model.computed == 2


def test_edges_of_inference_mode_are_read_and_what_is_kept_serves_training():
    model = KeptStructure(lambda edges: [edges[0].double()], [1], lambda x, edges, made: x * made)
    with torch.inference_mode():
        edges = torch.tensor([[1, 2], [3, 4]])
        model(torch.ones(2), edges)
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    model(x, edges).sum().backward()
    assert x.grad.tolist() == [1, 2] and model.computed == 1


def test_only_the_graphs_seen_last_are_kept():
    model = kept()
    for number in range(KEPT_GRAPHS + 1):
        model(0, torch.tensor([[number], [0]]), 1)
    model(0, torch.tensor([[KEPT_GRAPHS], [0]]), 1)
    assert model.computed == KEPT_GRAPHS + 1
    model(0, torch.tensor([[0], [0]]), 1)
    assert model.computed == KEPT_GRAPHS + 2
