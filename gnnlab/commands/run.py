"""Run notebooks and render the site of their results.

Notebooks run in the order of their numbers. Each run has a folder of its own; the newest that passed is the result, and
runs that were made alike are pooled.

examples:
  gnnlab run                                   every notebook, small
  gnnlab run 01 --params full                  one notebook at full size
  gnnlab run 02 --runs 5                       five times: what differs between processes is measured, too
  gnnlab run 01 -p graphs '[my_graph.npz]' -p models '[my_models:make_gat]'
  gnnlab run --params ~/my-params --missing    parameters of your own, and only what has no run with them yet
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .terminal import add_params, number


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("notebooks", nargs="*", metavar="NN", help="numbers of notebooks, as 01 (default: all)")
    add_params(parser)
    what = "only notebooks without a run that passed with these parameters"
    parser.add_argument("--missing", action="store_true", help=what)
    parser.add_argument(
        "--runs",
        type=number(int, 1, 100, "whole number from 1 to 100"),
        default=1,
        metavar="N",
        help="so many runs of each, each in a fresh process; the claims report pools them (%(default)s)",
    )
    parser.add_argument(
        "-p",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        dest="overrides",
        help="set one parameter in the notebooks that have it; lists as '[1, 2]' (`gnnlab params` shows them)",
    )


def run(arguments: Namespace) -> int:
    """0 where all passed or were skipped, 1 where one failed."""
    from gnnlab.lab import run as runs
    from gnnlab.lab.results import Status

    bad = (Status.FAILED, Status.TIMEOUT)
    given = {"missing": arguments.missing, "runs": arguments.runs, "overrides": [tuple(p) for p in arguments.overrides]}
    statuses = runs.run(arguments.notebooks, arguments.params, **given)
    return int(any(status in bad for status in statuses.values()))
