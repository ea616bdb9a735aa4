"""A user's own graph: `.npz`, `.graphml`, or an edge list as `.csv` or `.tsv`.

Files are taken as they are: an edge list row is one directed edge, nothing is made symmetric, binary or normalized.
Nothing in a file is ever unpickled. What is wrong with one is a `GraphError` that names the file and the place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import networkx as nx
import numpy as np
import pandas as pd
import torch
from torch_geometric.data import Data

from gnnlab.workloads.errors import GraphError, one_line, shown
from gnnlab.workloads.npz_files import read_npz

FLOAT32_MAX = 3.4028234663852886e38
HEADERS = (("source", "target"), ("src", "dst"), ("from", "to"))


def read(path: Path) -> Data:
    """The graph in the file, by its suffix; raises `GraphError` in one line that begins with the path."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        allowed = ", ".join(READERS)
        raise GraphError(f"{path}: a graph file ends in {allowed}, not in {shown(path.suffix)}")
    try:
        if path.is_dir():
            raise GraphError(f"{path}: is a folder; give the path of a file")
        if not path.exists():
            raise GraphError(f"{path}: there is no such file; check the path (the current folder is {Path.cwd()})")
        return reader(path)
    except OSError as error:
        raise GraphError(f"{path}: cannot be read: {one_line(error)}") from error
    except MemoryError as error:
        raise GraphError(f"{path}: the graph it describes does not fit into memory") from error


def read_edge_list(path: Path) -> Data:
    """One directed edge a row: source, target and perhaps a weight; a header (source,target[,weight]) may lead.

    Integer names are numbered in ascending order, so that 0..N-1 stay what they are; other names as they appear.
    """
    rows = _rows(path)
    columns, rows = _header(path, rows)
    for column in ("source", "target"):
        empty = rows[columns[column]] == ""
        if empty.any():
            raise GraphError(f"{path}: line {rows.index[empty.argmax()]}: {column} is empty")
    names = pd.concat([rows[columns["source"]], rows[columns["target"]]])
    if names.str.fullmatch(r"[+-]?[0-9]{1,18}").all():
        numbers = names.astype("int64")
        if (numbers < 0).any():
            place = int((numbers < 0).to_numpy().argmax())
            raise GraphError(f"{path}: line {names.index[place]}: negative index {names.iloc[place]}; use 0 and above")
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
        raise GraphError(f"{path}: the file is empty; rows of source,target[,weight] are needed") from error
    except (pd.errors.ParserError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        raise GraphError(f"{path}: is no edge list in text ({one_line(error)})") from error
    rows = rows.fillna("").apply(lambda column: column.str.strip())
    rows.index = rows.index + 1
    rows = rows[(rows != "").any(axis=1)]
    if rows.empty:
        raise GraphError(f"{path}: the file is empty; rows of source,target[,weight] are needed")
    if rows.shape[1] not in (2, 3):
        raise GraphError(f"{path}: {rows.shape[1]} columns; source,target or source,target,weight are needed")
    return rows


def _header(path: Path, rows: pd.DataFrame) -> tuple[dict[str, int], pd.DataFrame]:
    """Where source, target and weight are, and the rows without the header, if the first one is a header."""
    first = [name.lower() for name in rows.iloc[0]]
    pair = next((pair for pair in HEADERS if set(pair) <= set(first)), None)
    if pair is None:
        columns = dict(zip(("source", "target", "weight"), range(rows.shape[1]), strict=False))
        return columns, rows
    columns = {"source": first.index(pair[0]), "target": first.index(pair[1])}
    for place, name in enumerate(first):
        if name == "weight":
            columns["weight"] = place
        elif name not in pair:
            raise GraphError(f"{path}: column {shown(name)} is not understood; {','.join(pair)}[,weight] are allowed")
    if len(rows) == 1:
        raise GraphError(f"{path}: a header and no edge; at least one row is needed")
    return columns, rows.iloc[1:]


def _weights(path: Path, column: pd.Series) -> np.ndarray:
    weight = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    with np.errstate(over="ignore"):
        weight = weight.astype(np.float32)
    if not np.isfinite(weight).all():
        place = int(np.argmin(np.isfinite(weight)))
        raise GraphError(f"{path}: line {column.index[place]}: weight {shown(column.iloc[place])} is no finite number")
    return weight


def read_graphml(path: Path) -> Data:
    """Nodes in the order of the file; an undirected graph gets each edge in both directions.

    Numeric node attributes become features in alphabetical order, except `y` or `label`, which become `y`; the edge
    attribute `weight` becomes `edge_weight`. Text attributes and other edge attributes are left out.
    """
    try:
        with warnings.catch_warnings():  # about attribute types that are not declared: read as text, left out
            warnings.simplefilter("ignore")
            with path.open("rb") as file:
                declared = {e.get("id") for _, e in ElementTree.iterparse(file) if e.tag.rpartition("}")[2] == "node"}
            graph = nx.read_graphml(path)
    except (ElementTree.ParseError, nx.NetworkXException, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GraphError(f"{path}: is no GraphML that networkx reads ({one_line(error)})") from error
    if not graph:
        raise GraphError(f"{path}: the graph has no nodes; at least one is needed")
    for name in graph:
        if name not in declared:
            raise GraphError(f"{path}: an edge names node {shown(name)}, which is not declared")
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
            raise GraphError(f"{path}: node {shown(missing)} has no number for attribute {shown(key)}; others have")
    labels = held.pop("y", None) or held.pop("label", None)
    if labels is not None:
        kind = torch.int64 if all(isinstance(value, int) for value in labels.values()) else torch.float32
        data.y = torch.tensor([_number(path, "label of a node", labels[node]) for node in graph]).to(kind)
    if held:
        columns = [[_number(path, f"{key} of a node", held[key][node]) for node in graph] for key in sorted(held)]
        data.x = torch.tensor(columns, dtype=torch.float32).t()


def _number(path: Path, what: str, value: object) -> float:
    if not isinstance(value, (bool, int, float)) or not abs(value) <= FLOAT32_MAX:
        raise GraphError(f"{path}: {what} is {shown(value)}; a finite number is needed")
    return float(value)


READERS: dict[str, Callable[[Path], Data]] = {
    ".npz": read_npz,
    ".graphml": read_graphml,
    ".csv": read_edge_list,
    ".tsv": read_edge_list,
}
