"""The service over HTTP: one ASGI callable, nothing between it and uvicorn.

POST /predict            one network -> the node for the next task, confidence, scores on request
POST /predict_batch      many networks -> their answers in order
GET  /health             the process answers; /health/ready: the models are loaded, and it takes requests
GET  /metrics            for Prometheus; /openapi.json describes all of it

An error is one line: {"error": "node 'a': Expected `float` <= 1.0 - at `$.nodes[0].cpu_util`"}.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import logging
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from itertools import count
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
from gnnswap.errors import one_line, quoted

log = logging.getLogger("gnnlab.serving")
MOST_REQUESTS = 512  # in the service at once, bodies that are still coming included; more: 503
COMPRESSED_FROM = 1000  # bytes of an answer, as in S2
MOST_UNREAD, UNREAD_S = 64 << 20, 2.0  # bytes of a body that is too long, and how long it is read on
LARGE = 16 << 10  # bytes of a body that is checked beside the event loop, and of an answer that is compressed there
OPTIONS = {"model_type": MODEL_TYPES, "scores": ("true", "false")}
JSON, CLOSE = b"application/json", [(b"connection", b"close")]
ERRORS = {
    400: "no host",
    405: "another method",
    408: "the body did not come in time",
    413: "the body is too long",
    415: "the body is not said to be JSON",
    421: "a host that this service does not have",
    422: "the body or a parameter is invalid",
    431: "the head is too long; no body",
    500: "the model failed",
    503: "too many wait, no answer came in time, or the service is stopping: again after Retry-After",
}
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
    model_version: str  # digest of the weights
    scores: list[float] | None = None


class App:
    """What uvicorn calls. Entered by its lifespan, `service` answers until that ends; `leaving`: it is no longer ready,
    and asks each client to reconnect."""

    def __init__(self, settings: ServiceSettings | None = None) -> None:
        self.settings = settings or configure()
        self.service, self.leaving, self._hosts = Service(self.settings), False, self.settings.host_names
        self._numbers, self._own = count(1), secrets.token_hex(4)  # of requests that bring no id

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await self._lifespan(receive, send)
        given, headers, kind = dict(scope["headers"]), [], JSON
        request_id = given.get(b"x-request-id", b"")
        if not _is_id(request_id):
            request_id = f"{self._own}-{next(self._numbers)}".encode()
        try:
            self._check_host(given.get(b"host"), scope["http_version"])
            status, kind, body = await self._answered(scope, given, receive)
        except Exception as error:
            error = _refusal(error, request_id.decode())
            status, headers = error.status, error.headers
            body = _encode({"error": " ".join(str(error).split())})
            self.service.metrics.refused.labels(str(status)).inc()
        if len(body) >= COMPRESSED_FROM:
            headers = [*headers, (b"vary", b"accept-encoding")]
            if _takes_gzip(given.get(b"accept-encoding", b"")):
                body = await self._beside(len(body), gzip.compress, body, 5)
                headers.append((b"content-encoding", b"gzip"))
        if self.leaving:
            headers = [*headers, *CLOSE]
        own = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"x-request-id", request_id)]
        await send({"type": "http.response.start", "status": status, "headers": own + headers})
        await send({"type": "http.response.body", "body": body})

    async def _lifespan(self, receive: Any, send: Any) -> None:
        await receive()
        with ThreadPoolExecutor(1, thread_name_prefix="gnnlab-large") as self._thread:
            self._thread.submit(int).result()  # a thread that cannot start ends the process here, not a request later
            async with self.service:  # uvicorn stops where this raises
                gc.freeze()  # a pass over all that was loaded until here would hold up answers for some 80 ms
                await send({"type": "lifespan.startup.complete"})
                await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def _check_host(self, host: bytes | None, version: str) -> None:
        """A web page whose name leads here asks under that name.

        Raises `Refused`: 400 there is no host, 421 it is none of ours.
        """
        if "*" in self._hosts or (host is None and version == "1.0"):
            return
        if host is None:
            raise Refused(400, "a header `host` is needed")
        if _name_of(host) not in self._hosts:
            raise Refused(421, f"host {quoted(host.decode('latin-1'))} is none of this service; see GNNLAB_SERVE_HOSTS")

    async def _answered(
        self, scope: dict[str, Any], given: Mapping[bytes, bytes], receive: Any
    ) -> tuple[int, bytes, bytes]:
        """(status, content type, body)."""
        method, path = scope["method"], scope["path"]
        if method == "POST" and path in POSTS:
            return 200, JSON, await self._decided(scope, given, receive)
        if path not in GETS and path not in POSTS:
            raise Refused(404, "Not Found")
        if path in POSTS or method not in ("GET", "HEAD"):
            raise Refused(405, "Method Not Allowed", [(b"allow", b"POST" if path in POSTS else b"GET, HEAD")])
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST.encode(), self.service.page()
        if path == "/openapi.json":
            return 200, JSON, description(self.settings.max_waiting, self.settings.max_body_bytes)
        if path == "/health":
            return 200, JSON, b'{"status":"live"}'
        if self.leaving:
            raise busy("the service is stopping")
        if self.service.requests >= MOST_REQUESTS:
            raise busy(f"{MOST_REQUESTS} requests are in the service")
        return 200, JSON, _encode({"status": "ready", **await self.service.parts()})

    async def _decided(self, scope: dict[str, Any], given: Mapping[bytes, bytes], receive: Any) -> bytes:
        """The answer to one state, or to each of a list; an invalid one of a list has its error in its place."""
        if self.service.requests >= MOST_REQUESTS:
            raise busy(f"{MOST_REQUESTS} requests are in the service already")
        self.service.requests += 1
        body = None
        try:
            async with asyncio.timeout(self.settings.deadline_s):
                began_s = time.perf_counter()
                kind, scores = _options(scope["query_string"])
                kind = kind or self.settings.model_type
                body = await _body(given.get(b"content-type", b""), receive, self.settings.max_body_bytes)
                one = scope["path"] == "/predict"
                states = await self._beside(len(body), _read, body, one, self.settings.max_waiting)
                valid = [state for state in states if isinstance(state, CheckedState)]
                parent = given.get(b"traceparent", b"").decode("latin-1")
                decisions = iter(await self.service.decide(kind, valid, parent))
            version, answers = self.service.versions[kind], []
            for state in states:
                if isinstance(state, GnnlabError):
                    answers.append({"error": str(state)})
                    continue
                node_id, node, score, confidence, of_all = next(decisions)
                answers.append(Placement(node_id, node, confidence, score, kind, version, of_all if scores else None))
            self.service.metrics.latency[kind].observe(time.perf_counter() - began_s)
            return _encode(answers[0] if one else answers)
        except TimeoutError:
            within = f"within {self.settings.deadline_s:g} s"
            if body is None:
                raise Refused(408, f"the body did not come {within}", CLOSE) from None
            raise busy(f"no answer {within}") from None
        finally:
            self.service.requests -= 1

    async def _beside(self, size: int, call: Any, *given: Any) -> Any:
        """What `call` gives, computed in a thread where `size` bytes would hold up the others."""
        if size < LARGE:
            return call(*given)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *given)


def _refusal(error: Exception, request_id: str) -> Refused:
    """What a client is told; what is our fault is logged."""
    if not isinstance(error, GnnlabError):
        log.error("request %s failed", request_id, exc_info=error)
        return Refused(500, "the service failed on this request; its log says how")
    if not isinstance(error, Refused):
        return Refused(422, str(error))
    if error.status == 500:
        log.error("request %s: %s", request_id, error.__cause__)
    return error


def _read(body: bytes, one: bool, most: int) -> Sequence[CheckedState | GnnlabError]:
    """One state, or each of a list as JSON, where an invalid one is its error. Raises `GnnlabError`: there is none."""
    if one:
        return [check(body)]
    try:
        parts = msgspec.json.decode(body, type=list[msgspec.Raw])
    except Exception as error:  # msgspec has no list of what it raises
        raise GnnlabError(f"a list of 1 to {most} states is needed: {one_line(error)}") from None
    if not 1 <= len(parts) <= most:
        raise GnnlabError(f"{len(parts)} states given; a list of 1 to {most} states is needed")
    return [check_or_error(bytes(part)) for part in parts]


_is_id = re.compile(rb"[!-~]{1,128}").fullmatch


@lru_cache(maxsize=256)
def _name_of(host: bytes) -> str:
    """In lower case, without port and brackets."""
    text = host.decode("latin-1").strip().lower()
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]


@lru_cache(maxsize=256)
def _takes_gzip(accepted: bytes) -> bool:
    """Whether an accept-encoding has gzip, or else anything, at a quality above 0."""
    quality = {}
    for part in accepted.lower().split(b","):
        name, _, rest = part.partition(b";")
        quality[name.strip()] = not re.fullmatch(rb"\s*q\s*=\s*0(\.0*)?\s*", rest)
    return quality.get(b"gzip", quality.get(b"*", False))


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


async def _body(kind: bytes, receive: Any, most_bytes: int) -> bytes:
    """The body of a request of a content-type.

    Raises `Refused`: 415 that is not JSON (which a web page of another site cannot claim unasked), 413 it is too long,
    400 the client hung up.
    """
    if kind.partition(b";")[0].strip().lower() != JSON:
        raise Refused(415, f"content-type {kind[:80].decode('latin-1')!r} given, application/json is needed")
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the client hung up")  # nobody reads it
        body += message.get("body", b"")
        if len(body) > most_bytes:
            await _read_on(receive, message)
            raise Refused(413, f"the body is longer than the {most_bytes} bytes allowed", CLOSE)
        more = message.get("more_body", False)
    return body


async def _read_on(receive: Any, message: dict[str, Any]) -> None:
    """What a client still sends, dropped: many read no answer before they have sent all, and a connection that is
    closed with some of it unread is reset."""
    left = MOST_UNREAD
    with suppress(TimeoutError):
        async with asyncio.timeout(UNREAD_S):
            while message.get("more_body") and left > 0:
                message = await receive()
                left -= len(message.get("body", b""))


@lru_cache(maxsize=1)
def description(most: int, most_bytes: int) -> bytes:
    """What /openapi.json says: paths, query parameters, bodies and answers, with msgspec's own schemas."""
    kinds = [NetworkState, Placement, list[NetworkState], list[Placement]]
    made, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    (state, answer, states, answers), failed = made, {"$ref": "#/components/schemas/Error"}
    text = {"type": "string", "maxLength": 500}
    components["Error"] = {"type": "object", "required": ["error"], "properties": {"error": text}}
    states |= {"minItems": 1, "maxItems": most}
    answers["items"] = {"anyOf": [answers["items"], failed]}

    def described(about: str, schema: Any, **more: Any) -> dict[str, Any]:
        return {"description": about, "content": {"application/json": {"schema": schema, **more}}}

    errors = {str(status): described(about, failed) for status, about in ERRORS.items()}
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "enum": values}} for name, values in OPTIONS.items()
    ]
    got = {"responses": {"200": {"description": "answered"}, **errors}}
    paths: dict[str, Any] = {path: {"get": {"summary": about, **got}} for path, about in GETS.items()}
    examples = random_states(2, (3, 3), seed=0)
    for (path, about), asked, answered, example in zip(
        POSTS.items(), (state, states), (answer, answers), (examples[0], examples), strict=True
    ):
        body = {"required": True, **described(f"{most_bytes} bytes at most", asked, example=example)}
        responses = {"200": described("answered", answered), **errors}
        post = {"summary": about, "parameters": parameters, "requestBody": body, "responses": responses}
        paths[path] = {"post": post}
    about = "On which node of an edge network should the next task run?"
    info = {"title": "gnnlab", "version": __version__, "description": about}
    return _encode({"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": components}})
