import copy

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, BatchNorm, GATConv, GCNConv, GraphSAGE, SAGEConv

from gnnlab.errors import GnnlabError, ParityError
from gnnlab.kernels.fast import swap
from gnnlab.kernels.layers import FastGATConv, FastSAGEConv


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = SAGEConv(6, 8)
        self.norm = BatchNorm(8)
        self.blocks = nn.ModuleList([GATConv(8, 4, heads=2), GATConv(8, 4, heads=2, edge_dim=3)])
        self.shared = SAGEConv(8, 8)
        self.again = self.shared
        self.last = GCNConv(8, 3)

    def forward(self, x, edge_index):
        x = self.norm(self.first(x, edge_index)).relu()
        for block in self.blocks:
            x = block(x, edge_index).relu()
        x = self.again(self.shared(x, edge_index).relu(), edge_index)
        return self.last(x, edge_index)


def example(nodes=50, edges=220):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(nodes, 6, generator=generator)
    return x, torch.randint(nodes, (2, edges), generator=generator)


def test_known_layers_are_replaced_the_others_kept_with_the_reason_and_outputs_verified():
    model, (x, edge_index) = Mixed().eval(), example()
    report = swap(model, (x, edge_index))
    assert report.replaced == (("first", "SAGEConv"), ("blocks.0", "GATConv"), ("shared", "SAGEConv"))
    assert [(path, kind) for path, kind, _ in report.kept] == [("blocks.1", "GATConv"), ("last", "GCNConv")]
    assert "edge_dim=3" in report.kept[0][2] and "there is none for GCNConv" in report.kept[1][2]
    assert report.parity_error <= 1e-5
    torch.testing.assert_close(report.model(x, edge_index), model(x, edge_index))
    assert report.model.again is report.model.shared  # one layer in two places stays one
    assert "replaced blocks.0 (GATConv)" in str(report) and "kept last (GCNConv)" in str(report)


def test_the_given_model_stays_as_it_is():
    model, batch = Mixed(), example()
    before = copy.deepcopy(model.state_dict())
    report = swap(model, batch)
    assert type(model.first) is SAGEConv and model.training and report.model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert report.model.first.lin_l.weight is not model.first.lin_l.weight
    report.model.load_state_dict(before)


def test_a_model_of_pyg_is_swapped_and_trains():
    x, edge_index = example()
    for model, kind in ((GAT(6, 8, 2, 3, heads=2), FastGATConv), (GraphSAGE(6, 8, 2, 3), FastSAGEConv)):
        fast = swap(model, (x, edge_index)).model
        assert all(type(conv) is kind for conv in fast.convs)
        fast(x, edge_index).square().sum().backward()
        model(x, edge_index).square().sum().backward()
        for one, other in zip(model.parameters(), fast.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-3, atol=1e-4)


def test_layers_share_the_graphs_that_they_prepared():
    fast = swap(Mixed(), example()).model
    assert fast.first.graphs is fast.blocks[0].graphs is fast.shared.graphs
    assert len(fast.first.graphs) == 1


def test_a_layer_is_a_model_and_batches_may_be_mappings_and_data():
    x, edge_index = example()
    report = swap(SAGEConv(6, 3), {"x": x, "edge_index": edge_index})
    assert type(report.model) is FastSAGEConv and report.replaced == (("", "SAGEConv"),)
    assert "replaced the model (SAGEConv)" in str(report)

    class OfData(Mixed):
        def forward(self, data):
            return super().forward(data.x, data.edge_index)

    assert swap(OfData(), Data(x=x, edge_index=edge_index)).parity_error <= 1e-5


def test_without_an_example_nothing_is_verified_and_the_report_says_so():
    report = swap(Mixed())
    assert report.parity_error is None and "outputs not compared" in str(report)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(3, 3), "it has no PyG layers"),
        (nn.Sequential(GCNConv(3, 3)), "0: there is none for GCNConv"),
        (GATConv(3, 3, residual=True), "the model: residual=True"),
        ("model", "needs a torch.nn.Module, not str"),
    ],
)
def test_a_model_without_known_layers_is_refused_in_one_line(model, message):
    with pytest.raises(GnnlabError, match=message) as error:
        swap(model)
    assert "\n" not in str(error.value)


def test_what_cannot_be_the_same_is_refused_in_one_line():
    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GATConv(6, 3)

        def forward(self, x, edge_index):
            return self.conv(x, edge_index, return_attention_weights=True)[0]

    class Looks(Asks):  # gives something else for another kind of layer
        def forward(self, x, edge_index):
            return self.conv(x, edge_index) * (1 if isinstance(self.conv, GATConv) else 2)

    with pytest.raises(GnnlabError, match="fails on the example: the fast GAT") as error:
        swap(Asks(), example())
    assert "\n" not in str(error.value)
    with pytest.raises(ParityError, match="model with fast layers: outputs differ"):
        swap(Looks(), example())
