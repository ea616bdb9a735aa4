"""A whole model in another runtime gives what it gives in torch: on other graphs, with other weights and outputs."""

import copy

import pytest
import torch
from own_models import Bipartite, Pooled, WithEdges, own_sum
from torch import nn
from torch_geometric.data import Data

from gnnlab.errors import Unavailable
from gnnlab.profiling.races import relative_error
from gnnlab.rewrite import around


def graph(nodes, edges, seed=0):
    draw = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(nodes, (2, edges), generator=draw)
    return {"x": torch.randn(nodes, 4, generator=draw), "edge_index": edge_index}


def test_openvino_follows_other_graphs_and_other_weights():
    model = WithEdges(4).eval()
    fast = around.openvino(copy.deepcopy(model), None)
    for nodes, edges in ((9, 20), (30, 71)):
        given = graph(nodes, edges) | {"edge_weight": torch.rand(edges)}
        assert relative_error(model(**given), fast(**given)) < 1e-5
    with torch.no_grad():
        for both in (model, fast):
            both.out.weight.mul_(3)
    assert relative_error(model(**given), fast(**given)) < 1e-5
    assert fast.train()(**given)["classes"].requires_grad


def test_openvino_takes_a_whole_graph():
    model, data = Bipartite(4).eval(), Data(**graph(9, 20), name="mine")
    assert relative_error(model(data), around.openvino(copy.deepcopy(model), None)(data)) < 1e-5


@pytest.mark.filterwarnings("ignore")
def test_onnx_runtime_counts_repeated_edges_on_another_graph():
    model = own_sum(None).eval()
    fast = around.onnxruntime(copy.deepcopy(model), None)
    for nodes, edges in ((9, 20), (12, 71)):
        given = graph(nodes, edges)
        assert relative_error(model(**given), fast(**given)) < 1e-5


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_exported_says_why_in_one_line():
    class Refuses(nn.Module):
        def forward(self, x):
            return x[: int(x.sum())] * len(set(x.flatten().tolist()))

    with pytest.raises(Unavailable, match="torch cannot export it") as caught:
        around.onnxruntime(Refuses().eval(), None)(torch.ones(5))
    assert "\n" not in str(caught.value)


def test_a_copy_is_converted_by_itself():
    given = graph(9, 20) | {"batch": torch.zeros(9, dtype=torch.int64)}
    fast = around.openvino(Pooled(4), None)
    before = fast(**given).clone()
    copied = copy.deepcopy(fast)
    with torch.no_grad():
        copied.lin.bias.add_(1)
    assert torch.allclose(copied(**given), before + 1, atol=1e-5) and torch.allclose(fast(**given), before)
