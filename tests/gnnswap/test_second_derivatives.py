"""Derivatives of any order, batches of gradients and torch.func's transforms give what torch's own operators give."""

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.utils import scatter, softmax

from gnnswap import attention, fused
from gnnswap.aggregation import mean, weighted_sum
from gnnswap.neighbours import Neighbours
from gnnswap.sums import NeighbourMax, NeighbourSum

NODES, SOURCES, EDGES, WIDTH, HEADS = 4, 5, 7, 2, 2
GRAPHS = {  # the last target has no edges, the last source sends none; an edge comes twice, node 1 has a loop
    "edges that repeat": torch.tensor([[0, 1, 1, 2, 3, 3, 0], [1, 1, 0, 2, 2, 2, 1]]),
    "no edges": torch.empty(2, 0, dtype=torch.int64),
}


def summed(messages, ends):
    return scatter(messages, ends[1], 0, NODES, "sum")


def several(message, target):
    return torch.cat([scatter(one, target, 0, NODES, how) for one, how in (
        (message, "sum"), (message * message, "sum"), (message, "min"), (message, "max"))])  # fmt: skip


def softened(message, t, target):
    return scatter(softmax(message * t, target, num_nodes=NODES) * message, target, 0, NODES)


def gated(rows, softplus, target):
    p, q = rows.chunk(2, dim=1)
    return scatter(p.sigmoid() * (F.softplus(q) if softplus else q), target, 0, NODES)


def by_target(graph, values):
    return values.index_select(0, graph.order)


