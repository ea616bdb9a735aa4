"""Every kernel over edges beside the same by gather, PyG's softmax and scatter, for test_kernels and test_triton.

Graphs have isolated nodes, repeated edges, self-loops and more sources than targets.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.utils import scatter, softmax

from gnnswap import attention, fused
from gnnswap.aggregation import mean, weighted_sum
from gnnswap.neighbours import Neighbours
from gnnswap.sums import NeighbourMax, NeighbourSum

NODES, SOURCES = 4, 5
GRAPHS = {  # the last target has no edges, the last source sends none; an edge comes twice, node 1 has a loop
    "edges that repeat": torch.tensor([[0, 1, 1, 2, 3, 3, 0], [1, 1, 0, 2, 2, 2, 1]]),
    "no edges": torch.empty(2, 0, dtype=torch.int64),
}


class Ends(NamedTuple):
    """The edges (E,) from j to i, as they were given, of n targets."""

    j: Tensor
    i: Tensor
    n: int

    def add(self, messages, how="sum"):
        return scatter(messages, self.i, 0, self.n, how)

    def softmax(self, scores):
        return softmax(scores, self.i, num_nodes=self.n)

    def several(self, message):
        parts = (message, "sum"), (message * message, "sum"), (message, "min"), (message, "max")
        return torch.cat([self.add(*part) for part in parts])

    def softened(self, message, t, score=None):
        return self.add(self.softmax((message if score is None else score) * t) * message)

    def gated(self, rows, softplus=False):
        p, q = rows.chunk(2, dim=1)
        return self.add(p.sigmoid() * (F.softplus(q) if softplus else q))

    def attended(self, scores, values, keep=1.0):
        return self.add(values[self.j] * (self.softmax(scores) * keep)[..., None])


def by_target(graph, values):
    """Values of edges in the order of `graph.col`."""
    return values.index_select(0, graph.permutation)


def as_given(graph, values):
    return values.index_select(0, graph.position)


def dropped(edges, heads):
    """What dropout multiplies the shares of edges with."""
    return (torch.arange(edges * heads).view(edges, heads) % 3 > 0).double() * 1.5


def one_pass(kind, **options):
    """Attention with its scores in one pass, of edges' features in the order in which edges were given."""

    def run(graph, *inputs):
        names = {"gatv2": ("query", "values", "vector", "edge")}.get(kind, ("query", "key", "values", "edge"))
        given = {"key": None} | dict(zip(names, inputs, strict=False))
        for name in {"edge", "keep"} & (given.keys() | options.keys()):
            one = given.get(name)
            heads = given["query"].shape[1]
            one = dropped(graph.num_edges, heads).to(given["values"]) if one is None else one
            given[name] = by_target(graph, one)
        tensors = [given.pop(name) for name in ("query", "key", "values")]
        return attention.fused_attention(kind, *tensors, graph, slope=0.2, scale=0.7, **given)

    return run


def leaky(rows):
    return F.leaky_relu(rows, 0.2)


