import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from gnnlab.errors import GnnlabError
from gnnlab.kernels.attention import pair_scores, segment_softmax
from gnnlab.kernels.layers import FastGATConv, FastSAGEConv
from gnnlab.kernels.neighbours import Neighbours

FORMS = ("bag", "dense")
GATS = [
    {},
    {"heads": 3},
    {"heads": 2, "concat": False},
    {"heads": 2, "bias": False, "negative_slope": 0.05},
    {"heads": 2, "add_self_loops": False},
    {"heads": 3, "concat": False, "add_self_loops": False, "bias": False},
    {"negative_slope": -0.5},
    {"heads": 2, "residual": True},
    {"heads": 2, "residual": True, "concat": False, "bias": False},
]
SAGES = [
    {},
    {"root_weight": False},
    {"normalize": True},
    {"project": True},
    {"bias": False},
    {"aggr": "add", "root_weight": False, "bias": False},
    {"aggr": "sum", "project": True, "normalize": True},
]
WIDTHS = [(3, 5), (5, 3), (4, 4), (9, 2)]


@st.composite
def graphs(draw, most_nodes=7, most_edges=20):
    nodes = draw(st.integers(1, most_nodes))
    pairs = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))
    edges = draw(st.lists(pairs, max_size=most_edges))
    return torch.tensor(edges, dtype=torch.int64).view(-1, 2).t().contiguous(), nodes


def both(conv, form="bag"):
    """A layer of PyG and its fast form, each with parameters of its own, float64."""
    conv = conv.double()
    for parameter in conv.parameters():
        torch.nn.init.normal_(parameter)
    kind = FastGATConv if isinstance(conv, GATConv) else FastSAGEConv
    return conv, kind(copy.deepcopy(conv), form)


def agree(conv, fast, edge_index, nodes, graph=None):
    """The same outputs, and the same gradients of x and all parameters."""
    x = torch.randn(nodes, conv.in_channels, dtype=torch.float64)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected, got = conv(a, edge_index), fast(b, edge_index if graph is None else graph)
    torch.testing.assert_close(got, expected)
    with torch.no_grad():
        torch.testing.assert_close(fast(b, edge_index), expected)
    upstream = torch.randn_like(expected)
    names = [name for name, _ in conv.named_parameters()]
    assert names == [name for name, _ in fast.named_parameters()]
    left = torch.autograd.grad(expected, [a, *conv.parameters()], upstream, allow_unused=True)
    right = torch.autograd.grad(got, [b, *fast.parameters()], upstream, allow_unused=True)
    for name, one, other in zip(["x", *names], left, right, strict=True):
        one, other = (torch.zeros(()) if g is None else g for g in (one, other))
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-9), name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", GATS, ids=str)
@settings(max_examples=6, deadline=None)
@given(graphs(), st.sampled_from(WIDTHS))
def test_gat_gives_outputs_and_gradients_of_pyg(options, form, graph, widths):
    agree(*both(GATConv(*widths, **options), form), *graph)


@pytest.mark.parametrize(
    "options", [{}, {"heads": 2}, {"heads": 2, "add_self_loops": False, "residual": True}], ids=str
)
@settings(max_examples=12, deadline=None)
@given(graphs(), st.sampled_from(WIDTHS), st.sampled_from([1, 3]), st.booleans())
def test_gat_takes_edge_features_as_pyg_does(options, graph, widths, edge_dim, given_edges):
    (edge_index, nodes), (conv, fast) = graph, both(GATConv(*widths, edge_dim=edge_dim, **options))
    attributes = torch.randn(edge_index.shape[1], edge_dim, dtype=torch.float64)
    attributes = attributes.squeeze(1) if edge_dim == 1 else attributes
    x = torch.randn(nodes, widths[0], dtype=torch.float64)
    outs, grads = [], []
    for layer in (conv, fast):
        values, edges = x.clone().requires_grad_(), attributes.clone().requires_grad_()
        outs.append(layer(values, edge_index, edges if given_edges else None))
        wanted = [values, edges, *(p for _, p in sorted(layer.named_parameters()))]
        grads.append(torch.autograd.grad(outs[-1].sin().sum(), wanted, allow_unused=True, materialize_grads=True))
    torch.testing.assert_close(outs[1], outs[0])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", SAGES, ids=str)
