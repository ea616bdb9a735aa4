"""Parse requests within their limits, answer errors, and describe bodies and answers for /openapi.json.

An error is one line: {"error": "node 'a': Expected `float` <= 1.0 - at `$.nodes[0].cpu_util`"}.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import msgspec
from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from gnnlab.errors import shown
from gnnlab.inference import state_checks
from gnnlab.workloads.edge_allocator import MODEL_TYPES
from gnnlab.workloads.edge_networks import random_states

OPTIONS = {"model_type": MODEL_TYPES, "scores": ("true", "false")}


async def error_response(request: Request, error: Exception) -> Response:
    """What a client gets for an exception; what nobody expected is in the log alone."""
    if not isinstance(error, HTTPException):
        error = HTTPException(500, "the service failed on this request; its log says how")
    line = msgspec.json.encode({"error": " ".join(error.detail.split())})
    return Response(line, error.status_code, error.headers, media_type="application/json")


def options_of(request: Request, model_type: str) -> tuple[str, bool]:
    """(which model decides, whether all scores are wanted) from the query; `model_type` where it names none.

    FastAPI's own reading of two parameters takes longer than a prediction.
    Raises `HTTPException`: 422 another parameter, or another value.
    """
    given = {"model_type": model_type, "scores": "false"}
    if query := request.scope["query_string"]:
        for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            if value not in OPTIONS.get(name, ()):
                known = "; ".join(f"{name}: {', '.join(values)}" for name, values in OPTIONS.items())
                raise HTTPException(422, f"{shown(name)}: {shown(value)} given, known are {known}")
            given[name] = value
    return given["model_type"], given["scores"] == "true"


async def json_of(request: Request, most_bytes: int) -> Any:
    """The body, parsed.

    Raises `HTTPException`: 415 its content-type is not JSON (which a web page of another site cannot claim unasked),
    413 it is too long, 400 it is not valid JSON; `ClientDisconnect`: the client hung up while it was sending.
    """
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, f"content-type {kind[:80]!r} given, application/json is needed")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most_bytes:
            close = {"Connection": "close"}
            raise HTTPException(413, f"the body is longer than the {most_bytes} bytes allowed", close)
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise HTTPException(400, f"the body is not valid JSON: {error}") from None


# ---- for /openapi.json ----------------------------------------------------------------------------------------------


class Chosen(BaseModel):
    """The node for the next task: its id and place, how sure the model is, its score; on request those of all nodes."""

    node_id: str
    node: int
    confidence: float
    score: float
    model_type: str
    scores: list[float] | None = None


def body_schema(many: bool) -> dict[str, Any]:
    """The query parameters and the body of /predict, or of /predict_batch, with an example."""
    schema, example = state_checks.json_schema(), random_states(1, (3, 3), seed=0)[0]
    if many:
        schema, example = {"type": "array", "items": schema, "minItems": 1}, [example, example]
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "enum": list(values)}}
        for name, values in OPTIONS.items()
    ]
    content = {"application/json": {"schema": schema, "example": example}}
    return {"parameters": parameters, "requestBody": {"required": True, "content": content}}
