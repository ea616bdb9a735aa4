"""What a campaign is asked for: cells from sizes, blocks and units, each with the fingerprint that it is known by.

A fingerprint is made of what could change the time of a cell: who measures with another of these measures anew. Shared
by a campaign are the code that measures (every module of ours that the measuring one imports, and so on), the versions
of the runtimes, the machine, the settings. A cell's own: its fields, the weights and the models that it runs, the
unit's device and driver, and the code of a unit of the user's own.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gnnlab import files, machine, user_code
from gnnlab.campaign.campaign import WantedCells
from gnnlab.campaign.cell_inputs import layer_of
from gnnlab.campaign.cells import Cell, Settings
from gnnlab.campaign.sizes import GraphSize
from gnnlab.export.artefacts import load_artefacts
from gnnlab.units import registry as units
from gnnlab.units.unit import Availability, Unit

OURS = __package__.partition(".")[0]
MEASURES = "gnnlab.campaign.cells"  # the module that measures a cell; what it imports decides over times


def cells(
    layer: str,
    features: int,
    sizes: Iterable[GraphSize],
    blocks: Sequence[tuple[int, int]],
    units: Sequence[str],
    **conditions: Any,
) -> list[Cell]:
    """A cell for every size, block and unit. `conditions`: precision and threads, as `Cell` has them."""
    return [
        Cell(layer, features, nodes, edges, first, last, unit, graph=graph, **conditions)
        for nodes, edges, graph in sizes
        for first, last in blocks
        for unit in dict.fromkeys(units)
    ]


def plan(
    cells: Sequence[Cell],
    settings: Settings,
    available: Mapping[str, Availability],
    token: str | None = None,
    made_by: Mapping[str, Mapping[str, Any]] | None = None,
) -> WantedCells:
    """The cells with their fingerprints. `available` says for each unit on what device and driver it would run,
    `made_by` on what machine where that is not this one.

    A `token` tells these cells from those of every plan with another one or none.
    """
    own = {"models": None} | ({} if token is None else {"token": token})
    shared = {"code": code(MEASURES), "versions": machine.versions(), "machine": machine.about()}
    campaign = files.digest({**shared, "settings": settings.to_json() | own})
    weights = {pair: layer_of(*pair).fingerprint() for pair in {(cell.layer, cell.features) for cell in cells}}
    found_units = {unit: units.find(unit) for unit in available}
    exporters = {name: unit.exporter for name, unit in found_units.items()}
    users = {name: {} if name in units.all_units() else _users_code(name, unit) for name, unit in found_units.items()}
    models = _models(settings) if any(exporters.values()) else {}
    found = {}
    for cell in cells:
        parts = {"cell": asdict(cell), "weights": weights[cell.layer, cell.features]}
        parts["unit"] = available[cell.unit].to_json() | users[cell.unit]
        if made_by and cell.unit in made_by:
            parts["made_by"] = made_by[cell.unit]
        parts["models"] = models.get((cell.layer, cell.features, cell.first, cell.last, exporters[cell.unit]), [])
        found[cell] = files.digest({"campaign": campaign, **parts})
    return WantedCells(campaign, found)


def _models(settings: Settings) -> dict[tuple[str, int, int, int, str], list[str]]:
    """The content keys of the exported models of each block by each exporter, with what became of them."""
    found: dict[tuple[str, int, int, int, str], list[str]] = {}
    for model in load_artefacts(Path(settings.models)) if settings.models else ():
        block = (model.layer, model.features, model.first, model.last, model.exporter)
        found.setdefault(block, []).append(f"{model.key} {model.status} {model.nodes}/{model.edges}")
    return {block: sorted(keys) for block, keys in found.items()}


def _users_code(name: str, unit: Unit) -> dict[str, Any]:
    """The code of a unit of the user's own: of its factory's module and its class's."""
    with user_code.importable():
        return {"code": code(name.rpartition(":")[0]) | code(type(unit).__module__)}


def code(module: str) -> dict[str, str]:
    """Digest of the source of `module` and of each that it imports, directly or not: of this package or the user's.

    The user's are those in the package of `module` and in the current folder.
    """
    own = frozenset({OURS, module.partition(".")[0]})
    found, waiting = {}, [module]
    while waiting:
        name = waiting.pop()
        path = _source(name, own)
        if path is None or name in found:
            continue
        content = path.read_bytes()
        found[name] = files.digest(content)
        waiting += _imports(ast.parse(content), name, path.name == "__init__.py")
    return dict(sorted(found.items()))


def _source(name: str, own: frozenset[str]) -> Path | None:
    """The file of a module of a package in `own` or of the user's; None for any other name."""
    if name.partition(".")[0] not in own and not user_code.is_users(name):
        return None
    try:
        found = importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):  # a name inside a module; a module without a file
        return None
    return Path(found.origin) if found and found.origin and found.origin.endswith(".py") else None


def _imports(tree: ast.AST, name: str, is_package: bool) -> Iterator[str]:
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            if base != OURS:  # the package itself imports nothing that measures
                yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
