"""Predictions, and what the nodes of their networks reported."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "predictions",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("model_type", sa.String(16), nullable=False),
        sa.Column("nodes", sa.Integer, nullable=False),
        sa.Column("node_id", sa.String(200), nullable=False),
        sa.Column("node", sa.Integer, nullable=False),
        sa.Column("score", sa.Double, nullable=False),
        sa.Column("confidence", sa.Double, nullable=False),
    )
    op.create_index("idx_prediction_time", "predictions", ["created_at"])
    op.create_table(
        "network_metrics",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("node_id", sa.String(200), nullable=False),
        sa.Column("timestamp", TIME, nullable=False),
        *(
            sa.Column(name, sa.Double, nullable=False)
            for name in ("cpu_util", "mem_util", "energy", "latency", "bandwidth")
        ),
        sa.Column("queue_len", sa.Integer, nullable=False),
        sa.Column("node_type", sa.Integer, nullable=False),
    )
    op.create_index("idx_node_timestamp", "network_metrics", ["node_id", "timestamp"])
