import copy
import dataclasses
import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import zoo_cases
from safetensors.torch import load_file
from torch import nn
from torch_geometric import EdgeIndex
from torch_geometric import nn as pyg
from torch_geometric.nn.conv import MessagePassing
from zoo_cases import CASES, CLOSE, GRAPHS, IN, arguments, assert_same, build, edges_of, results

import gnnswap
from gnnswap import compile_ops as operators
from gnnswap import direct, sparse
from gnnswap import layer as fast_layer
from gnnswap.layer import DIRECT, NONE, SUM
from gnnswap.replace import swap


def swapped(layer):
    report = swap(layer)
    assert report.replaced, report
    return report.model


@pytest.fixture(scope="module")
def of_pyg_alone(tmp_path_factory):
    """What PyG gives in a process that never saw gnnlab."""
    file = tmp_path_factory.mktemp("zoo") / "pyg.safetensors"
    subprocess.run(
        [sys.executable, "-W", "ignore", zoo_cases.__file__, str(file)], check=True, cwd=Path(__file__).parent
    )
    return load_file(file)


# what a layer becomes in its first call, with values of edges that want gradients; every other one of CASES is one sum
EXPECTED = dict.fromkeys(CASES, SUM) | dict.fromkeys(
    ["GCN plain", "GIN", "GIN narrow", "SAGE mean", "SAGE sum", "GAT", "GAT residual", "GAT with edges",
     "GAT with edges, no loops, mean", "GATv2", "GATv2 one head, shared", "Transformer", "Transformer mean",
     "Transformer with edges", "GPS", "DirGNN", "AntiSymmetric", "GEN", "GINE", "PNA", "ResGated",
     "RGCN", "RGCN in blocks", "RGCN mean", "CG", "CG with edges", "EdgeConv", "EdgeConv of PyG's MLP", "EdgeConv mean",
     "FiLM", "GEN with edges", "GEN, half a gradient", "GEN max", "GEN sum", "GINE max", "NNConv", "NNConv mean",
     "PNA with towers", "PNA, towers apart", "ResGated plain"], DIRECT
)  # fmt: skip
EXPECTED |= dict.fromkeys(["EG", "GCN max", "Graph several", "LE", "SAGE several"], NONE)


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_each_gradient_are_those_of_pyg_alone(name, of_pyg_alone):
    layer = swapped(build(name))
    for graph, (nodes, _) in GRAPHS.items():
        edge_index = edges_of(graph)
        inputs, called = arguments(name, edge_index, nodes)
        ours = results(layer, inputs, called)
        expected = [of_pyg_alone.get(f"{name}/{graph}/{at}") for at in range(len(ours))]
        assert_same(ours, expected)
        assert_same(results(layer, inputs, called), expected)  # what is kept serves the second call
        for mode in (torch.no_grad(), torch.inference_mode()):
            with mode:
                torch.testing.assert_close(layer(*called), expected[0], **CLOSE)
    for each in layer.modules():
        if hasattr(each, "_fast"):
            assert (each._fast.mechanism or NONE) == EXPECTED[name], each._fast.why


@pytest.mark.parametrize("name", CASES)
def test_a_changed_graph_and_changed_values_are_seen(name):
    reference, layer = build(name), swapped(build(name))
    nodes, _ = GRAPHS["many edges"]
    edge_index = edges_of("many edges")
    inputs, called = arguments(name, edge_index, nodes)
    held = [value.detach() for value in inputs]  # values that want no gradient are kept
    swap_in = {id(value): plain for value, plain in zip(inputs, held, strict=True)}

    def plain(value):
        return tuple(plain(v) for v in value) if isinstance(value, tuple) else swap_in.get(id(value), value)

    def check():
        given = plain(called)
        torch.testing.assert_close(layer(*given), reference(*given), **CLOSE)

    check()
    edge_index.copy_(edges_of("many edges", seed=1))
    check()
    for value in held:
        value.mul_(1.5)
        check()
    inputs, called = arguments(name, edges_of("few edges", seed=2), nodes, seed=3)
    assert_same(results(layer, inputs, called), results(reference, inputs, called))


