"""The graph in rows of cells (`delimited`): source, target, a weight, features of the edge, and a file of nodes beside.

What may mean two things is refused, with both readings. How a file was read, and what was left out, stands in the
graph's `_notes`, of which `graphs.read_as` makes a line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError
from gnnlab.workloads import delimited
from gnnlab.workloads.delimited import Table, key, numbers, twins
from gnnswap.errors import quoted

SUFFIXES = (".csv", ".tsv", ".txt", ".edges")
MOST_BYTES = 20_000_000  # of a list of neighbours
FEW = 4  # ids below this times their number are looked up in a table
EXACT = 2**24  # up to which float32 has every integer
TIMES = 1e8  # a column without a name, with nothing smaller: seconds since 1970

# names of columns without case, blanks and underscores; "node" or "id" may stand around those of the two ends
SOURCES = (
    "source src from head u i start subject sender citing parent origin regulator caller follower quelle von origine"
)
TARGETS = "target dst to tail v j end object receiver cited child callee followee destination dest ziel nach destino"
END = r"(?:id|node|vertex)?({})(?:node|vertex)?(?:id|ids|idx|index|name)?"
ROLES = [re.compile(END.format("|".join(names.split()))) for names in (SOURCES, TARGETS)]
ROW_NUMBERS = ("", "unnamed0", "id", "edgeid", "index", "idx", "rowid", "row", "rownames")
TEXTS = ("type", "relation", "rel", "relationship", "predicate", "interaction", "metaedge", "edgetype")
IDS = ("id", "nodeid", "node", "name", "vertex", "txid", "key")
LABELS = ("y", "label", "labels", "class", "target", "category")


def read(path: Path, nodes: dict[str, Any] | None = None) -> Data:
    """The graph of an edge list: a row is one directed edge, source, target and perhaps a weight.

    Under a header, columns of other names are features of the edge, `edge_attr` in the order of the file. Integer names
    are numbered in ascending order, so that 0..N-1 stay what they are, others as they appear. A matrix of 0 and 1 and
    a list of each node's neighbours are understood, too.

    Args:
        nodes: what `read_nodes` gives of a file beside.

    Raises:
        GnnlabError: for what is no edge list, or could be read in two ways.
    """
    if path.stem.endswith("_A") and path.with_name(f"{path.stem[:-2]}_graph_indicator.txt").exists():
        raise GnnlabError(f"one file of a TU data set; name the set, as in pyg:TUDataset:{path.stem[:-2]}")
    if nodes is None and (data := _neighbours(path)) is not None:
        return data
    table = delimited.read(path, _ends)
    if nodes is None and (data := _matrix(path, table)) is not None:
        return data
    data, ends = _columns(table)
    columns, table.cells = [table.cells[i] for i in ends], None
    edges = 2 * len(columns[0])
    ids = _ids(*columns, *([nodes["id"]] if nodes else []))
    del columns
    numbered = ids.dtype == np.int64
    if path.name.lower().removesuffix(".gz").endswith(".edges") and not numbered:
        raise GnnlabError("a .edges file holds integers, as SNAP writes it; call one with names .txt")
    ids, own = ids[:edges], ids[edges:]
    if nodes is None:
        known = _different(ids)
        if numbered and known[-1] >= len(known):
            table.how.append(f"ids {known[0]}..{known[-1]} numbered 0..{len(known) - 1}")
    else:
        order = np.argsort(own) if numbered else np.arange(len(own))
        known = own[order]
        for name in nodes.keys() & {"x", "y"}:
            data[name] = torch.from_numpy(nodes[name][order])
        table.how.append(nodes["how"])
        table.unused += nodes["unused"]
    codes = _places(ids, known)
    if codes.min() < 0:
        missing = quoted(str(ids[codes < 0][0]))
        raise GnnlabError(f"node {missing} of the edges is not in {nodes['file']}; add it there")
    data.edge_index, data.num_nodes = torch.from_numpy(codes.reshape(2, -1)), len(known)
    data._notes = {"how": table.how, "unused": table.unused, "kind": "" if numbered else "named "}
    return data


# ---- what the columns are --------------------------------------------------------------------------------------------


def _ends(names: Sequence[str]) -> tuple[int, int] | None:
    """The places of source and target among the names of columns."""
    found = [[i for i, name in enumerate(names) if role.fullmatch(key(name))] for role in ROLES]
    if any(len(places) > 1 for places in found):  # source and source_name
        found = [[i for i in places if key(names[i]) in ("source", "target")] for places in found]
    return (found[0][0], found[1][0]) if [len(places) for places in found] == [1, 1] else None


def _columns(table: Table) -> tuple[Data, tuple[int, int]]:
    """Weights and features of the edges, and the places of source and target."""
    data, cells, features = Data(), table.cells, {}
    ends, others = _with_header(table) if table.header else _without_header(table)
    for name, i in others.items():
        if key(name) in TEXTS and not delimited.is_numeric(cells[i]):
            table.unused.append(f"text of {name}")
        else:
            features[name] = numbers(name, cells[i], table.separator)
    weight = next((name for name in features if key(name) == "weight"), None)
    if weight is not None:
        data.edge_weight = torch.tensor(features.pop(weight))
    if features:
        attr = np.stack(list(features.values()), axis=1)  # (E, D)
        data.edge_attr = torch.from_numpy(attr if np.abs(attr).max() > EXACT else attr.astype(np.float32))
    return data, ends


def _with_header(table: Table) -> tuple[tuple[int, int], dict[str, int]]:
    names, others = table.header, {}
    ends = _ends(names) or twins(names)
    if ends is None:
        raise GnnlabError(
            f"the header {quoted(','.join(names))} is not understood; name the columns of the two ends source,target"
        )
    for i in table.cells:
        if i not in ends and key(names[i]) in ROW_NUMBERS and table.cells[i].is_unique:
            table.unused.append(f"row numbers {names[i]}".strip())
        elif i not in ends:
            if names[i] in others or not names[i]:
                raise GnnlabError(f"two columns have the name {names[i]!r} in the header; rename or delete one")
            others[names[i]] = i
    return ends, others


def _without_header(table: Table) -> tuple[tuple[int, int], dict[str, int]]:
    cells, width = table.cells, table.cells.shape[1]
    times = [cells[i].dtype.kind in "iuf" and cells[i].min() > TIMES for i in cells]
    if width == 2:
        _no_counts(cells)
        return (0, 1), {}
    if width == 3 and not delimited.is_numeric(cells[2]):
        if not cells[1].isin(cells[0]).any() and cells[2].isin(cells[0]).any():  # a relation between the ends
            table.unused.append("text in column 2")
            return (0, 2), {}
        both = "source,relation,target or source,target,text"
        raise GnnlabError(f"three columns of text may be {both}; write one of these above the first edge")
    if width > 4 or (width == 4 and not times[3]):
        raise GnnlabError(f"{width} columns without names; write a header: source,target, and what the others are")
    ones = width == 4 and (cells[2] == 1).all()
    left_out = [
        f"column {i + 1}, {'times' if times[i] else '1 everywhere'}" for i in range(2, width) if times[i] or ones
    ]
    table.unused += left_out
    return (0, 1), {} if times[2] or ones else {"weight": 2}


def _no_counts(cells: pd.DataFrame) -> None:
    """Refuses two numbers in row 1 that may be those of nodes and edges."""
    nodes, edges = cells.iloc[0]
    rest = cells.iloc[1:]
    if edges == len(rest) and nodes in (rest.max().max() + 1, len(np.unique(rest))):
        raise GnnlabError(
            f"row 1, {nodes} {edges}, may be an edge or the numbers of nodes and edges; delete it, or write "
            "source,target above it"
        )


# ---- other ways to write edges ---------------------------------------------------------------------------------------


def _neighbours(path: Path) -> Data | None:
    """The graph of a list of neighbours, if the file is one without any doubt: rows of integers, a node and those that
    it is joined with, in both directions."""
    if path.stat().st_size > MOST_BYTES:
        return None
    sample = [row for row in delimited.first_rows(path, _ends) if row]
    if not all(cell.isascii() and cell.isdigit() for row in sample for cell in row if cell) or len(sample) < 2:
        return None
    if {len(row) for row in sample} in ({1}, {2}) or len({row[0] for row in sample}) < len(sample):
        return None
    rows = [[int(cell) for cell in row if cell] for row in delimited.first_rows(path, _ends, math.inf)]
    pairs = {(row[0], other) for row in rows for other in row[1:]}
    nodes = sorted(row[0] for row in rows)
    sound = len(pairs) == sum(len(row) - 1 for row in rows) and len(set(nodes)) == len(rows)
    if not sound or not all((b, a) in pairs and a != b for a, b in pairs):
        return None
    place = {node: i for i, node in enumerate(nodes)}
    edges = [(place[row[0]], place[other]) for row in rows for other in row[1:]]
    return _made(torch.tensor(edges).t(), len(nodes), "a list of neighbours", "")


def _matrix(path: Path, table: Table) -> Data | None:
    """The graph of a matrix of 0 and 1, with the names of the nodes or without."""
    cells, header = table.cells, table.header
    square = header is not None and len(header) == len(cells) + 1
    named = square and header[1:] == cells[0].astype(str).str.strip().tolist()
    inner = cells.drop(columns=0) if named else cells
    if inner.shape[0] != inner.shape[1] or (not named and (header or len(inner) < 3)):
        return None
    if all(inner[i].dtype.kind == "i" and inner[i].isin((0, 1)).all() for i in inner):
        array = inner.to_numpy()
        if named or len(array) > 3 or (array == array.T).all():
            edges = torch.from_numpy(np.stack(array.nonzero()))
            return _made(edges, len(array), f"a matrix of {len(array)} x {len(array)}", "named " if named else "")
    if named:
        table_read = f'pandas.read_csv("{path.name}", sep="{table.separator}", index_col=0)'
        raise GnnlabError(
            "a matrix of weights, in which 0 may be a weight or no edge: "
            f'networkx.write_graphml(networkx.from_pandas_adjacency({table_read}), "new.graphml") leaves 0 out'
        )
    return None


def _made(edges: torch.Tensor, nodes: int, how: str, kind: str) -> Data:
    data = Data(edge_index=edges, num_nodes=nodes)
    data._notes = {"how": [how], "unused": [], "kind": kind}
    return data


# ---- the nodes -------------------------------------------------------------------------------------------------------


def _ids(*columns: pd.Series) -> np.ndarray:
    """The names of the nodes in the columns, one after the other: int64, or text."""
    for column in columns:
        part = column.dtype.kind == "f" and not (column % 1 == 0).all()
        if part or (column.dtype.kind not in "iuf" and column.str.fullmatch(r"\s*[0-9]*\.[0-9]*[1-9][0-9]*").all()):
            raise GnnlabError("a node is missing, or its id is a fraction; a row is an edge: source,target")
    if all(column.dtype.kind in "if" for column in columns):
        ids = np.concatenate([column.to_numpy(dtype=np.int64) for column in columns])
        if ids.min() >= 0:
            return ids
        raise GnnlabError(f"the name of a node is a negative number, {ids.min()}; number nodes from 0")
    whole = [column.astype(np.int64) if column.dtype.kind == "f" else column for column in columns]
    names = pd.concat([column.astype(str).str.strip() for column in whole], ignore_index=True)
    bad = names.isna() | names.str.fullmatch("|-[0-9]+")
    if bad.any():
        row = int(np.flatnonzero(bad)[0]) % len(columns[0]) + 1
        raise GnnlabError(f"the name of a node is empty or a negative number in row {row}; give it another")
    if names.str.fullmatch(r"[0-9]{1,18}(\.0*)?").all():
        names = names.str.replace(r"\.0*$", "", regex=True)
        integers = names.astype(np.int64)
        if integers.nunique() == names.nunique():  # else 7 and 007 are two nodes
            return integers.to_numpy()
    return names.to_numpy(dtype=object)


def _different(ids: np.ndarray) -> np.ndarray:
    """The ids, each once: integers in ascending order, names as they appear."""
    if ids.dtype != np.int64:
        return pd.unique(ids)
    if ids.max() >= FEW * len(ids):
        return np.unique(ids)
    seen = np.zeros(ids.max() + 1, dtype=bool)
    seen[ids] = True
    return np.flatnonzero(seen)


def _places(ids: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The place of each id among the known, int64; -1 where it is none of them."""
    if ids.dtype != np.int64 or ids.max() >= FEW * len(ids):
        return pd.Index(known).get_indexer(ids).astype(np.int64, copy=False)
    if known[-1] == len(known) - 1:  # 0..N-1
        return np.where(ids < len(known), ids, -1) if ids.max() >= len(known) else ids
    places = np.full(max(ids.max(), known[-1]) + 1, -1)
    places[known] = np.arange(len(known))
    return places[ids]


