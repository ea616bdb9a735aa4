"""Clients of a service: many requests at once, each answer held to the predictor's."""

import asyncio
import json
from contextlib import contextmanager
from threading import Thread

import numpy as np
import uvicorn
from edge_states import random_state
from servers import until

from gnnlab.inference.predictor import Predictor
from gnnlab.serving.app import create

MODEL_TYPES = ("dqn", "ppo", "hybrid")
STATES = [random_state(3 + seed % 17, seed) for seed in range(120)]
BODIES = [json.dumps(state).encode() for state in STATES]
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


class Connection:
    """One kept-alive connection to a service: HTTP/1.1 in few lines, as a library takes longer than the service."""

    def __init__(self, url):
        self.host, _, self.port = url.removeprefix("http://").partition(":")
        self.reader = self.writer = None

    async def post(self, path, body, length=None):
        """(status, answer); `OSError` or `IncompleteReadError` where the connection breaks."""
        await self.send(path, body, length)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        answer = json.loads(await self.reader.readexactly(length))
        if "connection: close" in head:
            self.close()
        return int(head.split()[1]), answer

    async def send(self, path, body, length=None):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, int(self.port))
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        self.writer.write(f"{head}content-length: {length or len(body)}\r\n\r\n".encode() + body)
        await self.writer.drain()

    def close(self):
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


async def ask(connection, kind, place, tries=1):
    """(status, answer) to one of `STATES`; sent again, up to `tries` times, where the connection broke or on 503."""
    for left in range(tries - 1, -1, -1):
        try:
            status, answer = await connection.post(f"/predict?scores=true&model_type={kind}", BODIES[place])
            if status != 503 or not left:
                return status, answer
        except (OSError, asyncio.IncompleteReadError):
            connection.close()
            if not left:
                raise
        await asyncio.sleep(0.05)


async def ask_all(url, wanted, *, clients=50, tries=1):
    """(status, answer) to each (kind, place) of `wanted`, asked by so many clients at once."""
    todo, found = list(enumerate(wanted)), {}

    async def one():
        connection = Connection(url)
        while todo:
            number, asked = todo.pop()
            found[number] = await ask(connection, *asked, tries)
        connection.close()

    await asyncio.gather(*(one() for _ in range(clients)))
    return [found[number] for number in range(len(wanted))]


@contextmanager
def served_here(settings):
    """The URL of a real uvicorn in a thread of this process, which has loaded what takes seconds to load."""
    config = uvicorn.Config(create(settings), port=0, log_level="warning", access_log=False, server_header=False)
    server, listener = uvicorn.Server(config), config.bind_socket()
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive())
        assert server.started
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def value(text, name, **labels):
    """The sum of a metric's values over the page of /metrics."""
    wanted = [f'{label}="{v}"' for label, v in labels.items()]
    lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(part in line for part in wanted))
