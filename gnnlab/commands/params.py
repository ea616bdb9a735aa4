"""Show the parameters of notebooks: name, type, default, meaning, what is allowed.

examples:
  gnnlab params 01
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from .terminal import show, table

COLUMNS = ("name", "type", "default", "meaning", "allowed")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("notebooks", nargs="*", metavar="NN", help="numbers of notebooks, as 01 (default: all)")


def run(arguments: Namespace) -> int:
    """A table for each notebook."""
    from gnnlab.lab import discovery

    for notebook in discovery.notebooks(discovery.root(), arguments.notebooks):
        declared = discovery.declared(notebook).values()
        rows = [(p.name, p.type, json.dumps(p.default, ensure_ascii=False), p.meaning, p.allowed) for p in declared]
        show(table(notebook.stem, COLUMNS, rows, whole=("name", "type")))
    return 0
