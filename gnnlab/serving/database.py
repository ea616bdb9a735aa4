"""What the service keeps: its tables, in SQLite by default or PostgreSQL by its URL, and the recorder that writes them.

database = Database(settings.database_url)
await database.migrate()
await database.insert((predictions, rows))                   # in bulk

Answers are written behind the answers: nobody waits for it, and what it loses is counted. What the database does not
take now is tried again, together with what has come since, up to `most` decisions; the rest is lost to the database,
not to the client. A connection that breaks while rows are committed may leave them twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import create_async_engine

from gnnlab.errors import GnnlabError, one_line
from gnnlab.workloads.edge_networks import State

if TYPE_CHECKING:
    from gnnlab.serving.metrics import Metrics  # loads prometheus_client, which reads a variable that `server` sets

log = logging.getLogger("gnnlab.serving")
MIGRATIONS = Path(__file__).parent / "migrations"
MOST_ID = 200  # characters of a node's id that are kept; longer ones do not go into an index
SQLITE_WAITS_S = 30
EVERY_S, RETRY_S, CLEAN_EVERY_S = 0.2, 1.0, 3600.0
ROWS = 1000  # of an insert: more hold the event loop up
TRIES = 3  # of a database that is there, before an insert is given up
# how one process at a time changes the tables; 7236001 is any number that no other program locks
ALONE = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "SELECT pg_advisory_xact_lock(7236001)"}
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
    """Connections from a pool; each is tried before it is used, and replaced where it has died."""

    def __init__(self, url: URL, *, pool_size: int = 20, pool_overflow: int = 40, timeout_s: float = 10) -> None:
        local = url.get_backend_name() == "sqlite"
        make_folder(url)
        waits = {"timeout": SQLITE_WAITS_S} if local else {"timeout": timeout_s, "command_timeout": timeout_s}
        self.engine = create_async_engine(
            url, pool_size=pool_size, max_overflow=pool_overflow, pool_pre_ping=True, connect_args=waits
        )
        if local:
            sa.event.listen(self.engine.sync_engine, "connect", _readers_beside_a_writer)
        self._inserts = {name: _insert(table, self.engine.dialect) for name, table in metadata.tables.items()}

    async def migrate(self) -> None:
        """Bring the tables to the version of this package; of several processes one does it, the others wait."""
        async with self.engine.connect() as connection:
            await connection.run_sync(_upgrade)

    async def insert(self, *bulks: tuple[sa.Table, Sequence[dict[str, Any]]]) -> None:
        """All rows of all tables, or none; rows of a table have its columns, all but `id`."""
        async with self.engine.begin() as connection:
            for table, rows in bulks:
                if rows:
                    insert, values = self._inserts[table.name]
                    await connection.exec_driver_sql(insert, values(rows))

    async def ping(self) -> None:
        """Raises where the database is not there."""
        async with self.engine.connect() as connection:
            await connection.execute(sa.text("SELECT 1"))

    async def delete_before(self, time: datetime) -> None:
        """What is older than `time`, in both tables."""
        async with self.engine.begin() as connection:
            await connection.execute(sa.delete(predictions).where(predictions.c.created_at < time))
            await connection.execute(sa.delete(network_metrics).where(network_metrics.c.timestamp < time))

    async def close(self) -> None:
        await self.engine.dispose()


def make_folder(url: URL) -> None:
    """Make the folder of a database that is a file.

    Raises `GnnlabError`: it cannot be made, or nothing may be written there.
    """
    if url.get_backend_name() != "sqlite":
        return
    file = Path(url.database)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GnnlabError(f"database: no folder for {file}: {error.strerror}; give another --database") from None
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise GnnlabError(f"database: {file} may not be written; give another --database, or none")


def _insert(table: sa.Table, dialect: sa.Dialect) -> tuple[str, Callable[[Sequence[dict[str, Any]]], list[tuple]]]:
    """(the statement as the driver has it, what makes its rows of dicts).

    SQLAlchemy's own way takes three times as long a row, and does it in the event loop, before the answers that come.
    """
    columns = [column for column in table.columns if column.name != "id"]
    names = [column.name for column in columns]
    text = str(sa.insert(table).inline().compile(dialect=dialect, column_keys=names))
    time = next(place for place, column in enumerate(columns) if isinstance(column.type, sa.DateTime))
    as_kept = columns[time].type.dialect_impl(dialect).bind_processor(dialect)
    values = itemgetter(*names)
    if as_kept is None:
        return text, lambda rows: [values(row) for row in rows]
    as_kept = lru_cache(16)(as_kept)  # the nodes of a network have one time

    def of(rows: Sequence[dict[str, Any]]) -> list[tuple]:
        plain = map(values, rows)
        return [(*row[:time], as_kept(row[time]), *row[time + 1 :]) for row in plain]

    return text, of


def _readers_beside_a_writer(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _upgrade(connection: sa.Connection) -> None:
    connection.execute(sa.text(ALONE[connection.dialect.name]))  # first: what Alembic works with is one for a process
    scripts = ScriptDirectory(str(MIGRATIONS), version_locations=[str(MIGRATIONS)])
    wanted = {"fn": lambda revision, _: scripts._upgrade_revs("head", revision), "destination_rev": "head"}
    with EnvironmentContext(Config(), scripts, **wanted) as environment:
        environment.configure(connection=connection, target_metadata=metadata)
        environment.run_migrations()
    connection.commit()


# ---- behind the answers ---------------------------------------------------------------------------------------------


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
            now = asyncio.get_running_loop().time()
            if now >= self._clean_at:
                await self._database.delete_before(datetime.now(UTC) - self._keep)
                self._clean_at = now + CLEAN_EVERY_S
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
            await self._database.insert((predictions, decisions), (network_metrics, nodes))
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
