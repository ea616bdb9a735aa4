"""GATConv and SAGEConv of PyG, faster: the same weights, the same results, gradients included.

    fast = FastGATConv(conv)
    fast(x, edge_index)        # the graph is prepared at the first call and kept
    fast(x, neighbours)        # or prepared by you

Weights are shared with the layer that they come from, under the same names. What makes them fast: sums over neighbours
by one bag instead of gather and scatter; projections behind the sum where that makes the summed rows shorter;
attention scores as a product of x with folded weights; a dense masked softmax for small graphs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv, SAGEConv

from gnnlab.errors import GnnlabError
from gnnlab.kernels import aggregation, attention
from gnnlab.kernels.aggregation import weighted_sum_sorted
from gnnlab.kernels.neighbours import GraphCache, Neighbours

FORMS = ("auto", "bag", "dense")
# graphs of up to so many nodes, and of so many pairs of nodes an edge at most, take the dense form; measured with one
# AVX2 core: 1.2 times as fast as the bag at 32 to 48 nodes, 1.1 at 64, alike at 96, behind it from 128 on
DENSE_NODES = 64
DENSE_PAIRS_PER_EDGE = 16
# from so many nodes on, a product for each head straight into its columns beats one for all heads and a copy
LOOP_NODES = 1024
# from so many times more inputs than outputs on, one product for neighbours and node beats two: 1.1 times at 4 times as
# many, 1.2 at 22, behind at 1
WIDE_INPUT = 4


class FastGATConv(nn.Module):
    """Graph attention (Velickovic et al. 2018) as PyG's GATConv computes it on one graph, with the weights of `conv`.

    `forward(x, graph)`: x (N, in_channels), graph `edge_index` (2, E) or `Neighbours` -> (N, heads * out_channels), or
    (N, out_channels) where heads are averaged. `form`: auto|bag|dense.

    Raises:
        GnnlabError: `conv` is no GATConv, or has options that the fast form lacks.
    """

    def __init__(self, conv: GATConv, form: str = "auto") -> None:
        super().__init__()
        _require(conv, GATConv, form)
        self.in_channels, self.out_channels, self.heads = conv.in_channels, conv.out_channels, conv.heads
        self.concat, self.negative_slope, self.dropout = conv.concat, conv.negative_slope, conv.dropout
        self.add_self_loops = conv.add_self_loops
        self.lin, self.att_src, self.att_dst, self.bias = conv.lin, conv.att_src, conv.att_dst, conv.bias
        self.residual = getattr(conv, "residual", False)
        if self.residual:
            self.res = conv.res
        self.edge_dim = conv.edge_dim
        if self.edge_dim is not None:
            self.lin_edge, self.att_edge = conv.lin_edge, conv.att_edge
        self.form = form
        self.graphs = GraphCache()
        self.train(conv.training)

    @torch.compiler.disable  # prepared graphs are not traced; the graph around it is
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Neighbours,
        edge_attr: Tensor | None = None,  # (E, edge_dim) or (E,); without edge_dim, PyG ignores it as well
        size: None = None,
        return_attention_weights: None = None,
    ) -> Tensor:
        if size is not None or return_attention_weights is not None:
            raise GnnlabError("the fast GAT layer takes no size and returns no attention weights; use PyG's GATConv")
        neighbours = _neighbours(self, x, edge_index)
        edge = None if self.edge_dim is None or edge_attr is None else self._edge_scores(edge_attr, neighbours)
        if self.add_self_loops:
            edge = None if edge is None else fill_loops(edge, neighbours)
            neighbours = neighbours.looped
        out = self._attended(x, neighbours, edge)
        return out + self.res(x) if self.residual else out

    def _edge_scores(self, edge_attr: Tensor, neighbours: Neighbours) -> Tensor:
        """a_edge . W_edge e of each edge and head, (E, heads) in the order of `neighbours.col`, with (W^T a) folded."""
        edge_attr = edge_attr.view(-1, 1) if edge_attr.dim() == 1 else edge_attr
        if edge_attr.shape != (neighbours.num_edges, self.edge_dim):
            wanted = (neighbours.num_edges, self.edge_dim)
            raise GnnlabError(f"edge_attr must have shape {wanted}, not {tuple(edge_attr.shape)}")
        weight = self.lin_edge.weight.view(self.heads, self.out_channels, -1)
        folded = (self.att_edge.transpose(0, 1) @ weight).squeeze(1)  # (H, edge_dim)
        return F.linear(neighbours.sorted_weight(edge_attr), folded)

    def _attended(self, x: Tensor, neighbours: Neighbours, edge: Tensor | None) -> Tensor:
        if self.in_channels <= self.out_channels:
            source, target = self._folded_scores(x)
            return self._project(self._attend(x.unsqueeze(1), source, target, neighbours, edge))
        values = self.lin(x)
        narrow = self.heads * self.out_channels < self.in_channels
        source, target = self._scores(values) if narrow else self._folded_scores(x)
        out = self._attend(values.view(-1, self.heads, self.out_channels), source, target, neighbours, edge)
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        return out if self.bias is None else out + self.bias

    def _scores(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """a_src . W x and a_dst . W x of each node and head, (N, heads) each, from W x (N, heads * C)."""
        vectors = torch.cat([self.att_src, self.att_dst])  # (2, H, C)
        block = torch.diag_embed(vectors.transpose(1, 2), dim1=1, dim2=3)  # (2, H, C, H)
        both = values @ block.permute(1, 2, 0, 3).reshape(values.shape[1], -1)  # (N, 2 H)
        return both[:, : self.heads], both[:, self.heads :]

    def _folded_scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same from x, as one product with (W^T a) in it."""
        vectors = torch.cat([self.att_src, self.att_dst]).transpose(0, 1)  # (H, 2, C)
        folded = vectors @ self.lin.weight.view(self.heads, self.out_channels, -1)  # (H, 2, in)
        both = x @ folded.transpose(0, 1).reshape(2 * self.heads, -1).t()  # (N, 2 H)
        return both[:, : self.heads], both[:, self.heads :]

    def _attend(self, values: Tensor, source: Tensor, target: Tensor, graph: Neighbours, edge: Tensor | None) -> Tensor:
        """sum over the edges (j -> i) of alpha * values[j], (N, heads, width); values (N, heads or 1, width)."""
        drops = self.dropout > 0 and self.training
        # with edges twice, pairs of nodes cannot be dropped for edges, and have no edge features of their own
        if edge is None and not drops and _dense(self.form, graph):
            return self._attend_dense(values, source, target, graph)
        scores = attention.pair_scores(source, target, graph, self.negative_slope if edge is None else 1.0)
        scores = scores if edge is None else F.leaky_relu(scores + edge, self.negative_slope)
        keep = F.dropout(torch.ones_like(scores), self.dropout) if drops else None
        return attention.attend(scores, values, graph, keep)

    def _attend_dense(self, values: Tensor, source: Tensor, target: Tensor, graph: Neighbours) -> Tensor:
        scores = F.leaky_relu(target.unsqueeze(2) + source.t().contiguous(), self.negative_slope)  # (N, H, N)
        alpha = (scores + graph.cast("log_counts", scores.dtype).unsqueeze(1)).softmax(dim=-1)
        if not graph.self_loops:
            alpha = alpha.masked_fill(graph.isolated.unsqueeze(2), 0)
        if values.shape[1] == 1:
            return (alpha.flatten(0, 1) @ values.squeeze(1)).view(-1, self.heads, values.shape[2])
        return (alpha.transpose(0, 1) @ values.transpose(0, 1)).transpose(0, 1)

    def _project(self, pooled: Tensor) -> Tensor:
        """W applied to rows that were summed before it; `pooled` (N, heads, in)."""
        heads, width = self.heads, self.in_channels
        weight = self.lin.weight
        if heads == 1:
            return F.linear(pooled.squeeze(1), weight, self.bias)
        if not self.concat:  # the mean over heads is one product over heads and channels
            weight = weight.view(heads, -1, width).transpose(0, 1).reshape(-1, heads * width) / heads
            return F.linear(pooled.reshape(-1, heads * width), weight, self.bias)
        weight = weight.view(heads, -1, width)
        if pooled.shape[0] < LOOP_NODES or torch.is_grad_enabled():
            out = torch.bmm(pooled.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1).flatten(1)
            return out if self.bias is None else out + self.bias
        out = pooled.new_empty(pooled.shape[0], heads * self.out_channels)
        for pool, w, place in zip(pooled.unbind(1), weight, out.split(self.out_channels, dim=1), strict=True):
            torch.mm(pool, w.t(), out=place)
        return out if self.bias is None else out.add_(self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}, form={self.form}"


