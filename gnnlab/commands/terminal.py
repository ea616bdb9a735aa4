"""What commands share: options and the numbers that they take, text, tables, and a warning of a busy machine.

show(table("devices", ("device", "usable"), [("torch:CPU", "yes")]))
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

WIDTH_IN_A_FILE = 160  # columns of a table that goes to a file or a pipe
STYLES = {"good": "green", "best": "green", "bad": "red", "fair": "yellow", "better": "green", "worse": "red"}

# ---- options --------------------------------------------------------------------------------------------------------


def number(kind: type, least: float, most: float, what: str) -> Callable[[str], float]:
    """A `type` for argparse: an int or float from `least` to `most`; `what` is how an error names it."""

    def convert(text: str) -> float:
        pattern = r"\d{1,12}" if kind is int else r"\d{1,12}(\.\d+)?"
        if re.fullmatch(pattern, text, re.ASCII) and least <= kind(text) <= most:
            return kind(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a {what}")

    return convert


count = number(int, 1, 9_999_999_999, "whole number above 0")
seconds = number(float, 1e-9, 9_999.999, "number of seconds above 0 and below 10,000")


def existing_file(text: str) -> str:
    """A `type` for argparse: a file that is there."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text}: there is no such file (the current folder is {Path.cwd()})")
    return text


def model_or_factory(text: str) -> str:
    """A `type` for argparse: a model's name or module:factory, not a file of weights."""
    if ":" not in text and Path(text).suffix:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a model; write a function that returns your torch module, weights loaded, and name it "
            f"as module:function, such as my_models:make"
        )
    return text


def add_params(parser: argparse.ArgumentParser) -> None:
    """`--params SET`."""
    what = "quick, models, full, gpu, npu, or a folder of YAML files named as the notebooks (default: quick)"
    parser.add_argument("--params", metavar="SET", default="quick", help=what)


def processes(text: str) -> int:
    """A `type` for argparse: how many processes measure; two would make no interval."""
    if (value := count(text)) == 2:
        raise argparse.ArgumentTypeError("two processes make no interval: 1 has that within it, 3 and more over them")
    return value


def add_processes(parser: argparse.ArgumentParser, many: int, long: float) -> None:
    """`--processes N` and `--seconds S`."""
    what = "fresh processes that race: 1, or 3 and more (%(default)s)"
    parser.add_argument("--processes", type=processes, default=many, metavar="N", help=what)
    what = "seconds of sampling in each of them (%(default)g)"
    parser.add_argument("--seconds", type=seconds, default=long, metavar="S", help=what)


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="as JSON")


def add_model(parser: argparse.ArgumentParser) -> None:
    """`module:factory` of a model of the user's, and the graph that it runs on."""
    what = "a function that makes your model, given the graph if it asks for it"
    parser.add_argument("model", type=model_or_factory, metavar="module:factory", help=what)
    add_graph(parser)


def add_graph(parser: argparse.ArgumentParser, *aliases: str) -> argparse._MutuallyExclusiveGroup:
    """`--graph`, with `--nodes` beside it, or `--inputs` in its place; gives the group of what excludes each other."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--graph", *aliases, default="digits", help="the graph (%(default)s)")
    what = "instead: a function that returns what forward takes (tuple, dict, Data, HeteroData, batch of molecules)"
    group.add_argument("--inputs", dest="graph", type="inputs:{}".format, metavar="module:function", help=what)
    what = "beside --graph edges.csv: a table of its nodes, with their features"
    parser.add_argument("--nodes", type=existing_file, metavar="FILE", help=what)
    return group


def graph_of(arguments: argparse.Namespace) -> str:
    """The options of `add_graph` as `workloads.models.build` takes them: "digits", or "edges.csv+nodes.csv"."""
    return f"{arguments.graph}+{arguments.nodes}" if arguments.nodes else arguments.graph


# ---- what is printed ------------------------------------------------------------------------------------------------


def show(what: object) -> None:
    """Print text as it is, and anything else as rich renders it."""
    if isinstance(what, str):
        print(what)
        return
    from rich.console import Console

    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_IN_A_FILE
    Console(width=wide).print(what)


def say(line: str) -> None:
    """Print a line of progress on standard error, at once."""
    print(line, file=sys.stderr, flush=True)


def json_text(data: Any) -> str:
    """As JSON for a file or another program."""
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> Table:
    """A table of rich, whose cells show as they are; a column in which no row has anything is left out.

    Numbers stand in the columns `right`; those named `whole` are never wrapped.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    result = Table(title=title, title_justify="left", box=box.HEAVY_HEAD)
    cells = [[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row] for row in rows]
    filled = [place for place in range(len(columns)) if not cells or any(row[place].plain for row in cells)]
    for name in (columns[place] for place in filled):
        justify = "right" if name in right else "left"
        result.add_column(name, justify=justify, overflow="fold", no_wrap=name in whole)
    for row in cells:
        result.add_row(*(row[place] for place in filled))
    return result


def warn_if_busy() -> None:
    """Say on standard error that the machine is busy, before something is measured on it."""
    from gnnlab import machine

    if busy := machine.warning():
        say(f"gnnlab: {busy}")
