"""The graph in rows of cells (`delimited`): source, target, a weight, features of the edge, and a file of nodes beside.

What may mean two things is refused, with both readings. How a file was read, and what was left out, stands in the
graph's `_notes`, of which `graphs.read_as` makes a line.
"""

from __future__ import annotations

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
from gnnlab.workloads.delimited import DelimitedTable, key, numbers, twins
from gnnswap.errors import quoted

SUFFIXES = (".csv", ".tsv", ".txt", ".edges")
EXACT = 2**24  # up to which float32 has every integer
TIMES = {"iuf": (1e8, 5e9), "i": (5e11, 3e12)}  # in seconds and in milliseconds since 1970, by kinds of numbers
DAYS = (19000101, 21001231)

# names of columns without case, blanks and underscores; "node" or "id" may stand around those of the two ends
SOURCES = (
    "source src from head u i start subject sender citing parent origin regulator caller follower quelle von origine"
)
TARGETS = "target dst to tail v j end object receiver cited child callee followee destination dest ziel nach destino"
END = r"(?:id|node|vertex)?({})(?:node|vertex)?(?:id|ids|idx|index|name)?"
ROLES = [re.compile(END.format("|".join(names.split()))) for names in (SOURCES, TARGETS)]
SPANS = {"start", "end", "from", "to"}  # names of the two ends, or of times
INDEX = re.compile("|unnamed[0-9]+|rownames")  # as pandas or R name it
ROW_NUMBERS = ("id", "edgeid", "index", "idx", "rowid", "row")
TEXTS = ("type", "relation", "rel", "relationship", "predicate", "interaction", "metaedge", "edgetype")
IDS = ("id", "nodeid", "node", "vertex", "txid", "key", "name")  # the first of them that there is
LABELS = ("y", "label", "labels", "class", "target", "category")


def read(path: Path, nodes: dict[str, Any] | None = None) -> Data:
    """The graph of an edge list: a row is one directed edge, source, target and perhaps a weight.

    Under a header, columns of other names are features of the edge, `edge_attr` in the order of the file. Integer names
    are numbered in ascending order, so that 0..N-1 stay what they are, others as they appear.

    Args:
        nodes: what `read_nodes` gives of a file beside.

    Raises:
        GnnlabError: for what is no edge list, or could be read in two ways.
    """
    if path.stem.endswith("_A") and path.with_name(f"{path.stem[:-2]}_graph_indicator.txt").exists():
        raise GnnlabError(f"one file of a TU data set; name the set, as in pyg:TUDataset:{path.stem[:-2]}")
    table = delimited.read(path, _ends, "one edge a row: source,target", (0, 1))
    if nodes is None:
        _no_matrix(table)
    data, ends = _columns(table)
    columns, table.cells = [table.cells[i] for i in ends], None
    places, ids = _ids([*columns, *([nodes["id"]] if nodes else [])], table)
    numbered = ids.dtype == np.int64
    if table.lines.suffix == ".edges" and not numbered:
        raise GnnlabError("a .edges file holds integers, as SNAP writes it; call one with names .txt")
    count = len(ids)
    if nodes is not None:
        places, own = np.split(places, [2 * len(columns[0])])
        order = np.argsort(own) if numbered else np.arange(len(own))
        places, count = _among(places, own[order], ids, nodes["file"]), len(own)
        for name in nodes.keys() & {"x", "y"}:
            data[name] = torch.from_numpy(nodes[name][order])
        table.how.append(nodes["how"])
        table.unused += nodes["unused"]
    elif numbered and ids[-1] >= count:
        table.how.append(f"ids {ids[0]}..{ids[-1]} numbered 0..{count - 1}")
    data.edge_index, data.num_nodes = torch.from_numpy(places.reshape(2, -1)), count
    data._notes = {"how": table.how, "unused": table.unused, "kind": "" if numbered else "named "}
    return data


# ---- what the columns are --------------------------------------------------------------------------------------------


def _ends(names: Sequence[str]) -> tuple[int, int] | None:
    """The places of source and target among the names of columns."""
    if len(set(re.findall(r"\(.*?\)", "".join(names)))) == 1:  # Neo4j's :START_ID(Person),:END_ID(Person)
        names = [re.sub(r"\(.*?\)", "", name) for name in names]
    found = [[i for i, name in enumerate(names) if role.fullmatch(key(name))] for role in ROLES]
    if any(len(places) > 1 for places in found):  # source and source_name
        found = [[i for i in places if key(names[i]) in ("source", "target")] for places in found]
    return (found[0][0], found[1][0]) if [len(places) for places in found] == [1, 1] else None


