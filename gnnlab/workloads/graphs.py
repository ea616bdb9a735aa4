"""`load("digits")`: every graph that the lab knows, by name, by recipe, or from a user's own file.

| specification | graph |
|---|---|
| `symptoms` | the co-occurrence graph of S0: 58 nodes, 776 edges with weights |
| `digits` | scikit-learn's handwritten digits: 1,797 nodes, neighbours by pixels |
| `karate` | Zachary's karate club: 34 nodes, 156 edges |
| `planetoid:Cora`, `lrgb:Peptides-func[0:32]`, `pyg:Class:Name` | data sets that PyG downloads (`pyg_datasets`) |
| `random:nodes=1000,edges=10000,degrees=powerlaw,seed=0` | made up, with an exact number of edges (`random_graphs`) |
| a path to `.npz`, `.graphml`, `.csv`, `.tsv` | a graph of one's own (`graph_files`) |
"""

from __future__ import annotations

import copy
import warnings
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import KarateClub
from torch_geometric.transforms import LocalDegreeProfile

from gnnlab.errors import GnnlabError, meant, shown
from gnnlab.workloads import graph_files, pyg_datasets, random_graphs, symptom_gat

CACHE = Path("data")  # where PyG keeps what it downloads, beside the work of the reader
NEIGHBOURS = 10


def load(spec: str | Path | Data, *, cache: Path = CACHE) -> Data:
    """The graph that `spec` names, in the form that `checked` describes, with its `name`.

    >>> load("digits")
    Data(x=[1797, 64], edge_index=[2, 24678], y=[1797], name='digits')

    A `Data` object is checked and passed on. Several graphs of a data set come as one PyG `Batch`.
    Raises `GnnlabError`, in one line, for anything that gives no graph.
    """
    if isinstance(spec, str) and spec in BUNDLED:
        return _named(checked(copy.deepcopy(BUNDLED[spec]()), spec), spec)
    if isinstance(spec, str):
        spec = pyg_datasets.full_name(spec) or spec
        family, colon, rest = spec.partition(":")
        if colon and family == "random":
            return _named(checked(random_graphs.generate(random_graphs.parse(rest)), "random graph"), spec)
        if colon and family in pyg_datasets.FAMILIES:
            found = [checked(graph, spec) for graph in pyg_datasets.load(spec, cache)]
            return _named(found[0] if len(found) == 1 else Batch.from_data_list(found), spec)
    if isinstance(spec, Data):
        return _named(checked(spec, "graph"), str(spec.get("name") or "graph"))
    path = _path(spec)
    return _named(checked(graph_files.read(path), str(path)), path.stem)


def of_size(size: str, features: int) -> Data:
    """A graph of "nodes/edges", as in "1000/10000": x (N, features) standard normal, edge_index (2, E) at random.

    "58/776" is the symptom graph. Raises `GnnlabError`, in one line, for a text that is no size.
    """
    parts = size.split("/")
    if len(parts) != 2 or not all(p.isascii() and p.isdigit() and int(p) > 0 for p in parts) or features < 1:
        raise GnnlabError(f"size {shown(size)} with {features} features: write nodes/edges, as in 1000/10000")
    nodes, edges = map(int, parts)
    found = load("symptoms") if size == "58/776" else load(f"random:nodes={nodes},edges={edges},features=1,seed=42")
    x = torch.randn(nodes, features, generator=torch.Generator().manual_seed(0))
    return Data(x=x, edge_index=found.edge_index, num_nodes=nodes, name=size)


def describe(data: Data) -> dict[str, str | int | float | bool]:
    """What a reader wants to know of a graph before any time is measured on it.

    The degree of a node is the number of edges that end in it, which is the number of messages that it receives.
    `duplicate_edges` counts edges beyond the first between the same ordered pair; `directed` says that some edge has
    no counterpart in the other direction.
    """
    source, target = data.edge_index
    nodes = int(data.num_nodes)
    degree = torch.bincount(target, minlength=nodes)
    pairs = (source * nodes + target).unique()
    mirrored = (target * nodes + source).unique()
    return {
        "name": str(data.get("name") or "graph"),
        "nodes": nodes,
        "edges": int(data.num_edges),
        "features": int(data.num_features),
        "weighted": data.get("edge_weight") is not None,
        "degree_min": int(degree.min()),
        "degree_mean": float(degree.double().mean()),
        "degree_max": int(degree.max()),
        "isolated_nodes": int((degree + torch.bincount(source, minlength=nodes) == 0).sum()),
        "self_loops": int((source == target).sum()),
        "duplicate_edges": int(data.num_edges - len(pairs)),
        "directed": not torch.equal(pairs, mirrored),
    }


@lru_cache(maxsize=1)
def _digits() -> Data:
    """Each digit joined with the ten nearest by their pixels, and these with it: symmetric, so that spectral encodings
    are defined; degrees 10 and above.

    `x` (1797, 64) pixels / 16, `y` (1797,) the digit. Distances between integer pixels are exact and ties go to the
    lower index, so the graph is the same on every machine.
    """
    from sklearn.datasets import load_digits  # heavy, and only needed here

    pixels, labels = load_digits(return_X_y=True)  # (1797, 64) of 0..16
    norms = (pixels**2).sum(axis=1)
    distance = norms[:, None] - 2 * pixels @ pixels.T + norms
    np.fill_diagonal(distance, np.inf)
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :NEIGHBOURS]
    adjacent = np.zeros(distance.shape, dtype=bool)
    np.put_along_axis(adjacent, nearest, True, axis=1)
    edge_index = np.stack((adjacent | adjacent.T).nonzero())
    x, y = torch.from_numpy(pixels / 16), torch.from_numpy(labels)
    return Data(x=x, edge_index=torch.from_numpy(edge_index), y=y)


