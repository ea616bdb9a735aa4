"""Options that several commands share, and the numbers that options take."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path


def number(kind: type, least: float, most: float, what: str) -> Callable[[str], float]:
    """A `type` for argparse: an int or float from `least` to `most`; `what` is how an error names it."""

    def convert(text: str) -> float:
        form = r"\d{1,12}" if kind is int else r"\d{1,12}(\.\d+)?"
        if re.fullmatch(form, text, re.ASCII) and least <= kind(text) <= most:
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


def results_at(word: str, *, named: bool = False) -> Path:
    """A folder or file of results, or the folder of a parameter set, which `word` is if `named`."""
    from gnnlab.lab import discovery

    path = Path(word).expanduser()
    return path if path.exists() and not named else discovery.results_of(word)
