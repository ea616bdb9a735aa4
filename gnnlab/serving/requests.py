"""What comes in, read within its limits and given up when the client does; the problems that are answered instead; and
what /openapi.json says of bodies and answers.

A problem is problem+json (RFC 9457) of one line, which says what was given and what is allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import orjson
from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel, RootModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from gnnlab.errors import shown
from gnnlab.inference import state_checks
from gnnlab.workloads.edge_allocator import MODEL_TYPES
from gnnlab.workloads.edge_networks import random_states

MEDIA_TYPE = "application/problem+json"


class Problem(Exception):
    """An answer with this HTTP status and this line in its place."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers


def as_json(status: int, detail: str) -> dict[str, object]:
    """The members of a problem."""
    return {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}


def response(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    line = " ".join(detail.split())
    return Response(orjson.dumps(as_json(status, line)), status, headers, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Have every error of the application answered so; what nobody expected is logged whole."""

    @app.exception_handler(Problem)
    async def problem(request: Request, error: Problem) -> Response:
        return response(error.status, error.detail, error.headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        return response(500, "the service failed on this request; its log says how")

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        remedy = "/openapi.json says what is there"
        known = {404: f"there is no {shown(request.url.path)}", 405: f"{request.method} is not allowed"}
        said = f"{known[error.status_code]}; {remedy}" if error.status_code in known else str(error.detail)
        return response(error.status_code, said, error.headers)


OPTIONS = {"model_type": MODEL_TYPES, "scores": ("true", "false")}
T = TypeVar("T")


def options_of(request: Request, model_type: str) -> tuple[str, bool]:
    """(which model decides, whether all scores are wanted), as the address says; `model_type` where it names none.

    FastAPI's own reading of two parameters takes longer than a prediction.
    Raises `Problem`: 422 another parameter, or another value.
    """
    query = request.scope["query_string"]
    if not query:
        return model_type, False
    given = {"model_type": model_type, "scores": "false"}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if value not in OPTIONS.get(name, ()):
            known = "; ".join(f"{name}: {', '.join(values)}" for name, values in OPTIONS.items())
            raise Problem(422, f"{shown(name)}: {shown(value)} given, known are {known}")
        given[name] = value
    return given["model_type"], given["scores"] == "true"


async def json_of(request: Request, most_bytes: int) -> Any:
    """The body, parsed.

    Raises `Problem`: 415 it is not said to be JSON (a web page of elsewhere cannot say so unasked), 413 it is too long,
    400 it is no JSON; `ClientDisconnect`: the client hung up while it was sending.
    """
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise Problem(415, f"content-type {kind[:80]!r} given, application/json is needed")
    body = await _body(request, most_bytes)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Problem(400, f"the body is no JSON: {error}") from None


async def _body(request: Request, most_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most_bytes:
            raise Problem(413, f"the body is longer than the {most_bytes} bytes allowed", {"Connection": "close"})
        parts.append(part)
    return b"".join(parts)


def limit_nodes(states: Sequence[Any], most: int) -> None:
    """Raises `Problem` 422 where a state has more than `most` nodes; what is no state is none of this."""
    for state in states:
        nodes = state.get("nodes") if isinstance(state, dict) else None
        if isinstance(nodes, list) and len(nodes) > most:
            raise Problem(422, f"nodes: {len(nodes)} given, at most {most} are allowed")


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client hangs up. Raises `ClientDisconnect`: the client did."""
    answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        gone.cancel()
        if answer.cancel():
            await asyncio.wait((answer,))  # its place is free from here on


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# ---- what /openapi.json says ----------------------------------------------------------------------------------------


class Chosen(BaseModel):
    """The node for the next task: its id and place, how sure the model is, its score; on request those of all nodes."""

    node_id: str
    node: int
    confidence: float
    score: float
    model_type: str
    scores: list[float] | None = None


class ProblemDetails(BaseModel):
    """RFC 9457: why there is no answer, in one line."""

    type: str
    title: str
    status: int
    detail: str


class Answers(RootModel):
    """An answer for each state, in their order, or the problem that it has."""

    root: list[Chosen | ProblemDetails]


class Health(BaseModel):
    """redis and database: off, here or away; without them answers come all the same."""

    status: str
    redis: str | None = None
    database: str | None = None


EXAMPLE = random_states(1, (3, 3), seed=0)[0]
CHOSEN = {"node_id": "node_1", "node": 1, "confidence": 0.62, "score": 0.4, "model_type": "hybrid"}


MEANINGS = {
    "model_type": "which model decides; without it that of the service",
    "scores": "whether the scores of all nodes are wanted, too",
}


def _request_body(schema: dict[str, Any], example: Any) -> dict[str, Any]:
    content = {"schema": schema, "examples": {"small": {"value": example}}}
    parameters = [
        {"name": name, "in": "query", "description": MEANINGS[name], "schema": {"type": "string", "enum": list(values)}}
        for name, values in OPTIONS.items()
    ]
    return {"parameters": parameters, "requestBody": {"required": True, "content": {"application/json": content}}}


STATE = state_checks.json_schema()
ONE_STATE = _request_body(STATE, EXAMPLE)
MANY_STATES = _request_body({"type": "array", "items": STATE, "minItems": 1}, [EXAMPLE, EXAMPLE])


def _problem_document(status: int, detail: str) -> dict[str, Any]:
    content = {"schema": ProblemDetails.model_json_schema(), "example": as_json(status, detail)}
    return {"description": detail, "content": {MEDIA_TYPE: content}}


PROBLEMS = {
    400: _problem_document(400, "the body is no JSON"),
    413: _problem_document(413, "the body is too long"),
    415: _problem_document(415, "the body is not said to be application/json"),
    422: _problem_document(422, "node 'a': Expected `float` <= 1.0 - at `$.nodes[0].cpu_util`"),
    500: _problem_document(500, "the model failed on this batch; the log of the service says how"),
    503: _problem_document(503, "too many wait; Retry-After says when to come again"),
    504: _problem_document(504, "the deadline has passed"),
}
ONE_ANSWER = {200: {"model": Chosen, "content": {"application/json": {"example": CHOSEN}}}, **PROBLEMS}
MANY_ANSWERS = {200: {"model": Answers, "content": {"application/json": {"example": [CHOSEN, CHOSEN]}}}, **PROBLEMS}
NOT_READY = {503: _problem_document(503, "the service is stopping")}
METRICS = {200: {"description": "Counters", "content": {"text/plain": {"example": "predictions_total 1.0"}}}}
