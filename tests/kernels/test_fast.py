import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, GCNConv

from gnnlab.errors import GnnlabError
from gnnlab.kernels.fast import fast
from gnnlab.kernels.layers import FastGATConv


def test_a_known_module_gets_its_fast_form():
    conv = GATConv(6, 3, heads=2).eval()
    found = fast(conv, form="bag")
    x, edge_index = torch.randn(9, 6), torch.randint(9, (2, 30))
    assert type(found) is FastGATConv and found.form == "bag"
    torch.testing.assert_close(found(x, edge_index), conv(x, edge_index))


@pytest.mark.parametrize("module", [GCNConv(3, 3), nn.Linear(3, 3)])
def test_an_unknown_module_is_refused_in_one_line_that_names_the_way_for_models(module):
    with pytest.raises(GnnlabError, match=rf"no fast form of {type(module).__name__}.*gnnlab\.rewrite\.swap"):
        fast(module)
