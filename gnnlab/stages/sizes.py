"""Graph sizes, as texts, in a file or of real graphs, and a layer's inputs at each of them.

    read(["1000x10000", "study", "my_sizes.json", "graph:digits"])     # [Size(1000, 10000), ...]
    inputs_of(Size(1000, 10000), features=500)                         # {"x": (N, F), "edge_index": (2, E)}

A file holds what S4's does: {"test_cases": [{"nodes": 1000, "edges": 1000}, ...]}. `study` names its 15 sizes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gnnlab.errors import GnnlabError
from gnnlab.files import read_json

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

    from gnnlab.workloads.staged import StagedLayer

RANDOM = "random"
STUDY = Path(__file__).parent / "data" / "test_cases.json"
GRAPH = "graph:"
MOST = 20_000_000  # nodes, and edges
WRITE = "write 1000x10000 (nodes x edges), study, a JSON file or graph:digits"
WRITE_FILE = 'write it as {"test_cases": [{"nodes": 1000, "edges": 1000}]}'


class Size(NamedTuple):
    """Nodes and edges of a graph: drawn at random, or the graph that `workloads.graphs.load` names."""

    nodes: int
    edges: int
    graph: str = RANDOM

    def __str__(self) -> str:
        return f"{self.nodes}x{self.edges}"


def read(texts: Sequence[str], root: Path = Path()) -> list[Size]:
    """The sizes that the texts name, each once; files lie below `root`. Raises `GnnlabError` for any other text."""
    sizes = [size for text in texts for size in _sizes(str(text), root)]
    if not sizes:
        raise GnnlabError(f"no sizes; {WRITE}")
    return list(dict.fromkeys(sizes))


def _sizes(text: str, root: Path) -> list[Size]:
    if text.startswith(GRAPH):
        name = text.removeprefix(GRAPH)
        return [_load(str((root / name).resolve()) if name and (root / name).is_file() else name)[1]]
    if text == "study" or text.endswith(".json"):
        return _from_file(STUDY if text == "study" else root / text)
    if "/" in text:
        raise GnnlabError(f"size {text!r} is a ratio; write {text.replace('/', 'x')} (nodes x edges)")
    match = re.fullmatch(r"(\d{1,9})x(\d{1,9})", text, re.ASCII)
    if not match:
        raise GnnlabError(f"size {text!r} is not understood; {WRITE}")
    return [_checked(int(match[1]), int(match[2]), f"size {text}")]


def _load(name: str) -> tuple[Data, Size]:
    from gnnlab.workloads import graphs  # loads PyG, which takes seconds

    graph = graphs.load(name)
    return graph, Size(int(graph.num_nodes), int(graph.edge_index.shape[1]), name)


def _from_file(path: Path) -> list[Size]:
    try:
        pairs = [(case["nodes"], case["edges"]) for case in read_json(path, WRITE_FILE)["test_cases"]]
    except (KeyError, TypeError):
        raise GnnlabError(f"{path} does not hold sizes; {WRITE_FILE}") from None
    return [_checked(*pair, f"{path}, test case {place}") for place, pair in enumerate(pairs, 1)]


def _checked(nodes: Any, edges: Any, where: str) -> Size:
    if not all(type(value) is int and 1 <= value <= MOST for value in (nodes, edges)):
        raise GnnlabError(f"{where}: {nodes!r} nodes and {edges!r} edges; whole numbers from 1 to {MOST} are needed")
    return Size(nodes, edges)


@lru_cache(maxsize=4)
def layer_of(name: str, features: int) -> StagedLayer:
    """The layer `sage` of that width; its weights are always the same. Raises `GnnlabError` for another name."""
    from gnnlab.workloads.graphsage import sage

    if name != "sage":
        raise GnnlabError(f"layer {name!r} is not known; it is sage")
    return sage(features)


def inputs_of(size: Size, features: int) -> dict[str, Tensor]:
    """`x` (N, F) float32 and `edge_index` (2, E) int64. Raises `GnnlabError` for a graph that has another size."""
    from gnnlab.workloads import graphsage

    if size.graph == RANDOM:
        return graphsage.random_inputs(size.nodes, size.edges, features)
    graph, has = _load(size.graph)
    if has != size:
        raise GnnlabError(f"graph {size.graph} has {has} nodes and edges, and not {size}; read its size again")
    return graphsage.inputs_of(graph, features)


def graph_digest(size: Size, features: int) -> str:
    """A digest of the inputs' bytes; "" for a random graph, which its size determines."""
    from gnnlab.workloads.staged import fingerprint

    return "" if size.graph == RANDOM else fingerprint(inputs_of(size, features))