class FastSAGEConv(nn.Module):
    """GraphSAGE (Hamilton et al. 2017) as PyG's SAGEConv computes it, mean or sum, with the weights of `conv`.

    `forward(x, graph)`: x (N, in_channels), graph `edge_index` (2, E) or `Neighbours` -> (N, out_channels). `form`:
    auto|bag|dense.

    Raises:
        GnnlabError: `conv` is no SAGEConv, or has options that the fast form lacks.
    """

    def __init__(self, conv: SAGEConv, form: str = "auto") -> None:
        super().__init__()
        _require(conv, SAGEConv, form)
        self.in_channels, self.out_channels, self.aggr = conv.in_channels, conv.out_channels, conv.aggr
        self.normalize, self.root_weight, self.project = conv.normalize, conv.root_weight, conv.project
        if self.project:
            self.lin = conv.lin
        self.lin_l = conv.lin_l
        if self.root_weight:
            self.lin_r = conv.lin_r
        self.form = form
        self.graphs = GraphCache()
        self.train(conv.training)

    @torch.compiler.disable
    def forward(self, x: Tensor, edge_index: Tensor | Neighbours, size: None = None) -> Tensor:
        if size is not None:
            raise GnnlabError("the fast SAGE layer takes no size, its graphs are not bipartite; use PyG's SAGEConv")
        neighbours = _neighbours(self, x, edge_index)
        sent = F.linear(x, self.lin.weight, self.lin.bias).relu() if self.project else x
        out = self._combine(x, sent, neighbours)
        return F.normalize(out, p=2.0, dim=-1) if self.normalize else out

    def _combine(self, x: Tensor, sent: Tensor, graph: Neighbours) -> Tensor:
        weight, bias = self.lin_l.weight, self.lin_l.bias
        root = self.lin_r.weight if self.root_weight else None
        if root is not None and sent is x and WIDE_INPUT * self.out_channels <= self.in_channels:  # reads x once
            both = F.linear(x, torch.cat([weight, root]))
            out = self._pool(both[:, : self.out_channels], graph) + both[:, self.out_channels :]
            return out if bias is None else out + bias
        if self.out_channels < self.in_channels:  # sum the shorter rows
            pooled = self._pool(F.linear(sent, weight), graph)
            if root is None:
                return pooled if bias is None else pooled + bias
            return pooled + F.linear(x, root, bias)
        out = F.linear(self._pool(sent, graph), weight, bias)
        return out if root is None else torch.addmm(out, x, root.t())

    def _pool(self, x: Tensor, graph: Neighbours) -> Tensor:
        if _dense(self.form, graph):
            return graph.cast("mean_matrix" if self.aggr == "mean" else "counts", x.dtype) @ x
        weight = graph.cast("mean_weight", x.dtype) if self.aggr == "mean" else None
        return aggregation.weighted_sum_sorted(x, graph, weight)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr}, form={self.form}"


