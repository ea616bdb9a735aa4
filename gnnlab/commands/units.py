"""`gnnlab units`: every processing unit, whether it can be used here, why not and what to install.

It imports nothing that a missing runtime could keep from loading: its reader may have it called for that very reason.
"""

from __future__ import annotations

import json
from argparse import Namespace

from rich.table import Table

from gnnlab.units import registry as units
from gnnlab.units.unit import Availability, Unit

from .tables import table


def run(arguments: Namespace, show) -> int:
    """Try every unit, or those named, each in a worker; prints a table, or JSON. `show` prints."""
    units.tried(arguments.units)
    known = {name: units.find(name) for name in arguments.units} or units.all_units()
    found = units.probe(known)
    rows = [row(name, known[name], availability) for name, availability in found.items()]
    show(json.dumps(rows, indent=2) if arguments.json else _shown(rows))
    return 0


def row(name: str, unit: Unit, found: Availability) -> dict[str, object]:
    """A unit for JSON: the name that it is asked for by, what it is, and whether it can be used here."""
    what = {"unit": name, "processor": unit.processor, "runtime": unit.runtime, "origin": unit.origin}
    how = {"precisions": list(unit.precisions), "static_shapes": unit.static_shapes, "exporter": unit.exporter}
    return what | how | found.to_json()


def _shown(rows: list[dict[str, object]]) -> Table:
    cells = []
    for r in rows:
        usable = ("simulated" if r["origin"] == "simulated" else "yes") if r["usable"] else "no"
        cells.append((r["unit"], usable, r["device"] if r["usable"] else r["why"], r["remedy"] or "", r["version"]))
    columns = ("unit", "usable", "device, or why not", "what it needs", "version")
    return table("processing units", columns, cells, whole=columns[:2])
