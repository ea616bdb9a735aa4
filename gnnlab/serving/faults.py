"""What faults do to the answers of a service: each request is sent until it is answered, each answer checked.

    counts = count_answers(1000)                                    # embedded: SQLite, no Redis
    with up(RedisServer) as redis, up(PostgresServer) as postgres:
        counts = count_answers(100_000, redis=redis, postgres=postgres)
    counts["wrong, lost or swapped answers"]                        # 0

Many clients ask a service of several workers at once. Meanwhile, one after the other and again, a worker is killed, the
database is locked, and where they are Redis and PostgreSQL are killed and started again. All the time some clients send
what is no request, and some hang up before their answer. A client that is told to come again (503 or 504 with
Retry-After) does so, and so does one whose connection broke because a worker was killed. A connection that broke
without that is a lost answer, and so is one that does not come within `LOST_S` of its request.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from pathlib import Path
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

import orjson
import psutil

from gnnlab.errors import one_line
from gnnlab.serving.load import Connection, Expected, HttpAnswer
from gnnlab.serving.local_servers import PostgresServer, RedisServer
from gnnlab.serving.server import started, workers_of
from gnnlab.serving.settings import made
from gnnlab.workloads.edge_allocator import MODEL_TYPES
from gnnlab.workloads.edge_networks import random_states

log = logging.getLogger("gnnlab.serving")
UNRIGHT = "wrong, lost or swapped answers"
LOST_S = 60.0  # without any answer, which a refusal is
MOST_REFUSALS = 200  # of one request
A_CYCLE = 2000  # requests, in which each fault comes once
BATCHES, MOST_OF_A_BATCH = 0.125, 8  # share of the requests that are batches, and how many states those have
BAD = (b"nope", b"[" * 5000, b'{"nodes": [{}]}', b'{"nodes": [', b"[]")
STATES = [
    {
        "nodes": [{**node, "node_id": f"{place}/{node['node_id']}"} for node in state["nodes"]],
        "links": [[f"{place}/{a}", f"{place}/{b}"] for a, b in state["links"]],
    }
    for place, state in enumerate(random_states(200, (3, 20), seed=14))
]  # no two have a node id in common, so that an answer says whose it is


def count_answers(
    requests: int,
    *,
    clients: int = 32,
    workers: int = 2,
    redis: RedisServer | None = None,
    postgres: PostgresServer | None = None,
    seed: int = 0,
) -> dict[str, int]:
    """Requests and their answers by kind, faults by kind, and above all `UNRIGHT`, which is to be 0."""
    with tempfile.TemporaryDirectory(prefix="gnnlab-", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "decisions.sqlite"
        beside = {
            "redis": redis.url if redis else "none",
            "redis_retry_s": 0.2,
            "database": postgres.url if postgres else f"sqlite:///{file}",
        }
        # fewer than the clients that one worker gets while the other starts again, so that some are refused
        few = {"max_requests": max(2, clients * 3 // 4)}
        with started(made(port=0, workers=workers, **beside, **few)) as (url, process):
            run = _Run(url, process, requests, clients, seed)
            faults = [("workers killed", run.worker_killed)]
            if redis is not None:
                faults.append(("Redis killed and started again", lambda: _away(redis)))
            if postgres is None:
                faults.append(("database locked", lambda: _locked_file(file)))
            else:
                faults.append(("database locked", lambda: _locked_table(postgres.url)))
                faults.append(("database killed and started again", lambda: _away(postgres)))
            with ThreadPoolExecutor(1) as thread:  # a notebook has an event loop of its own
                return thread.submit(asyncio.run, run.counted(faults)).result()


class _Run:
    """The clients of one service, what they count, and how far they are."""

    def __init__(self, url: str, process: psutil.Process, requests: int, clients: int, seed: int) -> None:
        self._url, self._process, self._requests, self._clients = url, process, requests, clients
        self._expected, self._random = Expected(STATES), Random(seed)
        self._owner = {node["node_id"]: place for place, state in enumerate(STATES) for node in state["nodes"]}
        self._begun = self._done = 0
        self._kills_begun = self._kills_ended = 0
        self._kills_before: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()  # it was opened
        self._workers = len(workers_of(process))
        self.counts: Counter[str] = Counter()

    async def counted(self, faults: Sequence[tuple[str, Callable[[], AbstractAsyncContextManager]]]) -> dict[str, int]:
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(one) for one in (self._flood(), self._flood(), self._hang_up())]
            beside.append(group.create_task(self._faults(faults)))
            await asyncio.gather(*(group.create_task(self._client()) for _ in range(self._clients)))
            for task in beside[:-1]:
                task.cancel()
        unright = sum(self.counts[kind] for kind in ("wrong answers", "lost answers", "swapped answers"))
        return {"requests": self._requests, UNRIGHT: unright, **dict(sorted(self.counts.items()))}

    async def _faults(self, faults: Sequence[tuple[str, Callable[[], AbstractAsyncContextManager]]]) -> None:
        slots = len(faults) * max(1, round(self._requests / A_CYCLE))
        for slot in range(slots):
            name, fault = faults[slot % len(faults)]
            await self._until((slot + 0.2) / slots)
            async with fault():
                self.counts[name] += 1
                await self._until((slot + 0.8) / slots)

    async def _until(self, share: float) -> None:
        while self._done < share * self._requests:
            await asyncio.sleep(0.01)

    async def _client(self) -> None:
        connection = Connection(self._url)
        while self._begun < self._requests:
            self._begun += 1
            kind, scores = self._random.choice(MODEL_TYPES), self._random.random() < 0.5
            query = f"?model_type={kind}&scores={str(scores).lower()}"
            if self._random.random() < BATCHES:
                places = self._random.choices(range(len(STATES)), k=self._random.randint(2, MOST_OF_A_BATCH))
                places[self._random.randrange(len(places))] = -1  # no state
                body = orjson.dumps([STATES[place] if place >= 0 else {"nodes": []} for place in places])
                answer = await self._answer(connection, "/predict_batch" + query, body)
                members = answer.json if answer is not None and answer.status == 200 else None
            else:
                places = [self._random.randrange(len(STATES))]
                answer = await self._answer(connection, "/predict" + query, orjson.dumps(STATES[places[0]]))
                members = [answer.json] if answer is not None and answer.status == 200 else None
            self.counts[self._judged(answer, members, places, kind, scores)] += 1
            self._done += 1
        connection.close()

    async def _answer(self, connection: Connection, path: str, body: bytes) -> HttpAnswer | None:
        """The answer that is none of "come again"; None where there is none."""
        for _ in range(MOST_REFUSALS):
            try:
                async with asyncio.timeout(LOST_S):
                    answer = await self._post(connection, path, body)
            except TimeoutError:
                log.warning("no answer within %g s", LOST_S)
                return None
            again = "" if answer is None else answer.header("retry-after")
            if answer is None or answer.status not in (503, 504) or not again:
                return answer
            self.counts[f"refused with {answer.status}, sent again"] += 1
            await asyncio.sleep(int(again))
        log.warning("told %d times to come again", MOST_REFUSALS)
        return None

    async def _post(self, connection: Connection, path: str, body: bytes) -> HttpAnswer | None:
        """An answer, on another connection where a kill broke this one; None where it broke without a kill."""
        while True:
            if not connection.is_open:
                self._kills_before[connection] = self._kills_ended
            try:
                return await connection.post(path, body)
            except (OSError, asyncio.IncompleteReadError) as error:
                if self._kills_before[connection] == self._kills_begun:
                    log.warning("a connection broke, and no worker was killed: %s", one_line(error))
                    return None
                self.counts["connections broken by a kill, sent again"] += 1

    def _judged(
        self,
        answer: HttpAnswer | None,
        members: list[dict[str, Any]] | None,
        places: list[int],
        kind: str,
        scores: bool,
    ) -> str:
        """The kind of an answer, in the words of the counts."""
        if answer is None:
            return "lost answers"
        if members is None:
            log.warning("a good request was answered by %d: %s", answer.status, answer.body[:200])
            return "lost answers"
        if len(members) == len(places) and all(
            self._expected.holds(one, kind, place, scores) if place >= 0 else one.get("status") == 422
            for one, place in zip(members, places, strict=True)
        ):
            return "right answers"
        owners = [self._owner.get(one.get("node_id"), -1) for one in members]
        return "wrong answers" if owners == places else "swapped answers"

    async def _flood(self) -> None:
        """Ask what cannot be answered, over and over; anything but a problem of one line is a wrong answer."""
        connection = Connection(self._url)
        while True:
            path = self._random.choice(("/predict", "/predict_batch"))
            answer = await self._post(connection, path, self._random.choice(BAD))
            told = answer is not None and answer.header("content-type") == "application/problem+json"
            good = told and answer.status in (400, 422, 503) and "\n" not in answer.json["detail"]
            self.counts["bad requests answered by a problem" if good else "wrong answers"] += 1

    async def _hang_up(self) -> None:
        while True:
            connection = Connection(self._url)
            body = orjson.dumps(self._random.choice(STATES))
            with suppress(OSError):
                await connection.send("/predict", body[: self._random.choice((None, 9))], len(body))
                await asyncio.sleep(self._random.random() * 0.005)
                self.counts["clients that hung up"] += 1
            connection.close()

    @asynccontextmanager
    async def worker_killed(self) -> AsyncIterator[None]:
        """One of the workers, without a warning; afterwards there are as many as before."""
        victim = psutil.Process(self._random.choice(workers_of(self._process)))
        self._kills_begun += 1
        victim.kill()
        while psutil.pid_exists(victim.pid) and victim.is_running() and victim.status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.002)
        self._kills_ended = self._kills_begun
        yield
        while len(workers_of(self._process)) < self._workers:
            await asyncio.sleep(0.2)  # each look goes through all processes of the machine


@asynccontextmanager
async def _away(server: RedisServer | PostgresServer) -> AsyncIterator[None]:
    await asyncio.to_thread(server.stop)
    try:
        yield
    finally:
        await asyncio.to_thread(server.start)


@asynccontextmanager
async def _locked_table(url: str) -> AsyncIterator[None]:
    """Every insert waits."""
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE predictions IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        await connection.close()


@asynccontextmanager
async def _locked_file(file: Path) -> AsyncIterator[None]:
    """Every insert waits."""
    with closing(sqlite3.connect(file, timeout=30, check_same_thread=False)) as connection:
        await asyncio.to_thread(connection.execute, "BEGIN IMMEDIATE")
        yield
        connection.rollback()
