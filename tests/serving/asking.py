"""A service in a thread of this process, and clients that ask it many requests at once."""

import asyncio
import socket
import urllib.request
from contextlib import contextmanager
from threading import Event, Thread

from edge_states import random_state
from servers import until

from gnnlab.serving.app import App
from gnnlab.serving.load import Client
from gnnlab.serving.server import Server
from gnnlab.serving.settings import configure
from gnnlab.workloads.edge_allocator import MODEL_TYPES

STATES = [random_state(3 + seed % 17, seed) for seed in range(120)]
CLIENTS = {kind: Client(STATES, kind) for kind in MODEL_TYPES}


@contextmanager
def served(**settings):
    """(URL, `App`, server) of a service of these settings."""
    app = App(configure(**{"drain_s": 0, **settings}))
    server, listener = Server(app), socket.socket()
    listener.bind(("127.0.0.1", 0))
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until(lambda: server.started, 60)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", app, server
    finally:
        server.should_exit = True
        thread.join()


def held(monkeypatch, service, kind):
    """An event until which the passes of a model wait, in the thread of the service."""
    monkeypatch.setattr(service._batcher, "_short", lambda asked: False)
    gate, predictor = Event(), service._predictors[kind]
    decide = predictor.decide
    monkeypatch.setattr(predictor, "decide", lambda *asked, **how: gate.wait(30) and decide(*asked, **how))
    return gate


async def together(ask, bodies):
    """Thirty at a time."""

    async def one(body):
        async with room:
            return await ask(body)

    room = asyncio.Semaphore(30)
    return await asyncio.gather(*map(one, bodies))


def ask_all(url, kind, places):
    """The answer of a model to each of these `STATES`, asked thirty at a time."""
    client = CLIENTS[kind]
    bodies = [client.bodies[place] for place in places]
    return client.run(together, f"{url}/predict?model_type={kind}&scores=true", bodies)


def get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


def value(text, name, **labels):
    """The sum of a metric's values over the page of /metrics."""
    wanted = [f'{label}="{v}"' for label, v in labels.items()]
    lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(part in line for part in wanted))
