"""Graphs in the `.npz` layout that `torch_geometric.io.read_npz` reads, taken as they are and never unpickled."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_array
from torch_geometric.data import Data

from gnnlab.workloads.errors import GraphError, one_line, shown

CSR = ("data", "indices", "indptr", "shape")


def read_npz(path: Path) -> Data:
    """Adjacency `adj_*` and features `attr_*` as the four arrays of a CSR matrix, and `labels` (N,) or (N, C).

    `adj[i, j]` is an edge from i to j; values other than 1 become `edge_weight`. Features and labels may be left out.
    (PyG's own reader makes features binary, edges undirected, and drops weights and self-loops without a word.)
    """
    arrays = _npz_arrays(path)
    shape, indptr, indices, weight = _csr(path, arrays, "adj")
    if shape[0] != shape[1]:
        raise GraphError(f"{path}: adj_shape must be square, got {shape[0]} x {shape[1]}")
    num_nodes = shape[0]
    source = np.repeat(np.arange(num_nodes), np.diff(indptr))
    data = Data(edge_index=torch.from_numpy(np.stack([source, indices])), num_nodes=num_nodes)
    if (weight != 1).any():
        data.edge_weight = torch.from_numpy(weight)
    if "attr_data" in arrays:
        rows, indptr, indices, values = _csr(path, arrays, "attr")
        if rows[0] != num_nodes:
            raise GraphError(f"{path}: attr_shape has {rows[0]} rows, the adjacency has {num_nodes} nodes")
        try:
            data.x = torch.from_numpy(csr_array((values, indices, indptr), rows).toarray())
        except ValueError as error:  # more elements than an array can have
            raise GraphError(f"{path}: {rows[0]} x {rows[1]} features do not fit into memory") from error
    if "labels" in arrays:
        labels = arrays["labels"]
        if labels.ndim not in (1, 2) or len(labels) != num_nodes:
            raise GraphError(f"{path}: labels must have {num_nodes} rows, got shape {labels.shape}")
        data.y = torch.from_numpy(labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64))
    return data


def _npz_arrays(path: Path) -> dict[str, np.ndarray]:
    wanted = [f"adj_{part}" for part in CSR], [f"attr_{part}" for part in CSR]
    if not zipfile.is_zipfile(path):  # numpy would take it for a pickle
        raise GraphError(f"{path}: is no whole .npz archive; save plain arrays with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as archive:
            held = set(archive.files)
            needed = wanted[0] + (wanted[1] if held & set(wanted[1]) else [])
            missing = [key for key in needed if key not in held]
            if missing:
                raise GraphError(f"{path}: holds no {', '.join(missing)}; the layout is {', '.join(wanted[0])}, ...")
            arrays = {key: archive[key] for key in needed + ["labels"] * ("labels" in held)}
    except GraphError:
        raise
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, KeyError) as error:
        pickled = "Object arrays" in str(error)
        what = "holds pickled objects, which are never loaded" if pickled else "is no whole .npz archive"
        raise GraphError(f"{path}: {what} ({one_line(error)}); save plain arrays with numpy.savez") from error
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "iufb":
            raise GraphError(f"{path}: {key} must hold numbers, got {getattr(array, 'dtype', type(array).__name__)}")
    return arrays


def _csr(path: Path, arrays: dict[str, np.ndarray], name: str) -> tuple[list[int], np.ndarray, np.ndarray, np.ndarray]:
    """Shape, row pointers, column indices (int64) and values (float32) of a CSR matrix that holds together."""
    values, indices, indptr, shape = (arrays[f"{name}_{part}"] for part in CSR)
    for part in ("indices", "indptr", "shape"):
        if arrays[f"{name}_{part}"].dtype.kind not in "iu":
            raise GraphError(f"{path}: {name}_{part} must hold integers, got {arrays[f'{name}_{part}'].dtype}")
    if shape.shape != (2,) or (shape < 1).any():
        raise GraphError(f"{path}: {name}_shape must be two positive numbers, got {shown(shape.tolist())}")
    rows, columns = shape.tolist()
    if indptr.shape != (rows + 1,):
        raise GraphError(f"{path}: {name}_indptr must have {rows + 1} entries for {rows} rows, got {indptr.shape}")
    indptr, indices = indptr.astype(np.int64), indices.astype(np.int64)
    if indices.ndim != 1 or values.shape != indices.shape or indptr[0] != 0 or indptr[-1] != len(indices):
        raise GraphError(
            f"{path}: {name}_indptr must run from 0 to the number of entries; it runs from {indptr[0]} to "
            f"{indptr[-1]}, with {values.size} values and {indices.size} indices"
        )
    if (np.diff(indptr) < 0).any():
        raise GraphError(f"{path}: {name}_indptr falls after row {int(np.argmax(np.diff(indptr) < 0))}; it must rise")

    def row(entry: int) -> int:
        return int(np.searchsorted(indptr, entry, side="right")) - 1

    outside = (indices < 0) | (indices >= columns)
    if outside.any():
        entry = int(np.argmax(outside))
        raise GraphError(
            f"{path}: row {row(entry)} of {name}_indices holds {indices[entry]}; 0..{columns - 1} are allowed"
        )
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    if not np.isfinite(values).all():
        entry = int(np.argmin(np.isfinite(values)))
        raise GraphError(
            f"{path}: {name}_data is {values[entry]} at row {row(entry)}, column {indices[entry]}; "
            f"finite float32 is needed"
        )
    return [rows, columns], indptr, indices, values
