"""Run notebooks and render the site of their results.

Notebooks run in the order of their numbers, and only where parameters, code, inputs, versions or machine
have changed since their last run. A failure leaves earlier results in place.

examples:
  gnnlab run                                   every notebook, small
  gnnlab run 01 --params full                  one notebook at full size
  gnnlab run 02 --runs 5                       five times: what differs between processes is measured, too
  gnnlab run 01 -p graphs '[my_graph.npz]' -p models '[my_models:make_gat]'
  gnnlab run --params ~/my-params --force      parameters of your own, whatever has changed
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import add_params, number


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("notebooks", nargs="*", metavar="NN", help="numbers of notebooks, as 01 (default: all)")
    add_params(parser)
    parser.add_argument("--force", action="store_true", help="one run more of what is unchanged, too")
    parser.add_argument(
        "--runs",
        type=number(int, 1, 100, "whole number from 1 to 100"),
        default=1,
        metavar="N",
        help="run until each notebook has N runs, each in a fresh process; the ledger pools them (%(default)s)",
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
    from gnnlab.lab import runner

    options = {"force": arguments.force, "runs": arguments.runs, "overrides": [tuple(p) for p in arguments.overrides]}
    return runner.exit_code(runner.run(arguments.notebooks, arguments.params, **options))
