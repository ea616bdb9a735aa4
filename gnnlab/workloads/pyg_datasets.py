"""Graphs that PyG downloads: `planetoid:Cora`, `lrgb:Peptides-func`, `pyg:ClassName` and `pyg:ClassName:Name`.

The names of `NAMES` are understood without their family, and as S1 writes them: `Cora`, `peptides_func`.
A data set of many graphs answers with its first; `lrgb:Peptides-func[7]` asks for another. PyG keeps what it fetched
under `data/`, where the next call finds it. (The raw files of some data sets are pickles of their publishers, which PyG
reads; nothing else in the lab does.)
"""

from __future__ import annotations

import inspect
from pathlib import Path

from torch_geometric import datasets
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError, meant, one_line, shown

FAMILIES = {"planetoid": "Planetoid", "lrgb": "LRGBDataset", "pyg": ""}
NAMES = {
    "planetoid": ("Cora", "CiteSeer", "PubMed"),
    "lrgb": ("PascalVOC-SP", "COCO-SP", "PCQM-Contact", "Peptides-func", "Peptides-struct"),
}


def full_name(spec: str) -> str | None:
    """`lrgb:Peptides-func[7]` of `peptides_func[7]`, a data set that is named alone; None for another text."""
    name, bracket, index = spec.partition("[")
    known = ((family, as_pyg) for family in NAMES if (as_pyg := _known(family, name)))
    return next((f"{family}:{as_pyg}{bracket}{index}" for family, as_pyg in known), None)


def load(spec: str, folder: Path) -> Data:
    """The graph that `spec` asks for, downloaded into `folder` when it is not there yet.

    Raises `GnnlabError` where the data set is unknown, has no such graph, or cannot be downloaded.
    """
    family, _, rest = spec.partition(":")
    rest, _, index = rest.removesuffix("]").partition("[")
    class_name, _, name = rest.partition(":") if family == "pyg" else (FAMILIES[family], ":", rest)
    if class_name not in datasets.__all__:
        raise GnnlabError(f"PyG has no data set {shown(class_name)}{meant(class_name, datasets.__all__)}")
    if family in NAMES and not (name := _known(family, rest)):
        raise GnnlabError(f"{class_name} has no data set {shown(rest)}; it has {', '.join(NAMES[family])}")
    root = folder / (f"{class_name}-{name}" if name else class_name)
    try:
        kind = getattr(datasets, class_name)
        options = {"root": str(root)} if "root" in inspect.signature(kind).parameters else {}
        return kind(**options, **({"name": name} if name else {}))[int(index or 0)]
    except Exception as error:  # whatever PyG or the data set's reader raises
        raise GnnlabError(
            f"PyG gives no {shown(spec)}: {one_line(error)}; {family}:NAME or {family}:NAME[7] is understood, the "
            f"first use needs a network; if an earlier download broke off, delete {root}"
        ) from error


def _known(family: str, name: str) -> str | None:
    """The name of a data set as PyG writes it; None where the family has none of that name."""
    plain = {known.lower(): known for known in NAMES[family]}
    return plain.get(name.lower().replace("_", "-"))
