"""`gnnlab units`: every processing unit, whether it can be used here, why not and what to install."""

from __future__ import annotations

import json
from argparse import Namespace

from rich.table import Table
from rich.text import Text

from gnnlab.units import registry as units
from gnnlab.units.unit import Availability, Unit


def run(arguments: Namespace, show) -> int:
    """Try every unit, or those named, each in a worker; prints a table, or JSON. `show` prints."""
    known = {name: units.find(name) for name in arguments.units} or units.all_units()
    found = units.probe(known)
    rows = [row(name, known[name], availability) for name, availability in found.items()]
    show(json.dumps(rows, indent=2) if arguments.json else _table(rows))
    return 0


def row(name: str, unit: Unit, found: Availability) -> dict[str, object]:
    """A unit for JSON: the name that it is asked for by, what it is, and whether it can be used here."""
    what = {"unit": name, "processor": unit.processor, "runtime": unit.runtime, "origin": unit.origin}
    how = {"precisions": list(unit.precisions), "static_shapes": unit.static_shapes, "exporter": unit.exporter}
    return what | how | found.to_json()


def _table(rows: list[dict[str, object]]) -> Table:
    table = Table(title="processing units", title_justify="left", box=None, pad_edge=False)
    for name in ("unit", "usable", "device, or why not", "what it needs", "version"):
        table.add_column(name, overflow="fold", no_wrap=name in ("unit", "usable"))
    for r in rows:
        usable = ("simulated" if r["origin"] == "simulated" else "yes") if r["usable"] else "no"
        cells = (r["unit"], usable, r["device"] if r["usable"] else r["why"], r["remedy"] or "", r["version"])
        table.add_row(*(Text(str(cell)) for cell in cells))
    return table
