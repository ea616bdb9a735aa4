"""S2's service, in its own form, around its script (`guide_script.py`): what notebook 10 measures everything against.

    MODEL_TYPE=hybrid uvicorn --app-dir examples guide_service:app

FastAPI with a lifespan that loads the model, compressed answers, and one PyG pass a request. `/synchronous` is the same
as a plain `def`, which FastAPI runs in a thread of a pool; `/lru` and `/redis` keep answers under the guide's key, the
text of the state (as JSON, where the guide has pickle); `/batch` is its fixed window: what comes within 100 ms, or the
first 32, are answered together by a background task. States are checked as the lab checks them.
"""

import asyncio
import json
import os
from contextlib import asynccontextmanager, suppress

import cachetools
import redis
import torch
from fastapi import FastAPI, Response
from fastapi.middleware.gzip import GZipMiddleware
from guide_script import by_text, parsed

from gnnlab.inference.states import check
from gnnlab.workloads import edge_allocator

KIND = os.environ.get("MODEL_TYPE", "hybrid")
known = cachetools.TTLCache(maxsize=int(os.environ.get("ENTRIES", "1000")), ttl=300)
shared = redis.Redis.from_url(os.environ.get("REDIS", "redis://127.0.0.1:6379/0"))
queue: asyncio.Queue = asyncio.Queue()


@asynccontextmanager
async def lifespan(app: FastAPI):
    torch.set_num_threads(1)
    app.state.model = edge_allocator.load(KIND)
    windows = asyncio.create_task(batch_processor())
    yield
    windows.cancel()


app = FastAPI(lifespan=lifespan)
app.add_middleware(GZipMiddleware, minimum_size=1000)


def decided(state: dict) -> dict:
    """Read in Python, built into a PyG graph, run with gradients on, as the script does it."""
    check(state)
    data = parsed(state)
    scores = app.state.model(data.x, data.edge_index).detach()
    node, shares = int(scores.argmax()), scores.softmax(0)
    answer = {"node_id": state["nodes"][node]["node_id"], "node": node, "score": float(scores[node])}
    return {**answer, "confidence": float(shares[node]), "model_type": KIND}


@app.get("/health")
async def health() -> dict:
    return {"status": "live"}


@app.post("/predict")
async def predict(state: dict) -> dict:
    return decided(state)


@app.post("/synchronous")
def synchronous(state: dict) -> dict:
    return decided(state)


@app.post("/lru")
async def lru(state: dict) -> dict:
    key = by_text(state)
    if key not in known:
        known[key] = decided(state)
    return known[key]


@app.post("/redis")
async def from_redis(state: dict) -> Response:
    key = by_text(state)
    stored = shared.get(key)
    if stored is None:
        stored = json.dumps(decided(state))
        shared.setex(key, 3600, stored)
    return Response(stored, media_type="application/json")


@app.post("/batch")
async def batch(state: dict) -> dict:
    answer = asyncio.get_running_loop().create_future()
    await queue.put((state, answer))
    return await answer


async def batch_processor() -> None:
    while True:
        waiting = []
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                while len(waiting) < 32:
                    waiting.append(await queue.get())
        for state, answer in waiting:
            answer.set_result(decided(state))
