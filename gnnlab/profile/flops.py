"""FLOPs of a graph transformer by closed formulas (S1): an estimate before anything is built or run.

    estimate = estimate_model_flops(500, 2500, hidden_dim=256, num_layers=6, num_heads=8, ffn_dim=512)
    estimate.total                      # 5_619_424_500
    estimate.breakdown["attention"]     # 3_171_936_000

Assumptions of S1: a product of (m, k) and (k, n) is 2 m k n; softmax 5, layer norm 5 and GELU 4 an element.
What a model really runs is counted by `roofline.count`. In the formulas N are nodes, E edges, h hidden features, H
heads, f features inside the feed-forward network, i and o features in and out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter

from gnnlab.errors import GnnlabError, whole_numbers

SOFTMAX, LAYER_NORM, GELU = 5, 5, 4  # FLOPs an element


@dataclass(frozen=True)
class FLOPsEstimate:
    """FLOPs in all, and for each component."""

    total: int
    breakdown: dict[str, int]


def estimate_linear_flops(in_features: int, out_features: int, batch_size: int = 1, seq_len: int = 1) -> int:
    """2 B i o + B o for B = batch_size * seq_len rows: the product, and the bias."""
    whole_numbers(1, in_features=in_features, out_features=out_features, batch_size=batch_size, seq_len=seq_len)
    rows = batch_size * seq_len
    return 2 * rows * in_features * out_features + rows * out_features


def estimate_attention_flops(num_nodes: int, hidden_dim: int, num_heads: int, sparse_ratio: float = 1.0) -> int:
    """4 lin(h, h) + P (2 h + 5 H + 2 h), with P = N^2 pairs, or the share `sparse_ratio` (0..1) of them.

    Projections of query, key, value and output; scores, softmax and weighted sum over the pairs.
    """
    whole_numbers(1, num_nodes=num_nodes, hidden_dim=hidden_dim, num_heads=num_heads)
    pairs = round(num_nodes**2 * share_of_pairs(sparse_ratio))
    projections = 4 * estimate_linear_flops(hidden_dim, hidden_dim, num_nodes)
    return projections + pairs * (2 * hidden_dim + SOFTMAX * num_heads + 2 * hidden_dim)


def estimate_mpnn_flops(
    num_nodes: int, num_edges: int, in_features: int, out_features: int, mpnn_type: str = "gin"
) -> int:
    """One layer of message passing: "gin", "gcn" or "gat". Another type is a `GnnlabError`, never 0.

    gin: E i + lin(i, o) + lin(o, o) + N o; gcn: lin(i, o) + E o + N o; gat: lin(i, o) + 2 E o + 5 E + E o + N o.
    """
    whole_numbers(1, num_nodes=num_nodes, in_features=in_features, out_features=out_features)
    whole_numbers(0, num_edges=num_edges)
    n, e, i, o = num_nodes, num_edges, in_features, out_features
    linear = estimate_linear_flops(i, o, n) + n * o
    flops = {
        "gin": linear + e * i + estimate_linear_flops(o, o, n),
        "gcn": linear + e * o,
        "gat": linear + 2 * e * o + SOFTMAX * e + e * o,
    }
    if mpnn_type not in flops:
        raise GnnlabError(f"no formula for message passing of type {mpnn_type!r}; known are {', '.join(flops)}")
    return flops[mpnn_type]


def estimate_ffn_flops(hidden_dim: int, ffn_dim: int, num_nodes: int) -> int:
    """lin(h, f) + 4 N f + lin(f, h): two linear layers with GELU between."""
    whole_numbers(1, hidden_dim=hidden_dim, ffn_dim=ffn_dim, num_nodes=num_nodes)
    into, out_of = (estimate_linear_flops(*d, num_nodes) for d in ((hidden_dim, ffn_dim), (ffn_dim, hidden_dim)))
    return into + GELU * num_nodes * ffn_dim + out_of


def estimate_pe_flops(num_nodes: int, pe_dim: int, pe_type: str = "lap") -> int:
    """The one-time cost of a positional encoding, computed densely; it is not part of a forward pass.

    lap: 9 N^3, all eigenvectors of a symmetric matrix (Golub & Van Loan, Matrix Computations, 8.3), whatever the
    dimension; rwse: N^2 to normalize + 2 N^3 for each of the pe_dim - 1 products; none: 0.
    """
    whole_numbers(1, num_nodes=num_nodes)
    whole_numbers(0, pe_dim=pe_dim)
    if pe_type == "none" or (pe_dim == 0 and pe_type in ("lap", "rwse")):
        return 0
    if pe_type == "lap":
        return 9 * num_nodes**3
    if pe_type == "rwse":
        return num_nodes**2 + 2 * num_nodes**3 * (pe_dim - 1)
    raise GnnlabError(f"no formula for an encoding of type {pe_type!r}; known are lap, rwse, none")


def estimate_model_flops(
    num_nodes: int,
    num_edges: int,
    hidden_dim: int = 256,
    num_layers: int = 6,
    num_heads: int = 8,
    ffn_dim: int = 512,
    mpnn_type: str = "gin",
    sparse_ratio: float = 1.0,
    input_dim: int | None = None,
    output_dim: int = 1,
) -> FLOPsEstimate:
    """One forward pass of a graph transformer: linear in, layers, linear out to `output_dim` values a node.

    A layer is message passing, attention, feed-forward network and two layer norms of 5 N h. `input_dim` is
    `hidden_dim` unless given, as in S1.
    """
    whole_numbers(1, hidden_dim=hidden_dim, num_layers=num_layers)
    layer = {
        "mpnn": estimate_mpnn_flops(num_nodes, num_edges, hidden_dim, hidden_dim, mpnn_type),
        "attention": estimate_attention_flops(num_nodes, hidden_dim, num_heads, sparse_ratio),
        "ffn": estimate_ffn_flops(hidden_dim, ffn_dim, num_nodes),
        "layer_norm": 2 * LAYER_NORM * num_nodes * hidden_dim,
    }
    breakdown = {
        "input": estimate_linear_flops(hidden_dim if input_dim is None else input_dim, hidden_dim, num_nodes),
        **{name: num_layers * flops for name, flops in layer.items()},
        "output": estimate_linear_flops(hidden_dim, output_dim, num_nodes),
    }
    return FLOPsEstimate(sum(breakdown.values()), breakdown)


_NEEDED = ("hidden_dim", "num_layers", "num_heads", "ffn_dim", "mpnn_type")
_ATTRIBUTES = {name: name for name in _NEEDED} | {"input_dim": "in_features", "output_dim": "out_features"}


class FLOPsEstimator:
    """The formulas for a model: sizes given by keyword, else its attributes.

    The attributes are `hidden_dim`, `num_layers`, `num_heads`, `ffn_dim` and `mpnn_type`, and for the width in and out
    `in_features` and `out_features` (S1's where the model lacks them: hidden_dim in, 1 out).

        FLOPsEstimator(model).estimate(num_nodes=500, num_edges=2500)
        FLOPsEstimator(model, ffn_dim=512).estimate(500, 2500)      # the model has no attribute ffn_dim

    Raises:
        GnnlabError: in `estimate`, naming the sizes that it still needs.
    """

    def __init__(self, model: nn.Module, **sizes: Any) -> None:
        if unknown := sizes.keys() - _ATTRIBUTES.keys():
            raise GnnlabError(f"no size is called {', '.join(sorted(unknown))}; sizes are {', '.join(_ATTRIBUTES)}")
        attributes = {name: getattr(model, attribute, None) for name, attribute in _ATTRIBUTES.items()}
        self.model = model
        self.sizes = {name: size for name, size in attributes.items() if isinstance(size, (int, str))} | sizes

    def estimate(self, num_nodes: int, num_edges: int, sparse_ratio: float = 1.0) -> FLOPsEstimate:
        """FLOPs of one forward pass of this model on a graph of that size."""
        if missing := [name for name in _NEEDED if name not in self.sizes]:
            given = ", ".join(f"{name}=..." for name in missing)
            raise GnnlabError(
                f"{type(self.model).__name__} has no attribute {', '.join(missing)}: give FLOPsEstimator(model, "
                f"{given}); for a model that is no graph transformer use roofline.count"
            )
        return estimate_model_flops(num_nodes, num_edges, sparse_ratio=sparse_ratio, **self.sizes)

    def count_parameters(self, trainable_only: bool = False) -> int:
        """Number of parameters, shared ones once. `GnnlabError` when a lazy layer has not seen its input yet."""
        parameters = [p for p in self.model.parameters() if p.requires_grad or not trainable_only]
        if any(isinstance(p, UninitializedParameter) for p in parameters):
            raise GnnlabError(f"{type(self.model).__name__} has lazy layers: call the model once, then count")
        return sum(p.numel() for p in parameters)


def share_of_pairs(sparse_ratio: float) -> float:
    """The share itself. Raises `GnnlabError` unless it is a number from 0 to 1."""
    if isinstance(sparse_ratio, bool) or not isinstance(sparse_ratio, (int, float)) or not 0 <= sparse_ratio <= 1:
        raise GnnlabError(f"sparse_ratio must be a number from 0 to 1, not {sparse_ratio!r}")
    return sparse_ratio
