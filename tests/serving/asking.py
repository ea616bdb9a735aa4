"""Clients of a service: many requests at once, each answer held to the predictor's."""

import asyncio

import httpx
import numpy as np
from edge_states import random_state

from gnnlab.inference.predictor import Predictor

MODEL_TYPES = ("dqn", "ppo", "hybrid")
STATES = [random_state(3 + seed % 17, seed) for seed in range(120)]
JSON = {"content-type": "application/json"}


class Expected:
    """What the predictor says of each of `STATES`: scores to float32 rounding, and the best node of them."""

    def __init__(self):
        found = {kind: Predictor(kind, "cpu").predict_batch(STATES, return_scores=True) for kind in MODEL_TYPES}
        self.scores = {kind: [one.scores for one in decisions] for kind, decisions in found.items()}

    def holds(self, answer, kind, place):
        """Whether an answer of the service is the one for this model and this state, and no other's."""
        scores, state = self.scores[kind][place], STATES[place]
        chosen = answer["node"]
        share = 1 / np.exp(scores.astype(np.float64) - scores.max()).sum()
        within = 1e-4 * max(1, np.abs(scores).max())
        return (
            answer["model_type"] == kind
            and len(answer["scores"]) == len(scores)
            and bool(np.allclose(answer["scores"], scores, rtol=0, atol=within))
            and state["nodes"][chosen]["node_id"] == answer["node_id"]
            and answer["score"] >= scores.max() - within
            and abs(answer["confidence"] - share) < 1e-3
        )


async def ask(client, url, kind, place, retries=0):
    """(answer or problem, status) of one state; sent again where the connection broke."""
    for left in range(retries, -1, -1):
        try:
            sent = await client.post(f"{url}/predict?scores=true&model_type={kind}", json=STATES[place])
            if sent.status_code == 503 and left:
                await asyncio.sleep(0.1)
                continue
            return sent.json(), sent.status_code
        except httpx.TransportError:
            if not left:
                raise
            await asyncio.sleep(0.05)
    raise AssertionError("there is no way here")


def client(**options):
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=100)
    return httpx.AsyncClient(limits=limits, timeout=60, trust_env=False, **options)


def value(text, name, **labels):
    """The sum of a metric's values over the page of /metrics."""
    wanted = [f'{label}="{v}"' for label, v in labels.items()]
    lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(part in line for part in wanted))
