"""Show every processing unit: usable or not, why not, what to install.

Each is really tried, with a tiny inference in a process of its own, where a driver may hang or crash.
A unit of your own is module:factory, where factory() returns a gnnlab.units.unit.Unit.

examples:
  gnnlab units
  gnnlab units openvino:GPU openvino:NPU --json
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from .arguments import add_json
from .tables import show, table

if TYPE_CHECKING:
    from rich.table import Table

    from gnnlab.units.unit import Availability, Unit


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("units", nargs="*", metavar="UNIT", help="names of units (default: all)")
    add_json(parser)


def run(arguments: Namespace) -> int:
    """Try every unit, or those named, each in a worker; it loads no runtime here, which may be what is broken."""
    from gnnlab.units import registry

    units = registry.tried(arguments.units) or registry.all_units()
    rows = [row(name, units[name], availability) for name, availability in registry.probe(units).items()]
    show(json.dumps(rows, indent=2) if arguments.json else _table(rows))
    return 0


def row(name: str, unit: Unit, availability: Availability) -> dict[str, object]:
    """A unit for JSON: the name that it is asked for by, what it is, and whether it can be used here."""
    what = {"unit": name, "processor": unit.processor, "runtime": unit.runtime, "origin": unit.origin}
    how = {"precisions": list(unit.precisions), "static_shapes": unit.static_shapes, "exporter": unit.exporter}
    return what | how | availability.to_json()


def _table(rows: list[dict[str, object]]) -> Table:
    cells = []
    for r in rows:
        usable = ("simulated" if r["origin"] == "simulated" else "yes") if r["usable"] else "no"
        cells.append((r["unit"], usable, r["device"] if r["usable"] else r["why"], r["remedy"] or "", r["version"]))
    columns = ("unit", "usable", "device, or why not", "what it needs", "version")
    return table("processing units", columns, cells, whole=columns[:2])