MOMENTS = "sum", "squares", "min", "max"
# name: (shapes of the inputs, the kernel, the same by PyG's operators). Letters: sources, nodes, edges, heads, width,
# D twice the width, V a width that is summed one head at a time, "." a number
CASES = {
    "sum": ("SW", lambda g, x: weighted_sum(x, g), lambda e, x: e.add(x[e.j])),
    "weighted sum": ("SW E", lambda g, x, w: weighted_sum(x, g, w), lambda e, x, w: e.add(x[e.j] * w[:, None])),
    "mean": ("SW", lambda g, x: mean(x, g), lambda e, x: e.add(x[e.j], "mean")),
    "prepared sum": (
        "SW",
        lambda g, x: NeighbourSum(g, g.cast("mean_weight", x.dtype))(x),
        lambda e, x: e.add(x[e.j], "mean"),
    ),
    "largest": ("SW", lambda g, x: NeighbourMax(g)(x), lambda e, x: e.add(x[e.j], "max")),
    "sorted values": ("EW", lambda g, v: as_given(g, g.sorted_weight(v)), lambda e, v: 1 * v),
    "pair scores": (
        "SH NH",
        lambda g, a, b: as_given(g, attention.pair_scores(a, b, g, 0.2)),
        lambda e, a, b: leaky(a[e.j] + b[e.i]),
    ),
    "sums of pairs": (
        "SH NH",
        lambda g, a, b: as_given(g, attention.pair_scores(a, b, g)),
        lambda e, a, b: a[e.j] + b[e.i],
    ),
    "additive scores": (
        "SHW NHW HW",
        lambda g, a, b, v: as_given(g, attention.additive_scores(a, b, v, g, 0.2)),
        lambda e, a, b, v: (leaky(a[e.j] + b[e.i]) * v).sum(-1),
    ),
    "additive scores of edges": (
        "SHW NHW HW EHW",
        lambda g, a, b, v, c: as_given(g, attention.additive_scores(a, b, v, g, 0.2, by_target(g, c))),
        lambda e, a, b, v, c: (leaky(a[e.j] + b[e.i] + c) * v).sum(-1),
    ),
    "softmax": (
        "EH",
        lambda g, s: as_given(g, attention.segment_softmax(by_target(g, s), g)),
        lambda e, s: e.softmax(s),
    ),
    "softmax of large scores": (
        "E",
        lambda g, s: as_given(g, attention.segment_softmax(by_target(g, s) + 100, g)),
        lambda e, s: e.softmax(s),
    ),
    "head products": (
        "NHW SHW",
        lambda g, q, k: as_given(g, attention.head_products(q, k, g)),
        lambda e, q, k: (q[e.i] * k[e.j]).sum(-1),
    ),
    "head sum": (
        "SHW EH",
        lambda g, v, w: attention.head_sum(v, g, by_target(g, w)),
        lambda e, v, w: e.add(v[e.j] * w[..., None]),
    ),
    "attention": (
        "EH SHW",
        lambda g, s, v: attention.attend(by_target(g, s), v, g),
        lambda e, s, v: e.attended(s, v),
    ),
    "attention with dropout": (
        "EH SHW",
        lambda g, s, v: attention.attend(by_target(g, s), v, g, by_target(g, dropped(*s.shape).to(s))),
        lambda e, s, v: e.attended(s, v, dropped(*s.shape).to(s)),
    ),
    "all pairs, GAT": (
        "NHW 2HW",
        lambda g, v, a: attention.dense_pairs(v, a, g, 0.2),
        lambda e, v, a: e.attended(leaky((v * a[0]).sum(-1)[e.j] + (v * a[1]).sum(-1)[e.i]), v),
    ),
    "all pairs, products": (
        "NHW NHW NHW",
        lambda g, v, q, k: attention.dense_products(v, q, k, g, 0.7),
        lambda e, v, q, k: e.attended((q[e.i] * k[e.j]).sum(-1) * 0.7, v),
    ),
    "all pairs, additive": (
        "NHW NHW HW",
        lambda g, a, b, v: attention.dense_additive(a, b, v, g, 0.2),
        lambda e, a, b, v: e.attended((leaky(a[e.j] + b[e.i]) * v).sum(-1), a),
    ),
    "moments": (
        "SW",
        lambda g, y: torch.cat(fused.multi_aggregate(y, g, MOMENTS)),
        lambda e, y: e.several(y[e.j]),
    ),
    "moments of relu": (
        "SW EW",
        lambda g, y, c: torch.cat(fused.multi_aggregate(y, g, MOMENTS, c, relu=True, as_given=True)),
        lambda e, y, c: e.several((y[e.j] + c).relu()),
    ),
    "moments of edges": (
        "SW EW",
        lambda g, y, c: torch.cat(fused.multi_aggregate(y, g, MOMENTS, by_target(g, c))),
        lambda e, y, c: e.several(y[e.j] + c),
    ),
    "sum of relu": (
        "SW EW",
        lambda g, y, c: fused.multi_aggregate(y, g, ("sum",), by_target(g, c), relu=True)[0],
        lambda e, y, c: e.add((y[e.j] + c).relu()),
    ),
    "softmax aggregation": (
        "SW EW 1",
        lambda g, y, c, t: fused.softmax_aggregate(y, g, t, c, relu=True, as_given=True),
        lambda e, y, c, t: e.softened((y[e.j] + c).relu(), t),
    ),
    "softmax aggregation without edges": (
        "SW .",
        lambda g, y, t: fused.softmax_aggregate(y, g, t),
        lambda e, y, t: e.softened(y[e.j], t),
    ),
    "softmax aggregation, half a gradient": (
        "SW EW",
        lambda g, y, c: fused.softmax_aggregate(y, g, y.new_full((1,), 0.7), by_target(g, c), semi=True),
        lambda e, y, c: e.softened(y[e.j] + c, 0.7, (y[e.j] + c).detach()),
    ),
    "gate": (
        "SD ND",
        lambda g, a, b: fused.gated_sum(a, b, g),
        lambda e, a, b: e.gated(a[e.j] + b[e.i]),
    ),
    "gate that targets add to": (
        "SD NW ED",
        lambda g, a, b, c: fused.gated_sum(a, b, g, by_target(g, c)),
        lambda e, a, b, c: e.gated(a[e.j] + c + F.pad(b, (0, b.shape[1]))[e.i]),
    ),
    "gate of softplus": (
        "SD ND ED",
        lambda g, a, b, c: fused.gated_sum(a, b, g, c, softplus=True, as_given=True),
        lambda e, a, b, c: e.gated(a[e.j] + b[e.i] + c, softplus=True),
    ),
    "modulation": (
        "SW ND",
        lambda g, x, b: fused.film_sum(x, b, g),
        lambda e, x, b: e.add((b.chunk(2, 1)[1][e.i] * x[e.j] + b.chunk(2, 1)[0][e.i]).relu()),
    ),
    "pairs": (
        "SW NW",
        lambda g, a, b: fused.edge_rows(a, b, g, as_given=True),
        lambda e, a, b: a[e.j] + b[e.i],
    ),
    "relu of pairs": (
        "SW NW",
        lambda g, a, b: as_given(g, fused.edge_rows(a, b, g, relu=True)),
        lambda e, a, b: (a[e.j] + b[e.i]).relu(),
    ),
    "scaled": ("SW EW", lambda g, x, c: fused.edge_weighted_sum(x, c, g), lambda e, x, c: e.add(x[e.j] * c)),
}
# the same with rows that heads share, or of another width
CASES |= {
    "head products, keys shared": ("NHW S1W", *CASES["head products"][1:]),
    "head sum, values shared": ("S1W EH", *CASES["head sum"][1:]),
    "head sum of wide rows": ("SHV EH", *CASES["head sum"][1:]),
    "all pairs, GAT, values shared": ("N1W 2HW", *CASES["all pairs, GAT"][1:]),
}
# by Triton alone
ONE_PASS = {
    "GAT": (
        "NH SH SHW EH",
        one_pass("gat", keep=True),
        lambda e, q, k, v, c: e.attended(leaky(k[e.j] + q[e.i] + c), v, dropped(*c.shape).to(c)),
    ),
    "GAT, values shared": (
        "NH SH S1W",
        one_pass("gat"),
        lambda e, q, k, v: e.attended(leaky(k[e.j] + q[e.i]), v),
    ),
    "GATv2": (
        "NHW SHW HW",
        one_pass("gatv2"),
        lambda e, q, v, a: e.attended((leaky(v[e.j] + q[e.i]) * a).sum(-1), v),
    ),
    "GATv2 with edges": (
        "NHW SHW HW EHW",
        one_pass("gatv2", keep=True),
        lambda e, q, v, a, c: e.attended((leaky(v[e.j] + q[e.i] + c) * a).sum(-1), v, dropped(*c.shape[:2]).to(c)),
    ),
    "Transformer": (
        "NHW SHW SHW EH",
        one_pass("transformer", keep=True),
        lambda e, q, k, v, c: e.attended((k[e.j] * q[e.i]).sum(-1) * 0.7 + c, v, dropped(*c.shape).to(c)),
    ),
    "Transformer, values shared": (
        "NHW SHW S1W",
        one_pass("transformer"),
        lambda e, q, k, v: e.attended((k[e.j] * q[e.i]).sum(-1) * 0.7, v),
    ),
}


