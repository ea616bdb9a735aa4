"""The tables of the service, and the connections to them: SQLite by default, PostgreSQL by its URL.

database = Database(settings.database_url)
await database.migrate()
await database.insert(predictions, rows)                     # in bulk
await database.of_node("node_3", since=yesterday)            # by idx_node_timestamp
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import create_async_engine

from gnnlab.errors import GnnlabError

MIGRATIONS = Path(__file__).parent / "migrations"
MOST_ID = 200  # characters of a node's id that are kept; longer ones do not go into an index
SQLITE_WAITS_S = 30
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

    async def since(self, time: datetime, most: int = 1000) -> list[dict[str, Any]]:
        """The predictions from `time` on, the latest first."""
        made = predictions.c.created_at
        return await self._rows(sa.select(predictions).where(made >= time).order_by(made.desc()).limit(most))

    async def of_node(self, node_id: str, since: datetime, most: int = 1000) -> list[dict[str, Any]]:
        """What a node reported from a time on, the latest first."""
        table, seen = network_metrics, network_metrics.c.timestamp
        asked = sa.select(table).where(table.c.node_id == node_id, seen >= since).order_by(seen.desc()).limit(most)
        return await self._rows(asked)

    async def _rows(self, query: sa.Select) -> list[dict[str, Any]]:
        async with self.engine.connect() as connection:
            return [dict(row) for row in (await connection.execute(query)).mappings()]

    async def close(self) -> None:
        await self.engine.dispose()


def make_folder(url: URL) -> None:
    """Make the folder of a database that is a file.

    Raises:
        GnnlabError: it cannot be made, or nothing may be written there.
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
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.commit()
