"""What notebook 10 and tests start and kill: any ASGI application, a Redis, workers of a service under load.

with started_app(Path("examples/plain_service.py")) as url, Redis() as redis:
    ...
with started(workers=2, redis=redis.url) as (url, process):
    count_wrong(client, closed_loop, f"{url}/predict", 10_000, partial(strike, process, redis))[WRONG]    # 0
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from gnnlab.errors import Unavailable
from gnnlab.serving.load import Ask, Client, HttpAnswer, Scenario
from gnnlab.serving.server import KEEP_ALIVE_S, free_port, running

UVICORN = "import uvicorn; from gnnlab.child import end_with_parent; end_with_parent(); uvicorn.main()"
LOST_S = 60  # a request without an answer for so long is lost
WRONG = "wrong, lost or swapped answers"


@contextmanager
def started_app(file: Path, **variables: str) -> Iterator[str]:
    """The URL of `app` in a file, any ASGI application, under uvicorn; it ends with the block or with this process."""
    port = free_port()
    command = [sys.executable, "-c", UVICORN, f"{file.stem}:app", "--app-dir", str(file.parent), "--port", str(port)]
    command += ["--log-level", "error", "--no-access-log", "--timeout-keep-alive", str(KEEP_ALIVE_S)]
    with running(command, port, **variables):
        yield f"http://127.0.0.1:{port}"


class Redis:
    """A Redis on the loopback, not written to the disk, that ends with the block; `start` it again after a `kill`.

    Raises `Unavailable`: there is no redis-server.
    """

    def __init__(self) -> None:
        if why := self.missing():
            raise Unavailable(why)
        self._port, self._stack = free_port(), ExitStack()
        self.url = f"redis://127.0.0.1:{self._port}/0"

    @staticmethod
    def missing() -> str:
        """Why there can be none; empty where there can."""
        return "" if shutil.which("redis-server") else "redis-server is not here (apt install redis-server)"

    def start(self) -> None:
        port = str(self._port)
        command = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = self._stack.enter_context(running(command, self._port))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Redis:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def strike(process: psutil.Process, redis: Redis | None = None) -> None:
    """Kill the busiest worker of a service, once two take connections; kill a Redis, too, and start it again."""

    def connections(child: psutil.Process) -> int:
        with suppress(psutil.Error):  # dead, and perhaps not yet replaced
            return len(child.net_connections())  # one at least: the socket that all listen on
        return 0

    while sum(map(bool, map(connections, process.children()))) < 2:
        time.sleep(0.2)
    max(process.children(), key=connections).kill()
    if redis:
        redis.kill()
        redis.start()


def count_wrong(
    client: Client, scenario: Scenario, url: str, requests: int, strike: Callable[[], Any], each: int = 2000
) -> Counter[str]:
    """Requests, strikes, broken connections and `WRONG` answers, by their names.

    `strike()` kills something once in `each` requests; a request whose connection breaks, or that is refused (503), is
    sent again.
    """
    counts, one_strike = Counter({"requests": 0, WRONG: 0}), asyncio.Lock()

    async def persistent(ask: Ask, body: bytes) -> HttpAnswer:
        counts["requests"] += 1
        if counts["requests"] % each == each // 3:
            async with one_strike:  # the others ask on
                await asyncio.to_thread(strike)
            counts["strikes"] += 1
        answer, end_s = HttpAnswer(503, b"", b""), time.monotonic() + LOST_S
        while answer.status == 503 and time.monotonic() < end_s:
            try:
                answer = await asyncio.wait_for(ask(body), LOST_S)
            except OSError:
                counts["connections broken, sent again"] += 1
            await asyncio.sleep(0.05 if answer.status == 503 else 0)
        return answer

    async def struck(ask: Ask, bodies: Sequence[bytes]) -> list[HttpAnswer]:
        return await scenario(lambda body: persistent(ask, body), bodies)

    places = [place % len(client.bodies) for place in range(requests)]
    answers = client.run(struck, url, [client.bodies[place] for place in places])
    counts[WRONG] = sum(not client.is_right(answer, place) for answer, place in zip(answers, places, strict=True))
    return counts
