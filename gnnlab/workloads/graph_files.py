"""A user's own graph from a file: `.pt`, `.npz`, `.graphml`, `.mtx`, or an edge list (`edge_lists`).

Files are taken as they are: nothing is made symmetric, binary or normalized. Of a pickle in a file only tensors, arrays
and PyG's own data classes are read. What a file holds is judged by the library that reads it, and by `graphs.checked`;
what was left out stands in the graph's `_notes`.
"""

from __future__ import annotations

import collections
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.io
import scipy.sparse
import torch
from torch_geometric.data import Data
from torch_geometric.data.data import BaseData, DataEdgeAttr, DataTensorAttr
from torch_geometric.data.separate import separate
from torch_geometric.data.storage import AttrType, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

from gnnlab.errors import GnnlabError
from gnnlab.workloads import edge_lists
from gnnswap.errors import quoted

# what PyG's data objects and numpy's arrays hold beside the classes that torch and PyG name as safe to load
SAFE = [
    *(DataEdgeAttr, DataTensorAttr, AttrType, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage),
    *(
        np.ndarray,
        np.dtype,
        *{type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?"},
    ),
    *(
        (getattr(np._core.multiarray, name), f"numpy.{core}.multiarray.{name}")
        for core in ("core", "_core")
        for name in ("_reconstruct", "scalar")
    ),
]
# fields of a Data, and the names that people give them in files, without case
FIELDS = {
    "edge_index": "edge_index edges edge_list",
    "x": "x features feature feat feats node_feat node_feats node_features attr attr_matrix",
    "y": "y labels label node_label node_labels target targets",
    "edge_weight": "edge_weight edge_weights weights weight",
    "edge_attr": "edge_attr edge_attrs edge_feat edge_feats edge_features",
    "num_nodes": "num_nodes n_nodes",
}
FIELD_OF = {name: field for field, names in FIELDS.items() for name in names.split()}
DRAWING = ("x", "y", "z", "size", "r", "g", "b", "a", "alpha")  # what Gephi writes of its drawing
MOST_BYTES = 2e9  # of sparse features that are made dense


def read_graphml(path: Path) -> Data:
    """Nodes in the order of the file; an undirected graph gets each edge in both directions.

    Numeric node attributes become features in alphabetical order, except `label` or `y`, which become `y`; the edge
    attribute `weight` becomes `edge_weight`. Text, other edge attributes and the drawing (x, y, size, r, g, b) are left
    out. A default of the file stands where a node or an edge says nothing.
    """
    import networkx  # a quarter of a second, and only needed here

    if (several := path.read_bytes().count(b"<graph ")) > 1:
        raise GnnlabError(f"{several} graphs in one file; write each to a file of its own")
    graph = networkx.read_graphml(path).to_directed()
    number = {name: place for place, name in enumerate(graph)}
    edges = [(number[source], number[target]) for source, target in graph.edges()]
    data = Data(edge_index=torch.tensor(edges, dtype=torch.int64).view(-1, 2).t(), num_nodes=len(graph))
    defaults = graph.graph.get("edge_default", {})
    of_edges = pd.DataFrame([defaults | attributes for *_, attributes in graph.edges(data=True)])
    of_nodes = pd.DataFrame([graph.graph.get("node_default", {}) | own for _, own in graph.nodes(data=True)])
    unused = [f"{name} of edges" for name in of_edges if name not in ("weight", "id")]
    if "weight" in of_edges:
        if of_edges["weight"].isna().any():
            raise GnnlabError("some edges lack a weight that others have; give each one, or the file a <default>")
        data.edge_weight = torch.tensor(pd.to_numeric(of_edges["weight"]).to_numpy(dtype=np.float64))
    columns = {name: column for name, column in of_nodes.items() if not column.map(type).eq(str).any()}
    missing = [name for name, column in columns.items() if column.isna().any()]
    if missing:
        raise GnnlabError(f"some nodes lack a number that others have, or it is nan: {', '.join(missing)}; fill it in")
    if {"x", "y"} <= columns.keys() and ({"r", "g", "b"} <= columns.keys() or "size" in columns):
        unused.append(f"drawing {', '.join(name for name in DRAWING if columns.pop(name, None) is not None)}")
    names = sorted(columns, key=lambda name: (name.lower() != "label", name.lower()))
    label = next((name for name in names if name.lower() in ("label", "y")), None)
    if label:
        data.y = torch.from_numpy(narrow(columns.pop(label).to_numpy() * 1))  # True is 1
    if columns:
        data.x = torch.tensor(np.stack([columns[name].to_numpy(np.float64) for name in sorted(columns)], axis=1))
    unused += [f"text of {name}" for name in of_nodes if of_nodes[name].map(type).eq(str).any()]
    how = [f"x of {', '.join(sorted(columns))}"] if columns else []
    data._notes = {"how": how, "unused": unused, "kind": "named "}
    return data


def read_npz(path: Path) -> Data:
    """Arrays by the names of `FIELDS`: `edge_index` (2, E), or `edges` (E, 2), and x, y, edge_attr, ... as there are.

    Instead of edges a scipy matrix: as `scipy.sparse.save_npz` writes it, or its parts as `adj_data`, `adj_indices`,
    `adj_indptr`, `adj_shape` (or `adj_matrix.data`, ...); features alike as `attr_...`. `adj[i, j]` is an edge from i
    to j; values other than 1 become `edge_weight`. (PyG's own reader makes features binary, edges undirected, and drops
    weights and self-loops without a word.)
    """
    with np.load(path, allow_pickle=False) as archive:
        if "format" in archive:
            return _of_matrix(scipy.sparse.load_npz(path), {}, [])
        return _of_arrays(dict(archive))


def read_mtx(path: Path) -> Data:
    """A matrix of Matrix Market: an entry i, j is an edge from i to j, in both directions where it is symmetric."""
    matrix = scipy.sparse.coo_array(scipy.io.mmread(path, spmatrix=False))
    if scipy.io.mminfo(path)[5] != "general":  # an edge and its opposite side by side, as the file has one for both
        row, column = matrix.coords
        order = np.lexsort((row < column, np.maximum(row, column), np.minimum(row, column)))
        matrix = scipy.sparse.coo_array((matrix.data[order], (row[order], column[order])), matrix.shape)
    return _of_matrix(matrix, {}, [])


def read_pt(path: Path, place: int | None = None) -> Data:
    """What `torch.save` wrote: a PyG `Data` with all of its fields, or a dict of tensors by the names of `FIELDS`.

    Of several graphs, in a list or in `processed/data.pt` of a PyG data set, the one at `place`, or the first.
    """
    before = torch.serialization.get_safe_globals()
    try:  # torch fills no defaultdict, in which PyG's objects remember the kinds of their fields: a dict does as well
        torch.serialization.clear_safe_globals()
        own = [safe for safe in before if safe is not collections.defaultdict]
        torch.serialization.add_safe_globals([*own, *SAFE, (lambda *_: {}, "collections.defaultdict")])
        data = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL (\S+)", str(error))
        what = f"{name[1]}, which is not loaded, as it may run code" if name else "no saved object"
        raise GnnlabError(
            f"it holds {what}; save a Data without such fields, of a Batch torch.save(batch.to_data_list(), path), of "
            "a data set torch.save(list(dataset), path)"
        ) from error
    except (RuntimeError, EOFError) as error:
        raise GnnlabError("it is cut off or damaged; download it again, or write it again") from error
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)
    how = []
    if isinstance(data, list | tuple):
        data, count = _graph_at(data, place or 0)
        how = [f"graph {place or 0} of {count:,}"]
    elif place is not None:
        raise GnnlabError(f"it holds one graph; leave [{place}] out")
    if isinstance(data, dict) and not any(isinstance(value, Mapping | Data | list) for value in data.values()):
        data = _of_arrays({str(name): _array(value) for name, value in data.items() if value is not None})
    if not isinstance(data, Data):
        return data  # `checked` says what it is
    data._store.__dict__.pop("_cached_attr", None)
    data._notes = {"unused": getattr(data, "_notes", {}).get("unused", []), "how": how}
    return data


