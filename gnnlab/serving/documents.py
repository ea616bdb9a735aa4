"""What /openapi.json says of bodies and answers: their schemas, an example of each, the problems."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, RootModel

from gnnlab.inference import state_checks
from gnnlab.serving.requests import MEDIA_TYPE, OPTIONS, as_json
from gnnlab.workloads.edge_networks import random_states


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


def _body(schema: dict[str, Any], example: Any) -> dict[str, Any]:
    content = {"schema": schema, "examples": {"small": {"value": example}}}
    parameters = [
        {"name": name, "in": "query", "description": MEANINGS[name], "schema": {"type": "string", "enum": list(values)}}
        for name, values in OPTIONS.items()
    ]
    return {"parameters": parameters, "requestBody": {"required": True, "content": {"application/json": content}}}


STATE = state_checks.json_schema()
ONE_STATE = _body(STATE, EXAMPLE)
MANY_STATES = _body({"type": "array", "items": STATE, "minItems": 1}, [EXAMPLE, EXAMPLE])


def _problem(status: int, detail: str) -> dict[str, Any]:
    content = {"schema": ProblemDetails.model_json_schema(), "example": as_json(status, detail)}
    return {"description": detail, "content": {MEDIA_TYPE: content}}


PROBLEMS = {
    400: _problem(400, "the body is no JSON"),
    413: _problem(413, "the body is too long"),
    415: _problem(415, "the body is not said to be application/json"),
    422: _problem(422, "node 'a', field cpu_util: 1.7 given, a number 0..1 is needed"),
    500: _problem(500, "the model failed on this batch; the log of the service says how"),
    503: _problem(503, "too many wait; Retry-After says when to come again"),
    504: _problem(504, "the deadline has passed"),
}
ONE_ANSWER = {200: {"model": Chosen, "content": {"application/json": {"example": CHOSEN}}}, **PROBLEMS}
MANY_ANSWERS = {200: {"model": Answers, "content": {"application/json": {"example": [CHOSEN, CHOSEN]}}}, **PROBLEMS}
NOT_READY = {503: _problem(503, "the service is stopping")}
METRICS = {200: {"description": "Counters", "content": {"text/plain": {"example": "predictions_total 1.0"}}}}
