"""The service's tables, in SQLite by default or in PostgreSQL by its URL, and the recorder that fills them.

    recorder = Recorder(engine_of(settings.database_url), metrics.unrecorded)
    recorder.start()
    recorder.record("hybrid", check(state), decision)
    await recorder.stop()

The recorder writes behind the answers, from a bounded queue. Decisions that find the queue full, or that the database
does not take, are lost to the database and counted; no answer waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine

from gnnlab.inference.predictor import Decision
from gnnlab.inference.states import CheckedState, node_features
from gnnlab.workloads.edge_networks import FEATURES
from gnnswap.errors import one_line

log = logging.getLogger("gnnlab.serving")
MOST_ID = 200  # characters of a node's id that are stored; longer ones do not go into an index
POOL = {"pool_size": 20, "max_overflow": 40, "pool_pre_ping": True}  # S2's
POSITIONAL = {"paramstyle": "format"}  # values as tuples, which psycopg takes too
MOST_QUEUED = 10_000  # decisions
BATCH = 100  # decisions of an insert
EVERY_S, RETRY_S, STOP_S = 0.2, 1.0, 10.0
NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # the one type that counts up by itself in both
TIME = sa.DateTime(timezone=True)
Queued = tuple[datetime, str, CheckedState, Decision]

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


def engine_of(url: URL, **pool: Any) -> Engine:
    """Connections from a pool, S2's unless given; there each is tested before use, and replaced where it has died."""
    sqlite = url.get_backend_name() == "sqlite"
    limits = {"timeout": 30} if sqlite else {"connect_timeout": 10, "options": "-c statement_timeout=10000"}  # s, ms
    engine = sa.create_engine(url, connect_args=limits, **({} if sqlite else POSITIONAL), **(pool or POOL))
    if sqlite:  # others may read while one writes

        @sa.event.listens_for(engine, "connect")
        def connected(connection: Any, _: Any) -> None:
            connection.execute("PRAGMA journal_mode=WAL").close()
            connection.execute("PRAGMA synchronous=NORMAL").close()

    return engine


class Recorder:
    """Writes decisions in bulk from a queue; `record` never waits and never fails, `lost` counts what is not written.

    It writes in a thread of its own, which a database that hangs may keep: the process ends all the same. `away`:
    whether the database failed when it was last used.
    """

    def __init__(self, engine: Engine, lost: Any) -> None:
        self._engine, self._lost = engine, lost
        self._queue: deque[Queued] = deque()
        self._created = self.away = False
        self._ending = threading.Event()
        # rows go to the driver as they are: SQLAlchemy's own work on each row takes longer than the insert
        self._statements = {}
        for table in (predictions, network_metrics):
            columns = [column.name for column in table.columns if column.name != "id"]
            insert = sa.insert(table).values(dict.fromkeys(columns)).compile(dialect=engine.dialect)
            self._statements[table] = str(insert)
        self._time = TIME.dialect_impl(engine.dialect).bind_processor(engine.dialect) or (lambda time: time)

    def record(self, model_type: str, state: CheckedState, decision: Decision) -> None:
        """A decision and the network that it was about."""
        if len(self._queue) < MOST_QUEUED:
            self._queue.append((datetime.now(UTC), model_type, state, decision))
        else:
            self._lost.inc()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="gnnlab-recorder", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Write what is queued, unless the database is away."""
        self._ending.set()
        await asyncio.to_thread(self._thread.join, STOP_S)
        if self._queue:
            self._lost.inc(len(self._queue))
            log.warning("the database did not take the last %d decisions", len(self._queue))
        self._engine.dispose()

    def _run(self) -> None:
        while (self._queue or not self._ending.is_set()) and not (self._ending.is_set() and self.away):
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            if batch or not self._created:
                self._write(batch)
            if len(self._queue) < BATCH:
                self._ending.wait(RETRY_S if self.away else EVERY_S)  # others may come

    def _write(self, batch: Sequence[Queued]) -> None:
        was_away = self.away
        try:
            with self._engine.begin() as connection:  # all rows of both tables, or none
                if not self._created:
                    metadata.create_all(connection)
                for table, rows in self._rows(batch).items():
                    if rows:
                        connection.exec_driver_sql(self._statements[table], rows)
            self._created, self.away = True, False
            if was_away:
                log.warning("the database is back")
        except Exception as error:  # drivers raise what they like; the service goes on
            if not was_away:
                log.warning("the database is away, decisions are lost to it: %s", one_line(error))
            self.away = True
            self._lost.inc(len(batch))

    def _rows(self, batch: Sequence[Queued]) -> dict[sa.Table, list[tuple]]:
        """Values in the order of the columns, without `id`."""
        decided: list[tuple] = []
        reported: list[tuple] = []
        for moment, model_type, state, (node_id, node, score, confidence, _) in batch:
            time = self._time(moment)
            decided.append((time, model_type, len(state.nodes), _storable(node_id), node, score, confidence))
            reported += [(_storable(one.node_id), time, *node_features(one)) for one in state.nodes]
        return {predictions: decided, network_metrics: reported}


def _storable(node_id: str) -> str:
    """As much of an id as a database takes: PostgreSQL has no NUL."""
    return node_id[:MOST_ID].replace("\0", "\N{REPLACEMENT CHARACTER}")
