"""The state of an edge network, read and checked; one line says which field of which node is wrong.

    check(state).nodes[0].cpu_util       # from a dict, or from the bytes of its JSON
    check({"nodes": [...]})              # GnnlabError: node 'a': Expected `float` <= 1.0 - at `$.nodes[3].cpu_util`

`Node` and `NetworkState` are the rules; `json_schema` writes them down.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, Struct

from gnnlab.errors import SHOWN, GnnlabError, shown
from gnnlab.inference.topology import Topology
from gnnlab.workloads.edge_networks import NODE_TYPES

MOST = 1_000_000
Share = Annotated[float, Meta(ge=0, le=1)]

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
    links: tuple[tuple[str, str], ...] = ()


class CheckedState(NamedTuple):
    """A valid state: its nodes (N), their ids, and its links in both directions."""

    nodes: tuple[Node, ...]
    node_ids: tuple[str, ...]
    topology: Topology


_decoder = msgspec.json.Decoder(NetworkState)


def check(state: Any) -> CheckedState:
    """Read a state: a dict, or JSON as bytes.

    Each node has an id of its own; links may be left out, and join two different nodes once.
    Raises `GnnlabError`: the state is invalid.
    """
    try:
        parsed = _decoder.decode(state) if isinstance(state, bytes) else msgspec.convert(state, NetworkState)
    except msgspec.ValidationError as error:
        raise GnnlabError(_message(state, str(error))) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise GnnlabError(f"not JSON: {str(error)[:SHOWN]}") from None
    node_ids = tuple(map(_node_id, parsed.nodes))
    return CheckedState(parsed.nodes, node_ids, _topology(node_ids, parsed.links))


def json_schema() -> dict[str, Any]:
    """What a state is, as JSON Schema without references; it cannot say that ids differ and that links join them."""
    _, parts = msgspec.json.schema_components([NetworkState])
    schema = parts["NetworkState"]
    schema["properties"]["nodes"]["items"] = parts["Node"]
    return schema


@lru_cache(maxsize=256)
def _topology(node_ids: tuple[str, ...], links: tuple[tuple[str, str], ...]) -> Topology:
    """First all links as given, then all reversed; cached, as a network mostly keeps its links from one state to the
    next."""
    row_of: dict[str, int] = {}
    for row, node_id in enumerate(node_ids):
        if (first := row_of.setdefault(node_id, row)) != row:
            raise GnnlabError(f"node {shown(node_id)}: its node_id is that of nodes {first} and {row} (from 0)")
    pairs: dict[tuple[int, int], None] = {}
    for place, (a, b) in enumerate(links):
        ends = row_of.get(a), row_of.get(b)
        if None in ends or a == b or ends in pairs or ends[::-1] in pairs:
            raise GnnlabError(f"link {place} (from 0), {shown([a, b])}: a link joins two different nodes, given once")
        pairs[ends] = None
    ends = np.fromiter(chain.from_iterable(pairs), np.int64, 2 * len(pairs)).reshape(-1, 2).T
    return Topology(np.concatenate([ends, ends[::-1]], axis=1), len(node_ids))


def _message(state: Any, problem: str) -> str:
    """The problem in one line, after the id of the node that it concerns."""
    text = " ".join(problem.split())  # the name of an unknown field may hold anything
    text = text if len(text) <= 2 * SHOWN else f"{text[: 2 * SHOWN - 3]}..."
    place = re.search(r"\$\.nodes\[(\d+)\]", problem)
    if place is None:
        return text
    try:
        plain = msgspec.json.decode(state) if isinstance(state, bytes) else state
        return f"node {shown(plain['nodes'][int(place[1])]['node_id'])}: {text}"
    except (msgspec.DecodeError, TypeError, KeyError):  # not JSON behind the problem, or a node without an id
        return text
