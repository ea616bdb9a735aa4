"""What comes in, read within its limits and given up when the client does; and the problems that are answered instead.

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
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from gnnlab.errors import shown
from gnnlab.workloads.edge_allocator import MODEL_TYPES

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
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


async def _problem(request: Request, error: Problem) -> Response:
    return response(error.status, error.detail, error.headers)


async def _http(request: Request, error: HTTPException) -> Response:
    remedy = "/openapi.json says what is there"
    known = {404: f"there is no {shown(request.url.path)}; {remedy}", 405: f"{request.method} is not allowed; {remedy}"}
    return response(error.status_code, known.get(error.status_code, str(error.detail)), error.headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    return response(500, "the service failed on this request; its log says how")


OPTIONS = {"model_type": MODEL_TYPES, "scores": ("true", "false")}
T = TypeVar("T")


def options_of(request: Request, model_type: str) -> tuple[str, bool]:
    """(which model decides, whether all scores are wanted), as the address says; `model_type` where it names none.

    FastAPI's own reading of two parameters takes longer than a prediction.

    Raises:
        Problem: 422 another parameter, or another value.
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

    Raises:
        Problem: 415 it is not said to be JSON (a web page of elsewhere cannot say so unasked), 413 it is too long,
            400 it is no JSON.
        ClientDisconnect: the client hung up while it was sending.
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
    """The result of `work`, which is cancelled when the client hangs up.

    Raises:
        ClientDisconnect: the client did.
    """
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