MOMENTS = "sum", "squares", "min", "max"
E, H, W = "edges", HEADS, WIDTH  # "edges": as many rows as the graph has
# name: (shapes of the inputs, the kernel, the same by PyG's operators); features of edges stand as they are given
CASES = {
    "sum": ([(SOURCES, W)], lambda g, x: weighted_sum(x, g), lambda e, x: summed(x[e[0]], e)),
    "weighted sum": (
        [(SOURCES, W), (E,)],
        lambda g, x, w: weighted_sum(x, g, w),
        lambda e, x, w: summed(x[e[0]] * w[:, None], e),
    ),
    "mean": ([(SOURCES, W)], lambda g, x: mean(x, g), lambda e, x: scatter(x[e[0]], e[1], 0, NODES, "mean")),
    "sum prepared": (
        [(SOURCES, W)],
        lambda g, x: NeighbourSum(g, g.mean_weight)(x),
        lambda e, x: scatter(x[e[0]], e[1], 0, NODES, "mean"),
    ),
    "largest": (
        [(SOURCES, W)],
        lambda g, x: NeighbourMax(g)(x),
        lambda e, x: scatter(x[e[0]], e[1], 0, NODES, "max"),
    ),
    "pair scores": (
        [(SOURCES, H), (NODES, H)],
        lambda g, a, b: attention.pair_scores(a, b, g, 0.2).index_select(0, g.place),
        lambda e, a, b: F.leaky_relu(a[e[0]] + b[e[1]], 0.2),
    ),
    "sums of pairs": (
        [(SOURCES, H), (NODES, H)],
        lambda g, a, b: attention.pair_scores(a, b, g).index_select(0, g.place),
        lambda e, a, b: a[e[0]] + b[e[1]],
    ),
    "additive scores": (
        [(SOURCES, H, W), (NODES, H, W), (H, W)],
        lambda g, a, b, v: attention.additive_scores(a, b, v, g, 0.2).index_select(0, g.place),
        lambda e, a, b, v: (F.leaky_relu(a[e[0]] + b[e[1]], 0.2) * v).sum(-1),
    ),
    "additive scores of edges": (
        [(SOURCES, H, W), (NODES, H, W), (H, W), (E, H, W)],
        lambda g, a, b, v, c: attention.additive_scores(a, b, v, g, 0.2, by_target(g, c)).index_select(0, g.place),
        lambda e, a, b, v, c: (F.leaky_relu(a[e[0]] + b[e[1]] + c, 0.2) * v).sum(-1),
    ),
    "softmax": (
        [(E, H)],
        lambda g, s: attention.segment_softmax(by_target(g, s), g).index_select(0, g.place),
        lambda e, s: softmax(s, e[1], num_nodes=NODES),
    ),
    "softmax of large scores": (
        [(E,)],
        lambda g, s: attention.segment_softmax(by_target(g, s) + 100, g).index_select(0, g.place),
        lambda e, s: softmax(s, e[1], num_nodes=NODES),
    ),
    "head products": (
        [(NODES, H, W), (SOURCES, H, W)],
        lambda g, q, k: attention.head_products(q, k, g).index_select(0, g.place),
        lambda e, q, k: (q[e[1]] * k[e[0]]).sum(-1),
    ),
    "head products, keys shared": (
        [(NODES, H, W), (SOURCES, 1, W)],
        lambda g, q, k: attention.head_products(q, k, g).index_select(0, g.place),
        lambda e, q, k: (q[e[1]] * k[e[0]]).sum(-1),
    ),
    "head sum": (
        [(SOURCES, H, W), (E, H)],
        lambda g, v, w: attention.head_sum(v, g, by_target(g, w)),
        lambda e, v, w: summed(v[e[0]] * w[..., None], e),
    ),
    "head sum that heads share": (
        [(SOURCES, 1, 3), (E, H)],
        lambda g, v, w: attention.head_sum(v, g, by_target(g, w)),
        lambda e, v, w: summed(v[e[0]] * w[..., None], e),
    ),
    "attention": (
        [(E, H), (SOURCES, H, W)],
        lambda g, s, v: attention.attend(by_target(g, s), v, g),
        lambda e, s, v: summed(v[e[0]] * softmax(s, e[1], num_nodes=NODES)[..., None], e),
    ),
    "moments": (
        [(SOURCES, W)],
        lambda g, y: torch.cat(fused.multi_aggregate(y, g, MOMENTS)),
        lambda e, y: several(y[e[0]], e[1]),
    ),
    "moments of relu": (
        [(SOURCES, W), (E, W)],
        lambda g, y, c: torch.cat(fused.multi_aggregate(y, g, MOMENTS[:2], c, relu=True, as_given=True)),
        lambda e, y, c: several((y[e[0]] + c).relu(), e[1])[: 2 * NODES],
    ),
    "moments of edges": (
        [(SOURCES, W), (E, W)],
        lambda g, y, c: torch.cat(fused.multi_aggregate(y, g, MOMENTS, by_target(g, c))),
        lambda e, y, c: several(y[e[0]] + c, e[1]),
    ),
    "softmax aggregation": (
        [(SOURCES, W), (E, W), (1,)],
        lambda g, y, c, t: fused.softmax_aggregate(y, g, t, c, relu=True, as_given=True),
        lambda e, y, c, t: softened((y[e[0]] + c).relu(), t, e[1]),
    ),
    "softmax aggregation without edges": (
        [(SOURCES, W), ()],
        lambda g, y, t: fused.softmax_aggregate(y, g, t),
        lambda e, y, t: softened(y[e[0]], t, e[1]),
    ),
    "gate": (
        [(SOURCES, 2 * W), (NODES, 2 * W)],
        lambda g, a, b: fused.gated_sum(a, b, g),
        lambda e, a, b: gated(a[e[0]] + b[e[1]], False, e[1]),
    ),
    "gate that targets add to": (
        [(SOURCES, 2 * W), (NODES, W), (E, 2 * W)],
        lambda g, a, b, c: fused.gated_sum(a, b, g, by_target(g, c)),
        lambda e, a, b, c: gated(a[e[0]] + c + F.pad(b, (0, W))[e[1]], False, e[1]),
    ),
    "gate of softplus": (
        [(SOURCES, 2 * W), (NODES, 2 * W), (E, 2 * W)],
        lambda g, a, b, c: fused.gated_sum(a, b, g, c, softplus=True, as_given=True),
        lambda e, a, b, c: gated(a[e[0]] + b[e[1]] + c, True, e[1]),
    ),
    "modulation": (
        [(SOURCES, W), (NODES, 2 * W)],
        lambda g, x, b: fused.film_sum(x, b, g),
        lambda e, x, b: summed((b[e[1], W:] * x[e[0]] + b[e[1], :W]).relu(), e),
    ),
    "pairs": (
        [(SOURCES, W), (NODES, W)],
        lambda g, a, b: fused.edge_rows(a, b, g, as_given=True),
        lambda e, a, b: a[e[0]] + b[e[1]],
    ),
    "relu of pairs": (
        [(SOURCES, W), (NODES, W)],
        lambda g, a, b: fused.edge_rows(a, b, g, relu=True).index_select(0, g.place),
        lambda e, a, b: (a[e[0]] + b[e[1]]).relu(),
    ),
    "scaled": (
        [(SOURCES, W), (E, W)],
        lambda g, x, c: fused.edge_weighted_sum(x, c, g),
        lambda e, x, c: summed(x[e[0]] * c, e),
    ),
}
CASES["head sum of wide rows"] = CASES["head sum"]
each_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True)
def wide_rows(request, monkeypatch):
    """Rows of heads are summed one head at a time where they are wide; here two numbers are."""
    if "wide rows" in request.node.name:
        monkeypatch.setattr(attention, "NARROW", 1)


