"""Graphs that PyG downloads: `planetoid:Cora`, `lrgb:Peptides-func`, `pyg:ClassName` and `pyg:ClassName:Name`.

The names of `NAMES` are understood without their family, and as S1 writes them: `Cora`, `peptides_func`.
A data set of many graphs answers with its first; `lrgb:Peptides-func[7]` asks for another, `[0:32]` for a batch.
PyG keeps what it fetched under `data/`, where the next call finds it. (The raw files of some data sets are pickles of
their publishers, which PyG reads; nothing else in the lab does.)
"""

from __future__ import annotations

import inspect
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch_geometric import datasets
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError, meant, one_line, shown

FAMILIES = {"planetoid": "Planetoid", "lrgb": "LRGBDataset", "pyg": None}
NAMES = {
    "Planetoid": ("Cora", "CiteSeer", "PubMed"),
    "LRGBDataset": ("PascalVOC-SP", "COCO-SP", "PCQM-Contact", "Peptides-func", "Peptides-struct"),
}
PATIENCE_S = 30.0  # a silent network is given up after so long
_ASKED = re.compile(r"(?P<which>[^\[\]]+)(\[(?P<first>\d{1,9})(:(?P<stop>\d{1,9}))?\])?")


def full_name(spec: str) -> str | None:
    """`lrgb:Peptides-func[0:32]` of `peptides_func[0:32]`, a data set that is named alone; None for another text."""
    name, bracket, which = spec.partition("[")
    for family, class_name in FAMILIES.items():
        for known in NAMES.get(class_name or "", ()):
            if _plain(known) == _plain(name):
                return f"{family}:{known}{bracket}{which}"
    return None


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def load(spec: str, folder: Path) -> list[Data]:
    """The graphs that `spec` asks for, downloaded into `folder` when they are not there yet.

    Raises `GnnlabError` where the data set is unknown, has no such graph, or cannot be downloaded.
    """
    family, _, rest = spec.partition(":")
    asked = _ASKED.fullmatch(rest)
    if asked is None:
        raise GnnlabError(f"{shown(spec)}: write {family}:NAME, {family}:NAME[7] or {family}:NAME[0:32]")
    if family == "pyg":
        class_name, _, name = asked["which"].partition(":")
    else:
        class_name, name = FAMILIES[family], asked["which"]
    dataset = _fetch(class_name, _known(class_name, name), folder)
    first = int(asked["first"] or 0)
    stop = int(asked["stop"]) if asked["stop"] else first + 1
    if not first < stop <= len(dataset):
        raise GnnlabError(f"{shown(spec)}: {class_name} holds {len(dataset)} graphs; [first:stop] must lie within")
    return [dataset[i] for i in range(first, stop)]


def _known(class_name: str, name: str) -> str:
    names = NAMES.get(class_name)
    if names is None:
        return name
    matching = [known for known in names if _plain(known) == _plain(name)]
    if not matching:
        raise GnnlabError(f"{class_name} has no data set {shown(name)}; it has {', '.join(names)}")
    return matching[0]


def _fetch(class_name: str, name: str, folder: Path):
    kind = getattr(datasets, class_name, None) if class_name in datasets.__all__ else None
    if not inspect.isclass(kind):
        hint = meant(class_name, datasets.__all__)
        raise GnnlabError(f"torch_geometric.datasets has no class {shown(class_name)}{hint}")
    root = folder / f"{class_name}-{name}" if name else folder / class_name
    if not re.fullmatch(r"[\w.-]*", name) or ".." in name:
        raise GnnlabError(f"{shown(name)} is no name of a data set; letters, digits, '-', '_' and '.' are allowed")
    arguments = _arguments(kind, class_name, name, root)
    try:
        with _patience(PATIENCE_S), _whole_or_not(root):
            return kind(**arguments)
    except OSError as error:
        raise GnnlabError(
            f"{class_name} {name} could not be downloaded ({one_line(error)}): that needs a network once, and leave to "
            f"write to {folder}; digits, symptoms, karate, random:... and your own files need no network"
        ) from error
    except Exception as error:  # whatever PyG or the data set's reader raises
        again = f"; if an earlier download broke off, delete {root} and try again" if root.exists() else ""
        raise GnnlabError(f"PyG could not prepare {class_name} {name}: {one_line(error)}{again}") from error


def _arguments(kind: type, class_name: str, name: str, root: Path) -> dict[str, str]:
    """`root` and `name` as far as the data set takes them; others, and what it needs beyond, are an error."""
    given = {"root": str(root)} if "root" in inspect.signature(kind).parameters else {}
    given |= {"name": name} if name else {}
    try:
        inspect.signature(kind).bind(**given)
    except TypeError as error:
        asked = f"pyg:{class_name}{f':{name}' * bool(name)}"
        ways = f"write pyg:{class_name} or pyg:{class_name}:NAME, or build it yourself and pass the Data object"
        raise GnnlabError(f"{asked}: {error}; {ways}") from None
    return given


@contextmanager
def _patience(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


@contextmanager
def _whole_or_not(root: Path) -> Iterator[None]:
    """A download that breaks off leaves nothing that could be taken for a whole one; what was there before stays."""
    was_there = root.exists()
    try:
        yield
    except BaseException:
        if not was_there:
            shutil.rmtree(root, ignore_errors=True)
        raise
