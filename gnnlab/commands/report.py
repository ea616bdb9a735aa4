"""Render the site of the results that are there, without running anything.

examples:
  gnnlab report
  gnnlab report --params full
  gnnlab report outputs/lab                    what notebooks wrote in JupyterLab, or by papermill alone
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from gnnlab.errors import GnnlabError

from .terminal import add_params


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="of outputs (default: that of --params)")
    add_params(parser)


def run(arguments: Namespace) -> int:
    """Print the path of the front page."""
    from gnnlab.lab import discovery, report, results

    folder = Path(arguments.folder).resolve() if arguments.folder else discovery.results_of(arguments.params)
    if arguments.folder and not results.paths(folder):
        raise GnnlabError(f"{folder} holds no runs of notebooks; name a folder of outputs, such as outputs/lab")
    print(report.build_site(folder))
    return 0
