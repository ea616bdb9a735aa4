"""`load("digits")`: every graph that the lab knows, by name, by recipe, or from a user's own file.

| specification | graph |
|---|---|
| `symptoms` | the co-occurrence graph of S0: 58 nodes, 776 edges with weights |
| `digits` | scikit-learn's handwritten digits: 1,797 nodes, neighbours by pixels |
| `karate` | Zachary's karate club: 34 nodes, 156 edges |
| `planetoid:Cora`, `lrgb:Peptides-func[7]`, `pyg:Class:Name`, `peptides_func` | data sets that PyG downloads |
| `random:nodes=1000,edges=10000,degrees=powerlaw,seed=0` | made up, with an exact number of edges (`random_graphs`) |
| a path to `.pt`, `.npz`, `.graphml`, `.csv`, `.tsv` | a graph of one's own (`graph_files`) |
"""

from __future__ import annotations

import copy
import inspect
import warnings
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch_geometric import datasets
from torch_geometric.data import Data
from torch_geometric.datasets import KarateClub
from torch_geometric.transforms import LocalDegreeProfile

from gnnlab.errors import GnnlabError, meant
from gnnlab.workloads import graph_files, random_graphs, symptom_gat
from gnnlab.workloads.tables import read_file
from gnnswap.errors import one_line, quoted

CACHE = Path("data")  # where PyG keeps what it downloads, beside the work of the reader
NEIGHBOURS = 10
# of PyG's data sets: the class of a family and the names that are understood without it; `pyg:` takes any class
FAMILIES = {
    "planetoid": ("Planetoid", ("Cora", "CiteSeer", "PubMed")),
    "lrgb": ("LRGBDataset", ("PascalVOC-SP", "COCO-SP", "PCQM-Contact", "Peptides-func", "Peptides-struct")),
}
SETS = {name.lower(): f"{family}:{name}" for family, (_, names) in FAMILIES.items() for name in names}


def load(spec: str | Path | Data, *, cache: Path = CACHE) -> Data:
    """The graph that `spec` names, in the form that `checked` describes, with its `name`.

    >>> load("digits")
    Data(x=[1797, 64], edge_index=[2, 24678], y=[1797], name='digits')

    A `Data` object is checked and passed on. Raises `GnnlabError`, in one line, for anything that gives no graph.
    """
    if not isinstance(spec, (str, Path)):
        data = checked(spec, "graph")
        data.name = str(data.get("name") or "graph")
        return data
    name = _full_name(str(spec))
    if name in BUNDLED:
        data = copy.deepcopy(BUNDLED[name]())
    elif name.startswith("random:"):
        data = random_graphs.generate(name.removeprefix("random:"))
    elif name.startswith(("pyg:", *(f"{known}:" for known in FAMILIES))):
        data = _from_pyg(name, cache)
    elif Path(name).suffix.lower() in graph_files.READERS and name.isprintable():
        data = read_file(Path(name), graph_files.READERS)
        name = Path(name).stem
    else:
        known = [*BUNDLED, "random:", *(f"{family}:" for family in FAMILIES), "pyg:"]
        allowed = f"{', '.join(known)} or a path to {', '.join(graph_files.READERS)}"
        raise GnnlabError(f"{quoted(spec)} is no graph{meant(spec, [*known, *SETS])}: {allowed} are understood")
    data = checked(data, str(spec))
    data.name = name
    return data


# ---- PyG's data sets -------------------------------------------------------------------------------------------------


def _full_name(spec: str) -> str:
    """`lrgb:Peptides-func[7]` of `peptides_func[7]` or `lrgb:peptides-FUNC[7]`; any other text as it is."""
    family, _, rest = spec.rpartition(":")
    name, bracket, index = rest.partition("[")
    full = SETS.get(name.lower().replace("_", "-"), "")
    return f"{full}{bracket}{index}" if full and family in ("", full.partition(":")[0]) else spec


