"""Render the site of the results that are there, without running anything.

examples:
  gnnlab report
  gnnlab report --params full
"""

from __future__ import annotations

from argparse import Namespace

from .arguments import add_params as add_arguments  # noqa: F401


def run(arguments: Namespace) -> int:
    """Print the path of the front page."""
    from gnnlab.lab import discovery, report

    print(report.build_site(discovery.results_of(arguments.params)))
    return 0
