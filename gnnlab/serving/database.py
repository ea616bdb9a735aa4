"""The service's tables, in SQLite or in PostgreSQL, by its URL.

engine = engine_of(settings.database_url)
metadata.create_all(engine)
delete_before(engine, datetime.now(UTC) - timedelta(days=30))
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine

from gnnlab.workloads.edge_networks import FEATURES

MOST_ID = 200  # characters of a node's id that are stored; longer ones do not go into an index
POOL = {"pool_size": 20, "max_overflow": 40, "pool_pre_ping": True}  # S2's
POSITIONAL = {"paramstyle": "format"}  # values as tuples, which psycopg takes too
LIMIT_S = 5  # of a connection, of a statement, and of a wait for SQLite's lock
# the server's limit of a statement, and the client's own of a host that does not answer, in s and ms
POSTGRESQL_LIMITS = {"connect_timeout": LIMIT_S, "options": f"-c statement_timeout={1000 * LIMIT_S}"}
POSTGRESQL_LIMITS |= {"tcp_user_timeout": 1000 * LIMIT_S, "keepalives_idle": LIMIT_S, "keepalives_interval": 1}
DELETED = 10_000  # rows that are looked at in a transaction
NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # the one type that counts up by itself in both
TIME = sa.DateTime(timezone=True)

metadata = sa.MetaData()
predictions = sa.Table(
    "predictions",
    metadata,
    sa.Column("id", NUMBER, primary_key=True),
    sa.Column("created_at", TIME, nullable=False),
    sa.Column("model_type", sa.String(16), nullable=False),
    sa.Column("model_version", sa.String(12), nullable=False),  # digest of the weights
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
    limits = {"timeout": LIMIT_S} if sqlite else POSTGRESQL_LIMITS
    engine = sa.create_engine(url, connect_args=limits, **({} if sqlite else POSITIONAL), **(pool or POOL))
    if sqlite:  # others may read while one writes

        @sa.event.listens_for(engine, "connect")
        def connected(connection: Any, _: Any) -> None:
            connection.execute("PRAGMA journal_mode=WAL").close()
            connection.execute("PRAGMA synchronous=NORMAL").close()

    return engine


def delete_before(engine: Engine, time: datetime) -> int:
    """Delete what is older of the first rows of both tables, in a short transaction; how many. None: all are deleted.

    Raises what the driver raises.
    """
    with engine.begin() as connection:
        deleted = 0
        for table, column in ((predictions, predictions.c.created_at), (network_metrics, network_metrics.c.timestamp)):
            first = sa.select(table.c.id).order_by(table.c.id).limit(DELETED)
            old = sa.delete(table).where(column < time, table.c.id.in_(first))
            deleted += connection.execute(old).rowcount
    return deleted