def case(name, edge_index, nodes=NODES, sources=SOURCES, *, width=2, heads=2, seed=1, strided=False, change=None):
    """(kernel, plain, inputs in float64): functions of the inputs alone; `strided`: inputs that are not contiguous."""
    shapes, kernel, plain = (CASES | ONE_PASS)[name]
    sources = nodes if name.startswith("all pairs") else sources
    graph = Neighbours.prepare(edge_index, nodes, num_sources=sources)
    sizes = {"S": sources, "N": nodes, "E": edge_index.shape[1], "H": heads, "W": width, "D": 2 * width, "V": 33}
    generator, inputs = torch.Generator().manual_seed(seed), []
    for shape in shapes.split():
        shape = [sizes[one] if one in sizes else int(one) for one in shape if one != "."]
        one = torch.randn(shape, generator=generator, dtype=torch.float64)
        one = one if change is None else change(one)
        one = one.t().contiguous().t() if strided and one.dim() == 2 else one
        inputs.append(one.to(edge_index.device).requires_grad_())
    ends = Ends(*edge_index, nodes)
    return lambda *given: kernel(graph, *given), lambda *given: plain(ends, *given), inputs


def drawn(nodes=11, edges=60, seed=0):
    """Edges (2, edges) among nodes of which the last three have none; some repeat, some are loops."""
    return torch.randint(nodes - 3, (2, edges), generator=torch.Generator().manual_seed(seed))


def wave(out):
    return torch.arange(1, out.numel() + 1, dtype=torch.float64, device=out.device).sin().to(out.dtype).view_as(out)


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


def with_gradients(function, inputs):
    """[output, gradient of each input]"""
    out = function(*inputs)
    return [out.detach(), *gradients((out * wave(out)).sum(), inputs)]


def close(ours, theirs, rtol=1e-8, atol=1e-9):
    for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        message = lambda text, at=at: f"tensor {at}: {text}"  # noqa: E731
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True, msg=message)


def close_where_finite(ours, theirs):
    """Not finite at the same places, be it NaN or infinity, and close elsewhere."""
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.isfinite(), other.isfinite())
    close(*([one.where(one.isfinite(), 0.0) for one in found] for found in (ours, theirs)))
