"""How Alembic reaches the database: by the connection that `Database.migrate` gives it."""

from alembic import context

from gnnlab.serving.database import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
