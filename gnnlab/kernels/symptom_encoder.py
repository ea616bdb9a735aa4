"""The symptom encoder of S0 in a form that computes the same with a fraction of the work.

    fast = FastSymptomEncoder(model)                 # shares the weights of the SymptomGAT, computes at every call
    fixed = HoistedSymptomEncoder(fast)              # in eval keeps the constant until something changes (kept.py)
    packages(fast, ["compiled", "packaged"], folder) # the same through torch.compile, and as a library compiled ahead

What is rewritten, each step exact up to rounding (N nodes, H = 4 heads, C = 128 channels per head):

- The ids are 0..N-1, so the embedding table itself is x (N, 64): nothing is gathered.
- Scores are folded into the weights: a . (W x) = (a W) . x, two rows a head instead of H * C columns.
- Layer 1 aggregates 64 columns a head before the product with W, not 128 after it.
- The mean over nodes is pushed through layer 2: mean_i sum_j alpha_ij (W x_j) = W (sum_j beta_j x_j) with
  beta_j = mean_i alpha_ij. The product with the (256, 512) weights shrinks from N rows to one.
- Attention over a small graph is a dense masked softmax, where an edge that occurs k times counts as + log k; over a
  larger one it is a bag over the sorted edges (int32, no message is ever stored).
- Rows of a batch are one row expanded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnnlab.errors import GnnlabError, one_line
from gnnlab.kernels.neighbours import Neighbours
from gnnlab.workloads.symptom_gat import SymptomGAT

FORMS = ("auto", "dense", "bags")
DENSE_MAX_NODES = 160  # measured with about 13 edges a node, one thread: dense is faster up to here


class Weights(NamedTuple):
    """The parameters in the order in which the rewritten forward takes them."""

    table: Tensor  # (N, 64)
    weight1: Tensor  # (H * C, 64)
    source1: Tensor  # (1, H, C)
    target1: Tensor  # (1, H, C)
    bias1: Tensor  # (H * C)
    weight2: Tensor  # (256, H * C)
    source2: Tensor  # (1, 1, 256)
    target2: Tensor  # (1, 1, 256)
    bias2: Tensor  # (256)


class FastSymptomEncoder(nn.Module):
    """`encoder(batch_size)` -> (batch_size, 256), what `SymptomGAT` gives, from the same parameters.

    The result is a view: one row expanded, stride 0 along the batch, so rows must not be written to. Parameters and
    buffers are those of the `SymptomGAT` itself (same objects, same state_dict keys): training one trains the other. In
    training mode dropout is active and draws the same masks as the original does from the same random state.

    `form` is "dense" (time and memory grow with N^2), "bags" (with N + E), or "auto" by the number of nodes.

    Raises:
        GnnlabError: another model, or an unknown form.
    """

    def __init__(self, model: SymptomGAT, form: str = "auto"):
        super().__init__()
        _check(model, form)
        self.num_nodes = model.num_nodes
        self.form = form if form != "auto" else ("dense" if model.num_nodes <= DENSE_MAX_NODES else "bags")
        self.node_embeddings, self.gat1, self.dropout, self.gat2 = (
            model.node_embeddings,
            model.gat1,
            model.dropout,
            model.gat2,
        )
        self.register_buffer("edge_index", model.edge_index)
        self.register_buffer("edge_weight", model.edge_weight)
        self._structure: tuple[tuple, tuple[Tensor, ...]] | None = None
        self.train(model.training)

    def forward(self, batch_size: int = 1) -> Tensor:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise GnnlabError(f"batch_size must be an integer of 1 or more, got {batch_size!r}")
        weights = self.weights()
        return self.compute(weights, self.structure(weights.table)).expand(batch_size, -1)

    def compute(self, weights: Weights, structure: tuple[Tensor, ...]) -> Tensor:
        """The forward as a function of weights and structure alone -> (1, 256)."""
        attention1, attention2 = (_dense1, _dense2) if self.form == "dense" else (_bags1, _bags2)
        heads = weights.source1.size(1)
        slope1, slope2 = self.gat1.negative_slope, self.gat2.negative_slope
        w1 = weights.weight1.view(heads, -1, weights.table.size(1))  # (H, C, 64)
        folded1 = torch.bmm(torch.cat((weights.source1, weights.target1)).transpose(0, 1), w1)  # (H, 2, 64)
        scores1 = torch.mm(folded1.view(2 * heads, -1), weights.table.t()).view(heads, 2, -1)  # (H, 2, N)
        gathered = attention1(weights.table, scores1, structure, slope1)  # (H, N, 64)
        x = _elu(torch.baddbmm(weights.bias1.view(heads, 1, -1), gathered, w1.transpose(1, 2)))  # (H, N, C)
        if self.training:
            flat = x.transpose(0, 1).reshape(self.num_nodes, -1)  # the original's layout, so its masks
            x = self.dropout(flat).view(self.num_nodes, heads, -1).transpose(0, 1)
        targets = torch.cat((weights.source2, weights.target2)).view(2, -1)
        folded2 = torch.mm(targets, weights.weight2).view(2, heads, -1).permute(1, 2, 0)  # (H, C, 2)
        scores2 = torch.bmm(x, folded2).sum(0)  # (N, 2)
        total = attention2(scores2, structure, slope2)  # (N), N times beta
        mixed = torch.bmm(total.expand(heads, 1, -1), x).view(-1)  # (H * C)
        return torch.addmv(weights.bias2, weights.weight2, mixed, alpha=1 / self.num_nodes).unsqueeze(0)

    def weights(self) -> Weights:
        """The parameters as they are now."""
        if not torch.compiler.is_compiling():
            try:  # past nn.Module.__getattr__, which would cost more than some of the kernels
                modules = self._modules
                first, second = modules["gat1"], modules["gat2"]
                p1, p2 = first._parameters, second._parameters
                return Weights(
                    modules["node_embeddings"]._parameters["weight"],
                    first._modules["lin"]._parameters["weight"],
                    p1["att_src"],
                    p1["att_dst"],
                    p1["bias"],
                    second._modules["lin"]._parameters["weight"],
                    p2["att_src"],
                    p2["att_dst"],
                    p2["bias"],
                )
            except KeyError:  # parametrized (weight norm and the like): computed on access
                pass
        a, b = self.gat1, self.gat2
        return Weights(
            self.node_embeddings.weight, a.lin.weight, a.att_src, a.att_dst, a.bias,
            b.lin.weight, b.att_src, b.att_dst, b.bias,
        )  # fmt: skip

    def structure(self, like: Tensor) -> tuple[Tensor, ...]:
        """The prepared edges on the device and in the precision of `like`; made anew when the edges changed."""
        edges = self.edge_index
        if torch.compiler.is_compiling():
            if self._structure is None:
                raise GnnlabError("call the encoder once before compiling or exporting it: its edges are not prepared")
            return self._structure[1]
        version = None if edges.is_inference() else edges._version
        key = (edges.data_ptr(), version, edges.size(1), like.dtype, like.device)
        if self._structure is None or self._structure[0] != key or version is None:
            with torch.inference_mode(False), torch.no_grad():
                graph = Neighbours.prepare(edges.to(like.device), self.num_nodes, self_loops=True)
                bags = (graph.col, graph.row, graph.rowptr)
                self._structure = (key, bags if self.form == "bags" else (graph.cast("log_counts", like.dtype),))
        return self._structure[1]

    def __getstate__(self) -> dict:
        return super().__getstate__() | {"_structure": None}  # a copy prepares its own


class CompiledSymptomEncoder(nn.Module):
    """`encoder(batch_size)` -> (batch_size, 256), a view as `FastSymptomEncoder` gives, by a compiled function.

    Weights and prepared edges are arguments of what is compiled, not constants in it: a step of an optimizer needs no
    new compilation. Where a compiled form does not hold (training, gradients wanted, another precision or device than
    it was made for), the encoder itself answers.
    """

    def __init__(self, encoder: FastSymptomEncoder, run: Callable[[list[Tensor]], Tensor]):
        super().__init__()
        self.encoder, self._run = encoder, run
        self._kind = _kind(encoder.weights().table, encoder.edge_index)
        self.train(encoder.training)

    def forward(self, batch_size: int = 1) -> Tensor:
        encoder = self._modules["encoder"]
        weights = encoder.weights()
        fits = _kind(weights.table, encoder.edge_index) == self._kind and not encoder.training
        if not fits or (torch.is_grad_enabled() and any(w.requires_grad for w in weights)):
            return encoder(batch_size)
        if type(batch_size) is not int or batch_size < 1:
            raise GnnlabError(f"batch_size must be an integer of 1 or more, got {batch_size!r}")
        rows = self._run([*weights, *encoder.structure(weights.table)])
        return rows.expand(batch_size, -1)


def packages(
    encoder: FastSymptomEncoder, names: Sequence[str], folder: str | Path
) -> dict[str, CompiledSymptomEncoder]:
    """The encoder by each compiler named (compiled, packaged), as forms of a race; packages lie in `folder`."""
    made = {"compiled": lambda: compiled(encoder), "packaged": lambda: ahead_of_time(encoder, folder)}
    with torch.inference_mode():
        encoder(1)  # prepares its edges, which a compiler wants to find
        return {f"rewritten, {name}": made[name]() for name in names}


def compiled(encoder: FastSymptomEncoder) -> CompiledSymptomEncoder:
    """The encoder through `torch.compile`, compiled at its first call (tens of seconds, for the dense form)."""
    function = torch.compile(_Pure(encoder), fullgraph=True, dynamic=False)
    return CompiledSymptomEncoder(encoder, lambda inputs: function(*inputs))


def ahead_of_time(encoder: FastSymptomEncoder, folder: str | Path) -> CompiledSymptomEncoder:
    """The encoder as a library compiled now (tens of seconds) into `folder`/symptom_encoder.pt2.

    Without guards and Python between the kernels it is the fastest form that computes. Needs a C++ compiler;
    `GnnlabError` where the package cannot be made.
    """
    path = Path(folder) / "symptom_encoder.pt2"
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = encoder.weights()
    inputs = tuple(t.detach() for t in (*weights, *encoder.structure(weights.table)))
    was_training = encoder.training
    encoder.eval()
    try:
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's own deprecations
            program = torch.export.export(_Pure(encoder), inputs)
            torch._inductor.aoti_compile_and_package(program, package_path=str(path))
            loader = torch._inductor.aoti_load_package(str(path)).loader
    except Exception as error:
        raise GnnlabError(f"no package of the encoder could be made here: {one_line(error)}") from error
    finally:
        encoder.train(was_training)
    return CompiledSymptomEncoder(encoder, lambda inputs: loader.boxed_run(inputs)[0])


class _Pure(nn.Module):
    """`compute` without parameters of its own: weights and structure come as arguments."""

    def __init__(self, encoder: FastSymptomEncoder):
        super().__init__()
        self._compute = encoder.compute  # a bound method is no submodule, so nothing is registered

    def forward(self, *inputs: Tensor) -> Tensor:
        count = len(Weights._fields)
        return self._compute(Weights(*inputs[:count]), inputs[count:])


def _kind(table: Tensor, edges: Tensor) -> tuple:
    return table.dtype, table.device, table.shape, edges.size(1)


def _elu(x: Tensor) -> Tensor:
    # exp costs less than half of the expm1 in F.elu; absolute error of one rounding of 1
    return torch.maximum(x, x.clamp(max=0).exp_() - 1)


def _dense1(table: Tensor, scores: Tensor, structure: tuple[Tensor, ...], slope: float) -> Tensor:
    (log_counts,) = structure
    source, target = scores.unbind(1)
    logits = target.unsqueeze(2) + source.unsqueeze(1)  # (H, N targets, N sources)
    alpha = torch.softmax(F.leaky_relu_(logits, slope) + log_counts, -1)
    return torch.mm(alpha.view(-1, alpha.size(2)), table).view(scores.size(0), -1, table.size(1))


def _dense2(scores: Tensor, structure: tuple[Tensor, ...], slope: float) -> Tensor:
    (log_counts,) = structure
    source, target = scores.unbind(1)
    logits = F.leaky_relu_(target.unsqueeze(1) + source, slope) + log_counts
    return torch.softmax(logits, -1).sum(0)


def _bags1(table: Tensor, scores: Tensor, structure: tuple[Tensor, ...], slope: float) -> Tensor:
    heads, _, nodes = scores.shape
    source, _, offsets = structure
    weight = _exponentials(scores, structure, slope).view(-1)  # (H * E), head by head
    edges = source.numel()
    columns, shift = source.repeat(heads), torch.arange(heads, device=source.device, dtype=offsets.dtype)
    starts = torch.cat(((offsets[:-1] + edges * shift.unsqueeze(1)).view(-1), (edges * heads) * shift.new_ones(1)))
    summed = _bag(columns, table, starts, weight).view(heads, nodes, -1)
    return summed / _totals(starts, weight).view(heads, nodes, 1)


def _bags2(scores: Tensor, structure: tuple[Tensor, ...], slope: float) -> Tensor:
    source, target, offsets = structure
    weight = _exponentials(scores.t().unsqueeze(0), structure, slope).view(-1)  # (E)
    alpha = weight / _totals(offsets, weight).view(-1).index_select(0, target)
    return torch.zeros_like(scores[:, 0]).index_add(0, source, alpha)


def _exponentials(scores: Tensor, structure: tuple[Tensor, ...], slope: float) -> Tensor:
    """exp(score - largest score of the same target), (H, E): leaky ReLU rises, so the largest source score gives it."""
    source, target, offsets = structure
    from_source, to_target = scores[:, 0], scores[:, 1]  # (H, N)
    with torch.no_grad():
        largest = F.embedding_bag(source, from_source.t().contiguous(), offsets, mode="max", include_last_offset=True)
        top = F.leaky_relu(largest.t() + to_target, slope)  # (H, N)
    logits = F.leaky_relu(from_source.index_select(1, source) + to_target.index_select(1, target), slope)
    return torch.exp(logits - top.index_select(1, target))


def _bag(columns: Tensor, table: Tensor, starts: Tensor, weight: Tensor) -> Tensor:
    return F.embedding_bag(
        columns, table, starts, mode="sum", per_sample_weights=weight, include_last_offset=True
    )  # (bags, F)


def _totals(starts: Tensor, weight: Tensor) -> Tensor:
    return _bag(torch.zeros_like(weight, dtype=starts.dtype), weight.new_ones(1, 1), starts, weight)


def _check(model: SymptomGAT, form: str) -> None:
    if not isinstance(model, SymptomGAT):
        raise GnnlabError(f"a SymptomGAT is needed, got {type(model).__name__}")
    if form not in FORMS:
        raise GnnlabError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    for name in ("gat1", "gat2"):
        if getattr(model, name).dropout:
            raise GnnlabError(f"{name} drops attention weights (dropout > 0), which this form does not; set it to 0")
