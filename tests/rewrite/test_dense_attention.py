import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

from gnnlab.rewrite import zoo
from gnnlab.rewrite.swap import swap

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
