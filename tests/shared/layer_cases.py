"""Layers of PyG with options, graphs, and what a layer gives and lets flow back: imports nothing of gnnlab.

`python layer_cases.py FILE` writes the results of all layers on all graphs from a process that saw PyG alone.
"""

import sys

import torch
from torch import nn
from torch_geometric import nn as pyg

IN, OUT, EDGE = 6, 8, 3
DEGREES = torch.tensor([2, 3, 4, 1])
EVERY = ["mean", "min", "max", "std", "sum", "var"]
SCALERS = ["identity", "amplification", "attenuation", "linear", "inverse_linear"]
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def network(width=IN):
    return nn.Sequential(nn.Linear(width, OUT), nn.ReLU(), nn.Linear(OUT, OUT))


# name: (layer, what it is called with beside x and edges)
CASES = {
    "AGNN": (lambda: pyg.AGNNConv(), ""),
    "APPNP": (lambda: pyg.APPNP(3, 0.1), "weight"),
    "APPNP without norm": (lambda: pyg.APPNP(2, 0.1, normalize=False), "weight"),
    "Cheb": (lambda: pyg.ChebConv(IN, OUT, 3), "weight"),
    "ClusterGCN": (lambda: pyg.ClusterGCNConv(IN, OUT, diag_lambda=0.5), ""),
    "EG": (lambda: pyg.EGConv(IN, OUT, num_heads=4, aggregators=["sum", "symnorm", "max", "std"]), ""),
    "FA": (lambda: pyg.FAConv(IN), "x_0"),
    "GAT": (lambda: pyg.GATConv(IN, 4, heads=2), ""),
    "GAT with edges": (lambda: pyg.GATConv(IN, 4, heads=2, edge_dim=EDGE), "attr"),
    "GAT with edges, no loops, mean": (
        lambda: pyg.GATConv(IN, 4, heads=2, edge_dim=EDGE, add_self_loops=False, concat=False),
        "attr",
    ),
    "GAT residual": (lambda: pyg.GATConv(IN, 4, heads=2, residual=True), ""),
    "GAT bipartite": (lambda: pyg.GATConv((IN, IN), 4, heads=2, add_self_loops=False), "bipartite"),
    "GATv2": (lambda: pyg.GATv2Conv(IN, 4, heads=2), ""),
    "GATv2 one head, shared": (lambda: pyg.GATv2Conv(IN, 4, share_weights=True, residual=True), ""),
    "GATv2 with edges": (lambda: pyg.GATv2Conv(IN, 4, heads=2, edge_dim=EDGE, fill_value="max"), "attr"),
    "GATv2 bipartite": (lambda: pyg.GATv2Conv((IN, IN), 4, heads=2, add_self_loops=False), "bipartite"),
    "GCN": (lambda: pyg.GCNConv(IN, OUT), "weight"),
    "GCN plain": (lambda: pyg.GCNConv(IN, OUT), ""),
    "GCN improved": (lambda: pyg.GCNConv(IN, OUT, improved=True, bias=False), "weight"),
    "GCN without norm": (lambda: pyg.GCNConv(IN, OUT, normalize=False), "weight"),
    "GCN max": (lambda: pyg.GCNConv(IN, OUT, aggr="max"), "weight"),
    "GCN2": (lambda: pyg.GCN2Conv(IN, 0.1), "x_0"),
    "GEN": (lambda: pyg.GENConv(IN, OUT, norm="layer"), ""),
    "GIN": (lambda: pyg.GINConv(network(), train_eps=True), ""),
    "GIN mean": (lambda: pyg.GINConv(network(), aggr="mean"), ""),
    "GIN narrow": (lambda: pyg.GINConv(pyg.MLP([IN, 2, OUT], norm="layer_norm", dropout=0.2)), ""),
    "GIN bipartite": (lambda: pyg.GINConv(network()), "bipartite"),
    "GINE": (lambda: pyg.GINEConv(network(), edge_dim=EDGE, train_eps=True), "attr"),
    "GatedGraph": (lambda: pyg.GatedGraphConv(OUT, 2), "weight"),
    "Graph": (lambda: pyg.GraphConv(IN, OUT), "weight"),
    "Graph mean": (lambda: pyg.GraphConv(IN, OUT, aggr="mean"), "weight"),
    "Graph max": (lambda: pyg.GraphConv(IN, OUT, aggr="max"), ""),
    "Graph several": (lambda: pyg.GraphConv(IN, OUT, aggr="std"), ""),
    "LE": (lambda: pyg.LEConv(IN, OUT), "weight"),
    "LG": (lambda: pyg.LGConv(), "weight"),
    "MF": (lambda: pyg.MFConv(IN, OUT, max_degree=3), ""),
    "MixHop": (lambda: pyg.MixHopConv(IN, OUT), "weight"),
    "PDN": (lambda: pyg.PDNConv(IN, OUT, EDGE, 4), "attr"),
    "PNA": (
        lambda: pyg.PNAConv(IN, OUT, ["mean", "max", "std"], ["identity", "amplification"], DEGREES, edge_dim=EDGE),
        "attr",
    ),
    "RGCN": (lambda: pyg.RGCNConv(IN, OUT, 3, num_bases=2), "types"),
    "RGCN in blocks": (lambda: pyg.RGCNConv(IN, OUT, 4, num_blocks=2, aggr="sum", root_weight=False), "types"),
    "RGCN mean": (lambda: pyg.RGCNConv(IN, OUT, 3, bias=False), "types"),
    "ResGated": (lambda: pyg.ResGatedGraphConv(IN, OUT, edge_dim=EDGE), "attr"),
    "SAGE mean": (lambda: pyg.SAGEConv(IN, OUT), ""),
    "SAGE sum": (lambda: pyg.SAGEConv(IN, OUT, aggr="sum", normalize=True), ""),
    "SAGE max": (lambda: pyg.SAGEConv(IN, OUT, aggr="max", project=True), ""),
    "SAGE several": (lambda: pyg.SAGEConv(IN, OUT, aggr=["mean", "max"]), ""),
    "SAGE bipartite": (lambda: pyg.SAGEConv((IN, IN), OUT), "bipartite"),
    "SAGE bipartite max": (lambda: pyg.SAGEConv((IN, IN), OUT, aggr="max"), "bipartite"),
    "SG": (lambda: pyg.SGConv(IN, OUT, K=2), "weight"),
    "SSG": (lambda: pyg.SSGConv(IN, OUT, alpha=0.1, K=2), "weight"),
    "Signed": (lambda: pyg.SignedConv(IN, OUT, first_aggr=True), "signed"),
    "Simple": (lambda: pyg.SimpleConv("mean", "self_loop"), "weight"),
    "TAG": (lambda: pyg.TAGConv(IN, OUT, K=2), "weight"),
    "Transformer": (lambda: pyg.TransformerConv(IN, 4, heads=2), ""),
    "Transformer with edges": (lambda: pyg.TransformerConv(IN, 4, heads=2, edge_dim=EDGE, beta=True), "attr"),
    "Transformer mean": (lambda: pyg.TransformerConv(IN, 4, heads=2, concat=False, root_weight=False), ""),
    "WL": (lambda: pyg.WLConvContinuous(), "weight"),
    "GPS": (lambda: pyg.GPSConv(IN, pyg.GINConv(nn.Linear(IN, IN)), heads=2, norm="layer"), ""),
    "CG": (lambda: pyg.CGConv(IN), ""),
    "CG with edges": (lambda: pyg.CGConv(IN, EDGE, batch_norm=True), "attr"),
    "DirGNN": (lambda: pyg.DirGNNConv(pyg.GCNConv(IN, OUT)), ""),
    "EdgeConv": (lambda: pyg.EdgeConv(network(2 * IN)), ""),
    "EdgeConv of PyG's MLP": (lambda: pyg.EdgeConv(pyg.MLP([2 * IN, 8, 8], norm=None, plain_last=False)), ""),
    "EdgeConv mean": (lambda: pyg.EdgeConv(nn.Sequential(nn.Linear(2 * IN, 8)), aggr="mean"), ""),
    "FiLM": (lambda: pyg.FiLMConv(IN, OUT), ""),
    "GEN with edges": (
        lambda: pyg.GENConv(IN, OUT, edge_dim=EDGE, t=0.5, learn_t=True, msg_norm=True, norm="layer"),
        "attr",
    ),
    "GEN, half a gradient": (lambda: pyg.GENConv(IN, IN, aggr="softmax_sg", t=0.1, edge_dim=IN, norm="layer"), "wide"),
    "GEN max": (lambda: pyg.GENConv(IN, OUT, aggr="max", edge_dim=EDGE, norm="layer"), "attr"),
    "GEN sum": (lambda: pyg.GENConv(IN, OUT, aggr="add", edge_dim=EDGE, norm="layer"), "attr"),
    "GINE max": (lambda: pyg.GINEConv(network(), aggr="max"), "wide"),
    "NNConv": (lambda: pyg.NNConv(IN, 4, nn.Sequential(nn.Linear(EDGE, 5), nn.ReLU(), nn.Linear(5, IN * 4))), "attr"),
    "NNConv mean": (lambda: pyg.NNConv(IN, 4, nn.Linear(EDGE, IN * 4, bias=False), "mean", root_weight=False), "attr"),
    "PNA with towers": (lambda: pyg.PNAConv(IN, OUT, EVERY, SCALERS, DEGREES, edge_dim=EDGE, towers=2), "attr"),
    "PNA, towers apart": (
        lambda: pyg.PNAConv(IN, OUT, EVERY[1:], SCALERS, DEGREES, towers=2, divide_input=True, post_layers=2),
        "",
    ),
    "ResGated plain": (lambda: pyg.ResGatedGraphConv(IN, OUT, root_weight=False), ""),
    "SAGE max alone": (lambda: pyg.SAGEConv(IN, 3, aggr="max"), ""),
    "SAGE without root": (lambda: pyg.SAGEConv(IN, 3, root_weight=False, bias=False), ""),
    "SAGE to one": (lambda: pyg.SAGEConv(IN, 1), ""),
    "GIN that begins with a norm": (lambda: pyg.GINConv(nn.Sequential(nn.LayerNorm(IN), nn.Tanh())), ""),
    "GAT of wide heads": (lambda: pyg.GATConv(IN, 9, heads=2, negative_slope=0.7, concat=False, bias=False), ""),
    "GAT of one head with edges": (lambda: pyg.GATConv(IN, 9, edge_dim=EDGE), "attr"),
    "GATv2 with mean loops": (lambda: pyg.GATv2Conv(IN, 4, heads=3, edge_dim=EDGE, negative_slope=0.5), "attr"),
    "Transformer without bias": (lambda: pyg.TransformerConv(IN, 4, heads=4, beta=True, bias=False), ""),
    "FiLM sum": (lambda: pyg.FiLMConv(IN, 4, aggr="sum"), ""),
    "GEN softmax": (lambda: pyg.GENConv(IN, IN, t=0.3, norm="layer"), ""),
    "GEN mean": (lambda: pyg.GENConv(IN, OUT, aggr="mean", edge_dim=EDGE, norm="layer"), "attr"),
    "GEN, learned": (lambda: pyg.GENConv(IN, OUT, learn_t=True, msg_norm=True, norm="layer"), ""),
    "GINE mean": (lambda: pyg.GINEConv(network(), aggr="mean"), "wide"),
    "EdgeConv sum": (lambda: pyg.EdgeConv(nn.Sequential(nn.Linear(2 * IN, 8), nn.Tanh()), aggr="sum"), ""),
    "AntiSymmetric": (lambda: pyg.AntiSymmetricConv(IN, pyg.GCNConv(IN, IN)), ""),
}
# name: (nodes, edges): drawn among fewer nodes, so that some are isolated; edges repeat, and some are self-loops
GRAPHS = {"many edges": (13, 60), "few edges": (12, 7), "no edges": (4, 0), "one node": (1, 0), "a self-loop": (1, 1)}