def _own(names: Sequence[str]) -> tuple[int] | None:
    return next(((i,) for i, name in enumerate(names) if key(name) in IDS), None)


def read_nodes(path: Path) -> dict[str, Any]:
    """A file of nodes, one a row: the column `id` of their names, `x` (N, F) of columns of numbers, `y` (N,) of one
    named label or class, where there are such; how it was read, and what is not used."""
    table = delimited.read(path, _own, default=(0,))
    names = table.header or [f"column {i + 1}" for i in range(max(table.cells) + 1)]
    (own,) = _own(names) or (0,)
    columns, y, unused = {}, {}, table.unused
    for i in table.cells:
        column = table.cells[i]
        text = not delimited.is_numeric(column)
        label = key(names[i]) in LABELS or (table.header is None and text and i == max(table.cells))
        if i == own:
            continue
        if label and not y and column.notna().all() and (not text or column.nunique() <= len(column) / 2):
            y = {"y": pd.Categorical(column).codes.astype(np.int64) if text else numbers(names[i], column, "")}
        elif text:
            unused.append(f"text of {names[i]}")
        else:
            columns[names[i]] = numbers(names[i], column, table.separator).astype(np.float64)
    if not table.cells[own].is_unique:
        twice = table.cells[own][table.cells[own].duplicated()].iloc[0]
        raise GnnlabError(f"node {quoted(str(twice))} is there twice; write a row a node")
    x = {"x": np.stack(list(columns.values()), axis=1)} if columns else {}
    how = f"nodes of {path.name}, {table.how[0]}"
    return {"id": table.cells[own], **x, **y, "unused": unused, "how": how, "file": path.name}