def _columns(table: DelimitedTable) -> tuple[Data, tuple[int, int]]:
    """Weights and features of the edges, and the places of source and target."""
    data, cells, features = Data(), table.cells, {}
    ends, others = _with_header(table) if table.header else _without_header(table)
    for name, i in others.items():
        text = not delimited.is_numeric(cells[i])
        if text and key(name) == "type" and cells[i].str.lower().eq("undirected").any():
            raise GnnlabError(
                "Type says Undirected, and a row is one directed edge: write both, pandas.concat([edges, "
                'edges.rename(columns={"Source": "Target", "Target": "Source"})]), without Type'
            )
        if text and key(name) in TEXTS:
            table.unused.append(f"text of {name}")
        else:
            features[name] = cells[i]
    features = numbers(features, table.separator)
    weight = next((name for name in features if key(name) == "weight"), None)
    if weight is not None:
        data.edge_weight = torch.tensor(features.pop(weight))
    if features:
        attr = np.stack(list(features.values()), axis=1)  # (E, D)
        for name, column in features.items():
            if attr.dtype != column.dtype and np.abs(column).max() > 2**53:
                raise GnnlabError(f"column {name} beside fractions is float64, which rounds it; subtract its smallest")
        data.edge_attr = torch.from_numpy(attr if np.abs(attr).max() > EXACT else attr.astype(np.float32))
    return data, ends


def _with_header(table: DelimitedTable) -> tuple[tuple[int, int], dict[str, int]]:
    names, others = table.header, {}
    ends = _ends(names)
    if ends is None and not any(role.fullmatch(key(name)) for role in ROLES for name in names):
        ends = twins(names)
    elif ends and min(ends) > 1 and (rivals := _may_be_ends(table, *ends)):
        both = " or ".join(",".join(names[i] for i in pair) for pair in (rivals, ends))
        raise GnnlabError(f"the two ends may be {both}; name their columns source,target")
    if ends is None:
        raise GnnlabError(
            f"the header {quoted(','.join(names))} is not understood; name the columns of the two ends source,target"
        )
    for i in table.cells:
        if i not in ends and _counts_rows(names[i], table.cells[i]):
            table.unused.append(f"row numbers {names[i]}".strip())
        elif i not in ends:
            others[names[i] or f"column {i + 1}"] = i
    return ends, others


def _may_be_ends(table: DelimitedTable, start: int, end: int) -> Sequence[int]:
    """Two columns before start,end that may be the ends: these are in order, and times, or the two share ids."""
    cells, names = table.cells, table.header
    if not {key(names[start]), key(names[end])} <= SPANS:
        return ()
    plain = [i for i in cells if i < min(start, end) and cells[i].dtype.kind != "f"]
    two = [i for i in plain if not _counts_rows(names[i], cells[i])][:2]
    ordered = all(cells[i].dtype.kind in "iuf" for i in (start, end)) and (cells[start] <= cells[end]).all()
    like_ids = len(two) == 2 and (_are_times(cells[start]) or cells[two[0]].isin(cells[two[1]]).any())
    return twins(names) or (two if ordered and like_ids else ())


def _counts_rows(name: str, column: pd.Series) -> bool:
    """Whether a column is the index that pandas or R wrote, or consecutive numbers by a name for such."""
    if INDEX.fullmatch(key(name)) and (name or column.name == 0):
        return column.dtype.kind != "f" and column.is_unique
    return key(name) in ("", *ROW_NUMBERS) and column.dtype.kind == "i" and (np.diff(column) == 1).all()


def _without_header(table: DelimitedTable) -> tuple[tuple[int, int], dict[str, int]]:
    cells, width = table.cells, table.cells.shape[1]
    if width in (2, 3):
        _no_counts(cells, table.lines.first[0])
    if width == 2:
        return (0, 1), {}
    if width == 3 and _is_relation(cells, table.separator):
        table.unused.append("text in column 2")
        return (0, 2), {}
    if width == 3 and not delimited.is_numeric(cells[2]):
        if not cells[1].isin(cells[0]).any() and cells[2].isin(cells[0]).any():  # a relation between the ends
            table.unused.append("text in column 2")
            return (0, 2), {}
        both = "source,relation,target or source,target,text"
        raise GnnlabError(f"three columns of text may be {both}; write one of these above the first edge")
    times = _are_times(cells[width - 1])
    if width == 3 and times:
        both = "source,target,time or source,target,weight"
        raise GnnlabError(f"column 3 may hold times or weights; write {both} above the first edge")
    if width == 3 and all(cells[i].dtype.kind == "i" for i in cells) and cells[0].is_unique:
        ends = cells[[0, 1]]
        if cells[2].isin(np.unique(ends)).any() and not ends.eq(cells[2], axis=0).any(axis=None):
            raise GnnlabError(
                "three columns of integers may be source,target,weight (write that above the first edge) or a node "
                f"and its neighbours ({table.lines.by_networkx('adjlist', table.separator)})"
            )
    if width > 4 or (width == 4 and not times):
        raise GnnlabError(f"{width} columns without names; write a header: source,target, and what the others are")
    ones = width == 4 and bool((cells[2] == 1).all())
    table.unused += ["column 3, 1 everywhere"] * ones + ["column 4, times"] * (width == 4)
    return (0, 1), {} if ones else {"weight": 2}