def _graph_at(several: list | tuple, place: int) -> tuple[Any, int]:
    """The graph at `place` of several, or of all graphs in one with the places where they begin, and their number."""
    kinds = (BaseData, dict) if isinstance(several, list) else Data
    if all(isinstance(one, kinds) for one in several):
        count = len(several)
        if not count:
            raise GnnlabError("it holds an empty list; save one torch_geometric Data")
        if place < count:
            return several[place], count
    elif len(several) > 1 and isinstance(several[0], Mapping | Data) and isinstance(several[1], Mapping | None):
        whole = Data.from_dict(several[0]) if isinstance(several[0], Mapping) else several[0]
        if several[1] is None:
            return whole, 1
        count = len(next(iter(several[1].values()))) - 1
        if place < count:
            return separate(Data, whole, place, several[1], decrement=False), count
    else:
        raise GnnlabError(f"it holds {quoted(several)}; save one torch_geometric Data, or a dict of tensors")
    raise GnnlabError(f"graph [{place}] of {count:,}; write [0] to [{count - 1}]")


# ---- arrays ----------------------------------------------------------------------------------------------------------


def _array(value: Any) -> np.ndarray | scipy.sparse.coo_array:
    if not torch.is_tensor(value):
        return np.asarray(value)
    value = value.detach()
    value = value.float() if value.dtype in (torch.bfloat16, torch.half) else value  # not in numpy, or not in scipy
    if value.layout == torch.strided or value.dim() != 2:
        return value.to_dense().numpy()
    entries = value.to_sparse_coo()  # _indices: an edge that is there twice stays so
    return scipy.sparse.coo_array((entries._values().numpy(), tuple(entries._indices().numpy())), tuple(value.shape))


