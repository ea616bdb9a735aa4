"""What a campaign is asked for: cells from sizes, blocks and units, each with the fingerprint that it is known by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from gnnlab.stages.campaign import fingerprints
from gnnlab.stages.campaign.campaign import Plan
from gnnlab.stages.campaign.cell_inputs import layer_of
from gnnlab.stages.campaign.cells import Cell, Settings
from gnnlab.stages.campaign.sizes import Size
from gnnlab.stages.errors import StageError
from gnnlab.stages.export.artefacts import load_artefacts
from gnnlab.stages.units import registry as units
from gnnlab.stages.units.unit import Availability

MEASURES = "gnnlab.stages.campaign.child"  # the module that measures a cell; what it imports decides over times


def blocks(texts: Sequence[str], stages: int) -> list[tuple[int, int]]:
    """(first, last) of every text, each once: "3", "1-5", `stages` for each by itself, `all` for every block.

    Raises:
        StageError: a text that is none of these, or names a stage that a layer of so many `stages` has not.
    """
    found = [block for text in texts for block in _blocks(str(text), stages)]
    if not found:
        raise StageError(f"no stages; write 1..{stages}, a block as 1-{stages}, stages, or all")
    return list(dict.fromkeys(found))


def _blocks(text: str, stages: int) -> list[tuple[int, int]]:
    if text == "stages":
        return [(number, number) for number in range(1, stages + 1)]
    if text == "all":
        return [(first, last) for first in range(1, stages + 1) for last in range(first, stages + 1)]
    match = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", text, re.ASCII)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last <= stages:
        raise StageError(f"stages {text!r} are not there; write 1..{stages}, a block as 1-{stages}, stages, or all")
    return [(first, last)]


def cells(
    layer: str,
    features: int,
    sizes: Iterable[Size],
    blocks: Sequence[tuple[int, int]],
    units: Sequence[str],
    *,
    precision: str = "float32",
    threads: int = 1,
) -> list[Cell]:
    """A cell for every size, block and unit."""
    return [
        Cell(layer, features, nodes, edges, first, last, unit, precision, threads, graph)
        for nodes, edges, graph in sizes
        for first, last in blocks
        for unit in dict.fromkeys(units)
    ]


def plan(
    cells: Sequence[Cell], settings: Settings, available: Mapping[str, Availability], token: str | None = None
) -> Plan:
    """The cells with their fingerprints. `available` says for each unit on what device and driver it would run.

    A `token` tells these cells from those of every plan with another one or none.
    """
    own = {"models": None} | ({} if token is None else {"token": token})
    campaign = fingerprints.campaign(MEASURES, settings.to_json() | own)
    weights = {pair: layer_of(*pair).fingerprint() for pair in {(cell.layer, cell.features) for cell in cells}}
    exporters = {unit: units.find(unit).exporter for unit in available}
    models = _models(settings) if any(exporters.values()) else {}
    found = {}
    for cell in cells:
        parts = {"cell": asdict(cell), "weights": weights[cell.layer, cell.features]}
        parts["unit"] = available[cell.unit].to_json()
        parts["models"] = models.get((cell.layer, cell.features, cell.first, cell.last, exporters[cell.unit]), [])
        found[cell] = fingerprints.digest({"campaign": campaign, **parts})
    return Plan(campaign, found)


def _models(settings: Settings) -> dict[tuple[str, int, int, int, str], list[str]]:
    """The content keys of the exported models of each block by each exporter, with what became of them."""
    found: dict[tuple[str, int, int, int, str], list[str]] = {}
    for model in load_artefacts(Path(settings.models)) if settings.models else ():
        block = (model.layer, model.features, model.first, model.last, model.exporter)
        found.setdefault(block, []).append(f"{model.key} {model.status} {model.nodes}/{model.edges}")
    return {block: sorted(keys) for block, keys in found.items()}