FAST = {GATConv: FastGATConv, SAGEConv: FastSAGEConv}  # by the layer of PyG that each computes


def why_not(layer: nn.Module) -> str | None:
    """Why this layer has no fast form, in a few words; None where it has one."""
    if type(layer) not in FAST:
        parent = next((f", a subclass of {t.__name__}" for t in FAST if isinstance(layer, t)), "")
        return f"there is none for {type(layer).__name__}{parent}"
    if not isinstance(layer.in_channels, int):
        return f"in_channels={layer.in_channels}: it is for bipartite graphs"
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in layer.parameters()) or layer.in_channels < 0:
        return "its in_channels are not known before its first call; call it once"
    if layer.flow != "source_to_target":
        return f"flow={layer.flow!r}"
    if layer.explain is True or any(value for name, value in vars(layer).items() if name.endswith("_hooks")):
        return "it has hooks, which would no longer be called"
    attends = type(layer) is GATConv
    if attends and layer.edge_dim is not None and layer.add_self_loops and layer.fill_value != "mean":
        return f"fill_value={layer.fill_value!r} of edge features, only mean is supported"
    if layer.aggr not in (("add", "sum") if attends else ("mean", "add", "sum")):
        return f"aggr={layer.aggr!r}, only {'add is' if attends else 'mean and add are'} supported"
    linear, shape = layer.lin if attends else layer.lin_l, (layer.out_channels, layer.in_channels)
    if attends:
        shape = (layer.heads * layer.out_channels, layer.in_channels)
    if linear is None or tuple(linear.weight.shape) != shape:
        return f"its weight has another shape than {shape}"
    return None


