"""The command `gnnlab`. Heavy packages load inside the command that needs them, so `gnnlab --help` answers at once.

A command is a function: its docstring is its help, and what it takes stands above it. Here are those of the notebooks
and their results; `gnnlab.commands.arguments` has the others.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from . import __version__
from .commands.arguments import COMMANDS, JSON, PARAMS, command, number, show, takes
from .errors import DISK_ERRORS, GnnlabError

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 a notebook failed, 2 bad input, 130 stopped by Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a Windows code page knows few characters
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as ended:  # argparse has printed the help, or what is wrong
        return int(ended.code or OK)
    try:
        code = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except ValueError as error:
        if not type(error).__module__.startswith("gnnlab"):
            raise
        print(f"gnnlab: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:  # the reader of a pipe has gone; whatever is left has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (MemoryError, ImportError, OSError, RuntimeError) as error:
        if (lacking := _lacking(error)) is None:
            raise
        print(f"gnnlab: {lacking}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED


def _lacking(error: BaseException) -> str | None:
    """What the machine or the installation lacks, and what to do; None where the error says nothing of the kind."""
    said = str(error).splitlines()[0][:120] if str(error) else "none left"
    # loaders of libraries and torch say in words that the system refused memory
    words = ("failed to map segment", "annot allocate memory", "can't allocate memory", "not enough memory")
    if isinstance(error, MemoryError) or any(word in str(error) for word in words):
        return f"there is too little memory ({said}); allow more"
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] != __package__:
        package = error.name.partition(".")[0]
        return f"this needs package {package}, which is not installed; pip install -c constraints.txt -e . installs all"
    if "No usable temporary directory" in said:
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


def _parser() -> _Parser:
    parser = _Parser(
        prog="gnnlab",
        description="What a graph neural network costs on your machine, and what makes it faster: measured.",
        epilog="Start with `gnnlab run`, then open outputs/quick/index.html. `gnnlab COMMAND --help` shows examples.",
    )
    parser.add_argument("--version", action="version", version=f"gnnlab {__version__}")
    parser.set_defaults(command=lambda arguments: parser.print_help() or OK)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    for name, (function, arguments) in COMMANDS.items():
        text, _, examples = inspect.getdoc(function).partition("\n\nexamples:\n")
        does = text.partition(".")[0]
        added = commands.add_parser(
            name, help=does[0].lower() + does[1:], description=text, epilog=f"examples:\n{examples}"
        )
        added.set_defaults(command=function)
        for argument in arguments:
            group = added.add_mutually_exclusive_group() if isinstance(argument, list) else added
            for names, options in argument if isinstance(argument, list) else [argument]:
                group.add_argument(*names, **options)
    return parser


NOTEBOOKS = takes("notebooks", nargs="*", metavar="NN", help="numbers of notebooks, as 01 (default: all)")


# ---- notebooks and their results ------------------------------------------------------------------------------------


@command(
    NOTEBOOKS,
    PARAMS,
    takes("--force", action="store_true", help="one run more of what is unchanged, too"),
    takes(
        "--runs",
        type=number(int, 1, 100, "whole number from 1 to 100"),
        default=1,
        metavar="N",
        help="run until each notebook has N runs, each in a fresh process; the ledger pools them (%(default)s)",
    ),
    takes(
        "-p",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        dest="overrides",
        help="set one parameter in the notebooks that have it; lists as '[1, 2]' (`gnnlab params` shows them)",
    ),
)
def run(arguments) -> int:
    """Run notebooks and render the site of their results.

    Notebooks run in the order of their needs, and only where parameters, code, inputs, versions or machine
    have changed since their last run. A failure leaves earlier results in place.

    examples:
      gnnlab run                                   every notebook, small
      gnnlab run 01 --params full                  one notebook at full size
      gnnlab run 02 --runs 5                       five times: what differs between processes is measured, too
      gnnlab run 01 -p graphs '[my_graph.npz]' -p models '[my_models:make_gat]'
      gnnlab run --params ~/my-params --force      parameters of your own, whatever has changed
    """
    from .lab import runner

    options = {"force": arguments.force, "runs": arguments.runs, "overrides": [tuple(p) for p in arguments.overrides]}
    return runner.exit_code(runner.run(arguments.notebooks, arguments.params, **options))


@command(PARAMS)
def report(arguments) -> int:
    """Render the site of the results that are there, without running anything.

    examples:
      gnnlab report
      gnnlab report --params full
    """
    from .lab import report, runner

    print(report.build_site(runner.output_folder(arguments.params)))
    return OK


@command(
    takes("folder", nargs="?", metavar="FOLDER", help="a folder of results (default: that of --params)"),
    PARAMS,
    [
        JSON,
        takes(
            "--recompute",
            action="store_true",
            help="compute rows, intervals and verdicts again from the stored samples; exit code 1 where one differs",
        ),
        takes("--publish", action="store_true", help="write the ledger as the reference run of this machine"),
        takes("--machines", action="store_true", help="the reference runs of all machines, side by side"),
    ],
    takes("--write", action="store_true", help="with --machines: into README.md and docs/reference-runs/README.md"),
)
def claims(arguments) -> int:
    """Print the ledger: what was claimed, what was measured here, the verdict.

    Claims of the documents and goals of the lab stand apart. All is computed from the result files of the
    folder and of its further runs (gnnlab run --runs).

    examples:
      gnnlab claims
      gnnlab claims --params full --json > ledger.json
      gnnlab claims ~/yesterday/quick --recompute   from the stored samples, on any machine
      gnnlab claims outputs/full --publish          to docs/reference-runs, in a folder named as the processor
      gnnlab claims --machines                      claim by machine: where they agree
    """
    from .commands.tables import of_ledger
    from .lab import discovery, ledger, machines

    if arguments.machines:
        if arguments.write:
            show("\n".join(f"wrote {path}" for path in machines.write(discovery.root())))
        else:
            found = machines.read(discovery.root())
            show("\n".join(machines.side_by_side(found, machines.compared(found))))
        return OK
    if arguments.write:
        raise GnnlabError("--write goes with --machines; --publish writes the reference run of one machine")
    folder = _results(arguments.folder or arguments.params, named=arguments.folder is None)
    if arguments.recompute:
        follows, lines = ledger.recompute(folder)
        show("\n".join(lines))
        return OK if follows else FAILED
    if arguments.publish:
        place = machines.publish(folder, discovery.root())
        show(f"wrote {place}; gnnlab claims --machines --write puts it into the tables")
        return OK
    judged = ledger.judge(folder)
    show(judged.to_json() if arguments.json else of_ledger(judged))
    return OK


@command(
    takes("a", metavar="A", help="the run to compare with"),
    takes("b", metavar="B", help="the run to compare"),
    JSON,
)
def compare(arguments) -> int:
    """Compare two runs: the change of every row with its interval.

    A and B are folders of results, single result files, or names of parameter sets. Several runs of a
    notebook are pooled. It says when machine, versions, parameters or commit differ.

    examples:
      gnnlab compare outputs/quick ~/yesterday/quick
      gnnlab compare quick full --json
    """
    from .commands.tables import of_comparison
    from .lab import compare

    comparison = compare.compare(_results(arguments.a), _results(arguments.b))
    show(comparison.to_json() if arguments.json else of_comparison(comparison))
    return OK


def _results(word: str, *, named: bool = False) -> Path:
    """A folder or file of results, or the folder of a parameter set, which `word` is if `named`."""
    from .lab import runner

    path = Path(word).expanduser()
    return path if path.exists() and not named else runner.output_folder(word)


@command(NOTEBOOKS)
def params(arguments) -> int:
    """Show the parameters of notebooks: name, type, default, meaning, what is allowed.

    examples:
      gnnlab params 01
    """
    from .commands.tables import table
    from .lab import discovery

    columns = ("name", "type", "default", "meaning", "allowed")

    for notebook in discovery.select(discovery.notebooks(discovery.root()), arguments.notebooks):
        every = notebook.declared.values()
        rows = [(p.name, p.type, json.dumps(p.default, ensure_ascii=False), p.meaning, p.allowed) for p in every]
        show(table(notebook.name, columns, rows, whole=("name", "type")))
    return OK
