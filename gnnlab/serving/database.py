"""The service's tables, in SQLite by default or in PostgreSQL by its URL, and the recorder that fills them.

    database = Database(settings.database_url)
    await database.create()
    await database.insert((predictions, rows))                   # in bulk

The recorder writes behind the answers, from a bounded queue. Decisions that find the queue full, or that the database
does not take, are lost to the database and counted; no answer waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import create_async_engine

from gnnlab.errors import one_line
from gnnlab.workloads.edge_networks import State

if TYPE_CHECKING:
    from gnnlab.serving.metrics import Metrics  # loads prometheus_client, which reads a variable that `server` sets

log = logging.getLogger("gnnlab.serving")
MOST_ID = 200  # characters of a node's id that are stored; longer ones do not go into an index
POOL = {"pool_size": 20, "max_overflow": 40, "pool_pre_ping": True}  # S2's
MOST_QUEUED = 10_000  # decisions
BATCH = 100  # decisions of an insert
EVERY_S, RETRY_S, STOP_S = 0.2, 1.0, 10.0
NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # the one type that counts up by itself in both

metadata = sa.MetaData()
predictions = sa.Table(
    "predictions",
    metadata,
    sa.Column("id", NUMBER, primary_key=True),
    sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("model_type", sa.String(16), nullable=False),
    sa.Column("nodes", sa.Integer, nullable=False),
    sa.Column("node_id", sa.String(MOST_ID), nullable=False),
    sa.Column("node", sa.Integer, nullable=False),
    sa.Column("score", sa.Double, nullable=False),
    sa.Column("confidence", sa.Double, nullable=False),
    sa.Index("idx_prediction_time", "created_at"),
)
network_metrics = sa.Table(
    "network_metrics",
    metadata,
    sa.Column("id", NUMBER, primary_key=True),
    sa.Column("node_id", sa.String(MOST_ID), nullable=False),
    sa.Column("timestamp", sa.DateTime(timezone=True), nullable=False),
    sa.Column("cpu_util", sa.Double, nullable=False),
    sa.Column("mem_util", sa.Double, nullable=False),
    sa.Column("energy", sa.Double, nullable=False),
    sa.Column("latency", sa.Double, nullable=False),
    sa.Column("bandwidth", sa.Double, nullable=False),
    sa.Column("queue_len", sa.Integer, nullable=False),
    sa.Column("node_type", sa.Integer, nullable=False),
    sa.Index("idx_node_timestamp", "node_id", "timestamp"),
)


class Database:
    """Connections from a pool; each is tested before use, and replaced where it has died."""

    def __init__(self, url: URL) -> None:
        sqlite = url.get_backend_name() == "sqlite"
        limits = {"timeout": 30} if sqlite else {"timeout": 10, "command_timeout": 10}  # s
        self.engine = create_async_engine(url, connect_args=limits, **POOL)
        if sqlite:
            sa.event.listen(self.engine.sync_engine, "connect", _allow_readers_beside_a_writer)

    async def create(self) -> None:
        """Make the tables that are not there yet."""
        async with self.engine.begin() as connection:
            await connection.run_sync(metadata.create_all)

    async def insert(self, *bulks: tuple[sa.Table, Sequence[dict[str, Any]]]) -> None:
        """All rows of all tables, or none; rows of a table have its columns, all but `id`."""
        async with self.engine.begin() as connection:
            for table, rows in bulks:
                await connection.execute(sa.insert(table), rows)

    async def close(self) -> None:
        await self.engine.dispose()


def _allow_readers_beside_a_writer(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


class Answered(NamedTuple):
    """A decision and the network that it was about."""

    created_at: datetime
    model_type: str
    state: State
    node_id: str
    node: int
    score: float
    confidence: float


class Recorder:
    """Writes decisions in bulk from a queue; `record` never waits and never fails.

    `start` and `stop` belong on the event loop. `away`: whether the database failed when it was last used.
    """

    def __init__(self, database: Database, metrics: Metrics) -> None:
        self._database, self._metrics = database, metrics
        self._queue: asyncio.Queue[Answered] = asyncio.Queue(MOST_QUEUED)
        self.away = False

    def record(self, answered: Answered) -> None:
        try:
            self._queue.put_nowait(answered)
        except asyncio.QueueFull:
            self._metrics.unrecorded.inc()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="gnnlab-recorder")

    async def stop(self) -> None:
        """Write what is queued, unless the database is away."""
        if not self.away:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._queue.join(), STOP_S)
        self._task.cancel()
        await asyncio.wait([self._task])
        if lost := self._queue.qsize():
            self._metrics.unrecorded.inc(lost)
            log.warning("the database did not take the last %d decisions", lost)
        await self._database.close()

    async def _run(self) -> None:
        while not await self._succeeds(self._database.create()):
            await asyncio.sleep(RETRY_S)
        while True:
            batch = [await self._queue.get()]
            if self._queue.qsize() < BATCH:
                await asyncio.sleep(EVERY_S)  # for others to come
            while len(batch) < BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            rows = [_prediction_row(one) for one in batch], [row for one in batch for row in _node_rows(one)]
            if not await self._succeeds(self._database.insert((predictions, rows[0]), (network_metrics, rows[1]))):
                self._metrics.unrecorded.inc(len(batch))
                await asyncio.sleep(RETRY_S)
            for _ in batch:
                self._queue.task_done()

    async def _succeeds(self, work: Coroutine[Any, Any, None]) -> bool:
        try:
            await work
        except Exception as error:  # drivers raise what they like; the service goes on
            if not self.away:
                log.warning("the database is away, decisions are lost to it: %s", one_line(error))
            self.away = True
            return False
        if self.away:
            log.warning("the database is back")
        self.away = False
        return True


def _prediction_row(one: Answered) -> dict[str, Any]:
    row = one._asdict()
    return row | {"nodes": len(row.pop("state")["nodes"]), "node_id": _storable(one.node_id)}


def _node_rows(one: Answered) -> list[dict[str, Any]]:
    return [{**node, "node_id": _storable(node["node_id"]), "timestamp": one.created_at} for node in one.state["nodes"]]


def _storable(node_id: str) -> str:
    """As much of an id as a database takes: PostgreSQL has no NUL."""
    return node_id[:MOST_ID].replace("\0", "\N{REPLACEMENT CHARACTER}")
