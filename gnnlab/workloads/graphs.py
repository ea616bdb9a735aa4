"""`load("digits")`: every graph that the lab knows, by name, by recipe, or from a user's own file.

| specification | graph |
|---|---|
| `symptoms` | the co-occurrence graph of S0: 58 nodes, 776 edges with weights, no features, no classes |
| `digits` | scikit-learn's digits, joined by their pixels: 1,797 nodes, 24,678 edges, 64 features, 10 classes |
| `karate` | Zachary's karate club: 34 nodes, 156 edges, 34 features, 4 classes |
| `planetoid:Cora`, `lrgb:Peptides-func[7]`, `pyg:Class:Name`, `peptides_func` | data sets that PyG downloads |
| `random:nodes=1000,edges=10000,degrees=powerlaw,seed=0` | made up, with an exact number of edges (`random_graphs`) |
| a path to `.pt`, `.npz`, `.graphml`, `.mtx`, `.csv`, `.tsv`, `.txt`, `.edges` | a graph of one's own (`graph_files`) |

`read_as` says in one line what was read of it. S0 is a document (docs/glossary.md). Sources: Zachary 1977 (karate),
Alpaydin and Kaynak 1998 (digits), Yang et al. 2016 (Planetoid), Dwivedi et al. 2022 (LRGB). In shapes N are the nodes,
E the edges, F the features.
"""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch_geometric import datasets
from torch_geometric.data import Data, HeteroData
from torch_geometric.datasets import KarateClub
from torch_geometric.transforms import LocalDegreeProfile

from gnnlab.errors import GnnlabError, meant
from gnnlab.workloads import edge_lists, graph_files, random_graphs, symptom_gat
from gnnlab.workloads.tables import read_file
from gnnswap.errors import one_line, quoted

CACHE = Path("data")  # where PyG keeps what it downloads, beside the work of the reader
NEIGHBOURS = 10
MOST_ISOLATED = 1_000_000  # nodes of a graph that has fewer edges and no features
# of PyG's data sets: the class of a family and the names that are understood without it; `pyg:` takes any class
FAMILIES = {
    "planetoid": ("Planetoid", ("Cora", "CiteSeer", "PubMed")),
    "lrgb": ("LRGBDataset", ("PascalVOC-SP", "COCO-SP", "PCQM-Contact", "Peptides-func", "Peptides-struct")),
}
SETS = {name.lower(): f"{family}:{name}" for family, (_, names) in FAMILIES.items() for name in names}


def load(spec: str | Path | Data, *, nodes: str | Path | None = None, cache: Path = CACHE) -> Data:
    """The graph that `spec` names, in the form that `checked` describes, with its `name`.

    >>> load("digits")
    Data(x=[1797, 64], edge_index=[2, 24678], y=[1797], name='digits')

    A `Data` object is checked and passed on. `nodes` is a file of names, features and labels beside an edge list;
    `cache` is the folder of PyG's data sets.
    Raises `GnnlabError`, in one line, for anything that gives no graph.
    """
    name = source = _full_name(str(spec))
    if nodes is not None and not _is_edge_list(name):
        raise GnnlabError(f"nodes go with a path to {', '.join(edge_lists.SUFFIXES)}, got {quoted(spec)}")
    if not isinstance(spec, (str, Path)):
        data = spec
        name = source = str(data.get("name") or "graph") if isinstance(spec, Data) else "graph"
    elif name in BUNDLED:
        data = copy.deepcopy(BUNDLED[name]())
    elif name.startswith("random:"):
        data = random_graphs.generate(name.removeprefix("random:"))
    elif name.startswith(("pyg:", *(f"{known}:" for known in FAMILIES))):
        data = _from_pyg(name, cache)
    else:
        data, path = _from_file(name, nodes and Path(nodes))
        name, source = Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem, path.name
    data = checked(data, str(spec) if isinstance(spec, (str, Path)) else "graph")
    data.name = name
    data._notes = {**getattr(data, "_notes", {}), "source": source}
    return data