def _of_arrays(arrays: dict[str, np.ndarray]) -> Data:
    """The graph of arrays by their names; those of other names are kept where they are numbers, and said."""
    matrices = {name: _csr(arrays, name) for name in ("adj", "attr")}
    dense = next((name for name in arrays if name.lower() in ("adj", "adjacency", "adj_matrix", "a")), None)
    if dense and matrices["adj"] is None and arrays[dense].ndim == 2:
        matrices["adj"] = scipy.sparse.coo_array(arrays.pop(dense))
    if {"senders", "receivers"} <= arrays.keys():
        raise GnnlabError(
            "arrays as jraph names them; save edge_index=numpy.stack([senders, receivers]), x=nodes, edge_attr=edges"
        )
    fields, unused = {}, []
    for name, array in arrays.items():
        array = _dense(array) if scipy.sparse.issparse(array) else array
        field = FIELD_OF.get(name.lower(), name)
        if array.dtype.kind not in "biufc" and field not in FIELDS:
            unused.append(f"text {name} {array.shape}")
            continue
        if array.dtype.kind not in "biuf":
            raise GnnlabError(f"{name} holds {array.dtype}, not numbers; number it (numpy.unique, return_inverse)")
        if field in fields:
            raise GnnlabError(f"{name} and another array are both {field}; keep one")
        if field == "edge_index" and name.lower() != "edge_index" and array.shape[-1:] == (2,):
            if len(array) == 2:
                raise GnnlabError(f"{name} (2, 2) may be (2, E) or (E, 2); name it edge_index and write it as (2, E)")
            array = array.T
        fields[field] = array
        if name not in FIELD_OF.values() and field not in FIELDS and not field.endswith(("_mask", "pos", "batch")):
            unused.append(f"{name} {array.shape}")
    if matrices["attr"] is not None:
        fields["x"] = _dense(matrices["attr"])
    if matrices["adj"] is not None:
        if "edge_index" in fields:
            raise GnnlabError("both an adjacency and edges give the graph; keep one")
        return _of_matrix(matrices["adj"], fields, unused)
    if "edge_index" not in fields:
        raise GnnlabError(f"there is no edge_index (2, E) among {quoted(', '.join(arrays))}; name the edges so")
    if (shape := fields["edge_index"].shape)[:1] != (2,) or len(shape) != 2:
        raise GnnlabError(f"edge_index has shape {shape}; write it as (2, E)")
    return _graph(fields, unused)


