"""What /openapi.json says: paths, query parameters, bodies and answers, with msgspec's own schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gnnlab import __version__
from gnnlab.inference import state_checks
from gnnlab.workloads.edge_networks import random_states


class Placement(msgspec.Struct, omit_defaults=True):
    """The node for the next task: its id and place, how sure the model is, its score; on request those of all nodes."""

    node_id: str
    node: int
    confidence: float
    score: float
    model_type: str
    scores: list[float] | None = None


GETS = {
    "/health": "The process answers.",
    "/health/ready": "The models are loaded, and requests are taken; Redis or a database that is away costs no answer.",
    "/metrics": "Counters in Prometheus's text format, of all workers of this host.",
}


def description(options: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The document; `options` are the query parameters with their values."""
    state, answer = state_checks.json_schema(), msgspec.json.schema(Placement)["$defs"]["Placement"]
    (example,) = random_states(1, (3, 3), seed=0)
    paths: dict[str, Any] = {path: {"get": {"summary": text, **_answered({})}} for path, text in GETS.items()}
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "enum": list(values)}}
        for name, values in options.items()
    ]
    many = {"type": "array", "items": state, "minItems": 1}
    for path, body, given, answered, text in (
        ("/predict", state, example, answer, "Choose the node for the next task."),
        (
            "/predict_batch",
            many,
            [example, example],
            {"type": "array", "items": answer},
            'Choose a node for each of many networks; one that is invalid has {"error": ...} in its place.',
        ),
    ):
        content = {"required": True, "content": {"application/json": {"schema": body, "example": given}}}
        paths[path] = {
            "post": {"summary": text, "parameters": parameters, "requestBody": content, **_answered(answered)}
        }
    about = "On which node of an edge network should the next task run?"
    return {
        "openapi": "3.1.0",
        "info": {"title": "gnnlab", "version": __version__, "description": about},
        "paths": paths,
    }


def _answered(schema: dict[str, Any]) -> dict[str, Any]:
    return {"responses": {"200": {"description": "answered", "content": {"application/json": {"schema": schema}}}}}
