"""`load("digits")`: every graph that the lab knows, by name, by recipe, or from a user's own file.

| specification | graph |
|---|---|
| `symptoms` | the co-occurrence graph of study 1: 58 nodes, 776 edges with weights |
| `digits` | scikit-learn's handwritten digits: 1,797 nodes, neighbours by pixels |
| `karate` | Zachary's karate club: 34 nodes, 156 edges |
| `planetoid:Cora`, `lrgb:Peptides-func[0:32]`, `pyg:Class:Name` | data sets that PyG downloads (`pyg_datasets`) |
| `random:nodes=1000,edges=10000,degrees=powerlaw,seed=0` | made up, with an exact number of edges (`random_graphs`) |
| a path to `.npz`, `.graphml`, `.csv`, `.tsv` | a graph of one's own (`graph_files`) |
"""

from __future__ import annotations

import copy
import difflib
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import KarateClub

from gnnlab.workloads import graph_files, pyg_datasets, random_graphs, symptoms
from gnnlab.workloads.errors import GraphError, shown
from gnnlab.workloads.graph_checks import checked

CACHE = Path("data")  # where PyG keeps what it downloads, beside the work of the reader
NEIGHBOURS = 10


def load(spec: str | Path | Data, *, cache: Path = CACHE) -> Data:
    """The graph that `spec` names, in the form that `graph_checks.checked` describes, with its `name`.

    >>> load("digits")
    Data(x=[1797, 64], edge_index=[2, 24678], y=[1797], name='digits')

    A `Data` object is checked and passed on. Several graphs of a data set come as one PyG `Batch`.
    Raises `GraphError`, in one line, for anything that gives no graph.
    """
    if isinstance(spec, str) and spec in BUNDLED:
        return _named(checked(copy.deepcopy(BUNDLED[spec]()), spec), spec)
    if isinstance(spec, str):
        family, colon, rest = spec.partition(":")
        if colon and family == "random":
            return _named(checked(random_graphs.generate(random_graphs.parse(rest)), "random graph"), spec)
        if colon and family in pyg_datasets.FAMILIES:
            return _named(_together(pyg_datasets.load(spec, cache), spec), spec)
    if isinstance(spec, Data):
        return _named(checked(spec, "graph"), str(spec.get("name") or "graph"))
    path = _path(spec)
    return _named(checked(graph_files.read(path), str(path)), path.stem)


def of_size(size: str, features: int, *, seed: int = 42) -> Data:
    """A graph of "nodes/edges", as in "1000/10000": x (N, features) standard normal, edge_index (2, E) at random.

    "58/776" is the symptom graph. Raises `GraphError`, in one line, for a text that is no size.
    """
    parts = size.split("/")
    if len(parts) != 2 or not all(p.isascii() and p.isdigit() and int(p) > 0 for p in parts) or features < 1:
        raise GraphError(f"size {shown(size)} with {features} features: write nodes/edges, as in 1000/10000")
    nodes, edges = map(int, parts)
    found = load("symptoms") if size == "58/776" else load(f"random:nodes={nodes},edges={edges},features=1,seed={seed}")
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


BUNDLED = {"symptoms": symptoms.load, "digits": _digits, "karate": lambda: KarateClub()[0]}


def _together(graphs: list[Data], spec: str) -> Data:
    graphs = [checked(graph, spec) for graph in graphs]
    return graphs[0] if len(graphs) == 1 else Batch.from_data_list(graphs)


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
    near = difflib.get_close_matches(str(spec)[:100], names, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    known = f"{', '.join(names)} or a path to {', '.join(graph_files.READERS)}"
    raise GraphError(f"{shown(spec)} is no graph{hint}: {known} are understood")


def _exists(path: Path) -> bool:
    try:
        return path != Path() and path.exists()
    except OSError:  # longer than any path
        return False