def _of_matrix(adjacency: Any, fields: dict[str, np.ndarray], unused: list[str]) -> Data:
    """An edge from i to j for each stored entry [i, j]."""
    nodes, columns = adjacency.shape
    if nodes != columns:
        raise GnnlabError(f"adjacency of {nodes} x {columns}; it must be square")
    if np.iscomplexobj(adjacency.data):
        raise GnnlabError("the matrix holds complex numbers; take their magnitude (numpy.abs)")
    matrix = adjacency.tocoo() if adjacency.format != "csc" else adjacency.tocsr().tocoo()
    if adjacency.format == "bsr":  # which fills its blocks with zeros
        matrix.eliminate_zeros()
    given = {"edge_index": np.stack([matrix.row, matrix.col]), "num_nodes": np.array(nodes)}
    if (matrix.data != 1).any():
        if "edge_weight" in fields:
            raise GnnlabError("both the adjacency and edge_weight give weights; keep one")
        given["edge_weight"] = matrix.data
    return _graph(given | fields, unused)


def _graph(fields: dict[str, np.ndarray], unused: list[str]) -> Data:
    nodes = fields.pop("num_nodes", None)
    known = len(fields["x"]) if "x" in fields else nodes
    if "y" in fields and known is not None and len(np.atleast_1d(fields["y"])) not in (1, known):
        raise GnnlabError(f"labels of shape {fields['y'].shape} for {known} nodes; give each node one")
    tensors = {name: torch.from_numpy(narrow(np.atleast_1d(array))) for name, array in fields.items()}
    data = Data(**tensors, **({} if nodes is None else {"num_nodes": int(nodes)}))
    data._notes = {"how": [], "unused": unused}
    return data


def _csr(arrays: dict[str, np.ndarray], name: str) -> scipy.sparse.csr_array | None:
    """The matrix of four arrays such as `adj_data` or `adj_matrix.data`, which are taken out; None: there is none."""
    for prefix in (f"{name}_", f"{name}_matrix.", f"{name}_matrix_", f"{name}."):
        if f"{prefix}data" in arrays:
            parts = [prefix + part for part in ("data", "indices", "indptr", "shape")]
            if absent := [part for part in parts if part not in arrays]:
                raise GnnlabError(f"{absent[0]} is missing; a CSR matrix is {', '.join(parts)}")
            data, indices, indptr, shape = map(arrays.pop, parts)
            data = data if np.iscomplexobj(data) else data.astype(np.float32)  # which is refused
            matrix = scipy.sparse.csr_array((data, indices, indptr), tuple(shape))
            matrix.check_format(full_check=True)
            return matrix
    return None


def _dense(features: scipy.sparse.sparray) -> np.ndarray:
    if (size := 4 * np.prod(features.shape, dtype=float)) > MOST_BYTES:
        rows, columns = features.shape
        raise GnnlabError(
            f"features of {rows:,} x {columns:,} take {size / 1e9:.1f} GB of memory when dense; keep fewer columns "
            "(sklearn.decomposition.TruncatedSVD)"
        )
    return features.toarray()


def narrow(values: np.ndarray) -> np.ndarray:
    """As PyG has it: float32 for fractions, int64 for integers, float64 for those beyond."""
    integers = np.float64 if values.dtype == np.uint64 and values.max(initial=0) >= 2**63 else np.int64
    kinds = {"f": np.float32, "i": integers, "u": integers}
    return values.astype(kinds.get(values.dtype.kind, values.dtype), order="C")