def _are_times(column: pd.Series) -> bool:
    """Whether all may be seconds or milliseconds since 1970, or days as 20240131."""
    kind = column.dtype.kind
    if any(kind in kinds and column.between(*span).all() for kinds, span in TIMES.items()):
        return True
    days = kind == "i" and column.between(*DAYS).all()
    return days and (column // 100 % 100).between(1, 12).all() and (column % 100).between(1, 31).all()


def _is_relation(cells: pd.DataFrame, separator: str) -> bool:
    """Whether column 2 joins two numbers, as in 1 -> 2; a word may do so as well, or be a node."""
    odd = [not delimited.is_numeric(cells[i].iloc[: delimited.SAMPLE]) for i in (0, 1)]
    if sum(odd) != 1 or cells[2].dtype.kind != "i":
        return False
    text, ids = (cells[i] for i in (odd.index(True), odd.index(False)))
    if odd[1] and not text.str.contains(r"\w").any():
        return True
    if (len(cells) > 1 and text.nunique() == 1) or cells[2].astype(str).isin(ids).any():
        with_text = "relation,source,target" if odd[0] else "source,relation,target"
        both = f"{with_text} or source,target,weight".replace(",", separator)
        raise GnnlabError(f"a row may be {both}; write one of these above the first edge")
    return False


def _no_counts(cells: pd.DataFrame, row: str) -> None:
    """Refuses a first row that may be the numbers of nodes and edges, or of rows, columns and entries."""
    nodes, *columns, edges = pd.to_numeric(cells.iloc[0], errors="coerce")
    twice = 2 * edges == len(cells) - 1  # each edge in both directions
    if (edges != len(cells) - 1 and not twice) or np.isnan([nodes, *columns]).any():
        return
    if nodes < len(np.unique(rest := cells.loc[1:, [0, 1]])):
        return
    if not twice or (pairs := pd.MultiIndex.from_frame(rest)).isin(pairs.swaplevel()).all():
        above = "source,target,weight" if cells.shape[1] == 3 else "source,target"
        raise GnnlabError(
            f"row 1, {quoted(row.strip())}, may be an edge or the numbers of nodes and edges; delete it, or write "
            f"{above} above it"
        )


def _no_matrix(table: DelimitedTable) -> None:
    """Refuses a matrix, with the names of the nodes or without."""
    cells, header, name = table.cells, table.header, table.lines.name
    if header and len(header) == len(cells) + 1 and header[1:] == cells[0].astype(str).str.strip().tolist():
        read = f'pandas.read_csv("{name}", sep="{table.separator}", index_col=0)'
        raise GnnlabError(
            "a matrix, in which 0 may be a weight or no edge: "
            f"networkx.write_graphml(networkx.from_pandas_adjacency({read}, create_using=networkx.DiGraph), "
            '"new.graphml") leaves 0 out'
        )
    if not header and len(cells) == cells.shape[1] > 2 and cells.isin((0, 1)).all(axis=None):
        read = f'numpy.loadtxt("{name}", delimiter="{table.separator}")'
        raise GnnlabError(f'a matrix: scipy.sparse.save_npz("new.npz", scipy.sparse.csr_array({read}))')


# ---- the nodes -------------------------------------------------------------------------------------------------------


def _ids(columns: list[pd.Series], table: DelimitedTable) -> tuple[np.ndarray, np.ndarray]:
    """The place of each cell among the ids, one column after the other, and the ids, each once: integers in ascending
    order, or text as it appears."""
    if all(column.dtype.kind == "i" for column in columns):
        numbers = np.concatenate([column.to_numpy(np.int64) for column in columns])
        if numbers.min() < 0:
            raise GnnlabError(f"the name of a node is a negative number, {numbers.min()}; number nodes from 0")
        if numbers.max() >= len(numbers):
            return pd.factorize(numbers, sort=True)
        known = np.zeros(numbers.max() + 1, dtype=bool)  # takes a third of the memory of pandas' table
        known[numbers] = True
        return (np.cumsum(known) - 1)[numbers], np.flatnonzero(known)
    places, names = pd.factorize(pd.concat([column.astype(str) for column in columns], ignore_index=True))
    names = pd.Series(names, dtype=str).str.strip()
    _check_names(names, places, len(columns[0]), table)
    ids = names.to_numpy(dtype=object)
    if names.str.fullmatch(r"[0-9]{1,18}(\.0*)?").all():
        names = names.str.partition(".")[0]
        if names.astype(np.int64).nunique() == names.nunique():  # else 7 and 007 are two nodes
            ids = names.astype(np.int64).to_numpy()
    renamed, ids = pd.factorize(ids, sort=ids.dtype == np.int64)  # "a " is a
    return renamed[places], ids


def _check_names(names: pd.Series, places: np.ndarray, rows: int, table: DelimitedTable) -> None:
    """Refuses names that are none, or may be two numbers."""
    bad = names.str.fullmatch("|-[0-9]+")
    if bad.any():
        row = int(np.flatnonzero(bad.to_numpy()[places])[0]) % rows + 1
        raise GnnlabError(f"the name of a node is empty or a negative number in row {row}; give it another")
    if (names == "{}").any():
        raise GnnlabError(f"networkx wrote it with {{}}: {table.lines.by_networkx('multiline_adjlist')}")
    if names.str.fullmatch(r"[0-9]*\.?[0-9]*").all():
        if names.str.fullmatch(r"[0-9]*\.[0-9]*[1-9][0-9]*").any():
            raise GnnlabError("a node is missing, or its id is a fraction; a row is an edge: source,target")
        if table.separator != "," and (found := names[names.str.fullmatch(r"[1-9][0-9]{0,2}\.[0-9]{3}")]).any():
            one = found.iloc[0]
            raise GnnlabError(f"id {one} may be {one.replace('.', '')} or {one[:-4]}; write ids without points")


def _among(places: np.ndarray, own: np.ndarray, ids: np.ndarray, file: str) -> np.ndarray:
    """The places of the edges' ids among the file's `own`, both as places among all ids."""
    among = np.full(len(ids), -1)
    among[own] = np.arange(len(own))
    if len(np.unique(own)) < len(own):
        twice = ids[np.bincount(own).argmax()]
        raise GnnlabError(f"node {quoted(str(twice))} is in {file} twice; write a row a node")
    if (among[places] < 0).any():
        missing = ids[places[among[places] < 0][0]]
        raise GnnlabError(f"node {quoted(str(missing))} of the edges is not in {file}; add it there")
    return among[places]


def _own(names: Sequence[str]) -> tuple[int] | None:
    keys = [key(name) for name in names]
    return next(((keys.index(name),) for name in IDS if name in keys), None)


def read_nodes(path: Path) -> dict[str, Any]:
    """A file of nodes, one a row: the column `id` of their names, `x` (N, F) of columns of numbers, `y` (N,) of one
    named label or class, where there are such; how it was read, and what is not used."""
    table = delimited.read(path, _own, "one node a row: id, and numbers or a label", (0,))
    names = table.header or [f"column {i + 1}" for i in range(max(table.cells) + 1)]
    if _ends(names):
        raise GnnlabError(f"{','.join(names)[:80]} are edges; a file of nodes has a node a row, and a column id")
    (own,) = _own(names) or (0,)
    columns, labels, unused, ids = {}, {}, table.unused, table.cells[own]
    if ids.dtype.kind not in "iu" and delimited.is_numeric(ids) and (pd.to_numeric(ids, errors="coerce") % 1 > 0).any():
        raise GnnlabError("a node is missing, or its id is a fraction; name the column of the nodes id, or write one")
    for i, column in table.cells.items():
        column = column.astype(int) if column.dtype.kind == "b" else column
        text = not delimited.is_numeric(column.dropna())
        label = key(names[i]) in LABELS or (table.header is None and text and i == max(table.cells))
        if i == own:
            continue
        if label and column.astype(str).eq(ids.astype(str)).all():
            unused.append(f"ids again in {names[i]}")
        elif _counts_rows(names[i], column):
            unused.append(f"row numbers {names[i]}".strip())
        elif label and not (text and column.is_unique):  # a label of its own for each node is a name
            labels[names[i]] = column
        elif text:
            unused.append(f"text of {names[i]}")
        else:
            columns[names[i]] = column
    if len(labels) > 1:
        raise GnnlabError(f"{' and '.join(labels)} may both be y; keep one")
    y = {}
    for name, column in labels.items():
        delimited.complete(name, column)
        of_numbers = delimited.is_numeric(column)
        y["y"] = numbers(labels, "")[name] if of_numbers else pd.Categorical(column).codes.astype(np.int64)
    columns = [column.astype(np.float64) for column in numbers(columns, table.separator).values()]
    x = {"x": np.stack(columns, axis=1)} if columns else {}
    how = f"nodes of {path.name}, {table.how[0]}"
    return {"id": ids, **x, **y, "unused": unused, "how": how, "file": path.name}
