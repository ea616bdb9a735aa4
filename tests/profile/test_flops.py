"""The closed formulas give the worked example to the digit, agree with what is counted, and guess nothing."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gnnlab.errors import GnnlabError
from gnnlab.profile.flops import (
    FLOPsEstimator,
    estimate_attention_flops,
    estimate_ffn_flops,
    estimate_linear_flops,
    estimate_model_flops,
    estimate_mpnn_flops,
    estimate_pe_flops,
)
from gnnlab.profile.roofline import count
from gnnlab.workloads.graph_transformer import GraphTransformer

WORKED = {"num_nodes": 500, "num_edges": 2500, "hidden_dim": 256, "num_layers": 6, "num_heads": 8, "ffn_dim": 512}
BREAKDOWN = {
    "input": 65_664_000,
    "attention": 3_171_936_000,
    "ffn": 1_581_312_000,
    "layer_norm": 7_680_000,
    "mpnn": 792_576_000,
    "output": 256_500,
}


def test_the_worked_example_to_the_digit_is_what_the_defaults_give():
    estimate = estimate_model_flops(**WORKED)
    assert estimate.breakdown == BREAKDOWN
    assert estimate.total == 5_619_424_500
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


def test_message_passing_by_hand_and_an_unknown_type_is_an_error_and_not_0():
    linear = 2 * 6 * 4 * 5 + 6 * 5
    assert estimate_mpnn_flops(6, 20, 4, 5, "gin") == 20 * 4 + linear + (2 * 6 * 5 * 5 + 6 * 5) + 6 * 5
    assert estimate_mpnn_flops(6, 20, 4, 5, "gcn") == linear + 20 * 5 + 6 * 5
    assert estimate_mpnn_flops(6, 20, 4, 5, "gat") == linear + 2 * 20 * 5 + 5 * 20 + 20 * 5 + 6 * 5
    with pytest.raises(GnnlabError, match="known are gin, gcn, gat"):
        estimate_model_flops(500, 2500, mpnn_type="sage")


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


@pytest.mark.parametrize("wrong", [{"num_edges": -1}, {"hidden_dim": 2.5}, {"sparse_ratio": 1.5}])
def test_a_wrong_size_is_refused_by_name(wrong):
    with pytest.raises(GnnlabError, match=min(wrong)):
        estimate_model_flops(**(WORKED | wrong))


class Sized(nn.Module):
    def __init__(self, **sizes):
        super().__init__()
        vars(self).update(sizes)


SIZES = {"hidden_dim": 256, "num_layers": 6, "num_heads": 8, "ffn_dim": 512, "mpnn_type": "gin"}


def test_the_estimator_takes_sizes_by_keyword_else_from_the_attributes_of_a_model():
    assert FLOPsEstimator(Sized(**SIZES)).estimate(500, 2500).total == 5_619_424_500
    given = estimate_model_flops(500, 2500, input_dim=7, output_dim=3)
    assert FLOPsEstimator(GraphTransformer(7, out_features=3)).estimate(500, 2500) == given
    given = estimate_model_flops(**WORKED | {"ffn_dim": 100})
    assert FLOPsEstimator(Sized(**SIZES), ffn_dim=100).estimate(500, 2500) == given
    with pytest.raises(GnnlabError, match="no size is called fnn_dim"):
        FLOPsEstimator(Sized(**SIZES), fnn_dim=100)
    lacks = r"Sized has no attribute num_heads, ffn_dim: give FLOPsEstimator\(model, num_heads=..., ffn_dim=...\)"
    with pytest.raises(GnnlabError, match=lacks):
        FLOPsEstimator(Sized(hidden_dim=8, num_layers=1, mpnn_type="gat")).estimate(50, 100)


def test_parameters_are_counted_once_and_lazy_ones_refused():
    first = nn.Linear(4, 4)
    model = nn.Sequential(first, first, nn.Linear(4, 2).requires_grad_(False))
    assert FLOPsEstimator(model).count_parameters() == 20 + 10
    assert FLOPsEstimator(model).count_parameters(trainable_only=True) == 20
    with pytest.raises(GnnlabError, match="call the model once"):
        FLOPsEstimator(nn.LazyLinear(3)).count_parameters()
