"""Errors of one line: what was given, what is allowed, what to do."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

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
    most = (4 if isinstance(error, OneLineError) else 2) * LONGEST  # ours quote what they were given within bounds
    return text if len(text) <= most else f"{text[: most - 3]}..."


def raised_at(error: BaseException) -> str:
    """ " (my_models.py, line 12)": the last line of the user's own code on the way to the error; "" without one."""
    ours = [str(Path(__file__).parent.with_name(package)) for package in ("gnnlab", "gnnswap")]
    installed = [sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")]
    frames = traceback.extract_tb(error.__traceback__)
    own = [at for at in frames if Path(at.filename).is_file() and not at.filename.startswith((*ours, *installed))]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
