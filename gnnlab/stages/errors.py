"""The error of this room, one clear line: what was given, what is allowed, what to do."""

from __future__ import annotations


class StageError(ValueError):
    """A stage that cannot be exported, measured, planned or executed as asked."""
