"""Versions of the tables, for Alembic."""