def edges_of(name, seed=0):
    nodes, edges = GRAPHS[name]
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(max(1, nodes - 3), (2, edges), generator=generator)
    if edges > 4:
        edge_index[:, 1] = edge_index[:, 0]
        edge_index[1, 2] = edge_index[0, 2]
    return edge_index


def build(name):
    """The layer in double precision, always with the same parameters."""
    torch.manual_seed(7)
    return CASES[name][0]().double().eval()


def arguments(name, edge_index, nodes, seed=0):
    """(inputs that want gradients, what the layer is called with)."""
    generator = torch.Generator().manual_seed(seed)
    kind = {"dtype": torch.double, "generator": generator}
    x = torch.randn(nodes, IN, **kind, requires_grad=True)
    other = torch.randn(nodes, IN, **kind, requires_grad=True)
    weight = (0.1 + torch.rand(edge_index.shape[1], **kind)).requires_grad_()
    attr = torch.randn(edge_index.shape[1], EDGE, **kind, requires_grad=True)
    types = torch.randint(3, (edge_index.shape[1],), generator=generator)
    wide = torch.randn(edge_index.shape[1], IN, **kind, requires_grad=True)
    return {
        "": ([x], (x, edge_index)),
        "weight": ([x, weight], (x, edge_index, weight)),
        "attr": ([x, attr], (x, edge_index, attr)),
        "wide": ([x, wide], (x, edge_index, wide)),
        "types": ([x], (x, edge_index, types)),
        "x_0": ([x, other], (x, other, edge_index)),
        "bipartite": ([x, other], ((x, other), edge_index)),
        "signed": ([x], (x, edge_index, edge_index.flip(0))),
    }[CASES[name][1]]


