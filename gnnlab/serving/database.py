"""The service's tables, in SQLite by default or in PostgreSQL by its URL, and the recorder that fills them.

    database = Database(settings.database_url)
    await database.create()
    await database.insert({predictions: rows, network_metrics: others})           # in bulk

The recorder writes behind the answers, from a bounded queue. Decisions that find the queue full, or that the database
does not take, are lost to the database and counted; no answer waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import create_async_engine

from gnnlab.errors import one_line
from gnnlab.inference.predictor import Decision
from gnnlab.inference.state_checks import CheckedState
from gnnlab.workloads.edge_networks import FEATURES

if TYPE_CHECKING:
    from gnnlab.serving.metrics import Metrics  # loads prometheus_client, which reads a variable that `server` sets

log = logging.getLogger("gnnlab.serving")
MOST_ID = 200  # characters of a node's id that are stored; longer ones do not go into an index
POOL = {"pool_size": 20, "max_overflow": 40, "pool_pre_ping": True}  # S2's
MOST_QUEUED = 10_000  # decisions
BATCH = 100  # decisions of an insert
EVERY_S, RETRY_S, STOP_S = 0.2, 1.0, 10.0
NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # the one type that counts up by itself in both
TIME = sa.DateTime(timezone=True)

metadata = sa.MetaData()
predictions = sa.Table(
    "predictions",
    metadata,
    sa.Column("id", NUMBER, primary_key=True),
    sa.Column("created_at", TIME, nullable=False),
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
    sa.Column("timestamp", TIME, nullable=False),
    *(sa.Column(name, sa.Double, nullable=False) for name in FEATURES[:5]),
    *(sa.Column(name, sa.Integer, nullable=False) for name in FEATURES[5:]),
    sa.Index("idx_node_timestamp", "node_id", "timestamp"),
)
_features = attrgetter(*FEATURES)


class Database:
    """Connections from a pool; each is tested before use, and replaced where it has died."""

    def __init__(self, url: URL) -> None:
        sqlite = url.get_backend_name() == "sqlite"
        limits = {"timeout": 30} if sqlite else {"timeout": 10, "command_timeout": 10}  # s
        self.engine = create_async_engine(url, connect_args=limits, **POOL)
        dialect = self.engine.dialect
        self._statements = {table: _insert(table, dialect) for table in metadata.sorted_tables}
        self._time = TIME.dialect_impl(dialect).bind_processor(dialect) or (lambda time: time)
        if sqlite:
            sa.event.listen(self.engine.sync_engine, "connect", _allow_readers_beside_a_writer)

    async def create(self) -> None:
        """Make the tables that are not there yet."""
        async with self.engine.begin() as connection:
            await connection.run_sync(metadata.create_all)

    async def insert(self, bulks: Mapping[sa.Table, Sequence[tuple]]) -> None:
        """All rows of all tables, or none; a row has the values of its table's columns, all but `id`, in their order.

        They go to the driver as they are: SQLAlchemy's own work on each row takes twice as long as the insert.
        """
        async with self.engine.begin() as connection:
            for table, rows in bulks.items():
                if rows:
                    await connection.exec_driver_sql(self._statements[table], list(rows))

    def time(self, moment: datetime) -> Any:
        """A time as the driver takes it."""
        return self._time(moment)

    async def close(self) -> None:
        await self.engine.dispose()


def _insert(table: sa.Table, dialect: sa.Dialect) -> str:
    """INSERT with the driver's own placeholders, in the order of the columns."""
    columns = [column.name for column in table.columns if column.name != "id"]
    return str(sa.insert(table).values(dict.fromkeys(columns)).compile(dialect=dialect))


def _allow_readers_beside_a_writer(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


class Recorder:
    """Writes decisions in bulk from a queue; `record` never waits and never fails.

    `start` and `stop` belong on the event loop. `away`: whether the database failed when it was last used.
    """

    def __init__(self, database: Database, metrics: Metrics) -> None:
        self._database, self._metrics = database, metrics
        self._queue: deque[tuple[datetime, str, CheckedState, Decision]] = deque()
        self._ending = self._created = self.away = False

    def record(self, model_type: str, state: CheckedState, decision: Decision) -> None:
        """A decision and the network that it was about."""
        if len(self._queue) < MOST_QUEUED:
            self._queue.append((datetime.now(UTC), model_type, state, decision))
        else:
            self._metrics.unrecorded.inc()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="gnnlab-recorder")

    async def stop(self) -> None:
        """Write what is queued, unless the database is away."""
        self._ending = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._task, STOP_S)
        if lost := len(self._queue):
            self._metrics.unrecorded.inc(lost)
            log.warning("the database did not take the last %d decisions", lost)
        await self._database.close()

    async def _run(self) -> None:
        while self._queue or not self._ending:
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            if batch or not self._created:
                await self._write(batch)
            if self.away and self._ending:
                return
            if len(self._queue) < BATCH and not self._ending:
                await asyncio.sleep(RETRY_S if self.away else EVERY_S)  # others may come

    async def _write(self, batch: Sequence[tuple[datetime, str, CheckedState, Decision]]) -> None:
        try:
            if not self._created:
                await self._database.create()
                self._created = True
            await self._database.insert(self._rows(batch))
        except Exception as error:  # drivers raise what they like; the service goes on
            if not self.away:
                log.warning("the database is away, decisions are lost to it: %s", one_line(error))
            self.away = True
            self._metrics.unrecorded.inc(len(batch))
        else:
            if self.away:
                log.warning("the database is back")
            self.away = False

    def _rows(self, batch: Sequence[tuple[datetime, str, CheckedState, Decision]]) -> dict[sa.Table, list[tuple]]:
        rows: dict[sa.Table, list[tuple]] = {predictions: [], network_metrics: []}
        for moment, model_type, state, (node_id, node, score, confidence, _) in batch:
            time = self._database.time(moment)
            row = (time, model_type, len(state.nodes), _storable(node_id), node, score, confidence)
            rows[predictions].append(row)
            rows[network_metrics] += [(_storable(one.node_id), time, *_features(one)) for one in state.nodes]
        return rows


def _storable(node_id: str) -> str:
    """As much of an id as a database takes: PostgreSQL has no NUL."""
    return node_id[:MOST_ID].replace("\0", "\N{REPLACEMENT CHARACTER}")