def case(name, edges="edges that repeat", strided=False):
    """(kernel, plain, inputs): both are functions of the inputs alone; `strided`: inputs that are not contiguous."""
    shapes, kernel, plain = CASES[name]
    edge_index, generator = GRAPHS[edges], torch.Generator().manual_seed(1)
    graph = Neighbours.prepare(edge_index, NODES, num_sources=SOURCES)
    inputs = []
    for shape in shapes:
        shape = [edge_index.shape[1] if size == E else size for size in shape]
        one = torch.randn(shape, generator=generator, dtype=torch.float64)
        one = one.t().contiguous().t() if strided and one.dim() == 2 else one
        inputs.append(one.requires_grad_())
    return lambda *given: kernel(graph, *given), lambda *given: plain(edge_index, *given), inputs


def close(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


def wave(out):
    return torch.arange(1, out.numel() + 1, dtype=out.dtype).sin().view_as(out)


def energy(function):
    """A number that depends on each entry of the output, and not as a quadratic form."""
    return lambda *inputs: ((out := function(*inputs)).sin() * wave(out)).sum()


def gradients(out, inputs, **options):
    found = torch.autograd.grad(out, inputs, allow_unused=True, **options)
    return [torch.zeros_like(one) if grad is None else grad for one, grad in zip(inputs, found, strict=True)]


def ladder(function, inputs, orders=3):
    """Gradients of a number, of a number of these gradients, and so on."""
    found, value = [], energy(function)(*inputs)
    for _ in range(orders):
        grads = gradients(value, inputs, create_graph=True)
        found += grads
        value = sum((grad.cos() * wave(grad)).sum() for grad in grads)
    return found


@pytest.mark.parametrize("edges", GRAPHS)
@each_case
def test_first_and_second_derivatives_are_those_of_finite_differences(name, edges):
    kernel, _, inputs = case(name, edges)
    assert torch.autograd.gradcheck(kernel, inputs, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(lambda *given: kernel(*given).sin(), inputs)


@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
@each_case
def test_three_orders_of_derivatives_are_those_of_torch(name, strided):
    kernel, plain, inputs = case(name, strided=strided)
    close(ladder(kernel, inputs), ladder(plain, inputs))


@each_case
def test_inputs_that_are_made_from_one_another_count_once(name):
    kernel, plain, inputs = case(name)
    first = inputs[0]

    def linked(function):
        others = [one + first.sum().sin() for one in inputs[1:]]
        return gradients(sum(gradients(energy(function)(first, *others), [first, *others], create_graph=True)[at].sin()
                             .sum() for at in range(len(inputs))), inputs)  # fmt: skip

    close(linked(kernel), linked(plain))


@each_case
def test_inputs_that_want_no_gradient_get_none(name):
    kernel, plain, inputs = case(name)
    for wanted in range(len(inputs)):
        fixed = [one if at == wanted else one.detach() for at, one in enumerate(inputs)]
        close(ladder(lambda *_: kernel(*fixed), [inputs[wanted]]), ladder(lambda *_: plain(*fixed), [inputs[wanted]]))  # noqa: B023


@each_case
def test_batches_of_gradients_are_those_of_torch(name):
    kernel, plain, inputs = case(name)
    batch = torch.randn(3, *plain(*inputs).shape, dtype=torch.float64)

    def batched(function, **options):
        return torch.autograd.grad(function(*inputs).sin(), inputs, batch, is_grads_batched=True, **options)

    def mapped(function):
        out = function(*inputs)
        return torch.func.vmap(lambda grad: torch.autograd.grad(out, inputs, grad, retain_graph=True))(batch)

    def twice(function):
        return gradients(sum(one.sin().sum() for one in batched(function, create_graph=True)), inputs)

    for way in (mapped, batched, twice):
        close(way(kernel), way(plain))


@each_case
def test_hessians_and_their_products_are_those_of_torch(name):
    kernel, plain, inputs = case(name)
    inputs = tuple(one.detach() for one in inputs)
    vectors = tuple(wave(one) for one in inputs)
    hvp, vhp = torch.autograd.functional.hvp, torch.autograd.functional.vhp
    for product in (hvp, vhp):
        close(product(energy(kernel), inputs, vectors)[1], product(energy(plain), inputs, vectors)[1])
    first = lambda function: lambda one: energy(function)(one, *inputs[1:])  # noqa: E731
    hessian = torch.autograd.functional.hessian
    close([hessian(first(kernel), inputs[0], vectorize=True)], [hessian(first(plain), inputs[0])])


@each_case
def test_transforms_of_torch_func_take_the_plain_form(name):
    kernel, plain, inputs = case(name)
    inputs = tuple(one.detach() for one in inputs)
    numbers = tuple(range(len(inputs)))
    vectors = tuple(wave(one) for one in inputs)

    def transforms(function):
        found = [*torch.func.grad(energy(function), numbers)(*inputs), *torch.func.jvp(function, inputs, vectors)]
        found.append(torch.func.vmap(function)(*(torch.stack([one, 2 * one]) for one in inputs)))
        found.append(torch.func.hessian(energy(function))(*inputs))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(inputs[0], vectors[0])
            found.append(torch.autograd.forward_ad.unpack_dual(function(dual, *inputs[1:])).tangent)
        return found

    energy(kernel)(*(one.requires_grad_() for one in inputs)).backward()  # the graph is prepared outside of transforms
    inputs = tuple(one.detach() for one in inputs)
    close(transforms(kernel), transforms(plain))


@each_case
def test_training_on_forces_reaches_parameters_by_every_way_of_asking(name):
    """Forces are gradients of an energy by positions; a loss on them is differentiated by parameters."""
    kernel, plain, (positions, *others) = case(name)
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    parameters = [scale, *others]

    def loss(function):
        (forces,) = torch.autograd.grad(energy(function)(positions * scale, *others), positions, create_graph=True)
        return (forces - wave(forces)).square().sum()

    expected = gradients(loss(plain), parameters)
    close(gradients(loss(kernel), parameters), expected)
    for options in ({}, {"inputs": parameters}):
        for one in (positions, *parameters):
            one.grad = None
        loss(kernel).backward(**options)
        close([torch.zeros_like(one) if one.grad is None else one.grad for one in parameters], expected)


@pytest.mark.parametrize("edges", GRAPHS)
def test_values_of_edges_that_are_put_in_another_order_have_derivatives_of_any_order(edges):
    graph = Neighbours.prepare(GRAPHS[edges], NODES, num_sources=SOURCES)
    values = torch.randn(graph.num_edges, 2, dtype=torch.float64, requires_grad=True)
    close(ladder(graph.sorted_weight, [values]), ladder(lambda one: one[graph.order], [values]))
    assert torch.autograd.gradcheck(graph.sorted_weight, values, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(graph.sorted_weight, values)