def _from_pyg(spec: str, folder: Path) -> Data:
    """The graph of PyG's data set that `spec` asks for, the first unless another is, downloaded into `folder` when it
    is not there yet. (The raw files of some are pickles of their publishers, which PyG reads; nothing else here does.)

    Raises `GnnlabError` where the data set is unknown, has no such graph, or cannot be downloaded.
    """
    family, _, rest = spec.partition(":")
    rest, _, index = rest.removesuffix("]").partition("[")
    class_name, names = FAMILIES.get(family, (rest.partition(":")[0], ()))
    name = rest if names else rest.partition(":")[2]
    if class_name not in datasets.__all__:
        raise GnnlabError(f"PyG has no data set {quoted(class_name)}{meant(class_name, datasets.__all__)}")
    if names and name not in names:
        raise GnnlabError(f"{class_name} has no data set {quoted(name)}; it has {', '.join(names)}")
    root = folder / (f"{class_name}-{name}" if name else class_name)
    try:
        kind = getattr(datasets, class_name)
        options = {"root": str(root)} if "root" in inspect.signature(kind).parameters else {}
        return kind(**options, **({"name": name} if name else {}))[int(index or 0)]
    except Exception as error:  # whatever PyG or the data set's reader raises
        raise GnnlabError(
            f"PyG gives no {quoted(spec)}: {one_line(error)}; {family}:NAME or {family}:NAME[7] is understood, the "
            f"first use needs a network; if an earlier download broke off, delete {root}"
        ) from error


# ---- made here ------------------------------------------------------------------------------------------------------


def of_size(size: str, features: int) -> Data:
    """A graph of "nodes/edges", as in "1000/10000": x (N, features) standard normal, edge_index (2, E) at random.

    "58/776" is the symptom graph. Raises `GnnlabError`, in one line, for a text that is no size.
    """
    nodes, slash, edges = size.partition("/")
    if not slash:
        raise GnnlabError(f"size {quoted(size)}: write nodes/edges, as in 1000/10000")
    graph = load("symptoms" if size == "58/776" else f"random:nodes={nodes},edges={edges},features=1,seed=42")
    x = torch.randn(graph.num_nodes, features, generator=torch.Generator().manual_seed(0))
    return Data(x=x, edge_index=graph.edge_index, num_nodes=graph.num_nodes, name=size)


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


def checked(data: Data, source: str) -> Data:
    """A copy of `data` (or of a `Batch`) in the form that all of the lab relies on.

    - `x` float32 (N, F), finite. A graph without features gets PyG's `LocalDegreeProfile` (F = 5: the degree of a
      node, and minimum, maximum, mean and standard deviation of its neighbours' degrees; Cai & Wang 2018).
    - `edge_index` int64 (2, E), contiguous, N > 0 and E > 0, every index in 0..N-1.
    - `edge_weight` float32 (E,) and `edge_attr` (E, ...), finite, where there are such; features may be integers.

    Other fields pass through. The tensors of the argument are shared, never written to.
    Raises `GnnlabError` in one line that begins with `source`.
    """
    if not isinstance(data, Data):
        needed = "a name, a path or a torch_geometric Data with one kind of node is needed"
        raise GnnlabError(f"{source}: {needed}, got {type(data).__name__}")
    data = copy.copy(data)
    try:
        with warnings.catch_warnings():  # PyG warns where it reads the number of nodes from the edges, as is meant
            warnings.simplefilter("ignore")
            nodes = data.num_nodes
            if not nodes or not data.num_edges:
                raise GnnlabError(f"the graph has no {'edges' if nodes else 'nodes'}; at least one is needed")
            data.validate(raise_on_error=True)
        if data.edge_index.is_floating_point():
            raise GnnlabError(f"edge_index must hold integers, got {data.edge_index.dtype}")
        data.edge_index = data.edge_index.to(torch.int64).contiguous()
        if data.get("edge_weight") is not None:
            data.edge_weight = data.edge_weight.to(torch.float32).reshape(data.num_edges)
        if (attr := data.get("edge_attr")) is not None:
            if len(attr) != data.num_edges:
                raise GnnlabError(f"edge_attr must have {data.num_edges} rows, one for each edge, got {len(attr)}")
            data.edge_attr = (attr.to(torch.float32) if attr.is_floating_point() else attr).contiguous()
        if data.x is None:
            data.num_nodes = nodes
            data = LocalDegreeProfile()(data)
        if len(data.x) != nodes or data.x.numel() == 0:
            raise GnnlabError(f"x must have shape ({nodes}, F) with F > 0, got {tuple(data.x.shape)}")
        data.x = data.x.to_dense().to(torch.float32).reshape(nodes, -1).contiguous()
        for field in ("x", "edge_weight", "edge_attr"):
            if not data.get(field, data.x).isfinite().all():
                raise GnnlabError(f"{field} holds nan, infinity or numbers beyond float32")
    except (ValueError, RuntimeError, TypeError, AttributeError) as error:  # what PyG or torch refuses
        raise GnnlabError(f"{source}: {one_line(error)}") from error
    return data
