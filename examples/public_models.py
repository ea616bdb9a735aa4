"""Models as people write them, with what their forward takes: what `swap` is measured on.

    gnnlab swap examples.public_models:gcn --inputs examples.public_models:nodes

Each name in `MODELS` is a function of this module, `gcn()`, that returns a new model of PyG's layers, PyG's models or
layers of one's own. Beside it stands the function of its inputs, `nodes()`, which returns what forward takes, as a
tuple: a graph of 5,000 nodes and 40,000 edges with 64 features, drawn with a seed, or 256 molecules of about 20 atoms.
`nodes(0.01)` is one of a hundredth of the size, which the same models take.
"""

from collections.abc import Callable

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn import models
from torch_geometric.utils import to_dense_batch

NODES, EDGES, MOLECULES, ATOMS = 5_000, 40_000, 256, 20
F, H, C, D = 64, 64, 16, 16  # features of a node, hidden channels, classes, features of an edge
RELATIONS = 4
TYPES = ["author", "paper"]
LINKS = [("author", "writes", "paper"), ("paper", "written_by", "author"), ("paper", "cites", "paper")]
DEGREES = torch.tensor([0, 2, 10, 28, 57, 92, 122, 140, 140, 124, 99, 72, 48, 30, 17, 19])  # how many nodes have each


# ---- what forward takes ---------------------------------------------------------------------------------------------


def _drawn(scale: float, seed: int = 0) -> tuple[Tensor, Tensor, torch.Generator]:
    """x (N, F), edge_index (2, E), and a generator for what else is drawn."""
    generator, count = torch.Generator().manual_seed(seed), int(NODES * scale)
    x = torch.randn(count, F, generator=generator)
    return x, torch.randint(count, (2, int(EDGES * scale)), generator=generator), generator


def nodes(scale: float = 1.0) -> tuple:
    """x (N, F), edge_index (2, E)."""
    return _drawn(scale)[:2]


def all_nodes(scale: float = 1.0) -> tuple:
    """x of all nodes whatever the scale, edge_index (2, E)."""
    return _drawn(1.0)[0], _drawn(scale)[1]


def edges(scale: float = 1.0) -> tuple:
    """edge_index (2, E) alone, of nodes whose features are learned."""
    return _drawn(scale)[1:2]


def weighted(scale: float = 1.0) -> tuple:
    """x, edge_index, edge_weight (E,)."""
    x, edge_index, generator = _drawn(scale)
    return x, edge_index, torch.rand(edge_index.shape[1], generator=generator) + 0.1


def edge_features(scale: float = 1.0) -> tuple:
    """x, edge_index, edge_attr (E, D)."""
    x, edge_index, generator = _drawn(scale)
    return x, edge_index, torch.randn(edge_index.shape[1], D, generator=generator)


def relations(scale: float = 1.0) -> tuple:
    """x, edge_index, edge_type (E,)."""
    x, edge_index, generator = _drawn(scale)
    return x, edge_index, torch.randint(RELATIONS, (edge_index.shape[1],), generator=generator)