@settings(max_examples=6, deadline=None)
@given(graphs(), st.sampled_from(WIDTHS))
def test_sage_gives_outputs_and_gradients_of_pyg(options, form, graph, widths):
    agree(*both(SAGEConv(*widths, **options), form), *graph)


def random_graph(nodes=200, edges=900, seed=0):
    return torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("conv", [GATConv(6, 4, heads=2), SAGEConv(6, 8)], ids=["gat", "sage"])
def test_float32_on_a_larger_graph_is_within_1e_5(conv):
    edge_index, x = random_graph(), torch.randn(200, 6)
    fast = (FastGATConv if isinstance(conv, GATConv) else FastSAGEConv)(conv)
    expected, got = conv(x, edge_index), fast(x, Neighbours.prepare(edge_index, 200))
    assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert fast.lin_l.weight is conv.lin_l.weight if isinstance(conv, SAGEConv) else fast.att_src is conv.att_src


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0, 1e5])
def test_the_softmax_holds_at_any_spread_of_scores(form, scale):
    edge_index, x = random_graph(40, 160), torch.randn(40, 4)
    conv = GATConv(4, 4, heads=2)
    with torch.no_grad():
        conv.att_src.mul_(scale)
        conv.att_dst.mul_(scale)
        truth = copy.deepcopy(conv).double()(x.double(), edge_index)
        got = FastGATConv(conv, form)(x, edge_index)
    assert torch.isfinite(got).all()
    # float32 scores of size s err by s * 1e-7, and weights with them
    assert (got - truth).abs().max() <= max(1e-5, scale * 1e-5) * truth.abs().max() if scale < 1e4 else True


def test_one_far_source_does_not_starve_the_others():
    """A bound over all sources, instead of the largest of each target, would leave targets 1 and 2 with 0 / 0."""
    neighbours = Neighbours.prepare(torch.tensor([[0, 1, 2, 2], [0, 1, 1, 2]]), 3)
    source, target = torch.tensor([500.0, -200.0, -201.0]), torch.zeros(3)
    weight = segment_softmax(pair_scores(source, target, neighbours), neighbours)
    expected = torch.tensor([1.0, *torch.tensor([-200.0, -201.0]).softmax(0), 1.0])
    torch.testing.assert_close(weight, expected)


def test_dropout_drops_edges_in_training_only():
    edge_index, x = random_graph(20, 200), torch.ones(20, 4)
    conv = GATConv(4, 8, heads=2, dropout=0.5, bias=False)
    fast = FastGATConv(conv)
    torch.testing.assert_close(fast.eval()(x, edge_index), conv.eval()(x, edge_index))
    torch.manual_seed(0)
    runs = torch.stack([fast.train()(x, edge_index) for _ in range(150)])
    assert runs.std(dim=0).min() > 0
    assert (runs.mean(dim=0) - conv(x, edge_index)).abs().max() < 0.2 * conv(x, edge_index).abs().max()


def test_layers_copy_and_load_the_checkpoints_of_pyg():
    edge_index, x = random_graph(), torch.randn(200, 6)
    conv, other = GATConv(6, 4, heads=2), GATConv(6, 4, heads=2)
    fast = FastGATConv(conv)
    fast(x, edge_index)
    copied = copy.deepcopy(fast)
    assert copied.lin.weight is not fast.lin.weight and len(copied.graphs) == 0
    copied.load_state_dict(other.state_dict())
    torch.testing.assert_close(copied(x, edge_index), other(x, edge_index))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch.compile, between graphs
