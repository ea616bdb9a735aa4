"""One family of errors: each says in one line what was given, what is allowed and what to do.

The command line prints such a line and ends with code 2; any other exception is a fault of gnnlab and is
shown whole.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gnnswap.errors import LONGEST, OneLineError, quoted

if TYPE_CHECKING:
    from pydantic import ValidationError


class GnnlabError(OneLineError):
    """What was asked for cannot be done: an input, a file or a setting is not what it has to be."""


class Unavailable(GnnlabError):
    """A device, a runtime or a package is not here; the reason says what it would take."""


class ParityError(GnnlabError):
    """Two variants do not compute the same, so that their times must not be compared."""


class Untestable(GnnlabError):
    """A claim cannot be judged from these rows; the reason says what it would need."""


DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EIO)  # what only the disk can refuse


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
