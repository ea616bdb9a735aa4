"""A user's own graph: a PyG `Data` as `.pt`, `.npz`, `.graphml`, or an edge list as `.csv` or `.tsv`.

Files are taken as they are: an edge list row is one directed edge, nothing is made symmetric, binary or normalized.
Of a pickle in a file only tensors and PyG's own data classes are read. What a file holds is judged by the library that
reads it, and by `graphs.checked`.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.sparse import csr_array
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage
from torch_geometric.utils import from_scipy_sparse_matrix

from gnnlab.errors import GnnlabError
from gnnswap.errors import quoted

NAMES = {"src": "source", "from": "source", "dst": "target", "to": "target"}  # of columns, beside our own
COLUMNS = ["source", "target", "weight"]
# parts of PyG's data objects that it does not name as safe to load, beside the objects themselves
OF_PYG = [DataEdgeAttr, DataTensorAttr, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]


def read_edge_list(path: Path) -> Data:
    """One directed edge a row: source, target and perhaps a weight; a header (source,target[,weight]) may lead.

    Numbers in columns of any other name in the header are features of the edge, `edge_attr` in the order of the file.
    Integer names are numbered in ascending order, so that 0..N-1 stay what they are; other names as they appear.
    """
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    rows = pd.read_csv(path, sep=separator, header=None, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    rows = rows.apply(lambda column: column.str.strip())
    header = [NAMES.get(name.lower(), name.lower()) for name in rows.iloc[0]]
    integers = rows.iloc[:, :2].apply(lambda column: column.str.fullmatch(r"[0-9]{1,18}")).all(axis=1)
    if {"source", "target"} <= set(header):
        rows = rows.iloc[1:].set_axis(header, axis=1)
    elif len(rows) > 1 and not integers.iloc[0] and integers.iloc[1:].all():  # names above integers are no edge
        raise GnnlabError(f"the header {quoted(','.join(rows.iloc[0]))} is not understood")
    else:
        rows = rows.set_axis(COLUMNS[: rows.shape[1]], axis=1)
    if rows.empty or not rows.columns.is_unique:
        raise GnnlabError(f"{len(rows)} edges of the columns {quoted(','.join(rows))}")
    names = pd.concat([rows["source"], rows["target"]]).fillna("")
    if names.str.fullmatch("|-[0-9]+").any():
        raise GnnlabError("the name of a node is empty or a negative number")
    numbered = bool(names.str.fullmatch(r"[0-9]{1,18}").all())
    codes, nodes = pd.factorize(names.astype("int64") if numbered else names, sort=numbered)
    data = Data(edge_index=torch.from_numpy(codes.astype(np.int64).reshape(2, -1)), num_nodes=len(nodes))
    features = [name for name in rows if name not in COLUMNS]
    for field, columns in (("edge_weight", rows.filter(["weight"])), ("edge_attr", rows[features])):
        if not columns.empty:
            data[field] = torch.tensor(columns.apply(pd.to_numeric).to_numpy(dtype=np.float64))
    return data


def read_graphml(path: Path) -> Data:
    """Nodes in the order of the file; an undirected graph gets each edge in both directions.

    Numeric node attributes become features in alphabetical order, except `y` or `label`, which become `y`; the edge
    attribute `weight` becomes `edge_weight`. Text attributes and other edge attributes are left out.
    """
    import networkx  # a quarter of a second, and only needed here

    graph = networkx.read_graphml(path).to_directed()
    number = {name: place for place, name in enumerate(graph)}
    edges = [(number[source], number[target]) for source, target in graph.edges()]
    data = Data(edge_index=torch.tensor(edges, dtype=torch.int64).view(-1, 2).t(), num_nodes=len(graph))
    weights = [weight for *_, weight in graph.edges(data="weight")]
    if any(weight is not None for weight in weights):
        data.edge_weight = torch.tensor(weights)
    nodes = pd.DataFrame([attributes for _, attributes in graph.nodes(data=True)]).select_dtypes(["number", "bool"])
    if nodes.isna().any(axis=None):
        raise GnnlabError("some nodes lack a number that others have, or it is nan")
    label = next((name for name in ("y", "label") if name in nodes), None)
    if label:
        data.y = torch.from_numpy(_labels(nodes.pop(label).to_numpy()))
    if not nodes.empty:
        data.x = torch.tensor(nodes[sorted(nodes)].to_numpy(dtype=np.float64))
    return data


def read_npz(path: Path) -> Data:
    """`edge_index` (2, E) with arrays named as fields of a PyG `Data` (x, y, edge_attr, edge_weight, ...); or adjacency
    `adj_*` and features `attr_*` as the four arrays of a CSR matrix, `labels` (N,) or (N, C), and `edge_attr` (E,) or
    (E, D) in the order of `adj_indices`.

    `adj[i, j]` is an edge from i to j; values other than 1 become `edge_weight`. All but the adjacency may be left out.
    (PyG's own reader makes features binary, edges undirected, and drops weights and self-loops without a word.)
    """
    with np.load(path, allow_pickle=False) as archive:
        if "edge_index" in archive:
            return Data(**{name: torch.from_numpy(_narrow(array)) for name, array in archive.items()})
        adjacency = _csr(archive, "adj")
        features = _csr(archive, "attr").toarray() if "attr_data" in archive else None
        labels, edge_attr = archive.get("labels"), archive.get("edge_attr")
    nodes, columns = adjacency.shape
    if nodes != columns or (labels is not None and len(labels) != nodes):
        raise GnnlabError(f"adjacency of {nodes} x {columns}, labels of shape {np.shape(labels)}")
    edge_index, weight = from_scipy_sparse_matrix(adjacency)
    fields = {"edge_weight": weight.numpy() if (weight != 1).any() else None, "edge_attr": edge_attr, "x": features}
    fields["y"] = labels if labels is None else _labels(labels)
    given = {name: torch.from_numpy(array) for name, array in fields.items() if array is not None}
    return Data(edge_index=edge_index, num_nodes=nodes, **given)


def read_pt(path: Path) -> Data:
    """What `torch.save(data, path)` wrote of a PyG `Data`, with all of its fields."""
    try:
        with torch.serialization.safe_globals(OF_PYG):
            data = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL (\S+)", str(error))
        raise GnnlabError(f"it holds {name[1]}" if name else "it holds no saved object") from error
    if not isinstance(data, Data):
        raise GnnlabError(f"it holds {quoted(data)}")
    return data


def _csr(archive: np.lib.npyio.NpzFile, name: str) -> csr_array:
    """The matrix of float32 that the four arrays of a name describe."""
    data, indices, indptr, shape = (archive[f"{name}_{part}"] for part in ("data", "indices", "indptr", "shape"))
    matrix = csr_array((data.astype(np.float32), indices, indptr), tuple(shape))
    matrix.check_format(full_check=True)
    return matrix


def _narrow(values: np.ndarray) -> np.ndarray:
    """As PyG has it: float32 for fractions, int64 for integers."""
    return values.astype({"f": np.float32, "i": np.int64, "u": np.int64}.get(values.dtype.kind, values.dtype))


def _labels(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int64)


READERS: dict[str, tuple[Callable[[Path], Data], str]] = {
    ".pt": (read_pt, "one torch_geometric Data, as torch.save(data, path) writes it, without classes of your own"),
    ".npz": (
        read_npz,
        "plain arrays edge_index, perhaps x, y, edge_attr; or a CSR matrix adj_data, adj_indices, adj_indptr, "
        "adj_shape, perhaps attr_... alike, labels, edge_attr",
    ),
    ".graphml": (read_graphml, "GraphML with the same numbers at each node, a weight at each edge or at none"),
    ".csv": (
        read_edge_list,
        "rows of source,target[,weight], with that header (src,dst or from,to) or none; more with one",
    ),
    ".tsv": (read_edge_list, "the same, apart by tabs"),
}
