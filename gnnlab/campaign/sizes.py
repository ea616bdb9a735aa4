"""Which sizes a campaign measures: written out, from a JSON file that anyone can edit, or those of real graphs.

    read(["1000/10000", "my_sizes.json", "graph:digits"])        # [GraphSize(1000, 10000, "random"), ...]

The file holds what S4's does: {"test_cases": [{"nodes": 1000, "edges": 1000}, ...]}. `STUDY` names its 15 sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gnnlab.campaign.cells import RANDOM
from gnnlab.errors import GnnlabError
from gnnlab.files import read_json

STUDY = Path(__file__).parent / "data" / "test_cases.json"
GRAPH = "graph:"
MOST = 20_000_000  # of nodes, and of edges


class GraphSize(NamedTuple):
    """Nodes and edges of a graph: "random" draws one of that size, any other name is for `graphs.load`."""

    nodes: int
    edges: int
    graph: str = RANDOM

    def __str__(self) -> str:
        return f"{self.nodes}/{self.edges}"


def read(texts: Sequence[str], root: Path = Path()) -> list[GraphSize]:
    """The sizes of every text, each once, in the order given.

    A text is nodes/edges, `study` for the 15 sizes of S4, the path of a JSON file, relative to `root`, or `graph:`
    and what `workloads.graphs.load` takes. Raises `GnnlabError`, or the graph's error, in one line, for anything else.
    """
    sizes = [size for text in texts for size in _sizes(str(text), root)]
    if not sizes:
        raise GnnlabError("no sizes; write nodes/edges, as in 1000/10000, or name a JSON file of test_cases")
    return list(dict.fromkeys(sizes))


def _sizes(text: str, root: Path) -> list[GraphSize]:
    if text.startswith(GRAPH):
        return [_of_graph(text.removeprefix(GRAPH), root)]
    if text == "study" or text.endswith(".json"):
        return _from_file(STUDY if text == "study" else root / text)
    nodes, slash, edges = text.partition("/")
    if not slash or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in (nodes, edges)):
        raise GnnlabError(
            f"size {text!r} is not understood; write nodes/edges, as in 1000/10000, study, a JSON file or graph:digits"
        )
    return [_checked(int(nodes), int(edges), f"size {text}")]


def _of_graph(spec: str, root: Path) -> GraphSize:
    from gnnlab.workloads import graphs

    spec = str((root / spec).resolve()) if spec and (root / spec).is_file() else spec
    graph = graphs.load(spec)
    return GraphSize(int(graph.num_nodes), int(graph.edge_index.shape[1]), spec)


def _from_file(path: Path) -> list[GraphSize]:
    form = '{"test_cases": [{"nodes": 1000, "edges": 1000}]}'
    try:
        pairs = [(case["nodes"], case["edges"]) for case in read_json(path, f"write it as {form}")["test_cases"]]
    except (KeyError, TypeError):
        raise GnnlabError(f"{path} does not hold sizes; write it as {form}") from None
    if not pairs:
        raise GnnlabError(f"{path} holds no sizes; add one to test_cases")
    return [_checked(nodes, edges, f"{path}, test case {place}") for place, (nodes, edges) in enumerate(pairs, 1)]


def _checked(nodes: Any, edges: Any, where: str) -> GraphSize:
    if not all(type(value) is int and 1 <= value <= MOST for value in (nodes, edges)):
        raise GnnlabError(f"{where}: {nodes!r} nodes and {edges!r} edges; whole numbers from 1 to {MOST} are needed")
    return GraphSize(nodes, edges)