BUNDLED = {"symptoms": symptom_gat.symptom_graph, "digits": _digits, "karate": lambda: KarateClub()[0]}


def _named(data: Data, name: str) -> Data:
    data.name = name
    return data


def _path(spec: object) -> Path:
    """`spec` as a path if it can be meant as one: it ends as graph files do, or something is there."""
    if isinstance(spec, (str, Path)) and str(spec).isprintable():
        path = Path(spec)
        if isinstance(spec, Path) or path.suffix.lower() in graph_files.READERS or _exists(path):
            return path
    names = [*BUNDLED, *(f"{family}:" for family in ("random", *pyg_datasets.FAMILIES))]
    sets = [name for known in pyg_datasets.NAMES.values() for name in known]
    known = f"{', '.join(names)} or a path to {', '.join(graph_files.READERS)}"
    raise GnnlabError(f"{shown(spec)} is no graph{meant(spec, [*names, *sets])}: {known} are understood")


def _exists(path: Path) -> bool:
    try:
        return path != Path() and path.exists()
    except OSError:  # longer than any path
        return False


def checked(data: Data, source: str) -> Data:
    """A copy of `data` (or of a `Batch`) in the form that all of the lab relies on.

    - `x` float32 (N, F), finite. A graph without features gets PyG's `LocalDegreeProfile` (F = 5: the degree of a
      node, and minimum, maximum, mean and standard deviation of its neighbours' degrees; Cai & Wang 2018).
    - `edge_index` int64 (2, E), contiguous, N > 0 and E > 0, every index in 0..N-1.
    - `edge_weight` float32 (E,), finite, where there is one.

    Other fields pass through. The tensors of the argument are shared, never written to.
    Raises `GnnlabError` in one line that begins with `source` and names the offending edge, node or value.
    """
    if not isinstance(data, Data):
        raise GnnlabError(
            f"{source}: a torch_geometric Data with one kind of node is needed, got {type(data).__name__}"
        )
    if isinstance(data, Batch) and data.x is None:  # profiles belong into each graph, or they are lost when it is split
        parts = [checked(part, f"{source}, graph {i}") for i, part in enumerate(data.to_data_list())]
        return Batch.from_data_list(parts)
    data = copy.copy(data)
    num_nodes = _num_nodes(data, source)
    data.edge_index = _edges(data.edge_index, num_nodes, source)
    if data.get("edge_weight") is not None:
        data.edge_weight = _weights(data.edge_weight, data.num_edges, source)
    if data.x is None:
        data.num_nodes = num_nodes
        data = LocalDegreeProfile()(data)
    data.x = _features(data.x, num_nodes, source)
    return data


def _num_nodes(data: Data, source: str) -> int:
    with warnings.catch_warnings():  # PyG warns where it reads the number of nodes from the edges: so do we mean it
        warnings.simplefilter("ignore")
        num_nodes = data.num_nodes
    if not num_nodes:
        raise GnnlabError(f"{source}: the graph has no nodes; at least one is needed")
    return int(num_nodes)


def _edges(edge_index: object, num_nodes: int, source: str) -> Tensor:
    if not isinstance(edge_index, Tensor):
        raise GnnlabError(f"{source}: the graph has no edges; edge_index, int64 of shape (2, E), is needed")
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise GnnlabError(f"{source}: edge_index must have shape (2, E), got {tuple(edge_index.shape)}")
    if edge_index.size(1) == 0:
        raise GnnlabError(f"{source}: the graph has no edges; at least one is needed")
    if edge_index.is_floating_point() or edge_index.is_complex() or edge_index.dtype == torch.bool:
        raise GnnlabError(f"{source}: edge_index must hold integers, got {edge_index.dtype}")
    outside = (edge_index < 0) | (edge_index >= num_nodes)
    if outside.any():
        edge = int(outside.any(dim=0).nonzero()[0])
        start, end = edge_index[:, edge].tolist()
        what = "negative" if min(start, end) < 0 else "out of range"
        raise GnnlabError(
            f"{source}: edge {edge} ({start} -> {end}): index {what}; "
            f"the graph has {num_nodes} nodes, 0..{num_nodes - 1} are allowed"
        )
    return edge_index.to(torch.int64).contiguous()


def _weights(weight: object, num_edges: int, source: str) -> Tensor:
    if not isinstance(weight, Tensor) or weight.is_complex() or weight.numel() != num_edges:
        got = tuple(weight.shape) if isinstance(weight, Tensor) else shown(weight)
        raise GnnlabError(f"{source}: edge_weight must be one number an edge ({num_edges} edges), got {got}")
    weight = weight.reshape(-1).to(torch.float32)
    bad = ~weight.isfinite()
    if bad.any():
        edge = int(bad.nonzero()[0])
        raise GnnlabError(f"{source}: the weight of edge {edge} is {weight[edge].item()}; finite float32 is needed")
    return weight.contiguous()


def _features(x: object, num_nodes: int, source: str) -> Tensor:
    if not isinstance(x, Tensor) or x.is_complex():
        raise GnnlabError(f"{source}: x must be a tensor of real numbers, got {shown(x)}")
    x = x.to_dense() if x.layout != torch.strided else x
    x = x.view(-1, 1) if x.dim() == 1 else x
    if x.dim() != 2 or x.size(0) != num_nodes or x.size(1) == 0:
        raise GnnlabError(f"{source}: x must have shape ({num_nodes}, F) with F > 0, got {tuple(x.shape)}")
    x = x.to(torch.float32)
    bad = ~x.isfinite()
    if bad.any():
        node, feature = bad.nonzero()[0].tolist()
        value = x[node, feature].item()
        raise GnnlabError(f"{source}: feature {feature} of node {node} is {value}; finite float32 is needed")
    return x.contiguous()
