"""The service over HTTP.

POST /predict            one network -> the node for the next task, confidence, scores on request
POST /predict_batch      many networks -> their answers in order
GET  /health             the process answers; /health/ready: the models are loaded, and it takes requests
GET  /metrics            for Prometheus; /openapi.json describes all of it
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.middleware.gzip import GZipMiddleware
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from gnnlab import __version__
from gnnlab.errors import GnnlabError, shown
from gnnlab.serving import requests
from gnnlab.serving.requests import Chosen
from gnnlab.serving.service import Service, ServiceAnswer, busy
from gnnlab.serving.settings import ServiceSettings, configure

MOST_REQUESTS = 512  # in the service at once, bodies that are still coming included; more: 503
COMPRESSED_FROM = 1000  # bytes of an answer, as in S2
CLIENT_CLOSED = 499  # nobody reads it


def create(settings: ServiceSettings | None = None) -> FastAPI:
    """The application; without settings, those of the environment."""
    settings = settings or configure()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Service(settings) as app.state.service:
            yield

    app = FastAPI(
        title="gnnlab",
        version=__version__,
        description="On which node of an edge network should the next task run?",
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
    )
    app.add_exception_handler(HTTPException, requests.error_response)
    app.add_exception_handler(Exception, requests.error_response)
    app.add_middleware(GZipMiddleware, minimum_size=COMPRESSED_FROM, compresslevel=5)

    @app.post("/predict", responses={200: {"model": Chosen}}, openapi_extra=requests.body_schema(many=False))
    async def predict(request: Request) -> Response:
        """Choose the node for the next task."""
        return await _answer(request, many=False)

    @app.post("/predict_batch", responses={200: {"model": list[Chosen]}}, openapi_extra=requests.body_schema(many=True))
    async def predict_batch(request: Request) -> Response:
        """Choose a node for each of many networks; one that cannot be answered has {"error": ...} in its place."""
        return await _answer(request, many=True)

    @app.get("/health")
    async def health() -> Response:
        """The process answers."""
        return _json({"status": "live"})

    @app.get("/health/ready")
    async def ready(request: Request) -> Response:
        """The models are loaded, and requests are taken; Redis or a database that is away costs no answer."""
        service: Service = request.app.state.service
        if not service.ready:
            raise busy("the service is stopping")
        return _json({"status": "ready", **service.parts})

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Counters in Prometheus's text format, of all workers of this host."""
        return Response(request.app.state.service.metrics.page(), media_type=CONTENT_TYPE_LATEST)

    return app


async def _answer(request: Request, many: bool) -> Response:
    """The answer to the state or the states of a request, if there is room for it."""
    service: Service = request.app.state.service
    service.requests += 1
    try:
        if service.requests > MOST_REQUESTS:
            raise busy(f"{MOST_REQUESTS} requests are in the service already")
        kind, with_scores = requests.options_of(request, service.settings.model_type)
        body = await requests.json_of(request, service.settings.max_body_bytes)
        most = service.settings.max_waiting
        if many and not (isinstance(body, list) and 1 <= len(body) <= most):
            raise HTTPException(422, f"{shown(body)} given; a list of 1 to {most} states is needed")
        answers = await service.answer(kind, body if many else [body])
        if not many and isinstance(answers[0], GnnlabError):
            raise HTTPException(422, str(answers[0]))
        members = [_member(one, kind, with_scores) for one in answers]
        return _json(members if many else members[0])
    except HTTPException as error:
        service.metrics.refused.labels(str(error.status_code)).inc()
        raise
    except ClientDisconnect:
        return Response(status_code=CLIENT_CLOSED)
    finally:
        service.requests -= 1


def _member(answer: ServiceAnswer | GnnlabError, model_type: str, with_scores: bool) -> dict[str, Any]:
    if isinstance(answer, GnnlabError):
        return {"error": str(answer)}
    decision = answer.decision
    plain = {
        "node_id": decision.node_id,
        "node": decision.node,
        "confidence": answer.confidence,
        "score": decision.score,
        "model_type": model_type,
    }
    return {**plain, "scores": decision.scores} if with_scores else plain


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value, enc_hook=np.ndarray.tolist), media_type="application/json")