def results(layer, inputs, called):
    """The output, and the gradient of each input and parameter (None where none flows)."""
    out = layer(*called)
    wave = torch.arange(1, out.numel() + 1, dtype=out.dtype, device=out.device).sin().view_as(out)
    wanted = [*inputs, *(p for p in layer.parameters() if p.requires_grad)]
    return [out.detach(), *torch.autograd.grad((out * wave).sum(), wanted, allow_unused=True)]


def assert_same(ours, expected, **close):
    """Equal tensors, and none where there is none."""
    for at, (one, other) in enumerate(zip(ours, expected, strict=True)):
        assert (one is None) == (other is None), f"tensor {at} gets a gradient in one of them only"
        if one is not None:
            torch.testing.assert_close(one, other, **CLOSE | close, msg=lambda text, at=at: f"tensor {at}: {text}")


def everything():
    values = {}
    for name in CASES:
        for graph, (nodes, _) in GRAPHS.items():
            inputs, called = arguments(name, edges_of(graph), nodes)
            for at, value in enumerate(results(build(name), inputs, called)):
                if value is not None:
                    values[f"{name}/{graph}/{at}"] = value.contiguous()
    return values


if __name__ == "__main__":
    from safetensors.torch import save_file

    save_file(everything(), sys.argv[1])
    assert not any(name.startswith("gnnlab") for name in sys.modules)
