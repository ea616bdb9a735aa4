import copy

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import BatchNorm, GATConv, GCNConv, RGCNConv, SAGEConv

from gnnlab.errors import GnnlabError, ParityError
from gnnlab.kernels.layers import FastSAGEConv
from gnnlab.rewrite import zoo
from gnnlab.rewrite.swap import swap


class Mine(GCNConv):
    def message(self, x_j, edge_weight):
        return x_j.mul_(edge_weight.view(-1, 1))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = SAGEConv(6, 8)
        self.norm = BatchNorm(8)
        self.blocks = nn.ModuleList([GATConv(8, 4, heads=2), GATConv(8, 4, heads=2, edge_dim=3)])
        self.shared = SAGEConv(8, 8)
        self.again = self.shared
        self.last = GCNConv(8, 3)
        self.other = Mine(3, 3)

    def forward(self, x, edge_index):
        x = self.norm(self.first(x, edge_index)).relu()
        for block in self.blocks:
            x = block(x, edge_index).relu()
        x = self.again(self.shared(x, edge_index).relu(), edge_index)
        return self.other(self.last(x, edge_index), edge_index)


def example(nodes=50, edges=220):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(nodes, 6, generator=generator)
    return x, torch.randint(nodes, (2, edges), generator=generator)


def test_known_layers_are_replaced_the_others_kept_with_the_reason_and_outputs_verified():
    model, (x, edge_index) = Mixed().eval(), example()
    report = swap(model, (x, edge_index))
    assert report.replaced == (
        ("first", "SAGEConv", "layer"),
        ("blocks.0", "GATConv", "layer"),
        ("blocks.1", "GATConv", "layer"),
        ("shared", "SAGEConv", "layer"),
        ("last", "GCNConv", "bag"),
    )
    assert [(path, kind) for path, kind, _ in report.kept] == [("other", "Mine")]
    assert "a subclass of GCNConv" in report.kept[0][2]
    assert report.parity_error <= 1e-5
    torch.testing.assert_close(report.model(x, edge_index), model(x, edge_index))
    assert report.model.again is report.model.shared  # one layer in two places stays one
    assert "replaced blocks.0 (GATConv)" in str(report) and "kept other (Mine)" in str(report)


def test_the_given_model_stays_as_it_is():
    model, batch = Mixed(), example()
    before = copy.deepcopy(model.state_dict())
    report = swap(model, batch)
    assert type(model.first) is SAGEConv and model.training and report.model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert report.model.first.lin_l.weight is not model.first.lin_l.weight
    report.model.load_state_dict(before)


def test_layers_share_the_graphs_that_they_prepared():
    fast = swap(Mixed(), example()).model
    assert fast.first.graphs is fast.blocks[0].graphs is fast.shared.graphs
    assert len(fast.first.graphs) == 1


def test_a_layer_is_a_model_and_batches_may_be_mappings_and_data():
    x, edge_index = example()
    report = swap(SAGEConv(6, 3), {"x": x, "edge_index": edge_index})
    assert isinstance(report.model, FastSAGEConv) and report.replaced == (("", "SAGEConv", "layer"),)
    assert "replaced the model (SAGEConv)" in str(report)

    class OfData(Mixed):
        def forward(self, data):
            return super().forward(data.x, data.edge_index)

    assert swap(OfData(), Data(x=x, edge_index=edge_index)).parity_error <= 1e-5


def test_without_an_example_nothing_is_verified_and_the_report_says_so():
    report = swap(Mixed())
    assert report.parity_error is None and "outputs not compared" in str(report)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Linear(3, 3), "nothing to replace: no layers of PyG"),
        (nn.Sequential(Mine(3, 3)), "kept 0 (Mine): it is not known, a subclass of GCNConv"),
        (RGCNConv(3, 3, 2), "kept the model (RGCNConv): a new graph for each relation"),
        (GCNConv(3, 3, flow="target_to_source"), "kept the model (GCNConv): flow='target_to_source'"),
    ],
)
def test_a_model_with_nothing_to_replace_is_given_back_with_the_reasons(model, said):
    report = swap(model)
    assert report.model is model and report.replaced == () and said in str(report)
    assert str(report).splitlines()[-1].startswith("nothing to replace")


def test_what_is_no_model_is_refused_in_one_line():
    with pytest.raises(GnnlabError, match=r"needs a torch\.nn\.Module, not str"):
        swap("model")


def test_what_cannot_be_the_same_is_refused_in_one_line():
    class Looks(Mixed):  # gives something else for another kind of layer
        def forward(self, x, edge_index):
            return super().forward(x, edge_index) * (1 if type(self.last) is GCNConv else 2)

    class Breaks(Mixed):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index if type(self.last) is GCNConv else None)

    with pytest.raises(ParityError, match="model with fast layers: outputs differ"):
        swap(Looks(), example())
    with pytest.raises(GnnlabError, match="fails on the example") as error:
        swap(Breaks(), example())
    assert "\n" not in str(error.value)


EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0], [1, 2, 0, 4, 3, 3, 3]])


def gps():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    return pyg.GPSConv(8, pyg.GINEConv(net, edge_dim=3), heads=2).double().eval()


def outputs(model, batch, grad):
    torch.manual_seed(1)
    x = torch.randn(6, 8, dtype=torch.double, requires_grad=grad)
    edge_attr = torch.randn(7, 3, dtype=torch.double)
    with torch.set_grad_enabled(grad):
        out = model(x, EDGES, batch, edge_attr=edge_attr)
    if not grad:
        return [out]
    used = [x, *model.parameters()]
    return [out, *torch.autograd.grad(out.sin().sum(), used)]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("batch", [None, torch.tensor([0, 0, 0, 0, 1, 1])], ids=["one graph", "a padded one"])
def test_gps_with_tiles_gives_outputs_and_gradients_of_pyg(batch, grad):
    model = gps()
    report = swap(model)
    assert ("attn", "MultiheadAttention", zoo.TILED) in report.replaced
    assert list(report.model.state_dict()) == list(model.state_dict())
    for one, other in zip(outputs(report.model, batch, grad), outputs(model, batch, grad), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_no_matrix_of_nodes_by_nodes_is_made_in_inference():
    x = torch.randn(1, 3000, 8)
    model = swap(nn.MultiheadAttention(8, 2, batch_first=True).eval()).model
    mask = torch.zeros(1, 3000, dtype=torch.bool)
    with torch.no_grad(), torch.profiler.profile(profile_memory=True) as profile:
        model(x, x, x, key_padding_mask=mask, need_weights=False)
    assert sum(event.self_cpu_memory_usage > 4 * 3000 * 3000 for event in profile.events()) == 0


def test_attention_weights_that_are_asked_for_are_torchs_own():
    model = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    for one, other in zip(swap(model).model(x, x, x), model(x, x, x), strict=True):
        torch.testing.assert_close(one, other)
