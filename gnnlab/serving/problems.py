"""Answers that are none: problem+json (RFC 9457) of one line, which says what was given and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import orjson
from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from gnnlab.errors import shown

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
