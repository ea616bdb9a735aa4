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

FAMILIES = {"planetoid": "Planetoid", "lrgb": "LRGBDataset", "pyg": None}
NAMES = {
    "Planetoid": ("Cora", "CiteSeer", "PubMed"),
    "LRGBDataset": ("PascalVOC-SP", "COCO-SP", "PCQM-Contact", "Peptides-func", "Peptides-struct"),
}


def full_name(spec: str) -> str | None:
    """`lrgb:Peptides-func[7]` of `peptides_func[7]`, a data set that is named alone; None for another text."""
    name, bracket, index = spec.partition("[")
    for family, class_name in FAMILIES.items():
        if known := _known(class_name, name):
            return f"{family}:{known}{bracket}{index}"
    return None


def load(spec: str, folder: Path) -> Data:
    """The graph that `spec` asks for, downloaded into `folder` when it is not there yet.

    Raises `GnnlabError` where the data set is unknown, has no such graph, or cannot be downloaded.
    """
    family, _, rest = spec.partition(":")
    rest, _, index = rest.removesuffix("]").partition("[")
    class_name, _, name = rest.partition(":") if family == "pyg" else (FAMILIES[family], ":", rest)
    if class_name not in datasets.__all__:
        raise GnnlabError(f"PyG has no data set {shown(class_name)}{meant(class_name, datasets.__all__)}")
    if family != "pyg" and not _known(class_name, name):
        raise GnnlabError(f"{class_name} has no data set {shown(name)}; it has {', '.join(NAMES[class_name])}")
    name = _known(class_name, name) or name
    root = folder / (f"{class_name}-{name}" if name else class_name)
    options = {"name": name} if name else {}
    try:
        kind = getattr(datasets, class_name)
        if "root" in inspect.signature(kind).parameters:
            options["root"] = str(root)
        return kind(**options)[int(index or 0)]
    except Exception as error:  # whatever PyG or the data set's reader raises
        raise GnnlabError(
            f"PyG gives no {shown(spec)}: {one_line(error)}; {family}:NAME or {family}:NAME[7] is understood, the "
            f"first use needs a network; if an earlier download broke off, delete {root}"
        ) from error


def _known(class_name: str | None, name: str) -> str | None:
    """The name of a data set as PyG writes it; None where it is none of `NAMES`."""
    plain = {known.lower(): known for known in NAMES.get(class_name or "", ())}
    return plain.get(name.lower().replace("_", "-"))
