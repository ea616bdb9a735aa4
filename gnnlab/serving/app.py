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
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST

from gnnlab import __version__
from gnnlab.errors import GnnlabError
from gnnlab.inference.states import CheckedState, NetworkState, check, check_or_error
from gnnlab.serving.service import Refused, Service, busy
from gnnlab.serving.settings import ServiceSettings, configure
from gnnlab.workloads.edge_allocator import MODEL_TYPES
from gnnlab.workloads.edge_networks import random_states
from gnnswap.errors import quoted

log = logging.getLogger("gnnlab.serving")
MOST_REQUESTS = 512  # in the service at once, bodies that are still coming included; more: 503
COMPRESSED_FROM = 1000  # bytes of an answer, as in S2
OPTIONS = {"model_type": MODEL_TYPES, "scores": ("true", "false")}
JSON = b"application/json"
POSTS = {
    "/predict": "Choose the node for the next task.",
    "/predict_batch": 'Choose a node for each of many networks; an invalid one has {"error": ...} in its place.',
}
GETS = {
    "/health": "The process answers.",
    "/health/ready": "The models are loaded, and requests are taken; Redis or a database that is away costs no answer.",
    "/metrics": "Counters in Prometheus's text format, of all workers of this host.",
    "/openapi.json": "This document.",
}

_encode = msgspec.json.Encoder(enc_hook=np.ndarray.tolist).encode


class Placement(msgspec.Struct, omit_defaults=True):
    """The node for the next task: its id and place, how sure the model is, its score; on request those of all nodes."""

    node_id: str
    node: int
    confidence: float
    score: float
    model_type: str
    scores: list[float] | None = None


class App:
    """What uvicorn calls. Entered by its lifespan, `service` answers until that ends."""

    def __init__(self, settings: ServiceSettings | None = None) -> None:
        self.settings = settings or configure()
        self.service = Service(self.settings)
        self._requests = 0  # in the service now

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            async with self.service:  # uvicorn stops where this raises
                await send({"type": "lifespan.startup.complete"})
                await receive()
            return await send({"type": "lifespan.shutdown.complete"})
        status, headers, kind = 200, [], JSON
        try:
            if scope["method"] == "POST" and scope["path"] in POSTS:
                body = await self._decided(scope, receive)
            else:
                kind, body = self._page(scope["method"], scope["path"])
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

    def _page(self, method: str, path: str) -> tuple[bytes, bytes]:
        """(content type, body) of what is no decision."""
        if path not in GETS and path not in POSTS:
            raise Refused(404, "Not Found")
        if path in POSTS or method != "GET":
            raise Refused(405, "Method Not Allowed", [(b"allow", b"POST" if path in POSTS else b"GET")])
        if path == "/metrics":
            return CONTENT_TYPE_LATEST.encode(), self.service.metrics.page()
        if path == "/openapi.json":
            return JSON, _encode(description())
        if path == "/health":
            return JSON, b'{"status":"live"}'
        if not self.service.ready:
            raise busy("the service is stopping")
        return JSON, _encode({"status": "ready", **self.service.parts})

    async def _decided(self, scope: dict[str, Any], receive: Any) -> bytes:
        """The answer to one state, or to each of a list; an invalid one of a list has its error in its place."""
        self._requests += 1
        try:
            if self._requests > MOST_REQUESTS:
                raise busy(f"{MOST_REQUESTS} requests are in the service already")
            began_s = time.perf_counter()
            kind, scores = _options(scope["query_string"])
            kind = kind or self.settings.model_type
            body = await _body(scope, receive, self.settings.max_body_bytes)
            one = scope["path"] == "/predict"
            states = [check(body)] if one else _checked(body, self.settings.max_waiting)
            valid = [state for state in states if isinstance(state, CheckedState)]
            decisions = iter(await self.service.decide(kind, valid))
            answers: list[Placement | dict[str, str]] = []
            for state in states:
                if isinstance(state, CheckedState):
                    node_id, node, score, confidence, of_all = next(decisions)
                    answers.append(Placement(node_id, node, confidence, score, kind, of_all if scores else None))
                else:
                    answers.append({"error": str(state)})
            self.service.metrics.latency[kind].observe(time.perf_counter() - began_s)
            return _encode(answers[0] if one else answers)
        finally:
            self._requests -= 1


def _checked(body: bytes, most: int) -> Sequence[CheckedState | GnnlabError]:
    """Each state of a list as JSON, or its error."""
    try:
        parts = msgspec.json.decode(body, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise GnnlabError(f"a list of 1 to {most} states is needed: {error}") from None
    if not 1 <= len(parts) <= most:
        raise GnnlabError(f"{len(parts)} states given; a list of 1 to {most} states is needed")
    return [check_or_error(bytes(part)) for part in parts]


@lru_cache(maxsize=64)
def _options(query: bytes) -> tuple[str, bool]:
    """(which model decides, "" where the query names none; whether all scores are wanted).

    Raises `GnnlabError`: another parameter, or another value.
    """
    given = {"model_type": "", "scores": "false"}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if value not in OPTIONS.get(name, ()):
            known = "; ".join(f"{name}: {', '.join(values)}" for name, values in OPTIONS.items())
            raise GnnlabError(f"{quoted(name)}: {quoted(value)} given, known are {known}")
        given[name] = value
    return given["model_type"], given["scores"] == "true"


def _header(scope: dict[str, Any], wanted: bytes) -> bytes:
    """The value of a header, empty where it is not there."""
    return next((value for name, value in scope["headers"] if name == wanted), b"")


async def _body(scope: dict[str, Any], receive: Any, most_bytes: int) -> bytes:
    """The body of a request.

    Raises `Refused`: 415 its content-type is not JSON (which a web page of another site cannot claim unasked), 413 it
    is too long, 400 the client hung up.
    """
    kind = _header(scope, b"content-type")
    if kind.partition(b";")[0].strip().lower() != JSON:
        raise Refused(415, f"content-type {kind[:80].decode('latin-1')!r} given, application/json is needed")
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the client hung up")  # nobody reads it
        body += message.get("body", b"")
        if len(body) > most_bytes:
            close = [(b"connection", b"close")]
            raise Refused(413, f"the body is longer than the {most_bytes} bytes allowed", close)
        more = message.get("more_body", False)
    return body


def description() -> dict[str, Any]:
    """What /openapi.json says: paths, query parameters, bodies and answers, with msgspec's own schemas."""
    schemas = {"/predict": (NetworkState, Placement), "/predict_batch": (list[NetworkState], list[Placement])}
    every = [one for pair in schemas.values() for one in pair]
    made, components = msgspec.json.schema_components(every, ref_template="#/components/schemas/{name}")
    made, example = iter(made), random_states(1, (3, 3), seed=0)
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "enum": list(values)}}
        for name, values in OPTIONS.items()
    ]
    paths: dict[str, Any] = {
        path: {"get": {"summary": text, "responses": {"200": {"description": "answered"}}}}
        for path, text in GETS.items()
    }
    for path, text in POSTS.items():
        asked = {"schema": next(made), "example": example[0] if path == "/predict" else example * 2}
        answered = {"description": "answered", "content": {"application/json": {"schema": next(made)}}}
        post = {"summary": text, "parameters": parameters, "responses": {"200": answered}}
        post["requestBody"] = {"required": True, "content": {"application/json": asked}}
        paths[path] = {"post": post}
    about = "On which node of an edge network should the next task run?"
    info = {"title": "gnnlab", "version": __version__, "description": about}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": components}}
