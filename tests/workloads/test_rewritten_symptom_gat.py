"""The rewritten encoder is the seed's encoder in eval: outputs and gradients, weights shared."""

import copy

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnlab.profiling.races import relative_error, require_equal
from gnnlab.workloads.symptom_gat import RewrittenSymptomGAT, SymptomGAT


def model(nodes=7, edges=((0, 1, 1, 2, 3, 3, 4), (1, 0, 0, 1, 3, 2, 0)), seed=0):
    """Isolated nodes, an edge twice, own loops: whatever a graph may hold."""
    torch.manual_seed(seed)
    made = SymptomGAT(nodes, torch.tensor(edges, dtype=torch.long).reshape(2, -1)).eval()
    for layer in (made.gat1, made.gat2):  # scores on both sides of the leaky ReLU
        for parameter in (layer.bias, layer.att_src, layer.att_dst):
            torch.nn.init.normal_(parameter)
    return made


@st.composite
def graphs(draw):
    nodes = draw(st.integers(1, 12))
    node = st.integers(0, nodes - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=40))
    return nodes, [[a for a, _ in pairs], [b for _, b in pairs]]


@settings(max_examples=15, deadline=None)
@given(graph=graphs(), seed=st.integers(0, 99))
def test_any_graph_gives_the_same_embedding(graph, seed):
    original = model(*graph, seed=seed).double()
    with torch.inference_mode():
        require_equal(original(3), RewrittenSymptomGAT(original)(3), 1e-9)


def test_gradients_are_the_originals():
    edges = torch.randint(0, 20, (2, 90), generator=torch.Generator().manual_seed(1))
    original = model(20, edges.tolist()).double()
    rewritten = RewrittenSymptomGAT(copy.deepcopy(original))
    weight = torch.randn(3, 256, dtype=torch.float64)
    (original(3) * weight).sum().backward()
    (rewritten(3) * weight).sum().backward()
    for (name, one), other in zip(original.named_parameters(), rewritten.parameters(), strict=True):
        assert one.grad.abs().max() > 1e-6, name
        assert relative_error(one.grad, other.grad) < 1e-11, name


def test_weights_are_shared():
    original = model()
    rewritten = RewrittenSymptomGAT(original)
    with torch.no_grad():
        original.gat2.bias.add_(1)
        require_equal(original(2), rewritten(2))
