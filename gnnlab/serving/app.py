"""The service over HTTP: one ASGI callable, nothing between it and uvicorn.

POST /predict            one network -> the node for the next task, confidence, scores on request
POST /predict_batch      many networks -> their answers in order
GET  /health             the process answers; /health/ready: the models are loaded, and it takes requests
GET  /metrics            for Prometheus; /openapi.json describes all of it

An error is one line: {"error": "node 'a': Expected `float` <= 1.0 - at `$.nodes[0].cpu_util`"}.
"""

from __future__ import annotations

import gzip
import logging
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST

from gnnlab.errors import GnnlabError, shown
from gnnlab.inference.predictor import Decision, check_or_error
from gnnlab.inference.state_checks import check
from gnnlab.serving import openapi
from gnnlab.serving.openapi import Placement
from gnnlab.serving.service import Refused, Service, busy
from gnnlab.serving.settings import ServiceSettings, configure
from gnnlab.workloads.edge_allocator import MODEL_TYPES

log = logging.getLogger("gnnlab.serving")
MOST_REQUESTS = 512  # in the service at once, bodies that are still coming included; more: 503
COMPRESSED_FROM = 1000  # bytes of an answer, as in S2
OPTIONS = {"model_type": MODEL_TYPES, "scores": ("true", "false")}
JSON = b"application/json"
Response = tuple[bytes, bytes]  # (content type, body)

_encode = msgspec.json.Encoder(enc_hook=np.ndarray.tolist).encode


class Disconnected(Exception):
    """The client hung up while it was sending."""


class App:
    """What uvicorn calls. Entered by its lifespan, `service` answers until that ends."""

    def __init__(self, settings: ServiceSettings | None = None) -> None:
        self.settings = settings or configure()
        self.service = Service(self.settings)
        self._paths: dict[tuple[str, str], Callable[[], Response]] = {
            ("GET", "/health"): lambda: (JSON, b'{"status":"live"}'),
            ("GET", "/health/ready"): self._ready,
            ("GET", "/metrics"): lambda: (CONTENT_TYPE_LATEST.encode(), self.service.metrics.page()),
            ("GET", "/openapi.json"): lambda: (JSON, _encode(openapi.description(OPTIONS))),
        }

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        status, headers, kind = 200, [], JSON
        try:
            kind, body = await self._answer(scope, receive)
        except Disconnected:
            return None
        except Exception as error:
            if isinstance(error, GnnlabError) and not isinstance(error, Refused):
                error = Refused(422, str(error))
            elif not isinstance(error, Refused):
                log.exception("a request failed")
                error = Refused(500, "the service failed on this request; its log says how")
            status, headers = error.status, error.headers
            body = _encode({"error": " ".join(str(error).split())})
            self.service.metrics.refused.labels(str(status)).inc()
        if len(body) >= COMPRESSED_FROM and b"gzip" in _header(scope, b"accept-encoding"):
            body = gzip.compress(body, 5)
            headers = [*headers, (b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *headers]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _live(self, receive: Any, send: Any) -> None:
        """Startup and shutdown; uvicorn stops where this raises."""
        await receive()
        async with self.service:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: dict[str, Any], receive: Any) -> Response:
        path, service = scope["path"], self.service
        if path not in ("/predict", "/predict_batch") or scope["method"] != "POST":
            respond = self._paths.get((scope["method"], path))
            if respond is None:
                known = path.startswith("/predict") or ("GET", path) in self._paths
                raise Refused(405, "Method Not Allowed") if known else Refused(404, "Not Found")
            return respond()
        service.requests += 1
        try:
            if service.requests > MOST_REQUESTS:
                raise busy(f"{MOST_REQUESTS} requests are in the service already")
            began = time.perf_counter()
            kind, scores = _options(scope["query_string"])
            kind = kind or self.settings.model_type
            body = await _body(scope, receive, self.settings.max_body_bytes)
            decide = self._one if path == "/predict" else self._many
            answer = await decide(body, kind, scores)
            service.metrics.latency[kind].observe(time.perf_counter() - began)
            return JSON, _encode(answer)
        finally:
            service.requests -= 1

    async def _one(self, body: bytes, kind: str, scores: bool) -> Placement | dict[str, str]:
        return _member(await self.service.decide(kind, check(body)), kind, scores)

    async def _many(self, body: bytes, kind: str, scores: bool) -> list[Placement | dict[str, str]]:
        most = self.settings.max_waiting
        try:
            parts = msgspec.json.decode(body, type=list[msgspec.Raw])
        except (msgspec.DecodeError, RecursionError) as error:
            raise GnnlabError(f"a list of 1 to {most} states is needed: {error}") from None
        if not 1 <= len(parts) <= most:
            raise GnnlabError(f"{len(parts)} states given; a list of 1 to {most} states is needed")
        checked = [check_or_error(bytes(part)) for part in parts]
        return [_member(one, kind, scores) for one in await self.service.decide_all(kind, checked)]

    def _ready(self) -> Response:
        if not self.service.ready:
            raise busy("the service is stopping")
        return JSON, _encode({"status": "ready", **self.service.parts})


def _member(decision: Decision | GnnlabError, kind: str, with_scores: bool) -> Placement | dict[str, str]:
    if isinstance(decision, GnnlabError):
        return {"error": str(decision)}
    node_id, node, score, confidence, scores = decision
    return Placement(node_id, node, confidence, score, kind, scores if with_scores else None)


@lru_cache(maxsize=64)
def _options(query: bytes) -> tuple[str, bool]:
    """(which model decides, "" where the query names none; whether all scores are wanted).

    Raises `GnnlabError`: another parameter, or another value.
    """
    given = {"model_type": "", "scores": "false"}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if value not in OPTIONS.get(name, ()):
            known = "; ".join(f"{name}: {', '.join(values)}" for name, values in OPTIONS.items())
            raise GnnlabError(f"{shown(name)}: {shown(value)} given, known are {known}")
        given[name] = value
    return given["model_type"], given["scores"] == "true"


def _header(scope: dict[str, Any], wanted: bytes) -> bytes:
    """The value of a header, empty where it is not there."""
    return next((value for name, value in scope["headers"] if name == wanted), b"")


async def _body(scope: dict[str, Any], receive: Any, most_bytes: int) -> bytes:
    """The body of a request.

    Raises `Refused`: 415 its content-type is not JSON (which a web page of another site cannot claim unasked), 413 it
    is too long; `Disconnected`.
    """
    kind = _header(scope, b"content-type")
    if kind.partition(b";")[0].strip().lower() != JSON:
        raise Refused(415, f"content-type {kind[:80].decode('latin-1')!r} given, application/json is needed")
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        body += message.get("body", b"")
        if len(body) > most_bytes:
            close = [(b"connection", b"close")]
            raise Refused(413, f"the body is longer than the {most_bytes} bytes allowed", close)
        more = message.get("more_body", False)
    return body
