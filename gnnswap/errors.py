"""Errors of one line: what was given, what is allowed, what to do."""

from __future__ import annotations

LONGEST = 80  # characters of the user's value or message in an error


class OneLineError(ValueError):
    """An error whose text is one line for a user. The command line of gnnlab prints it and ends with code 2."""


class SwapError(OneLineError):
    """A model, an example or a graph is invalid."""


def quoted(value: object) -> str:
    """`repr` of a value from outside, on one line and cut to a readable length."""
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def one_line(error: BaseException) -> str:
    """First line of an exception, with its class where it is none of ours: `KeyError: 'x'`.

    OpenVINO begins with lines "Exception from ..." that only say where in its source; they are left out.
    """
    try:
        text = str(error)
    except Exception:  # a class of someone's own, whose __str__ raises
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    text = next((line for line in lines if not line.startswith("Exception from ")), lines[0] if lines else "")
    if not isinstance(error, OneLineError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= 2 * LONGEST else f"{text[: 2 * LONGEST - 3]}..."