def pairs(scale: float = 1.0) -> tuple:
    """x, edge_index, pairs (2, E / 4) of nodes that may be linked."""
    x, edge_index, generator = _drawn(scale)
    return x, edge_index, torch.randint(len(x), (2, edge_index.shape[1] // 4), generator=generator)


def signed(scale: float = 1.0) -> tuple:
    """x, the edges of friends, the edges of foes."""
    x, edge_index = nodes(scale)
    return x, *edge_index.tensor_split(2, dim=1)


def one_graph(scale: float = 1.0) -> tuple:
    """x, edge_index, batch (N,) of zeros."""
    x, edge_index = nodes(scale)
    return x, edge_index, torch.zeros(len(x), dtype=torch.long)


def two_kinds(scale: float = 1.0) -> tuple:
    """x of authors and papers, half of the nodes each; edges of three kinds, half of all each."""
    drawn = [_drawn(scale / 2, seed) for seed in range(len(LINKS))]
    x = {kind: one[0] for kind, one in zip(TYPES, drawn, strict=False)}
    return x, {link: one[1] for link, one in zip(LINKS, drawn, strict=True)}


def molecules(scale: float = 1.0) -> tuple:
    """x (N, F), edge_index, edge_attr (E, D), batch (N,): rings of 15 to 25 atoms with a bond across, both ways."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(ATOMS - 5, ATOMS + 6, (max(2, int(MOLECULES * scale)),), generator=generator)
    starts = sizes.cumsum(0) - sizes
    batch = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    atom = torch.arange(len(batch)) - starts[batch]
    ring = torch.stack([torch.arange(len(batch)), starts[batch] + (atom + 1) % sizes[batch]])
    across = torch.stack([starts, starts + sizes // 2])
    bonds = torch.cat([ring, across], dim=1)
    edge_index = torch.cat([bonds, bonds.flip(0)], dim=1)
    x, edge_attr = (torch.randn(count, width, generator=generator) for count, width in
                    ((len(batch), F), (edge_index.shape[1], D)))  # fmt: skip
    return x, edge_index, edge_attr, batch


def atoms(scale: float = 1.0) -> tuple:
    """z (N,) atomic numbers, pos (N, 3), batch (N,) of the molecules."""
    x, _, _, batch = molecules(scale)
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, 10, (len(x),), generator=generator), 3 * torch.randn(len(x), 3, generator=generator), batch


# ---- models ---------------------------------------------------------------------------------------------------------


def stack(make: Callable[[int, int], nn.Module], values: str = "", *, out: int = C) -> nn.Module:
    """Two layers `make(in, out)` with a ReLU between; `values` names what they are called with beside x, edge_index."""
    named = "x, edge_index" + (f", {values}" if values else "")
    return pyg.Sequential(named, [(make(F, H), f"{named} -> x"), nn.ReLU(), (make(H, out), f"{named} -> x")])


def behind_network(propagation: nn.Module) -> nn.Module:
    network = [(nn.Linear(F, H), "x -> x"), nn.ReLU(), (nn.Linear(H, C), "x -> x")]
    return pyg.Sequential("x, edge_index", [*network, (propagation, "x, edge_index -> x")])


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, H), nn.BatchNorm1d(H), nn.ReLU(), nn.Linear(H, outputs))


def gcn2() -> nn.Module:
    layers = [(pyg.GCN2Conv(H, alpha=0.1, theta=0.5, layer=at + 1), "x, x_0, edge_index -> x") for at in range(8)]
    behind = [one for layer in layers for one in (layer, nn.ReLU())]
    first = [(nn.Linear(F, H), "x -> x"), (nn.ReLU(), "x -> x_0"), (nn.Identity(), "x_0 -> x")]
    return pyg.Sequential("x, edge_index", [*first, *behind, (nn.Linear(H, C), "x -> x")])


def deeper_gcn() -> nn.Module:
    convs = [pyg.GENConv(H, H, aggr="softmax", learn_t=True, num_layers=2, norm="layer") for _ in range(4)]
    layers = [(pyg.DeepGCNLayer(conv, nn.LayerNorm(H), nn.ReLU(), block="res+", dropout=0.1), "x, edge_index -> x")
              for conv in convs]  # fmt: skip
    return pyg.Sequential("x, edge_index", [(nn.Linear(F, H), "x -> x"), *layers, (nn.Linear(H, C), "x -> x")])


def rev_gnn() -> nn.Module:
    layers = [(models.GroupAddRev(pyg.SAGEConv(H // 2, H // 2), num_groups=2), "x, edge_index -> x") for _ in range(3)]
    return pyg.Sequential("x, edge_index", [(nn.Linear(F, H), "x -> x"), *layers, (nn.Linear(H, C), "x -> x")])


def on_molecules(make: Callable[[int], nn.Module], arguments: str = "x, edge_index, edge_attr") -> nn.Module:
    """Three layers `make(width)`, each with BatchNorm, whose sum over the atoms of a molecule gives one number."""
    layers = [one for _ in range(3) for one in ((make(H), f"{arguments} -> x"), nn.BatchNorm1d(H), nn.ReLU())]
    readout = [(pyg.global_add_pool, "x, batch -> x"), (nn.Linear(H, 1), "x -> x")]
    return pyg.Sequential("x, edge_index, edge_attr, batch", [(nn.Linear(F, H), "x -> x"), *layers, *readout])


class GPSLayer(pyg.GPSConv):
    """A layer of GPS that takes its arguments in the order of the others."""

    def __init__(self, width: int):
        super().__init__(width, pyg.GINEConv(network(width, width), edge_dim=D), heads=4)

    def forward(self, x, edge_index, edge_attr, batch):
        return super().forward(x, edge_index, batch, edge_attr=edge_attr)


def nn_conv(width: int) -> nn.Module:
    return pyg.NNConv(width, width, nn.Sequential(nn.Linear(D, 16), nn.ReLU(), nn.Linear(16, width * width)), "mean")


def all_pairs(pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Edges between all atoms of a molecule within 10 angstrom, and their lengths."""
    dense, atom = to_dense_batch(pos, batch)  # (molecules, atoms, 3)
    near = torch.cdist(dense, dense) < 10.0
    molecule, *ends = (near & atom.unsqueeze(1) & atom.unsqueeze(2)).nonzero(as_tuple=True)
    first = atom.sum(dim=1).cumsum(0) - atom.sum(dim=1)
    edge_index = torch.stack([first[molecule] + end for end in ends])
    edge_index = edge_index[:, ends[0] != ends[1]]
    return edge_index, (pos[edge_index[0]] - pos[edge_index[1]]).norm(dim=-1)


class Links(nn.Module):
    """Scores of pairs of nodes: the products of what an encoder makes of them."""

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, x, edge_index, pairs):
        z = self.encoder(x, edge_index)
        return (z[pairs[0]] * z[pairs[1]]).sum(dim=-1)


class Kinds(nn.Module):
    """Classes of papers, from layers for several kinds of nodes."""

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers, self.last = nn.ModuleList(layers), nn.Linear(H, C)

    def forward(self, x, edge_index):
        for layer in self.layers:
            x = {kind: rows.relu() for kind, rows in layer(x, edge_index).items()}
        return self.last(x["paper"])


class WeightedSum(pyg.MessagePassing):
    """A layer of one's own: rows of the neighbours with the weights of the edges, each channel with a factor."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(aggr="add")
        self.lin, self.scale = nn.Linear(inputs, outputs), nn.Parameter(torch.tensor(0.5))

    def forward(self, x, edge_index, edge_weight):
        return self.propagate(edge_index, x=self.lin(x), edge_weight=edge_weight)

    def message(self, x_j, edge_weight):
        return self.scale * edge_weight.view(-1, 1) * x_j


class MeanOfNetwork(pyg.MessagePassing):
    """A layer of one's own: the mean of a network of both ends of each edge."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(aggr="mean")
        self.network = nn.Sequential(nn.Linear(2 * inputs, H), nn.ReLU(), nn.Linear(H, outputs))

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        return self.network(torch.cat([x_i, x_j], dim=-1))


def shuffled(x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
    return x.flip(0), edge_index


PNA = {"aggregators": ["mean", "min", "max", "std"], "scalers": ["identity", "amplification"], "deg": DEGREES}
METADATA = TYPES, LINKS

MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., tuple]]] = {
    "gcn": (lambda: models.GCN(F, H, 2, C), nodes),
    "gcn_weighted": (lambda: models.GCN(F, H, 2, C), weighted),
    "gcn_jk": (lambda: models.GCN(F, H, 3, C, jk="cat", norm="batch_norm", dropout=0.5), nodes),
    "sage": (lambda: models.GraphSAGE(F, H, 2, C), nodes),
    "sage_max": (lambda: models.GraphSAGE(F, H, 2, C, aggr="max"), nodes),
    "gin": (lambda: models.GIN(F, H, 2, C), nodes),
    "gat": (lambda: models.GAT(F, H, 2, C, heads=8), nodes),
    "gat_edges": (lambda: stack(lambda i, o: pyg.GATConv(i, o, edge_dim=D), "edge_attr"), edge_features),
    "gatv2": (lambda: models.GAT(F, H, 2, C, heads=8, v2=True), nodes),
    "transformer": (lambda: stack(lambda i, o: pyg.TransformerConv(i, o // 4, heads=4)), nodes),
    "transformer_edges": (lambda: stack(lambda i, o: pyg.TransformerConv(i, o // 4, heads=4, edge_dim=D), "edge_attr"),
                          edge_features),
    "edge_cnn": (lambda: models.EdgeCNN(F, H, 2, C), nodes),
    "pna": (lambda: models.PNA(F, H, 2, C, **PNA), nodes),
    "appnp": (lambda: behind_network(pyg.APPNP(10, 0.1)), nodes),
    "sgc": (lambda: stack(lambda i, o: pyg.SGConv(i, o, K=2)), nodes),
    "tag": (lambda: stack(pyg.TAGConv), nodes),
    "arma": (lambda: stack(lambda i, o: pyg.ARMAConv(i, o, num_stacks=2, num_layers=2)), nodes),
    "cheb": (lambda: stack(lambda i, o: pyg.ChebConv(i, o, 3)), nodes),
    "cluster_gcn": (lambda: stack(pyg.ClusterGCNConv), nodes),
    "gcn2": (gcn2, nodes),
    "graph_conv": (lambda: stack(pyg.GraphConv, "edge_weight"), weighted),
    "le_conv": (lambda: stack(pyg.LEConv), nodes),
    "mf_conv": (lambda: stack(pyg.MFConv), nodes),
    "film": (lambda: stack(pyg.FiLMConv), nodes),
    "res_gated": (lambda: stack(pyg.ResGatedGraphConv), nodes),
    "super_gat": (lambda: stack(lambda i, o: pyg.SuperGATConv(i, o // 4, heads=4)), nodes),
    "gated_graph": (lambda: pyg.Sequential("x, edge_index", [(pyg.GatedGraphConv(H, 3), "x, edge_index -> x"),
                                                             (nn.Linear(H, C), "x -> x")]), nodes),
    "deeper_gcn": (deeper_gcn, nodes),
    "edge_conv": (lambda: stack(lambda i, o: pyg.EdgeConv(network(2 * i, o))), nodes),
    "rgcn": (lambda: stack(lambda i, o: pyg.RGCNConv(i, o, RELATIONS, num_bases=2), "edge_type"), relations),
    "hetero_sage": (lambda: pyg.to_hetero(models.GraphSAGE(F, H, 2, C), METADATA), two_kinds),
    "hgt": (lambda: Kinds(*(pyg.HGTConv(F, H, METADATA, heads=4) for _ in range(2))), two_kinds),
    "han": (lambda: Kinds(pyg.HANConv(F, H, METADATA, heads=4)), two_kinds),
    "light_gcn": (lambda: models.LightGCN(NODES, H, 3), edges),
    "link_sage": (lambda: Links(models.GraphSAGE(F, H, 2, H)), pairs),
    "own_weighted_sum": (lambda: stack(WeightedSum, "edge_weight"), weighted),
    "own_mean_of_network": (lambda: stack(MeanOfNetwork), nodes),
    "molecules_gin": (lambda: on_molecules(lambda w: pyg.GINConv(network(w, w)), "x, edge_index"), molecules),
    "molecules_gine": (lambda: on_molecules(lambda w: pyg.GINEConv(network(w, w), edge_dim=D)), molecules),
    "molecules_gps": (lambda: on_molecules(GPSLayer, "x, edge_index, edge_attr, batch"), molecules),
    "molecules_nn_conv": (lambda: on_molecules(nn_conv), molecules),
    "attentive_fp": (lambda: models.AttentiveFP(F, H, 1, D, num_layers=2, num_timesteps=2), molecules),
    "schnet": (lambda: models.SchNet(H, H, 3, interaction_graph=all_pairs), atoms),
}  # fmt: skip
# the other models of PyG that take one graph
MODELS |= {
    "dir_gnn": (lambda: stack(lambda i, o: pyg.DirGNNConv(pyg.GCNConv(i, o))), nodes),
    "graph_unet": (lambda: models.GraphUNet(F, H, C, depth=2), nodes),
    "infomax": (lambda: models.DeepGraphInfomax(H, models.GCN(F, H, 2), lambda z, *_: z.mean(0).sigmoid(), shuffled),
                nodes),
    "linkx": (lambda: models.LINKX(NODES, F, H, C, num_layers=2), all_nodes),
    "neural_fingerprint": (lambda: models.NeuralFingerprint(F, H, C, 2), nodes),
    "pmlp": (lambda: models.PMLP(F, H, C, 2), nodes),
    "polynormer": (lambda: models.Polynormer(F, H, C, local_layers=3), one_graph),
    "rect": (lambda: models.RECT_L(F, H), weighted),
    "rev_gnn": (rev_gnn, nodes),
    "sgformer": (lambda: models.SGFormer(F, H, C), one_graph),
    "signed_gcn": (lambda: models.SignedGCN(F, H, 2), signed),
    "vgae": (lambda: models.VGAE(stack(lambda i, o: pyg.GCNConv(i, o))), nodes),
}  # fmt: skip
globals().update({name: make for name, (make, _) in MODELS.items()})  # as module:factory finds them


def inputs(name: str, scale: float = 1.0) -> tuple:
    """What the forward of the model of this name takes."""
    return MODELS[name][1](scale)


# ---- of the width of their input, for notebook 09 -------------------------------------------------------------------


def mlp(c: int) -> nn.Module:
    return nn.Sequential(nn.Linear(c, 64), nn.ReLU(), nn.Linear(64, 64))


def transformer(c: int) -> nn.Module:
    first, second = pyg.TransformerConv(c, 8, heads=8), pyg.TransformerConv(64, 7, heads=8, concat=False)
    goes = "x, edge_index -> x"
    return pyg.Sequential("x, edge_index", [(first, goes), (nn.ReLU(), "x -> x"), (second, goes)])


TWO_LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "GCN 16": lambda c: pyg.GCN(c, 16, num_layers=2, out_channels=7),
    "GCN 64": lambda c: pyg.GCN(c, 64, num_layers=2, out_channels=7),
    "SAGE 64": lambda c: pyg.GraphSAGE(c, 64, num_layers=2, out_channels=7),
    "GIN 64": lambda c: pyg.GIN(c, 64, num_layers=2, out_channels=7),
    "GAT 8x8": lambda c: pyg.GAT(c, 64, num_layers=2, out_channels=7, heads=8),
    "GATv2 8x8": lambda c: pyg.GAT(c, 64, num_layers=2, out_channels=7, heads=8, v2=True),
    "Transformer 8x8": transformer,
}
SIX = torch.tensor([0, 0, 0, 0, 0, 0, 1])  # PNA scales by the logarithm of this mean degree, 6
LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "GCN": lambda c: pyg.GCNConv(c, 64),
    "GIN": lambda c: pyg.GINConv(mlp(c)),
    "GINE": lambda c: pyg.GINEConv(mlp(c), edge_dim=16),
    "GAT": lambda c: pyg.GATConv(c, 16, heads=4),
    "GATv2": lambda c: pyg.GATv2Conv(c, 16, heads=4),
    "GAT, edge features": lambda c: pyg.GATConv(c, 16, heads=4, edge_dim=16, residual=True),
    "SAGE": lambda c: pyg.SAGEConv(c, 64),
    "SAGE, sum": lambda c: pyg.SAGEConv(c, 64, aggr="sum"),
    "SAGE, max": lambda c: pyg.SAGEConv(c, 64, aggr="max"),
    "GEN": lambda c: pyg.GENConv(c, 64),
    "ResGated": lambda c: pyg.ResGatedGraphConv(c, 64),
    "FiLM": lambda c: pyg.FiLMConv(c, 64),
    "PNA": lambda c: pyg.PNAConv(c, 64, PNA["aggregators"], PNA["scalers"], SIX),
    "CG": lambda c: pyg.CGConv(c, dim=16),
    "EdgeConv": lambda c: pyg.EdgeConv(mlp(2 * c)),
    "GraphConv": lambda c: pyg.GraphConv(c, 64),
    "SG": lambda c: pyg.SGConv(c, 64, K=2),
    "TAG": lambda c: pyg.TAGConv(c, 64),
    "APPNP": lambda c: pyg.APPNP(K=5, alpha=0.1),
    "Transformer": lambda c: pyg.TransformerConv(c, 16, heads=4),
    "GPS": lambda c: pyg.GPSConv(c, pyg.GINEConv(mlp(c), edge_dim=16), heads=4),
}
WITH_EDGES = ("GINE", "GAT, edge features", "CG", "GPS")  # take 16 features of each edge
