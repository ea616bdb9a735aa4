"""The service over HTTP.

POST /predict            one network -> the node for the next task, confidence, scores on request
POST /predict_batch      many networks -> their answers in order
GET  /health/live        the process answers; /health/ready: the models are loaded, and it takes requests
GET  /metrics            for Prometheus; /openapi.json describes all of it, with examples
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.middleware.gzip import GZipMiddleware
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect

from gnnlab import __version__
from gnnlab.errors import GnnlabError, shown
from gnnlab.serving import requests
from gnnlab.serving.metrics import forget_the_dead
from gnnlab.serving.requests import Problem
from gnnlab.serving.service import Service, ServiceAnswer
from gnnlab.serving.settings import ServiceSettings

CLIENT_CLOSED = 499  # nobody reads it


def create(settings: ServiceSettings | None = None) -> FastAPI:
    """The application; without settings, those of the environment."""
    settings = settings or ServiceSettings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        forget_the_dead()
        async with Service(settings) as app.state.service:
            yield

    app = FastAPI(
        title="gnnlab",
        version=__version__,
        description="On which node of an edge network should the next task run?",
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    requests.install(app)
    if settings.gzip_from is not None:
        app.add_middleware(GZipMiddleware, minimum_size=settings.gzip_from, compresslevel=5)
    _add_predictions(app, settings)
    _add_observation(app)
    return app


def _add_predictions(app: FastAPI, settings: ServiceSettings) -> None:
    @app.post("/predict", responses=requests.ONE_ANSWER, openapi_extra=requests.ONE_STATE)
    async def predict(request: Request) -> Response:
        """Choose the node for the next task."""

        async def answered() -> Response:
            kind, scores = requests.options_of(request, settings.model_type)
            state = await requests.json_of(request, settings.max_body_bytes)
            requests.limit_nodes([state], settings.max_nodes)
            found = await request.app.state.service.answer(kind, [state], partial(requests.unless_gone, request))
            if isinstance(found[0], GnnlabError):
                raise found[0]
            return _json(_shown(found[0], kind, scores))

        return await _within_limits(request, settings, answered)

    @app.post("/predict_batch", responses=requests.MANY_ANSWERS, openapi_extra=requests.MANY_STATES)
    async def predict_batch(request: Request) -> Response:
        """Choose a node for each of many networks; one that cannot be answered has its error in its place."""

        async def answered() -> Response:
            kind, scores = requests.options_of(request, settings.model_type)
            states = await requests.json_of(request, settings.max_body_bytes)
            if not isinstance(states, list) or not 1 <= len(states) <= settings.max_states:
                raise Problem(422, f"{shown(states)} given; a list of 1 to {settings.max_states} states is needed")
            requests.limit_nodes(states, settings.max_nodes)
            found = await request.app.state.service.answer(kind, states, partial(requests.unless_gone, request))
            return _json([_shown(one, kind, scores) for one in found])

        return await _within_limits(request, settings, answered)


def _add_observation(app: FastAPI) -> None:
    @app.get("/health/live", response_model=requests.Health)
    async def live() -> Response:
        """The process answers."""
        return _json({"status": "live"})

    @app.get("/health/ready", response_model=requests.Health, responses=requests.NOT_READY)
    async def ready(request: Request) -> Response:
        """The models are loaded, and requests are taken; Redis or a database that is away costs no answer."""
        service: Service = request.app.state.service
        if not service.ready:
            raise service.busy("the service is stopping")
        return _json({"status": "ready", **service.parts})

    @app.get("/metrics", response_class=Response, responses=requests.METRICS)
    async def metrics(request: Request) -> Response:
        """Counters in Prometheus's text format, of all workers of this host."""
        return Response(request.app.state.service.metrics.page(), media_type=CONTENT_TYPE_LATEST)


async def _within_limits(
    request: Request, settings: ServiceSettings, answered: Callable[[], Awaitable[Response]]
) -> Response:
    """The answer, if there is room for the request, in time, and as long as the client waits for it."""
    service: Service = request.app.state.service
    if service.requests >= settings.max_requests:
        raise _counted(service, service.busy(f"{service.requests} requests are in the service already"))
    service.requests += 1
    try:
        async with asyncio.timeout(settings.deadline_s):
            return await answered()
    except TimeoutError:
        again = {"Retry-After": str(settings.retry_after_s)}
        late = f"there was no answer within {settings.deadline_s:g} s; it may be sent again"
        raise _counted(service, Problem(504, late, again)) from None
    except Problem as problem:
        raise _counted(service, problem) from None
    except GnnlabError as error:
        raise _counted(service, Problem(422, str(error))) from None
    except ClientDisconnect:
        service.metrics.gone.inc()
        return Response(status_code=CLIENT_CLOSED)
    finally:
        service.requests -= 1


def _counted(service: Service, problem: Problem) -> Problem:
    service.metrics.refused.labels(str(problem.status)).inc()
    return problem


def _shown(found: ServiceAnswer | GnnlabError, model_type: str, with_scores: bool) -> dict[str, Any]:
    """A member of an answer."""
    if isinstance(found, GnnlabError):
        return requests.as_json(422, str(found))
    decision = found.decision
    plain = {
        "node_id": decision.node_id,
        "node": decision.node,
        "confidence": found.confidence,
        "score": decision.score,
        "model_type": model_type,
    }
    return {**plain, "scores": decision.scores} if with_scores else plain


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")
