"""How Alembic reaches the database: by the connection that `Database.migrate` gives it, alone until it is done."""

from alembic import context
from sqlalchemy import text

from gnnlab.serving.database import metadata

LOCK = 7_236_001  # any number that no other program locks


connection = context.config.attributes["connection"]
alone = {"sqlite": "BEGIN IMMEDIATE", "postgresql": f"SELECT pg_advisory_xact_lock({LOCK})"}
connection.execute(text(alone[connection.dialect.name]))
context.configure(connection=connection, target_metadata=metadata)
context.run_migrations()
connection.commit()
