"""A user's own graph: `.npz`, `.graphml`, or an edge list as `.csv` or `.tsv`.

Files are taken as they are: an edge list row is one directed edge, nothing is made symmetric, binary or normalized.
Nothing in a file is ever unpickled. What is wrong with one is a `GnnlabError` that names the file and the place; what
it would take is judged by what it declares, before anything is allocated.
"""

from __future__ import annotations

import math
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import networkx as nx
import numpy as np
import pandas as pd
import torch
from scipy.sparse import csr_array
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError, one_line, shown
from gnnlab.workloads.table_files import judge, judge_text, opened

_XML_FACTOR = 30  # bytes of memory for each of a GraphML file, elements and networkx's mappings together
FLOAT32_MAX = 3.4028234663852886e38
CSR = ("data", "indices", "indptr", "shape")
HEADERS = (("source", "target"), ("src", "dst"), ("from", "to"))


def read(path: Path) -> Data:
    """The graph in the file, by its suffix; raises `GnnlabError` in one line that begins with the path."""
    return opened(path, READERS, "graph", lambda path: READERS[path.suffix.lower()](path))


def read_edge_list(path: Path) -> Data:
    """One directed edge a row: source, target and perhaps a weight; a header (source,target[,weight]) may lead.

    Integer names are numbered in ascending order, so that 0..N-1 stay what they are; other names as they appear.
    """
    rows = _rows(path)
    columns, rows = _header(path, rows)
    for column in ("source", "target"):
        empty = rows[columns[column]] == ""
        if empty.any():
            raise GnnlabError(f"{path}: line {rows.index[empty.argmax()]}: {column} is empty")
    names = pd.concat([rows[columns["source"]], rows[columns["target"]]])
    if names.str.fullmatch(r"[+-]?[0-9]{1,18}").all():
        numbers = names.astype("int64")
        if (numbers < 0).any():
            place = int((numbers < 0).to_numpy().argmax())
            raise GnnlabError(f"{path}: line {names.index[place]}: negative index {names.iloc[place]}; use 0 and above")
        codes, nodes = pd.factorize(numbers, sort=True)
    else:
        codes, nodes = pd.factorize(names)
    edge_index = torch.from_numpy(codes.astype(np.int64).reshape(2, -1))
    data = Data(edge_index=edge_index, num_nodes=len(nodes))
    if "weight" in columns:
        data.edge_weight = torch.from_numpy(_weights(path, rows[columns["weight"]]))
    return data


