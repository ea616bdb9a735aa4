"""One family of errors: each says in one line what was given, what is allowed and what to do.

The command line prints such a line and ends with code 2; any other exception is a fault of gnnlab and is
shown whole.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class GnnlabError(ValueError):
    """What was asked for cannot be done: an input, a file or a setting is not what it has to be."""


class Unavailable(GnnlabError):
    """A device, a runtime or a package is not here; the reason says what it would take."""


class ParityError(GnnlabError):
    """Two forms do not compute the same, so that their times must not be compared."""


class Untestable(GnnlabError):
    """A claim cannot be judged from these rows; the reason says what it would need."""


DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EIO)  # what only the disk can refuse
LONGEST = 80  # characters of a foreign value or message that go into an error


def quoted(value: object) -> str:
    """`repr` of a value from outside, on one line and cut to a readable length."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def meant(name: object, known: Iterable[str]) -> str:
    """ " (did you mean digits?)", the nearest of what is known; empty where none is near."""
    near = difflib.get_close_matches(str(name)[:LONGEST], known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def first_wrong(error: ValidationError) -> tuple[str, str]:
    """(where, what) of the first thing that pydantic refused: ("rows.0.value", "Field required")."""
    first = error.errors(include_url=False, include_context=False)[0]
    return ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")


def whole_numbers(least: int, /, **values: object) -> None:
    """Raises `GnnlabError` unless each of the values is an integer of `least` or more."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise GnnlabError(f"{name} must be an integer of {least} or more, got {quoted(value)}")


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
    if not isinstance(error, GnnlabError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= 2 * LONGEST else f"{text[: 2 * LONGEST - 3]}..."