def read_as(data: Data) -> str:
    """What was read of a graph, in one line: how, edges, nodes, weights, features, labels, what was not used.

    >>> read_as(load("edges.csv"))
    'edges.csv: header source,target; 4 edges, 5 named nodes, no weights; x: 5 degree columns made here; no y'
    """
    notes = {"how": [], "unused": [], "kind": "", "source": data.get("name") or "graph", "made": 0}
    notes |= getattr(data, "_notes", {})
    x, y = data.x, data.get("y")
    weights = "no weights" if data.get("edge_weight") is None else "weights"
    edges = f"{data.num_edges:,} edge{'s' * (data.num_edges != 1)}"
    parts = [*notes["how"], f"{edges}, {data.num_nodes:,} {notes['kind']}nodes, {weights}"]
    if (attr := data.get("edge_attr")) is not None:
        kept = f" {attr.dtype} (float32 would round them)".replace("torch.", "") if _is_large(attr) else ""
        parts.append(f"edge_attr {tuple(attr.shape)}{kept}")
    made = x is not None and notes["made"] == x.shape[-1]
    parts.append(f"x: {notes['made']} degree columns made here" if made else f"x {tuple(x.shape)}")
    if torch.is_tensor(y) and y.dim() == 1 and len(y) == data.num_nodes and not y.is_floating_point():
        parts.append(f"y: {len(y.unique()):,} classes")
    else:
        parts.append("no y" if y is None else f"y {tuple(y.shape)}" if torch.is_tensor(y) else f"y {quoted(y)}")
    if torch.is_tensor(y) and y.dim() and len(y) not in (1, data.num_nodes):
        parts[-1] += ", not one a node"
    if notes["unused"]:
        parts.append(f"not used: {', '.join(notes['unused'])}")
    return " ".join(f"{notes['source']}: {'; '.join(parts)}".split())


# ---- files -----------------------------------------------------------------------------------------------------------


def _is_edge_list(name: str) -> bool:
    return Path(name.lower().removesuffix(".gz")).suffix in edge_lists.SUFFIXES


def _from_file(name: str, nodes: Path | None) -> tuple[Data, Path]:
    """The graph of a file and its path; `name` may end in the place of one of several graphs, as in graphs.pt[3]."""
    path, readers = Path(name), graph_files.READERS
    if (one := re.fullmatch(r"(.+\.pt)\[([0-9]+)\]", name, re.IGNORECASE)) and not path.exists():
        path = Path(one[1])
        readers = {".pt": (partial(graph_files.read_pt, place=int(one[2])), readers[".pt"][1])}
    if nodes is not None:
        readers = dict.fromkeys(
            (*edge_lists.SUFFIXES, ".gz"), (edge_lists.read_nodes, "a node a row: id, numbers, label")
        )
        described = read_file(nodes, readers)
        readers = {path.suffix.lower(): (partial(edge_lists.read, nodes=described), "rows of source,target")}
    suffix = path.suffix.lower()
    if suffix in readers and name.isprintable():
        return read_file(path, readers), path
    if suffix in graph_files.CONVERT and name.isprintable():
        how = graph_files.CONVERT[suffix].replace("{}", path.name)
        raise GnnlabError(f"{path}: {suffix} is not read; convert it in Python: {how}")
    if 0 < len(name) < 1000 and path.is_dir():
        raise GnnlabError(f"{path}: a folder; name a file in it, or a data set as pyg:TUDataset:MUTAG")
    known = [*BUNDLED, "random:", *(f"{family}:" for family in FAMILIES), "pyg:"]
    allowed = f"{', '.join(known)} or a path to {', '.join(graph_files.READERS)} are understood"
    hint = "; rename a text of edges to end in .txt" if len(name) < 1000 and path.is_file() else ""
    raise GnnlabError(f"{quoted(name)} is no graph{meant(name, [*known, *SETS])}: {allowed}{hint}")


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
        graphs = kind(**options, **({"name": name} if name else {}))
    except Exception as error:  # whatever PyG or the data set's reader raises
        raise GnnlabError(
            f"PyG gives no {quoted(spec)}: {one_line(error)}; {family}:NAME or {family}:NAME[7] is understood, the "
            f"first use needs a network; if an earlier download broke off, delete {root}"
        ) from error
    if not (index or "0").isdecimal() or int(index or 0) >= len(graphs):
        raise GnnlabError(f"{quoted(spec)}: it has {len(graphs):,} graphs; write [0] to [{len(graphs) - 1}]")
    data = graphs[int(index or 0)]
    data._notes = {"how": [f"graph {index or 0} of {len(graphs):,}"] if len(graphs) > 1 else []}
    return data