def _rows(path: Path) -> pd.DataFrame:
    """All cells as stripped text, indexed by line number; blank lines are left out."""
    judge_text(path, most_columns=3)
    try:
        rows = pd.read_csv(
            path,
            sep="\t" if path.suffix.lower() == ".tsv" else ",",
            header=None,
            dtype=str,
            keep_default_na=False,
            skip_blank_lines=False,
            encoding="utf-8-sig",
        )
    except pd.errors.EmptyDataError as error:
        raise GnnlabError(f"{path}: the file is empty; rows of source,target[,weight] are needed") from error
    except (pd.errors.ParserError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        raise GnnlabError(f"{path}: is no edge list in text ({one_line(error)})") from error
    rows = rows.fillna("").apply(lambda column: column.str.strip())
    rows.index = rows.index + 1
    rows = rows[(rows != "").any(axis=1)]
    if rows.empty:
        raise GnnlabError(f"{path}: the file is empty; rows of source,target[,weight] are needed")
    if rows.shape[1] not in (2, 3):
        apart = "tabs" if path.suffix.lower() == ".tsv" else "commas"
        found = f"{rows.shape[1]} columns separated by {apart}"
        raise GnnlabError(f"{path}: {found}; source,target or source,target,weight are needed")
    return rows


def _header(path: Path, rows: pd.DataFrame) -> tuple[dict[str, int], pd.DataFrame]:
    """Where source, target and weight are, and the rows without the header, if the first one is a header."""
    first = [name.lower() for name in rows.iloc[0]]
    pair = next((pair for pair in HEADERS if set(pair) <= set(first)), None)
    if pair is None:
        whole = rows.iloc[:, :2].apply(lambda column: column.str.fullmatch(r"[+-]?[0-9]+")).all(axis=1)
        if len(rows) > 1 and not whole.iloc[0] and whole.iloc[1:].all():  # names above integers: a header, and no edge
            told = f"header {shown(','.join(rows.iloc[0]))} is not understood"
            raise GnnlabError(f"{path}: {told}; write {' or '.join(map(','.join, HEADERS))}, or none")
        columns = dict(zip(("source", "target", "weight"), range(rows.shape[1]), strict=False))
        return columns, rows
    columns = {"source": first.index(pair[0]), "target": first.index(pair[1])}
    for place, name in enumerate(first):
        if name == "weight":
            columns["weight"] = place
        elif name not in pair:
            raise GnnlabError(f"{path}: column {shown(name)} is not understood; {','.join(pair)}[,weight] are allowed")
    if len(rows) == 1:
        raise GnnlabError(f"{path}: a header and no edge; at least one row is needed")
    return columns, rows.iloc[1:]


def _weights(path: Path, column: pd.Series) -> np.ndarray:
    weight = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    with np.errstate(over="ignore"):
        weight = weight.astype(np.float32)
    if not np.isfinite(weight).all():
        place = int(np.argmin(np.isfinite(weight)))
        raise GnnlabError(f"{path}: line {column.index[place]}: weight {shown(column.iloc[place])} is no finite number")
    return weight


def read_graphml(path: Path) -> Data:
    """Nodes in the order of the file; an undirected graph gets each edge in both directions.

    Numeric node attributes become features in alphabetical order, except `y` or `label`, which become `y`; the edge
    attribute `weight` becomes `edge_weight`. Text attributes and other edge attributes are left out.
    """
    judge(path, path.stat().st_size * _XML_FACTOR, "its nodes and edges")
    try:
        with warnings.catch_warnings():  # about attribute types that are not declared: read as text, left out
            warnings.simplefilter("ignore")
            with path.open("rb") as file:
                declared = {e.get("id") for _, e in ElementTree.iterparse(file) if e.tag.rpartition("}")[2] == "node"}
            graph = nx.read_graphml(path)
    except (ElementTree.ParseError, nx.NetworkXException, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GnnlabError(f"{path}: is no GraphML that networkx reads ({one_line(error)})") from error
    if not graph:
        raise GnnlabError(f"{path}: the graph has no nodes; at least one is needed")
    for name in graph:
        if name not in declared:
            raise GnnlabError(f"{path}: an edge names node {shown(name)}, which is not declared")
    number = {name: i for i, name in enumerate(graph)}
    ends = [(number[a], number[b], held.get("weight")) for a, b, held in graph.edges(data=True)]
    if not graph.is_directed():
        ends += [(b, a, weight) for a, b, weight in ends if a != b]
    data = Data(edge_index=torch.tensor([e[:2] for e in ends], dtype=torch.int64).view(-1, 2).t(), num_nodes=len(graph))
    if any(weight is not None for _, _, weight in ends):
        data.edge_weight = torch.tensor([_number(path, "weight of an edge", w) for _, _, w in ends])
    _node_attributes(path, graph, data)
    return data


def _node_attributes(path: Path, graph: nx.Graph, data: Data) -> None:
    held: dict[str, dict[Any, float]] = {}
    for node, attributes in graph.nodes(data=True):
        for key, value in attributes.items():
            if isinstance(value, (bool, int, float)):
                held.setdefault(key, {})[node] = value
    for key, values in held.items():
        missing = next((node for node in graph if node not in values), None)
        if missing is not None:
            raise GnnlabError(f"{path}: node {shown(missing)} has no number for attribute {shown(key)}; others have")
    labels = held.pop("y", None) or held.pop("label", None)
    if labels is not None:
        kind = torch.int64 if all(isinstance(value, int) for value in labels.values()) else torch.float32
        data.y = torch.tensor([_number(path, "label of a node", labels[node]) for node in graph]).to(kind)
    if held:
        columns = [[_number(path, f"{key} of a node", held[key][node]) for node in graph] for key in sorted(held)]
        data.x = torch.tensor(columns, dtype=torch.float32).t()


def _number(path: Path, what: str, value: object) -> float:
    if not isinstance(value, (bool, int, float)) or not abs(value) <= FLOAT32_MAX:
        raise GnnlabError(f"{path}: {what} is {shown(value)}; a finite number is needed")
    return float(value)


def read_npz(path: Path) -> Data:
    """Adjacency `adj_*` and features `attr_*` as the four arrays of a CSR matrix, and `labels` (N,) or (N, C).

    `adj[i, j]` is an edge from i to j; values other than 1 become `edge_weight`. Features and labels may be left out.
    (PyG's own reader makes features binary, edges undirected, and drops weights and self-loops without a word.)
    """
    arrays = _npz_arrays(path)
    adjacency = _csr(path, arrays, "adj")
    num_nodes, columns = adjacency.shape
    if num_nodes != columns:
        raise GnnlabError(f"{path}: adj_shape must be square, got {num_nodes} x {columns}")
    source = np.repeat(np.arange(num_nodes), np.diff(adjacency.indptr))
    data = Data(edge_index=torch.from_numpy(np.stack([source, adjacency.indices])), num_nodes=num_nodes)
    if (adjacency.data != 1).any():
        data.edge_weight = torch.from_numpy(adjacency.data)
    if "attr_data" in arrays:
        features = _csr(path, arrays, "attr")
        rows, columns = features.shape
        if rows != num_nodes:
            raise GnnlabError(f"{path}: attr_shape has {rows} rows, the adjacency has {num_nodes} nodes")
        judge(path, 4 * rows * columns, f"{rows} x {columns} features")
        data.x = torch.from_numpy(features.toarray())
    if "labels" in arrays:
        labels = arrays["labels"]
        if labels.ndim not in (1, 2) or len(labels) != num_nodes:
            raise GnnlabError(f"{path}: labels must have {num_nodes} rows, got shape {labels.shape}")
        data.y = torch.from_numpy(labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64))
    return data


def _npz_arrays(path: Path) -> dict[str, np.ndarray]:
    layouts = [f"adj_{part}" for part in CSR], [f"attr_{part}" for part in CSR]
    if not zipfile.is_zipfile(path):  # numpy would take it for a pickle
        raise GnnlabError(f"{path}: is no whole .npz archive; save plain arrays with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as archive:
            held = set(archive.files)
            needed = layouts[0] + (layouts[1] if held & set(layouts[1]) else [])
            missing = [key for key in needed if key not in held]
            if missing:
                raise GnnlabError(f"{path}: holds no {', '.join(missing)}; the layout is {', '.join(layouts[0])}, ...")
            wanted = needed + ["labels"] * ("labels" in held)
            judge(path, sum(_declared_bytes(archive.zip, f"{key}.npy") for key in wanted), "its arrays")
            arrays = {key: archive[key] for key in wanted}
    except GnnlabError:
        raise
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, KeyError) as error:
        pickled = "Object arrays" in str(error)
        what = "holds pickled objects, which are never loaded" if pickled else "is no whole .npz archive"
        raise GnnlabError(f"{path}: {what} ({one_line(error)}); save plain arrays with numpy.savez") from error
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "iufb":
            raise GnnlabError(f"{path}: {key} must hold numbers, got {getattr(array, 'dtype', type(array).__name__)}")
    return arrays


def _declared_bytes(archive: zipfile.ZipFile, name: str) -> int:
    """Of an array in an archive: the larger of what the archive and what the array's own header say."""
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(file)
    return max(archive.getinfo(name).file_size, math.prod(shape) * kind.itemsize)


def _csr(path: Path, arrays: dict[str, np.ndarray], name: str) -> csr_array:
    """The matrix of float32 that the four arrays of a name describe, checked."""
    values, indices, indptr, shape = (arrays[f"{name}_{part}"] for part in CSR)
    for part in ("indices", "indptr", "shape"):
        if arrays[f"{name}_{part}"].dtype.kind not in "iu":
            raise GnnlabError(f"{path}: {name}_{part} must hold integers, got {arrays[f'{name}_{part}'].dtype}")
    if shape.shape != (2,) or (shape < 1).any():
        raise GnnlabError(f"{path}: {name}_shape must be two positive numbers, got {shown(shape.tolist())}")
    rows, columns = shape.tolist()
    if indptr.shape != (rows + 1,):
        raise GnnlabError(f"{path}: {name}_indptr must have {rows + 1} entries for {rows} rows, got {indptr.shape}")
    indptr, indices = indptr.astype(np.int64), indices.astype(np.int64)
    if indices.ndim != 1 or values.shape != indices.shape or indptr[0] != 0 or indptr[-1] != len(indices):
        told = f"it runs from {indptr[0]} to {indptr[-1]}, with {values.size} values and {indices.size} indices"
        raise GnnlabError(f"{path}: {name}_indptr must run from 0 to the number of entries; {told}")
    if (np.diff(indptr) < 0).any():
        raise GnnlabError(f"{path}: {name}_indptr falls after row {int(np.argmax(np.diff(indptr) < 0))}; it must rise")
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    wrong = {"indices": (indices < 0) | (indices >= columns), "data": ~np.isfinite(values)}
    allowed = {"indices": f"0..{columns - 1} are allowed", "data": "finite float32 is needed"}
    for part, found in ((indices, "indices"), (values, "data")):
        if wrong[found].any():
            entry = int(np.argmax(wrong[found]))
            row = int(np.searchsorted(indptr, entry, side="right")) - 1
            raise GnnlabError(f"{path}: row {row} of {name}_{found} holds {part[entry]}; {allowed[found]}")
    return csr_array((values, indices, indptr), (rows, columns))


READERS: dict[str, Callable[[Path], Data]] = {
    ".npz": read_npz,
    ".graphml": read_graphml,
    ".csv": read_edge_list,
    ".tsv": read_edge_list,
}
