"""What others would write gives what PyG gives, or differs where an adjacency cannot hold the graph."""

import functools

import pytest
import torch
from torch_geometric.nn import GCN, GIN, GCNConv, GINConv, GINEConv, GraphConv

from examples.alternatives import variants_of
from gnnlab.errors import GnnlabError
from gnnlab.measure.race import race_variants

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # torch, of its own adjacency
EDGES = torch.tensor([[0, 1, 2, 3, 3, 4], [1, 2, 0, 1, 4, 3]])


@pytest.mark.parametrize("mode", ["plain", "training"])
def test_alternatives_have_the_weights_of_the_layer_and_give_its_results_and_gradients(mode):
    variants = variants_of(GCNConv(4, 3).eval(), EDGES, 6, ["EdgeIndex", "sparse CSR"])
    assert list(variants) == ["PyG", "PyG, EdgeIndex", "PyG, sparse CSR", "gnnlab"]
    raced = race_variants(variants, {"x": torch.randn(6, 4)}, mode=mode, tolerance=1e-4, budget_s=0.01)
    assert {name: raced[name].reason for name in variants} == dict.fromkeys(variants)


def test_an_adjacency_loses_repeated_edges_and_the_race_notices():
    repeated = torch.cat([EDGES, EDGES[:, :2]], dim=1)
    variants = variants_of(GINConv(torch.nn.Linear(4, 3)).eval(), repeated, 6, ["sparse CSR"])
    raced = race_variants(variants, {"x": torch.randn(6, 4)}, mode="plain", budget_s=0.01)
    assert raced["gnnlab"].reason is None
    assert "differs" in raced["PyG, sparse CSR"].reason


@pytest.mark.parametrize("mode", ["plain", "training"])
def test_cached_alternatives_and_a_sparse_x_give_what_the_layer_gives(mode):
    x, which = torch.randn(6, 4).relu(), ["cached", "cached CSR", "sparse x"]
    variants = variants_of(GCN(4, 8, num_layers=2, out_channels=3).eval(), EDGES, 6, which, x=x)
    raced = race_variants(variants, {"x": x}, mode=mode, tolerance=1e-4, budget_s=0.01)
    assert {name: raced[name].reason for name in variants} == dict.fromkeys(variants)
    assert variants["PyG, cached"].layer.convs[0].cached and not variants["PyG"].layer.convs[0].cached
    assert variants["PyG, sparse x"].x.layout is torch.sparse_csr


def test_a_model_with_nothing_to_cache_has_no_cached_alternative():
    x = torch.randn(6, 4)
    variants = variants_of(GIN(4, 8, num_layers=2).eval(), EDGES, 6, ["cached", "cached CSR"], x=x)
    raced = race_variants(variants, {"x": x}, mode="plain", budget_s=0.01)
    assert "can be cached" in raced["PyG, cached"].reason
    assert raced["PyG, cached CSR"].reason is None


def test_edge_features_go_where_their_edges_go():
    layer = GINEConv(torch.nn.Linear(4, 3), edge_dim=2).eval()
    variants = variants_of(layer, EDGES, 6, ["EdgeIndex", "sparse CSR"], torch.rand(EDGES.shape[1], 2))
    raced = race_variants(variants, {"x": torch.randn(6, 4)}, mode="plain", budget_s=0.01)
    assert raced["gnnlab"].reason is None and raced["PyG, EdgeIndex"].reason is None
    assert raced["PyG, sparse CSR"].reason is not None


def test_every_compiled_alternative_of_a_process_is_compiled(monkeypatch):
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    for width in range(1, 11):
        variants = variants_of(GraphConv(width, 3).eval(), EDGES, 6, ["torch.compile"])
        with torch.no_grad():
            variants["torch.compile"](torch.randn(6, width))
    assert len(compiled) == 10


def test_an_alternative_that_is_not_known_is_named():
    with pytest.raises(GnnlabError, match="DGL: no such alternative"):
        variants_of(GCNConv(4, 3), EDGES, 6, ["DGL"])
    with pytest.raises(GnnlabError, match="sparse x: no such alternative"):  # without the features x
        variants_of(GCNConv(4, 3), EDGES, 6, ["sparse x"])


def test_a_captured_layer_is_not_here_without_cuda_and_the_others_are_raced():
    x = torch.randn(6, 4)
    variants = variants_of(GCNConv(4, 3).eval(), EDGES, 6, ["captured"], x=x)
    assert list(variants) == ["PyG", "gnnlab, captured", "gnnlab"]
    raced = race_variants(variants, {"x": x}, mode="plain", tolerance=1e-4, budget_s=0.01)
    missing = raced["gnnlab, captured"]
    assert missing.missing and missing.reason == "not here: CUDA graphs need a CUDA device"
    assert raced["gnnlab"].reason is None and raced["gnnlab"].times_ms is not None
