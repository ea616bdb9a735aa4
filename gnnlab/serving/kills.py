"""Kill workers of a service, and its Redis, while clients ask it; count the answers that are not the predictor's.

    with started(configure(port=0, workers=2, redis=redis.url)) as (url, process):
        counts = count_answers(client, url, process, redis, requests=1000)
    counts["wrong, lost or swapped answers"]                        # 0

A request whose connection breaks, or that is refused (503), is sent again; one without an answer in a minute is lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

import psutil

from gnnlab.serving import load
from gnnlab.serving.load import Client, Connection, HttpAnswer
from gnnlab.serving.local_redis import RedisServer
from gnnlab.serving.server import workers_of

UNRIGHT = "wrong, lost or swapped answers"
LOST_S = 60
A_KILL = 2000  # requests to a kill


def count_answers(
    client: Client, url: str, process: psutil.Process, redis: RedisServer | None, *, requests: int, callers: int = 32
) -> Counter[str]:
    """Requests, `UNRIGHT` answers, broken connections and kills, by their names; `process` is the service's."""
    numbers, counts = iter(range(requests)), Counter({"requests": 0, UNRIGHT: 0})

    async def caller() -> None:
        connection = Connection(url)
        for number in numbers:
            place, answer = number % len(client.bodies), None
            with suppress(TimeoutError):
                async with asyncio.timeout(LOST_S):
                    answer = await _answer(connection, client, place, counts)
            counts["requests"] += 1
            counts[UNRIGHT] += answer is None or not client.is_right(answer, place)
        connection.close()

    async def killer() -> None:
        kills = max(1, requests // A_KILL)
        for kill in range(kills):
            while counts["requests"] < requests * (kill + 0.3) / kills:
                await asyncio.sleep(0.01)
            while len(workers := await asyncio.to_thread(workers_of, process)) < 2:
                await asyncio.sleep(0.2)
            max(workers, key=lambda worker: len(worker.net_connections())).kill()  # the busiest
            counts["workers killed"] += 1
            if redis is not None:
                await asyncio.to_thread(redis.stop)
                await asyncio.sleep(0.2)
                await asyncio.to_thread(redis.start)
                counts["Redis killed and started again"] += 1

    async def everyone() -> None:
        await asyncio.gather(killer(), *(caller() for _ in range(callers)))

    load.run(everyone())
    return counts


async def _answer(connection: Connection, client: Client, place: int, counts: Counter[str]) -> HttpAnswer:
    while True:
        try:
            answer = await connection.ask(client.path, client.bodies[place])
            if answer.status != 503:
                return answer
            await asyncio.sleep(0.1)
        except OSError:
            counts["connections broken, sent again"] += 1
            await asyncio.sleep(0.01)