def _require(layer: nn.Module, kind: type, form: str) -> None:
    reason = why_not(layer) if type(layer) is kind else f"it is a {type(layer).__name__}"
    if reason:
        raise GnnlabError(f"this layer cannot be taken for a fast {kind.__name__}: {reason}")
    if form not in FORMS:
        raise GnnlabError(f"form {form!r}: one of {', '.join(FORMS)} is needed")


def _neighbours(layer: FastGATConv | FastSAGEConv, x: Tensor, edge_index: Tensor | Neighbours) -> Neighbours:
    if not isinstance(x, Tensor) or x.dim() != 2 or x.shape[1] != layer.in_channels:
        given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise GnnlabError(f"{type(layer).__name__}: x must be a tensor (nodes, {layer.in_channels}), not {given}")
    neighbours = layer.graphs.get(edge_index, x.shape[0])
    neighbours.require("x", x, (neighbours.num_sources, layer.in_channels))
    return neighbours


def _dense(form: str, graph: Neighbours) -> bool:
    if form != "auto":
        return form == "dense"
    n = graph.num_nodes
    return n <= DENSE_NODES and n * n <= DENSE_PAIRS_PER_EDGE * graph.num_edges and graph.device.type == "cpu"


def fill_loops(values: Tensor, neighbours: Neighbours) -> Tensor:
    """`values` (E, H), in the order of `neighbours.col`, for the edges of `neighbours.looped`, in their order.

    Loops that were there count for nothing, a node without other edges gets 0: as PyG's
    `add_self_loops(fill_value="mean")` behind `remove_self_loops`. Values may want gradients.
    """
    entries, weight = neighbours.once("filled loops", lambda: _filled(neighbours))
    return weighted_sum_sorted(values, entries, weight.to(values.dtype))


def _filled(neighbours: Neighbours) -> tuple[Neighbours, Tensor]:
    """A graph from the edges to those of the graph with loops, and the weight of each of its entries, float64."""
    edges, nodes = neighbours.num_edges, neighbours.num_nodes
    row, loop = neighbours.row.long(), torch.arange(nodes, device=neighbours.device)
    kept = (neighbours.col != neighbours.row).nonzero().view(-1)
    ends = row.index_select(0, kept)
    # the edges of the graph with loops: those kept and then the loops, sorted by target (`Neighbours.looped`)
    order = torch.cat([ends, loop]).argsort(stable=True)
    place = torch.empty_like(order).index_copy_(0, order, torch.arange(order.shape[0], device=order.device))
    targets = torch.cat([place[: kept.shape[0]], place[kept.shape[0] :].index_select(0, ends)])
    entries = Neighbours.prepare(torch.stack([kept.repeat(2), targets]), order.shape[0], num_sources=edges)
    share = 1 / torch.bincount(ends, minlength=nodes).double().index_select(0, ends)
    return entries, torch.cat([torch.ones_like(share), share]).index_select(0, entries.order)
