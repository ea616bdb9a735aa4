"""The closed formulas give the worked example to the digit, agree with what is counted, and guess nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv, GINConv, GPSConv

from gnnlab.errors import GnnlabError
from gnnlab.profiling.flops import (
    FLOPsEstimator,
    estimate_attention_flops,
    estimate_ffn_flops,
    estimate_linear_flops,
    estimate_model_flops,
    estimate_mpnn_flops,
    estimate_pe_flops,
)
from gnnlab.profiling.roofline import count

WORKED = {"num_nodes": 500, "num_edges": 2500, "hidden_dim": 256, "num_layers": 6, "num_heads": 8, "ffn_dim": 512}
BREAKDOWN = {
    "input": 65_664_000,
    "attention": 3_171_936_000,
    "ffn": 1_581_312_000,
    "layer_norm": 7_680_000,
    "mpnn": 792_576_000,
    "output": 256_500,
}


class Transformer(nn.Module):
    """Layers of PyG's GPS kind, without a word on their sizes."""

    def __init__(self, layers=2, hidden=16, heads=4):
        super().__init__()
        self.blocks = nn.ModuleList(GPSConv(hidden, gin(hidden), heads=heads) for _ in range(layers))
        self.out = nn.Linear(hidden, 3)


def gin(hidden):
    return GINConv(nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden)))


def test_the_worked_example_to_the_digit_is_what_the_defaults_give():
    estimate = estimate_model_flops(**WORKED)
    assert estimate.breakdown == BREAKDOWN
    assert estimate.total == 5_619_424_500
    assert estimate.sizes == WORKED | {"mpnn_type": "gin", "sparse_ratio": 1.0, "input_dim": 256, "output_dim": 1}
    assert estimate_model_flops(500, 2500).total == estimate.total


def test_linear_feed_forward_and_attention_are_what_torch_runs():
    x = torch.ones(10, 8)
    assert estimate_linear_flops(8, 5, 10) == count(nn.Linear(8, 5), (x,)).flops
    assert estimate_linear_flops(8, 5, batch_size=2, seq_len=5) == estimate_linear_flops(8, 5, 10)
    ffn = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    assert estimate_ffn_flops(8, 16, 10) == count(ffn, (x,)).flops
    query, key, value, out = (nn.Linear(8, 8) for _ in range(4))

    def attention():
        heads = (layer(x).view(10, 2, 4).transpose(0, 1) for layer in (query, key, value))
        mixed = F.scaled_dot_product_attention(*(head[None] for head in heads))
        return out(mixed[0].transpose(0, 1).reshape(10, 8))

    assert estimate_attention_flops(10, 8, 2) == count(attention).flops


@pytest.mark.parametrize(
    ("mpnn_type", "flops"),
    [
        ("gin", 20 * 4 + (2 * 6 * 4 * 5 + 6 * 5) + (2 * 6 * 5 * 5 + 6 * 5) + 6 * 5),
        ("gcn", (2 * 6 * 4 * 5 + 6 * 5) + 20 * 5 + 6 * 5),
        ("gat", (2 * 6 * 4 * 5 + 6 * 5) + 2 * 20 * 5 + 5 * 20 + 20 * 5 + 6 * 5),
    ],
)
def test_message_passing_by_hand(mpnn_type, flops):
    assert estimate_mpnn_flops(6, 20, 4, 5, mpnn_type) == flops


@pytest.mark.parametrize("unknown", ["sage", "GIN", "", None])
def test_an_unknown_layer_type_is_an_error_and_not_0(unknown):
    with pytest.raises(GnnlabError, match="known are gin, gcn, gat"):
        estimate_mpnn_flops(6, 20, 4, 5, unknown)
    with pytest.raises(GnnlabError, match="known are gin, gcn, gat"):
        estimate_model_flops(500, 2500, mpnn_type=unknown)


def test_sparse_attention_scales_the_pairs_only():
    dense, half = estimate_attention_flops(10, 8, 2), estimate_attention_flops(10, 8, 2, sparse_ratio=0.5)
    pairs = 10 * 10 * (2 * 8 + 5 * 2 + 2 * 8)
    assert dense - half == pairs / 2
    assert dense - estimate_attention_flops(10, 8, 2, sparse_ratio=0) == pairs


def test_encodings():
    assert estimate_pe_flops(100, 16, "lap") == 9 * 100**3
    assert estimate_pe_flops(100, 16, "rwse") == 100**2 + 15 * 2 * 100**3
    assert estimate_pe_flops(100, 0, "none") == estimate_pe_flops(100, 0, "lap") == 0
    with pytest.raises(GnnlabError, match="known are lap, rwse, none"):
        estimate_pe_flops(100, 16, "learned")


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ({"num_nodes": 0}, "num_nodes"),
        ({"num_edges": -1}, "num_edges"),
        ({"hidden_dim": 2.5}, "hidden_dim"),
        ({"num_heads": True}, "num_heads"),
        ({"ffn_dim": "512"}, "ffn_dim"),
        ({"num_layers": None}, "num_layers"),
        ({"sparse_ratio": 1.5}, "sparse_ratio"),
        ({"sparse_ratio": float("nan")}, "sparse_ratio"),
    ],
)
def test_a_size_that_is_none_is_refused_by_name(sizes, named):
    with pytest.raises(GnnlabError, match=named):
        estimate_model_flops(**(WORKED | sizes))


def test_the_estimator_takes_sizes_that_the_model_tells():
    model = nn.Linear(1, 1)
    for name, value in {"hidden_dim": 256, "num_layers": 6, "heads": 8, "ffn_dim": 512, "mpnn_type": "GIN"}.items():
        setattr(model, name, value)
    model.in_features, model.out_features = 256, 1
    assert FLOPsEstimator(model).estimate(500, 2500).total == 5_619_424_500


def test_the_estimator_reads_sizes_off_the_layers():
    sizes = FLOPsEstimator(Transformer(layers=3, hidden=16, heads=4)).estimate(50, 100).sizes
    told = {name: sizes[name] for name in ("hidden_dim", "num_layers", "num_heads", "ffn_dim", "mpnn_type")}
    assert told == {"hidden_dim": 16, "num_layers": 3, "num_heads": 4, "ffn_dim": 32, "mpnn_type": "gin"}


def test_a_size_given_by_keyword_goes_first():
    assert FLOPsEstimator(Transformer(), ffn_dim=100).estimate(50, 100).sizes["ffn_dim"] == 100
    with pytest.raises(GnnlabError, match="no size is called fnn_dim"):
        FLOPsEstimator(Transformer(), fnn_dim=100)


def test_what_the_model_does_not_tell_is_named_and_not_guessed():
    with pytest.raises(GnnlabError, match="does not tell its hidden_dim, num_layers, num_heads, ffn_dim, mpnn_type"):
        FLOPsEstimator(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))).estimate(50, 100)
    mixed = Transformer()
    mixed.blocks[1].conv = GCNConv(16, 16)
    with pytest.raises(GnnlabError, match="does not tell its mpnn_type"):
        FLOPsEstimator(mixed).estimate(50, 100)


def test_parameters_are_counted_once_and_lazy_ones_refused():
    first = nn.Linear(4, 4)
    model = nn.Sequential(first, first, nn.Linear(4, 2).requires_grad_(False))
    assert FLOPsEstimator(model).count_parameters() == 20 + 10
    assert FLOPsEstimator(model).count_parameters(trainable_only=True) == 20
    with pytest.raises(GnnlabError, match="call the model once"):
        FLOPsEstimator(nn.LazyLinear(3)).count_parameters()
