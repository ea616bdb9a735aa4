"""A service in a thread of this process, and clients that ask it many requests at once."""

import asyncio
import json
import urllib.request
from contextlib import contextmanager
from threading import Thread

import uvicorn
from edge_states import random_state
from servers import until

from gnnlab.serving.app import App
from gnnlab.serving.load import Connection
from gnnlab.serving.settings import configure

STATES = [random_state(3 + seed % 17, seed) for seed in range(120)]
BODIES = [json.dumps(state).encode() for state in STATES]
JSON = {"content-type": "application/json"}


@contextmanager
def served(**settings):
    """The URL of a service of these settings."""
    with serving(**settings) as (url, _, _):
        yield url


@contextmanager
def serving(**settings):
    """(URL, `App`, server) of a service of these settings."""
    app = App(configure(**settings))
    config = uvicorn.Config(app, port=0, lifespan="on", log_level="warning", access_log=False)
    server, listener = uvicorn.Server(config), config.bind_socket()
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until(lambda: server.started, 60)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", app, server
    finally:
        server.should_exit = True
        thread.join()


async def ask(connection, kind, place):
    """The answer to one of `STATES`."""
    return await connection.ask(f"/predict?scores=true&model_type={kind}", BODIES[place])


def ask_all(url, wanted, *, clients=30):
    """The answer to each (kind, place) of `wanted`, asked by so many clients at once."""
    todo, answers = list(enumerate(wanted)), {}

    async def one():
        connection = Connection(url)
        while todo:
            number, asked = todo.pop()
            answers[number] = await ask(connection, *asked)
        connection.close()

    async def everyone():
        await asyncio.gather(*(one() for _ in range(clients)))

    asyncio.run(asyncio.wait_for(everyone(), 60))
    return [answers[number] for number in range(len(wanted))]


def get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


def value(text, name, **labels):
    """The sum of a metric's values over the page of /metrics."""
    wanted = [f'{label}="{v}"' for label, v in labels.items()]
    lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(part in line for part in wanted))
