"""The two errors of this package, each one clear line: what was given, what is allowed, what to do."""

from __future__ import annotations

SHOWN = 80  # characters of a foreign value or message that go into an error


class GraphError(ValueError):
    """A graph that cannot be had: a specification, a file or a data set that is wrong."""


class ModelError(ValueError):
    """A model that cannot be built or does not run on its graph."""


def shown(value: object) -> str:
    """`repr` of a value from outside, on one line and cut to a readable length."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def one_line(error: BaseException) -> str:
    """Class and first line of a foreign exception: `KeyError: 'x'`."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= 2 * SHOWN else f"{text[: 2 * SHOWN - 3]}..."