# ---- made here ------------------------------------------------------------------------------------------------------


def of_size(size: str, features: int) -> Data:
    """A graph of nodes x edges, as in "1000x10000": x (N, features) standard normal, edge_index (2, E) at random.

    "58x776" is the symptom graph. Raises `GnnlabError`, in one line, for a text that is no size.
    """
    nodes, cross, edges = size.partition("x")
    if not cross:
        raise GnnlabError(f"size {quoted(size)}: write nodes x edges, as in 1000x10000")
    graph = load("symptoms" if size == "58x776" else f"random:nodes={nodes},edges={edges},features=1,seed=42")
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

    - `x` float32 (N, F), finite. A graph without features gets PyG's `LocalDegreeProfile` (F = 5: the out-degree of a
      node, and minimum, maximum, mean and standard deviation of those of its targets; Cai & Wang 2018).
    - `edge_index` int64 (2, E), contiguous, N > 0 and E > 0, every index in 0..N-1; made of `adj_t` where that stands
      in its place.
    - `edge_weight` float32 (E,) and `edge_attr` (E, ...), finite, where there are such. Features of edges may be
      integers, and stay float64 where float32 would round numbers above 2^24, as it does times in seconds.

    Other fields pass through. The tensors of the argument are shared, never written to.
    Raises `GnnlabError` in one line that begins with `source`.
    """
    if not isinstance(data, Data):
        needed = "a name, a path or a torch_geometric Data with one kind of node is needed"
        remedy = "; commands take that from a function, --inputs module:function" * isinstance(data, HeteroData)
        raise GnnlabError(f"{source}: {needed}, got {type(data).__name__}{remedy}")
    data = copy.copy(data).detach()
    try:
        for field, value in data.to_dict().items():
            if isinstance(value, np.ndarray):
                data[field] = torch.from_numpy(graph_files.narrow(value))
        if data.get("edge_index") is None and torch.is_tensor(data.get("adj_t")):
            _edges_of_adj_t(data)
        for field in ("x", "edge_weight", "edge_attr"):
            if torch.is_tensor(value := data.get(field)) and value.is_complex():
                real = f"{field}.abs(), or torch.view_as_real({field}).flatten(1)"
                raise GnnlabError(f"{field} is {value.dtype}, and real numbers are needed: {real}")
        nodes = _check_edges(data)
        data.edge_index, edges = data.edge_index.to(torch.int64).contiguous(), data.edge_index.shape[1]
        if (weight := data.get("edge_weight")) is not None:
            if weight.numel() != edges:
                raise GnnlabError(f"edge_weight must hold {edges} numbers, one an edge, got {weight.numel()}")
            data.edge_weight = weight.to(torch.float32).reshape(edges)
        if (attr := data.get("edge_attr")) is not None:
            if len(attr) != edges:
                raise GnnlabError(f"edge_attr must have {edges} rows, one for each edge, got {len(attr)}")
            data.edge_attr = attr.to(torch.float32) if attr.is_floating_point() and not _is_large(attr) else attr
            data.edge_attr = data.edge_attr.contiguous()
        if data.x is None:
            data.num_nodes = nodes
            data = LocalDegreeProfile()(data)
            data._notes = {**getattr(data, "_notes", {}), "made": data.x.shape[1]}
        data.x = _features(data.x, nodes)
        for field in ("x", "edge_weight", "edge_attr"):
            if not data.get(field, data.x).to(torch.float32).isfinite().all():
                raise GnnlabError(f"{field} holds nan, infinity or numbers beyond float32; replace them")
    except (ValueError, RuntimeError, TypeError, AttributeError) as error:  # what PyG or torch refuses
        raise GnnlabError(f"{source}: {one_line(error)}") from error
    return data


def _check_edges(data: Data) -> int:
    """The number of nodes; `GnnlabError` where there are no edges, or not among these nodes."""
    with warnings.catch_warnings():  # PyG warns where it reads the number of nodes from the edges, as is meant
        warnings.simplefilter("ignore")
        if isinstance(data.get("edge_index"), list | tuple):
            raise GnnlabError("edge_index is a list; make it torch.tensor(edge_index), (2, E)")
        nodes = data.num_nodes
        if not nodes or data.get("edge_index") is None or not data.num_edges:
            what = "edges" if nodes else "nodes"
            of_adj = "; of adj: edge_index, edge_weight = torch_geometric.utils.dense_to_sparse(adj)" * ("adj" in data)
            raise GnnlabError(f"the graph has no {what}; at least one is needed{of_adj}")
        if data.edge_index.is_floating_point():
            raise GnnlabError(f"edge_index must hold integers, got {data.edge_index.dtype}")
        if (last := int(data.edge_index.max())) >= nodes:
            named = f"x has {nodes} rows" if "x" in data and len(data.x) == nodes else f"there are {nodes} nodes"
            raise GnnlabError(f"edge_index holds node {last}, and {named}; number the nodes 0..{nodes - 1}")
        data.validate(raise_on_error=True)
    if data.x is None and nodes > max(MOST_ISOLATED, 100 * data.num_edges):
        raise GnnlabError(
            f"{data.num_edges:,} edges among {nodes:,} nodes: number the nodes of the edges 0..N-1 "
            "(numpy.unique, return_inverse=True)"
        )
    return nodes


def _features(x: torch.Tensor, nodes: int) -> torch.Tensor:
    """float32 (N, F)"""
    if x.dim() > 2:
        raise GnnlabError(f"x has shape {tuple(x.shape)}, and (N, F) is needed: x.flatten(1), or one step, x[:, 0]")
    if len(x) != nodes or x.numel() == 0:
        raise GnnlabError(f"x must have shape ({nodes}, F) with F > 0, got {tuple(x.shape)}")
    if x.layout != torch.strided and 4 * x.numel() > graph_files.MOST_BYTES:
        size = f"{4e-9 * x.numel():.1f} GB"
        raise GnnlabError(f"x {tuple(x.shape)} is sparse and takes {size} when dense; keep fewer columns")
    return x.to_dense().to(torch.float32).reshape(nodes, -1).contiguous()


def _edges_of_adj_t(data: Data) -> None:
    """`adj_t` [i, j] is an edge from j to i, as `ToSparseTensor` makes it."""
    target_source = data.adj_t.to_sparse_coo()  # _indices: an edge that is there twice stays so
    data.edge_index = target_source._indices().flip(0)
    if (target_source._values() != 1).any():
        if data.get("edge_weight") is not None:
            raise GnnlabError("both adj_t and edge_weight give weights; keep one")
        data.edge_weight = target_source._values()
    data.num_nodes = len(data.adj_t)
    del data.adj_t


def _is_large(attr: torch.Tensor) -> bool:
    """Whether float32 would round numbers above 2^24."""
    if attr.dtype not in (torch.float64, torch.int64):
        return False
    large = attr.abs() > edge_lists.EXACT
    return bool(large.any() and (attr[large] != attr[large].to(torch.float32).to(attr.dtype)).any())