@pytest.mark.parametrize("name", ["GCN", "GIN", "GAT with edges", "RGCN", "PNA", "APPNP"])
def test_checkpoints_load_both_ways(name):
    reference, layer = build(name), swapped(build(name))
    assert list(reference.state_dict()) == list(layer.state_dict())
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn_like(parameter))
    inputs, called = arguments(name, edges_of("many edges"), GRAPHS["many edges"][0])
    layer(*called)
    layer.load_state_dict(reference.state_dict())
    assert_same(results(layer, inputs, called), results(reference, inputs, called))
    reference.load_state_dict(layer.state_dict())


@pytest.mark.parametrize(
    "make",
    [
        lambda: pyg.GATConv(IN, 4, heads=2, dropout=0.5, residual=True),
        lambda: pyg.GATv2Conv(IN, 4, heads=2, dropout=0.5),
        lambda: pyg.TransformerConv(IN, 4, heads=2, dropout=0.5),
        lambda: pyg.APPNP(3, 0.1, dropout=0.5),
    ],
)
def test_dropout_of_edges_in_their_order_draws_what_pyg_draws(make):
    reference = make().double().train()
    layer = swapped(reference)
    x = torch.randn(9, IN, dtype=torch.double)
    edge_index = torch.combinations(torch.arange(9)).t().flip(0)
    edge_index = edge_index[:, edge_index[1].argsort(stable=True)]
    if not isinstance(reference, pyg.TransformerConv):  # the other layers add loops behind, out of order
        reference.add_self_loops = layer.add_self_loops = False
    torch.manual_seed(3)
    expected = reference(x, edge_index)
    torch.manual_seed(3)
    torch.testing.assert_close(layer(x, edge_index), expected, **CLOSE)
    assert not torch.equal(layer(x, edge_index), expected)


@pytest.fixture
def with_form(monkeypatch):
    """GCN with another direct form."""

    def swapped_with(run):
        form = dataclasses.replace(direct.FORMS[pyg.GCNConv], run=run)
        monkeypatch.setitem(direct.FORMS, pyg.GCNConv, form)
        fast_layer.fast_class.cache_clear()
        return swapped(build("GCN plain"))

    yield swapped_with
    fast_layer.fast_class.cache_clear()


class Weighted(MessagePassing):
    """A layer of one's own: rows with the weights of the edges, and a number that is learned."""

    def __init__(self, aggr="add"):
        super().__init__(aggr=aggr)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x, edge_index, weight):
        return self.propagate(edge_index, x=x, weight=weight)

    def message(self, x_j, weight):
        return self.scale * weight.view(-1, 1) * x_j


