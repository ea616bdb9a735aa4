"""Is this the state of an edge network? One line names the node and the field that are not as they should be.

    checked = check(state)               # GnnlabError: node 'a', field cpu_util: 1.7 given, a number 0..1 is needed
    checked.x, checked.edge_index        # the arrays that the model takes, so that nothing is parsed twice
    good, errors = check_batch(states)   # by their places: what can be answered, and why the rest cannot

Pydantic holds the rules. `network_arrays` sees most good states to be good at a glance, and asks here about the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from gnnlab.errors import GnnlabError, shown
from gnnlab.workloads.edge_networks import NODE_TYPES, edges, features

MOST = 1_000_000
# type, most and unit of each feature; the least is 0 throughout
LIMITS: dict[str, tuple[type, int, str]] = {
    "cpu_util": (float, 1, ""),
    "mem_util": (float, 1, ""),
    "energy": (float, MOST, " W"),
    "latency": (float, MOST, " ms"),
    "bandwidth": (float, MOST, " Mbit/s"),
    "queue_len": (int, MOST, " tasks"),
    "node_type": (int, len(NODE_TYPES) - 1, ""),
}


@dataclass(frozen=True)
class CheckedState:
    """A good state, parsed: node_ids (N), x (N, 7) float32 and edge_index (2, E) int64, as `edge_networks` has them."""

    node_ids: tuple[str, ...]
    x: np.ndarray
    edge_index: np.ndarray


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


_Node = create_model(
    "_Node",
    __base__=_Strict,
    node_id=Annotated[str, Field(min_length=1)],
    **{name: Annotated[kind, Field(ge=0, le=most)] for name, (kind, most, _) in LIMITS.items()},
)


class _State(_Strict):
    nodes: Annotated[list[_Node], Field(min_length=1)]
    links: list[Annotated[tuple[str, str], Field(strict=False)]] = []


def check(state: Any) -> CheckedState:
    """The state, parsed.

    A state is `{"nodes": [...], "links": [[node_id, node_id], ...]}`; each node has a node_id of its own and the fields
    of `LIMITS`, nothing else; links may be left out, and join two different nodes once.
    Raises `GnnlabError`: anything else.
    """
    try:
        plain = _State.model_validate(state).model_dump()
    except ValidationError as error:
        raise GnnlabError(_message(state, error)) from None
    node_ids = tuple(node["node_id"] for node in plain["nodes"])
    _distinct(node_ids)
    _joining(plain["links"], set(node_ids))
    return CheckedState(node_ids, features(plain), edges(plain))


def json_schema() -> dict[str, Any]:
    """What a state is, as JSON Schema without references; that ids differ and links join them, it cannot say."""
    schema = _State.model_json_schema()
    schema["properties"]["nodes"]["items"] = schema.pop("$defs")["_Node"]
    return schema


def check_batch(states: Sequence[Any]) -> tuple[dict[int, CheckedState], dict[int, GnnlabError]]:
    """The good states and the errors of the others, each under its place in `states`."""
    good: dict[int, CheckedState] = {}
    errors: dict[int, GnnlabError] = {}
    for place, state in enumerate(states):
        try:
            good[place] = check(state)
        except GnnlabError as error:
            errors[place] = error
    return good, errors


def _distinct(node_ids: tuple[str, ...]) -> None:
    first: dict[str, int] = {}
    for place, node_id in enumerate(node_ids):
        if node_id in first:
            raise GnnlabError(
                f"node {shown(node_id)}, field node_id: given at places {first[node_id]} and {place} (from 0); "
                "each node needs an id of its own"
            )
        first[node_id] = place


def _joining(links: list[tuple[str, str]], known: set[str]) -> None:
    seen: set[frozenset[str]] = set()
    for place, ends in enumerate(links):
        where = f"link {place} (from 0), {shown(list(ends))}"
        for end in ends:
            if end not in known:
                raise GnnlabError(f"{where}: there is no node {shown(end)}; a link joins two nodes of the state")
        if ends[0] == ends[1]:
            raise GnnlabError(f"{where}: joins a node with itself; leave it out")
        if frozenset(ends) in seen:
            raise GnnlabError(f"{where}: is given twice; a link goes both ways, give it once")
        seen.add(frozenset(ends))


def _message(state: Any, error: ValidationError) -> str:
    """The first error in one line, and how many more there are."""
    found = error.errors(include_url=False, include_context=False)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    place = found[0]["loc"]
    match place:
        case ("nodes", int(row), *field):
            text = _node_message(state["nodes"][row], row, field, found[0])
        case ("links", int(row), *_):
            text = f"link {row} (from 0): {shown(state['links'][row])} given, a pair of two node_ids is needed"
        case ("nodes",) if found[0]["type"] != "missing":
            text = f"nodes: {shown(state['nodes'])} given, a list of one node or more is needed"
        case ("links",):
            text = f"links: {shown(state['links'])} given, a list of pairs of node_ids is needed"
        case ("nodes",):
            text = "nodes: missing, a list of one node or more is needed"
        case (field,):
            text = f"field {shown(field)}: not known; a state has nodes and links, leave it out"
        case _:
            text = f"state: {shown(state)} given, an object with nodes and links is needed"
    return text + more


def _node_message(node: Any, row: int, field: Sequence[Any], found: Any) -> str:
    node_id = node.get("node_id") if isinstance(node, dict) else None
    where = f"node {shown(node_id)}" if isinstance(node_id, str) and node_id else f"node {row} (from 0)"
    if not field:
        return f"{where}: {shown(node)} given, an object with {_FIELDS} is needed"
    if field[0] not in _NEEDED:
        return f"{where}, field {shown(field[0])}: not known; a node has {_FIELDS}, leave it out"
    given = "missing" if found["type"] == "missing" else f"{shown(found['input'])} given"
    return f"{where}, field {field[0]}: {given}, {_NEEDED[field[0]]} is needed"


_NEEDED = {"node_id": "a string of one character or more"} | {
    name: f"{'an integer' if kind is int else 'a number'} 0..{most}{unit}"
    for name, (kind, most, unit) in LIMITS.items()
}
_FIELDS = ", ".join(_NEEDED)