@pytest.mark.parametrize("conv", [GATConv(6, 4, heads=2), SAGEConv(6, 8)], ids=["gat", "sage"])
def test_a_model_of_them_that_is_compiled_gives_the_same_in_eval_and_then_trains(conv):
    torch._dynamo.reset()
    fast = (FastGATConv if isinstance(conv, GATConv) else FastSAGEConv)(copy.deepcopy(conv))
    compiled = torch.compile(lambda x, edge_index: fast(x * 2, edge_index).relu(), backend="aot_eager")
    for seed in (0, 1):
        edge_index, x = random_graph(seed=seed), torch.randn(200, 6)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, edge_index), conv(x * 2, edge_index).relu())
        expected, got = conv(x * 2, edge_index).relu(), compiled(x, edge_index)
        upstream = torch.randn_like(got)
        expected = torch.autograd.grad(expected, list(conv.parameters()), upstream)
        got = torch.autograd.grad(got, list(fast.parameters()), upstream)
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


class Mine(GATConv):
    pass


def hooked():
    conv = SAGEConv(4, 4)
    conv.register_message_forward_hook(lambda *_: None)
    return conv


def cut():
    conv = GATConv(4, 4)
    conv.lin.weight = torch.nn.Parameter(torch.zeros(4, 3))
    return conv


@pytest.mark.parametrize(
    ("kind", "conv", "message"),
    [
        (FastGATConv, GATConv(4, 4, edge_dim=2, fill_value="max"), "fill_value='max'"),
        (FastGATConv, GATConv((4, 4), 4), "bipartite"),
        (FastGATConv, GATConv(-1, 4), "call it once"),
        (FastGATConv, GATConv(4, 4, aggr="max"), "aggr='max'"),
        (FastGATConv, GATConv(4, 4, flow="target_to_source"), "flow="),
        (FastGATConv, Mine(4, 4), "Mine"),
        (FastGATConv, GCNConv(4, 4), "it is a GCNConv"),
        (FastGATConv, torch.nn.Linear(4, 4), "it is a Linear"),
        (FastGATConv, cut(), r"another shape than \(4, 4\)"),
        (FastSAGEConv, SAGEConv(4, 4, aggr="max"), "aggr='max'"),
        (FastSAGEConv, SAGEConv(4, 4, aggr="lstm"), "aggr='lstm'"),
        (FastSAGEConv, SAGEConv((4, 4), 4), "bipartite"),
        (FastSAGEConv, SAGEConv(-1, 4), "call it once"),
        (FastSAGEConv, hooked(), "hooks"),
        (FastSAGEConv, GATConv(4, 4), "it is a GATConv"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_layer_that_has_no_fast_form_is_refused_in_one_line(kind, conv, message):
    with pytest.raises(GnnlabError, match=message) as error:
        kind(conv)
    assert "\n" not in str(error.value)


def test_wrong_arguments_are_refused_in_one_line():
    edge_index, x = random_graph(), torch.randn(200, 6)
    gat, sage = FastGATConv(GATConv(6, 4)), FastSAGEConv(SAGEConv(6, 4))
    edged = FastGATConv(GATConv(6, 4, edge_dim=2))
    calls = [
        (lambda: gat(x[:, :5], edge_index), r"x must be a tensor \(nodes, 6\), not \(200, 5\)"),
        (lambda: sage((x, x), edge_index), "not tuple"),
        (lambda: gat(x, Neighbours.prepare(edge_index, 201)), r"x must be \(201, 6\).*not \(200, 6\)"),
        (lambda: gat(x[:100], edge_index), "allowed are 0..99"),
        (lambda: edged(x, edge_index, torch.zeros(900, 3)), r"edge_attr must have shape \(900, 2\), not \(900, 3\)"),
        (lambda: gat(x, edge_index, return_attention_weights=True), "returns no attention weights"),
        (lambda: sage(x, edge_index, size=(200, 200)), "takes no size"),
        (lambda: FastGATConv(GATConv(6, 4), "fast"), "form 'fast': one of auto, bag, dense"),
    ]
    for call, message in calls:
        with pytest.raises(GnnlabError, match=message) as error:
            call()
        assert "\n" not in str(error.value)
