"""Clients of a service: many requests at once, each answer held to the predictor's."""

import asyncio
import json

from edge_states import random_state

from gnnlab.serving.load import Connection

STATES = [random_state(3 + seed % 17, seed) for seed in range(120)]
BODIES = [json.dumps(state).encode() for state in STATES]
JSON = {"content-type": "application/json"}


async def ask(connection, kind, place):
    """(status, answer) to one of `STATES`."""
    found = await connection.post(f"/predict?scores=true&model_type={kind}", BODIES[place])
    return found.status, found.json


async def ask_all(url, wanted, *, clients=50):
    """(status, answer) to each (kind, place) of `wanted`, asked by so many clients at once."""
    todo, found = list(enumerate(wanted)), {}

    async def one():
        connection = Connection(url)
        while todo:
            number, asked = todo.pop()
            found[number] = await ask(connection, *asked)
        connection.close()

    await asyncio.gather(*(one() for _ in range(clients)))
    return [found[number] for number in range(len(wanted))]


def value(text, name, **labels):
    """The sum of a metric's values over the page of /metrics."""
    wanted = [f'{label}="{v}"' for label, v in labels.items()]
    lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(part in line for part in wanted))
