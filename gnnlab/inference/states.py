"""The state of an edge network, checked as it is read; the arrays of many of them, as engines read them.

    check(state).nodes[0].cpu_util       # from a dict, or from the bytes of its JSON
    check({"nodes": [...]})              # GnnlabError: node 'a': Expected `float` <= 1.0 - at `$.nodes[3].cpu_util`
    networks = NetworkArrays.of([state, other])     # networks of any sizes as one graph without links between them

`Node` and `NetworkState` are the rules; `json_schema` writes them down.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from operator import attrgetter, itemgetter
from sys import getsizeof
from threading import Lock
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import torch
from cachetools import LRUCache
from msgspec import Meta, Struct
from torch import Tensor

from gnnlab.errors import LONGEST, GnnlabError
from gnnlab.workloads.edge_networks import FEATURES, NODE_TYPES, State
from gnnswap.errors import one_line, quoted

MOST = 1_000_000
# up to so many nodes the dense variant; measured with one thread of an AVX-512 core, reading included: 49 against 137
# µs at 10 nodes, 121 against about 200 at 64; from there on its products grow with the square
DENSE_NODES = 64
LONGEST_LINE = 200  # characters of an error
Ids, Links = tuple[str, ...], tuple[tuple[str, str], ...]
Share = Annotated[float, Meta(ge=0, le=1)]

node_features = attrgetter(*FEATURES)
_node_id = attrgetter("node_id")


class Node(Struct, forbid_unknown_fields=True):
    node_id: Annotated[str, Meta(min_length=1)]
    cpu_util: Share
    mem_util: Share
    energy: Annotated[float, Meta(ge=0, le=MOST, description="W")]
    latency: Annotated[float, Meta(ge=0, le=MOST, description="ms")]
    bandwidth: Annotated[float, Meta(ge=0, le=MOST, description="Mbit/s")]
    queue_len: Annotated[int, Meta(ge=0, le=MOST, description="tasks")]
    node_type: Annotated[int, Meta(ge=0, le=len(NODE_TYPES) - 1)]


class NetworkState(Struct, forbid_unknown_fields=True):
    nodes: Annotated[tuple[Node, ...], Meta(min_length=1)]
    links: Links = ()


_decoder = msgspec.json.Decoder(NetworkState)


@dataclass(frozen=True, eq=False)
class Topology:
    """`edge_index` (2, E) int64 in any order, from its first row to its second, between `nodes` nodes."""

    edge_index: np.ndarray
    nodes: int

    @property
    def most_bytes(self) -> int:
        """What it holds at most, once engines have read it: `adjacency`, for few nodes, and `by_target`, too."""
        return 2 * self.edge_index.nbytes + 8 * self.nodes + 4 * min(self.nodes, DENSE_NODES) ** 2 + 1000

    @cached_property
    def adjacency(self) -> np.ndarray:
        """(N, N) float32, [i, j] the number of edges from j to i; for up to `DENSE_NODES` nodes."""
        source, target = self.edge_index
        counts = np.bincount(target * self.nodes + source, minlength=self.nodes**2)
        return counts.astype(np.float32).reshape(self.nodes, self.nodes)

    @cached_property
    def by_target(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(source, target, starts): edges sorted by target, (E,) int64, and where those of each node begin, (N,)."""
        source, target = self.edge_index
        small = self.nodes < 1 << 16
        order = (target.astype(np.uint16) if small else target).argsort(kind="stable")  # 16 bits: by radix
        ends = np.bincount(target, minlength=self.nodes).cumsum()
        return source.take(order), target.take(order), np.concatenate([[0], ends[:-1]])


class CheckedState(NamedTuple):
    """A valid state: its nodes (N), their ids, and its links in both directions."""

    nodes: tuple[Node, ...]
    node_ids: Ids
    topology: Topology