class Nasty(Weighted):
    """Its message is no weight times a row of the source, though it looks like one."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def message(self, x_j, weight):
        match self.kind:
            case "not linear":
                return x_j.relu() * weight.view(-1, 1)
            case "a term of its own":
                return x_j * weight.view(-1, 1) + 1
            case "its width":
                return x_j * weight.view(-1, 1) / x_j.shape[-1]
            case "written to":
                return x_j.mul_(weight.view(-1, 1))
            case "left behind":
                self.last = x_j * weight.view(-1, 1)
                return self.last
            case "random rows":
                return nn.functional.dropout(x_j, 0.5, self.training) * weight.view(-1, 1)


def own_call():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(13, IN, generator=generator, dtype=torch.double, requires_grad=True)
    weight = torch.rand(60, generator=generator, dtype=torch.double, requires_grad=True)
    return [x, weight], (x, edges_of("many edges"), weight)


class WeightedEntries(Weighted):
    """Each entry of a row has a weight of its own, as in SchNet."""

    def message(self, x_j, weight):
        return x_j * (weight.view(-1, 1) * torch.arange(1, IN + 1, dtype=weight.dtype)).sin()


@pytest.mark.parametrize("kind", [Weighted, WeightedEntries])
@pytest.mark.parametrize("aggr", ["add", "mean"])
def test_a_layer_of_ones_own_whose_messages_are_weighted_rows_is_one_sum(aggr, kind):
    reference = kind(aggr).double()
    layer = swapped(reference)
    inputs, called = own_call()
    for _ in range(2):
        assert_same(results(layer, inputs, called), results(reference, inputs, called))
    assert layer._fast.mechanism == SUM


@pytest.mark.parametrize(
    "kind", ["not linear", "a term of its own", "its width", "left behind", "random rows", "written to"]
)
def test_a_layer_that_only_looks_like_a_sum_is_equal_whatever_the_trial_says_of_it(kind):
    reference = Nasty(kind).double()
    layer = swapped(reference)
    inputs, called = own_call()
    if kind == "written to":
        called = (called[0].detach(), called[1], called[2].detach())
        torch.testing.assert_close(layer(*called), reference(*called), **CLOSE)
        return
    for training in (False, True):
        torch.manual_seed(5)
        ours = results(layer.train(training), inputs, called)
        torch.manual_seed(5)
        assert_same(ours, results(reference.train(training), inputs, called))
    assert layer._fast.mechanism == NONE, layer._fast.why
    if kind == "left behind":
        torch.testing.assert_close(layer.last, reference.last)


def test_weights_that_are_drawn_in_each_call_are_not_cached():
    class Drawn(Weighted):
        def message(self, x_j):
            return x_j * (torch.rand(x_j.shape[0], 1) < 0.5)

        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=x)

    layer = swapped(Drawn().double())
    (x, _), (_, edge_index, _) = own_call()
    first, second = layer(x, edge_index), layer(x, edge_index)
    assert layer._fast.mechanism == SUM and not torch.equal(first, second)


class Mixed(Weighted):
    def message(self, x_j, weight):
        return self.scale * weight.view(-1, 1) * x_j @ torch.eye(IN).double()


@pytest.mark.parametrize(
    ("layer", "called", "why"),
    [
        (build("GCN max"), arguments("GCN max", edges_of("many edges"), 13)[1],
         "direct form: aggr='max'; one sum: its message is no weight times x_j in eval"),
        (Mixed().double(), own_call()[1], "one sum: with rows of ones for x_j: RuntimeError: mat1 and mat2 shapes"),
    ],
)  # fmt: skip
def test_a_layer_that_stays_says_why_in_plain_words(layer, called, why):
    report = swap(layer)
    report.model(*called)
    assert report.kept[0][2].startswith(why), report


RIGHT = direct.FORMS[pyg.GCNConv].run


@pytest.mark.parametrize(
    ("form", "why"),
    [
        (lambda layer, x, total: RIGHT(layer, x, total) * (1.001 if layer.training else 1), "1.0e-03 in training"),
        (lambda layer, x, total: RIGHT(layer, x, total) * (1.001 if is_dense_matrix(total) else 1), "1.0e-03 in eval"),
        (lambda layer, x, total: RIGHT(layer, x, total) * (1 if x.requires_grad else 1.001), "1.0e-03 in eval"),
        (lambda layer, x, total: RIGHT(layer, x, total) * (1.001 if is_traced(total) else 1), "1.0e-03 in eval"),
        (lambda layer, x, total: RIGHT(layer, x, total) * (1 if sparse.features_of(x) is None else 1.001), "1.0e-03"),
        (lambda layer, x, total: RIGHT(layer, x.detach(), total), "the gradient of argument x is missing in eval"),
        (lambda layer, x, total: RIGHT(layer, x, total.nothing), "it fails: AttributeError: "),
    ],
    ids=["training", "small graphs", "fixed inputs", "torch.compile", "zeros", "a gradient", "it raises"],
)
def test_a_form_that_is_wrong_in_one_case_alone_is_not_taken(form, why, with_form):
    layer, reference = with_form(form), build("GCN plain")
    inputs, called = arguments("GCN plain", edges_of("many edges"), 13)
    assert_same(results(layer.train(), inputs, called), results(reference.train(), inputs, called))
    assert layer._fast.direct == {None: False} and why in layer._fast.why[DIRECT], layer._fast.why


def is_dense_matrix(total):
    return getattr(total, "matrix", None) is not None


def is_traced(total):
    return isinstance(total, operators.Traced)


def test_a_maximum_comes_before_a_product_that_makes_rows_shorter():
    layer = swapped(pyg.SAGEConv(8, 3, aggr="max"))
    layer(torch.randn(13, 8), edges_of("many edges"))
    assert layer._fast.mechanism == DIRECT, layer._fast.why


@pytest.mark.parametrize("name", ["GCN plain", "SAGE mean", "GIN", "GAT", "GATv2", "Transformer with edges"])
def test_a_call_that_does_not_fit_fails_and_is_not_computed(name):
    layer, reference = swapped(build(name)), build(name)
    _, (x, edge_index, *more) = arguments(name, edges_of("many edges"), 13)
    x = (x * (x.abs() > 2)).detach()
    for _ in range(3):
        layer(x, edge_index, *more)
    beyond, below = edge_index.clone(), edge_index.clone()
    beyond[0, 3], below[1, 3] = 13, -1
    wrong = [(x[:, :5], edge_index, *more), (torch.cat([x, x], 1), edge_index, *more), (x, beyond, *more),
             (x, below, *more), (x[:8], edge_index, *more), *([(x, edge_index)] if more else [])]  # fmt: skip
    for call in wrong:
        with pytest.raises(Exception):  # noqa: B017 - whatever PyG raises
            reference(*call)
        for _ in range(3):
            with pytest.raises((RuntimeError, IndexError, ValueError, AssertionError)):
                layer(*call)


def test_the_trial_draws_nothing_from_the_users_generator():
    layer = swapped(build("GAT"))
    _, called = arguments("GAT", edges_of("many edges"), 13)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    layer(*called)
    assert torch.equal(state, torch.get_rng_state())


def test_the_class_and_other_instances_stay_as_they_are():
    before = dict(vars(pyg.GCNConv))
    one, other = pyg.GCNConv(IN, 3), pyg.GCNConv(IN, 3)
    layer = swapped(one)
    assert dict(vars(pyg.GCNConv)) == before
    assert type(one) is type(other) is pyg.GCNConv and type(layer) is not pyg.GCNConv
    assert isinstance(layer, pyg.GCNConv)


def test_copies_and_saved_models_are_served_as_well():
    layer = swapped(build("GATv2"))
    inputs, called = arguments("GATv2", edges_of("many edges"), 13)
    expected = results(layer, inputs, called)
    assert_same(results(copy.deepcopy(layer), inputs, called), expected)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert type(loaded) is type(layer)
    assert_same(results(loaded, inputs, called), expected)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_what_is_not_covered_runs_the_code_of_pyg():
    reference = build("GCN plain")
    layer = swapped(reference)
    x, edge_index = torch.randn(13, IN, dtype=torch.double), edges_of("many edges")
    adjacency = torch.sparse_coo_tensor(edge_index.flip(0), torch.ones(60).double(), (13, 13)).to_sparse_csr()
    sorted_edges = EdgeIndex(edge_index, sparse_size=(13, 13)).sort_by("col").values
    for edges in (adjacency, sorted_edges):
        torch.testing.assert_close(layer(x, edges), reference(x, edges), **CLOSE)
    batch = torch.randn(2, 13, IN, dtype=torch.double)
    of_both = [one(batch, edge_index).view(26, -1) for one in (layer, reference)]
    torch.testing.assert_close(*of_both, **CLOSE)
    called = []
    layer.register_message_forward_hook(lambda module, inputs, out: called.append(out.shape))
    torch.testing.assert_close(layer(x, edge_index), reference(x, edge_index), **CLOSE)
    assert len(called) == 1


def test_an_option_that_is_changed_after_the_first_call_counts():
    reference = pyg.GCNConv(IN, 3).double()
    layer = swapped(reference)
    x, edge_index = torch.randn(13, IN, dtype=torch.double), edges_of("many edges")
    changes = [("flow", "target_to_source"), ("flow", "source_to_target"), ("improved", True), ("explain", True),
               ("explain", False), ("decomposed_layers", 3), ("decomposed_layers", 1), ("normalize", False),
               ("node_dim", 0), ("cached", True)]  # fmt: skip
    for name, value in changes:
        layer(x, edge_index)
        for one in (reference, layer):
            setattr(one, name, value)
            one._edge_mask, one._loop_mask = torch.linspace(-1, 1, 60).double(), edge_index[0] != edge_index[1]
        torch.testing.assert_close(layer(x, edge_index), reference(x, edge_index), **CLOSE)
        covered = layer.flow == "source_to_target" and not layer.explain and layer.decomposed_layers == 1
        assert (layer._fast.mechanism is not None) == covered, name


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_torch_jit_script_gets_the_layer_as_it_was():
    layer = swapped(build("GCN plain"))
    _, called = arguments("GCN plain", edges_of("many edges"), 13)
    torch.testing.assert_close(torch.jit.script(layer)(*called), layer(*called), **CLOSE)
    assert layer._fast.mechanism == DIRECT


def test_attention_weights_are_those_of_pyg_in_its_order():
    for name in ("GATv2", "Transformer", "GAT with edges"):
        reference = build(name)
        layer = swapped(reference)
        _, called = arguments(name, edges_of("many edges"), 13)
        assert_same(*(one(*called, return_attention_weights=True)[1] for one in (layer, reference)))


def test_gradients_of_gradients_are_refused():
    layer = swapped(build("GCN plain"))
    inputs, called = arguments("GCN plain", torch.randint(90, (2, 300)), 90)
    (grad,) = torch.autograd.grad(layer(*called).square().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize("name", ["GCN plain", "GIN", "SAGE mean", "GAT", "GATv2", "Transformer with edges"])
def test_torch_compile_keeps_a_direct_form_whole_in_eval_then_in_training_and_on_other_sizes(name):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # reset leaves what other tests counted
    layer, reference = swapped(build(name)), build(name)
    layer(*arguments(name, edges_of("many edges"), 13)[1])  # tried
    assert layer._fast.mechanism == DIRECT
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for nodes, edges, seed in ((13, 60, 0), (40, 170, 1), (31, 90, 2)):
        edge_index = torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(seed))
        inputs, called = arguments(name, edge_index, nodes)
        inputs, called = (
            inputs[:1],
            tuple(c.detach() if c is not inputs[0] and c.is_floating_point() else c for c in called),
        )
        with torch.no_grad():
            torch.testing.assert_close(compiled.eval()(*called), reference.eval()(*called), **CLOSE)
        assert_same(results(compiled.train(), inputs, called), results(reference.train(), inputs, called))
    assert not torch._dynamo.utils.counters["graph_break"]


def test_a_weight_for_edges_that_have_no_features_gets_a_gradient_of_zeros_in_a_trace():
    reference = pyg.GATConv(IN, 4, heads=2, edge_dim=3).double()
    layer = swapped(reference)
    x = torch.randn(13, IN, dtype=torch.double, requires_grad=True)
    called = x, edges_of("many edges")
    layer(*called)
    assert layer._fast.mechanism == DIRECT, layer._fast.why
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    ours, expected = results(compiled, [x], called), results(reference, [x], called)
    assert any(one is None for one in expected)
    assert_same(ours, [torch.zeros_like(one) if other is None else other
                       for one, other in zip(ours, expected, strict=True)])  # fmt: skip


def test_neighbour_sum_is_index_add_by_hand_compiled_or_not():
    inputs, (x, edge_index, weight) = own_call()
    expected = torch.zeros(13, IN, dtype=torch.double).index_add(0, edge_index[1], weight[:, None] * x[edge_index[0]])
    gradients = torch.autograd.grad(expected.sin().sum(), inputs)
    for function in (gnnswap.neighbour_sum, torch.compile(gnnswap.neighbour_sum, fullgraph=True, backend="aot_eager")):
        out = function(x, edge_index, weight)
        torch.testing.assert_close(out, expected, **CLOSE)
        torch.testing.assert_close(torch.autograd.grad(out.sin().sum(), inputs), gradients, **CLOSE)