def read_packed(path: Path) -> Data:
    """An edge list or a matrix of Matrix Market that gzip packed."""
    suffix = Path(path.stem).suffix.lower()
    if suffix not in (*edge_lists.SUFFIXES, ".mtx"):
        raise GnnlabError(f"of packed files edge lists and .mtx are read; unpack it with gunzip {path.name}")
    return read_mtx(path) if suffix == ".mtx" else edge_lists.read(path)


READERS: dict[str, tuple[Callable[[Path], Data], str]] = {
    ".pt": (read_pt, "one torch_geometric Data, as torch.save(data, path) writes it, without classes of your own"),
    ".npz": (read_npz, "plain arrays edge_index (2, E), perhaps x, y, edge_attr; or a matrix of scipy.sparse.save_npz"),
    ".graphml": (read_graphml, "GraphML with the same numbers at each node, a weight at each edge or at none"),
    ".mtx": (read_mtx, "a square matrix of Matrix Market"),
    **dict.fromkeys(edge_lists.SUFFIXES, (edge_lists.read, "rows of source,target[,weight], with that header or none")),
    ".gz": (read_packed, "a packed edge list, as edges.csv.gz"),
}

# how networkx or others turn other files into one that is read; {} is the path
_NETWORKX = 'networkx.write_graphml(networkx.read_{}("{{}}", create_using=networkx.DiGraph), "new.graphml")'
_WITHOUT = (  # the drawing that GraphML has no place for
    'graph = networkx.read_{}("{{}}"{}); [node.pop("{}", 0) for _, node in graph.nodes(data=True)]; '
    'networkx.write_graphml(graph, "new.graphml")'
)
CONVERT = {
    ".gml": _WITHOUT.format("gml", ", label=None", "graphics"),
    ".gexf": _WITHOUT.format("gexf", "", "viz"),
    **{f".{name}": _NETWORKX.format(name) for name in ("edgelist", "adjlist")},
    ".net": 'networkx.to_pandas_edgelist(networkx.read_pajek("{}").to_directed()).to_csv("new.csv", index=False)',
    ".dot": 'networkx.write_graphml(networkx.nx_pydot.read_dot("{}"), "new.graphml")',
    **dict.fromkeys(
        (".pkl", ".pickle", ".gpickle"),
        'networkx.write_graphml(pandas.read_pickle("{}"), "new.graphml"), if you trust the file, which may run code',
    ),
    ".sif": 'pandas.read_csv("{}", sep=r"\\s+", names=["source", "type", "target"]).to_csv("new.csv", index=False)',
    ".tgf": 'Path("new.txt").write_text("source target\\n" + Path("{}").read_text().partition("#\\n")[2]) of pathlib',
    ".lgl": 'igraph.Graph.Read_Lgl("{}").write_graphml("new.graphml")',
    ".mat": 'scipy.sparse.save_npz("new.npz", scipy.sparse.csr_array(scipy.io.loadmat("{}")[NAME]))',
    ".bin": 'numpy.savez("new.npz", edge_index=torch.stack(dgl.load_graphs("{}")[0][0].edges()))',
    ".json": (
        'networkx.write_graphml(networkx.node_link_graph(json.load(open("{}")), edges="links"), "new.graphml"), '
        'with edges="edges" if it has no links'
    ),
    ".npy": 'numpy.savez("new.npz", edge_index=numpy.load("{}"))',
    **{f".{kind}": f'pandas.read_{kind}("{{}}").to_csv("new.csv", index=False)' for kind in ("parquet", "feather")},
    **dict.fromkeys((".xlsx", ".xls"), 'pandas.read_excel("{}").to_csv("new.csv", index=False)'),
    ".h5": 'pandas.read_hdf("{}").to_csv("new.csv", index=False), or read its arrays with h5py and save them as .npz',
    ".xml": 'os.rename("{}", "new.graphml"), if it is GraphML',
    ".pth": 'os.rename("{}", "new.pt")',
    ".zip": 'shutil.unpack_archive("{}")',
    **dict.fromkeys(
        (".bz2", ".xz", ".zst"),
        'pandas.read_csv("{}", header=None, dtype=str).to_csv("new.csv", index=False, header=False)',
    ),
}
