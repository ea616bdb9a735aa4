"""The command `gnnlab`: a module of `gnnlab.commands` for each command, or a function of `commands.notebooks`.

Heavy packages load inside the command that needs them, so `gnnlab --help` answers at once.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import NoReturn

from . import __version__
from .commands import notebooks
from .errors import DISK_ERRORS

COMMANDS = {  # and what pip has to install for each
    **dict.fromkeys(notebooks.COMMANDS, "gnnlab[lab]"),
    **dict.fromkeys(("profile", "swap", "optimize", "check"), "gnnlab"),  # a model of the user's
    **dict.fromkeys(("devices", "stages", "plan"), "gnnlab[export]"),
    **dict.fromkeys(("infer", "serve"), "gnnlab[serving]"),
}
OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 a notebook failed, 2 bad input, 130 stopped by Ctrl-C."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by who started this process
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  to the process' end
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a Windows code page knows few characters
    try:
        parser = _parser()
        arguments, unknown = parser.parse_known_args(argv)
        if unknown:
            getattr(arguments, "fail", parser.error)(f"unrecognized arguments: {' '.join(unknown)}")
    except SystemExit as ended:  # argparse has printed the help, or what is wrong
        return int(ended.code or OK)
    try:
        code = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except ValueError as error:
        if not type(error).__module__.startswith(("gnnlab", "gnnswap")):
            raise
        return _bad_input(error)
    except BrokenPipeError:  # the reader of a pipe has gone; whatever is left has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (MemoryError, ImportError, OSError, RuntimeError) as error:
        if (lacking := _lacking(error, getattr(arguments, "needs", "gnnlab"))) is None:
            raise
        return _bad_input(lacking)
    except KeyboardInterrupt:
        return INTERRUPTED


def _bad_input(what: object) -> int:
    with suppress(OSError):  # of a full disk
        print(f"gnnlab: {what}", file=sys.stderr)
    return BAD_INPUT


def _lacking(error: BaseException, needs: str) -> str | None:
    """What the machine or the installation lacks, and what to do; None where the error says nothing of the kind.

    `needs` is what pip installs for the command.
    """
    message = str(error).splitlines()[0][:120] if str(error) else "none left"
    # loaders of libraries and torch say in words that the system refused memory
    words = ("failed to map segment", "annot allocate memory", "can't allocate memory", "not enough memory")
    if isinstance(error, MemoryError) or any(word in str(error) for word in words):
        return f"there is too little memory ({message}); allow more"
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] != __package__:
        package = error.name.partition(".")[0]
        return f"this needs package {package}, which is not installed: pip install '{needs}'"
    if "No usable temporary directory" in message:
        return "there is no folder for temporary files that can be written to; set TMPDIR to one"
    if isinstance(error, OSError) and error.errno:
        where = f" ({error.filename})" if error.filename else ""
        remedy = "; free some space, or change what is allowed" if error.errno in DISK_ERRORS else ""
        return f"the system refused to read or write: {error.strerror}{where}{remedy}"
    return None


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and takes -1e-3 for a number."""

    def __init__(self, **options):
        super().__init__(**options, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # argparse knows -1 and -.5 alone

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")


def _command(name: str) -> tuple[Callable[..., None], Callable[..., int], str | None]:
    """What adds the options of a command, what does its work, and its help."""
    if name in notebooks.COMMANDS:
        options, work = notebooks.COMMANDS[name]
        return options, work, work.__doc__
    module = import_module(f".commands.{name}", __package__)
    return module.add_arguments, module.run, module.__doc__


def _parser() -> _Parser:
    parser = _Parser(
        prog="gnnlab",
        description="What a graph neural network costs on your machine, and what makes it faster: measured.",
        epilog="Start with `gnnlab swap my_models:make`, or, in a copy of the repository, `gnnlab run`. "
        "`gnnlab COMMAND --help` shows examples.",
    )
    parser.add_argument("--version", action="version", version=f"gnnlab {__version__}")
    parser.set_defaults(command=lambda arguments: parser.print_help() or OK)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    for name, needs in COMMANDS.items():
        options, work, text = _command(name)
        description, _, examples = cleandoc(text or f"{name}.").partition("\n\nexamples:\n")  # python -OO drops it
        summary = description.partition(".")[0]
        added = commands.add_parser(
            name,
            help=summary[0].lower() + summary[1:],
            description=description,
            epilog=f"examples:\n{examples.rstrip()}",
        )
        options(added)
        added.set_defaults(command=work, needs=needs, fail=added.error)
    return parser
