"""Answers on their way into the database, behind the answers: nobody waits for it, and what it loses is counted.

What the database does not take now is tried again, together with what has come since, up to `most` decisions; the rest
is lost to the database, not to the client. A connection that breaks while rows are committed may leave them twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from gnnlab.errors import one_line
from gnnlab.serving import database
from gnnlab.serving.database import MOST_ID, Database
from gnnlab.serving.metrics import Metrics
from gnnlab.workloads.edge_networks import State

log = logging.getLogger("gnnlab.serving")
EVERY_S, RETRY_S, CLEAN_EVERY_S = 0.2, 1.0, 3600.0
ROWS = 1000  # of an insert: more hold the event loop up
TRIES = 3  # of a database that is there, before an insert is given up


class Answered(NamedTuple):
    """A decision with what it was about."""

    time: datetime
    model_type: str
    state: State
    node_id: str
    node: int
    score: float
    confidence: float


class Recorder:
    """`record(answered)` never waits and never fails; `start` and `stop` on the event loop."""

    def __init__(
        self, kept: Database, metrics: Metrics, *, most: int = 10_000, nodes: bool = True, keep_days: float = 30
    ) -> None:
        self._database, self._metrics = kept, metrics
        self._most, self._nodes, self._keep = most, nodes, timedelta(days=keep_days)
        self._waiting: deque[Answered] = deque()
        self._ready = self._away = False
        self._refusals = 0
        self._clean_at = 0.0

    @property
    def away(self) -> bool:
        """Whether the database failed when it was last asked."""
        return self._away

    def record(self, answered: Answered) -> None:
        if len(self._waiting) >= self._most:
            self._metrics.unrecorded.inc()
        else:
            self._waiting.append(answered)

    def start(self) -> None:
        self._stopping = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="gnnlab-recorder")

    async def stop(self, within_s: float) -> None:
        """Write what is there, and say what the database did not take in that time."""
        self._stopping.set()
        await asyncio.wait([self._task], timeout=within_s)
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._waiting:
            self._metrics.unrecorded.inc(len(self._waiting))
            log.warning("the database did not take the last %d decisions", len(self._waiting))
        await self._database.close()

    async def _run(self) -> None:
        while True:
            pause_s = EVERY_S if await self._flush() else RETRY_S
            if self._stopping.is_set():
                await self._flush()
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _flush(self) -> bool:
        """Whether the database took all that was there, or there was nothing."""
        try:
            if not self._ready:
                await self._database.migrate()
                self._ready = True
            while self._waiting:
                await self._insert_some()
            await self._clean()
        except Exception as error:  # drivers raise what they like; the service goes on
            if not self._away:
                log.warning("the database is away, decisions wait for it: %s", one_line(error))
            self._away = True
            return False
        if self._away:
            log.warning("the database is back")
        self._away = False
        return True

    async def _insert_some(self) -> None:
        some = self._next()
        decisions = [_prediction(one) for one in some]
        nodes = [row for one in some for row in _nodes(one)] if self._nodes else []
        try:
            await self._database.insert((database.predictions, decisions), (database.network_metrics, nodes))
            self._metrics.recorded.inc(len(some))
        except Exception as error:
            if await self._give_up():
                log.warning("the database refused %d decisions: %s", len(some), one_line(error))
                self._metrics.unrecorded.inc(len(some))
            else:
                raise
        self._refusals = 0
        for _ in some:
            self._waiting.popleft()

    async def _give_up(self) -> bool:
        """Whether rows that were refused just now have been refused often enough by a database that is there."""
        await self._database.ping()
        self._refusals += 1
        return self._refusals >= TRIES

    def _next(self) -> list[Answered]:
        """The first that wait, about `ROWS` rows of them; they stay until the database has them."""
        some: list[Answered] = []
        rows = 0
        for one in self._waiting:
            rows += 1 + (len(one.state["nodes"]) if self._nodes else 0)
            if some and rows > ROWS:
                break
            some.append(one)
        return some

    async def _clean(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._clean_at:
            await self._database.delete_before(datetime.now(UTC) - self._keep)
            self._clean_at = now + CLEAN_EVERY_S


def _prediction(one: Answered) -> dict[str, Any]:
    return {
        "created_at": one.time,
        "model_type": one.model_type,
        "nodes": len(one.state["nodes"]),
        "node_id": _kept(one.node_id),
        "node": one.node,
        "score": one.score,
        "confidence": one.confidence,
    }


def _nodes(one: Answered) -> list[dict[str, Any]]:
    return [{**node, "node_id": _kept(node["node_id"]), "timestamp": one.time} for node in one.state["nodes"]]


def _kept(node_id: str) -> str:
    """As much of an id as a database takes: PostgreSQL has no NUL."""
    return node_id[:MOST_ID].replace("\0", "\N{REPLACEMENT CHARACTER}")