def check(state: State | bytes) -> CheckedState:
    """Read a state: a dict, or JSON as bytes.

    Each node has an id of its own; links may be left out, and join two different nodes once.
    Raises `GnnlabError`, and nothing else whatever is given: the state is invalid. The message is one line of at most
    `LONGEST_LINE` characters, all of them printable.
    """
    try:
        parsed = _decoder.decode(state) if isinstance(state, bytes) else msgspec.convert(state, NetworkState)
        node_ids = tuple(map(_node_id, parsed.nodes))
        return CheckedState(parsed.nodes, node_ids, _topologies.topology(node_ids, parsed.links))
    except GnnlabError:
        raise
    except msgspec.ValidationError as error:
        problem = str(error)
        raise GnnlabError(_line(_name(state, problem) + problem)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GnnlabError(_line(f"not JSON: {error}")) from None
    except Exception as error:  # msgspec has no list of what it raises
        raise GnnlabError(_line(one_line(error))) from None


def check_or_error(state: State | bytes) -> CheckedState | GnnlabError:
    """What `check` gives, or its error."""
    try:
        return check(state)
    except GnnlabError as error:
        return error


def json_schema() -> dict[str, Any]:
    """What a state is, as JSON Schema without references; it cannot say that ids differ and that links join them."""
    _, parts = msgspec.json.schema_components([NetworkState])
    schema = parts["NetworkState"]
    schema["properties"]["nodes"]["items"] = parts["Node"]
    return schema


class TopologyCache:
    """The topologies used last, of at most `most_bytes` together, keys included; safe to share among threads.

    One that takes more than an eighth of that is not kept: it would drive out too many others.
    """

    def __init__(self, most_bytes: int = 32 << 20) -> None:
        self._entries, self._lock = LRUCache(most_bytes, getsizeof=itemgetter(1)), Lock()

    @property
    def held_bytes(self) -> int:
        return self._entries.currsize

    def topology(self, node_ids: Ids, links: Links) -> Topology:
        """The topology of the links between these nodes. Raises `GnnlabError`: an id or a link is there twice, or a
        link joins what is no node, or one node."""
        key = node_ids, links
        with self._lock, suppress(KeyError):
            return self._entries[key][0]
        made = _topology(node_ids, links)
        parts = chain([node_ids, links], node_ids, links, chain.from_iterable(links))
        size = made.most_bytes + sum(map(getsizeof, parts))
        if size <= self._entries.maxsize // 8:
            with self._lock:
                self._entries[key] = made, size
        return made


_topologies = TopologyCache()  # a network mostly keeps its links


def _topology(node_ids: Ids, links: Links) -> Topology:
    """First all links as given, then all reversed."""
    row_of: dict[str, int] = {}
    for row, node_id in enumerate(node_ids):
        if (first := row_of.setdefault(node_id, row)) != row:
            raise GnnlabError(f"node {quoted(node_id)}: its node_id is that of nodes {first} and {row} (from 0)")
    pairs: dict[tuple[int, int], None] = {}
    for place, (a, b) in enumerate(links):
        ends = row_of.get(a), row_of.get(b)
        if None in ends or a == b or ends in pairs or ends[::-1] in pairs:
            raise GnnlabError(f"link {place} (from 0), {quoted([a, b])}: a link joins two different nodes, given once")
        pairs[ends] = None
    ends = np.fromiter(chain.from_iterable(pairs), np.int64, 2 * len(pairs)).reshape(-1, 2).T
    return Topology(np.concatenate([ends, ends[::-1]], axis=1), len(node_ids))


def _name(state: Any, problem: str) -> str:
    """ "node 'a': " of the node to which the path leads that msgspec puts behind a problem; "" where none is found."""
    path = re.search(r" - at `\$\.nodes\[(\d+)\][.\w]*`$", problem[-LONGEST:])
    try:
        place = int(path[1])
        read = msgspec.json.decode(state) if isinstance(state, bytes) else state
        return f"node {quoted(read['nodes'][place]['node_id'])}: "
    except Exception:  # no path, no id, no JSON behind the problem, another list of that name: it goes without
        return ""


def _line(text: str) -> str:
    """A text with foreign parts as one line: cut, and what does not print, a line break too, escaped."""
    cut = text[: LONGEST_LINE + 1]
    escaped = "".join(c if c.isprintable() else repr(c)[1:-1] for c in cut)
    return escaped if len(escaped) <= LONGEST_LINE else f"{escaped[: LONGEST_LINE - 3]}..."


@dataclass(frozen=True, eq=False)
class NetworkArrays:
    """B networks as one graph: `x` (N, 7) float32, their edges, `starts` (B + 1) where each begins, `ids` of nodes."""

    x: np.ndarray
    topology: Topology
    starts: list[int]
    ids: Sequence[str]

    @classmethod
    def of(cls, states: Sequence[State | bytes]) -> NetworkArrays:
        """Read one state or more, dicts or JSON. Raises `GnnlabError`: one is invalid; the message names the node."""
        return cls.of_checked([check(state) for state in states])

    @classmethod
    def of_checked(cls, states: Sequence[CheckedState]) -> NetworkArrays:
        """From one state or more that `check` has read."""
        starts = list(accumulate((len(state.nodes) for state in states), initial=0))
        nodes = chain.from_iterable(state.nodes for state in states)
        values = chain.from_iterable(map(node_features, nodes))
        x = np.fromiter(values, np.float32, starts[-1] * len(FEATURES)).reshape(-1, len(FEATURES))
        if len(states) == 1:
            return cls(x, states[0].topology, starts, states[0].node_ids)
        edges = np.concatenate([state.topology.edge_index for state in states], axis=1)
        edges += np.repeat(starts[:-1], [state.topology.edge_index.shape[1] for state in states])
        return cls(x, Topology(edges, len(x)), starts, list(chain.from_iterable(state.node_ids for state in states)))

    @property
    def edge_index(self) -> np.ndarray:
        """(2, E) int64, as the states have their links: first as given, then reversed."""
        return self.topology.edge_index

    @property
    def network_of(self) -> np.ndarray:
        """(N,) the network of each node."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(x, source, target, starts), the edges sorted by target, sharing the memory."""
        return torch.from_numpy(self.x), *map(torch.from_numpy, self.topology.by_target)

    def split(self, values: np.ndarray) -> list[np.ndarray]:
        """`values` (N, ...) of the nodes of each network."""
        return [values[a:b] for a, b in pairwise(self.starts)]

    def decide(self, scores: np.ndarray) -> list[int]:
        """(B) the row of the highest of `scores` (N,) in each network; of equal scores the first."""
        return [a + int(part.argmax()) for a, part in zip(self.starts, self.split(scores), strict=False)]
