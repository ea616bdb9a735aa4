"""Stages 1-5 fused in OpenVINO: the graph built by hand against the exported one with its scatter, interleaved.

Both are compiled by the same plugin for the same threads in float32, run on the same values and give the same means.
The hand-built graph reads edges sorted by target. A graph is sorted once and then used in every layer and at each call,
so sorting is not in the time of `built by hand`; it is in that of `built by hand, sorted at each call`. At each size
the exported graph also runs against itself (A/A).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.optimize.study import BASELINE, Case, Conditions, races
from gnnlab.stages.campaign.cell_inputs import layer_of, values_of
from gnnlab.stages.campaign.cells import Cell
from gnnlab.stages.campaign.sizes import Size
from gnnlab.stages.errors import StageError
from gnnlab.stages.export.artefacts import Artefact
from gnnlab.stages.export.export import HANDBUILT, export
from gnnlab.stages.units import registry as units
from gnnlab.stages.units.unit import Values, require_artefact

FIRST, LAST = 1, 5
EXPORTED, BUILT = "openvino:CPU", "openvino-handbuilt:CPU"
BAG, SORTING = "built by hand", "built by hand, sorted at each call"

Run = Callable[[Values], dict[str, np.ndarray]]


def race(
    sizes: Iterable[Size], models: Path, *, features: int = 500, threads: int = 1, budget_s: float = 1.0
) -> pd.DataFrame:
    """A row for each form and size, as `optimize.study.races` has them; the baseline is the exported scatter graph.

    `models`: the folder of exported models; a model that is not in it is exported.

    Raises:
        StageError: a model could not be exported or computes something else.
    """
    layer = layer_of("sage", features)
    exported = export(layer, FIRST, LAST, exporter="openvino", form="scatter_add", folder=models)
    built = export(layer, FIRST, LAST, exporter=HANDBUILT, form="bag", folder=models)
    same, found = Conditions(threads, Conditions.now().precision), []
    for size in sizes:
        with ExitStack() as stack:
            stack.enter_context(same.held())  # torch sorts the edges; threads of its own would wait on OpenVINO's cores
            run = partial(_loaded, stack, size, features=features, threads=threads)
            case = _case(size, features, run(EXPORTED, exported), run(BUILT, built))
            found.append(races([case], budget_s=budget_s, installed=same, ours=same))
    if not found:
        raise StageError("no sizes to race at; give at least one")
    return pd.concat(found, ignore_index=True)


def _loaded(stack: ExitStack, size: Size, unit: str, artefact: Artefact, *, features: int, threads: int) -> Run:
    found = units.find(unit)
    model = require_artefact(found, artefact, FIRST, LAST)
    at = {"nodes": size.nodes, "edges": size.edges}
    loaded = found.load(layer_of("sage", features), FIRST, LAST, model, **at, threads=threads, precision="float32")
    stack.callback(loaded.close)
    return loaded.run


def _case(size: Size, features: int, exported: Run, built: Run) -> Case:
    values = values_of(Cell("sage", features, size.nodes, size.edges, FIRST, LAST, EXPORTED, graph=size.graph))

    def sorting() -> dict[str, np.ndarray]:
        return built({**values, "edge_index": values["edge_index"].view()})  # another array: its edges are sorted anew

    forms = {BAG: partial(built, values), SORTING: sorting}
    label = {"size": str(size), "nodes": size.nodes, "edges": size.edges}
    return Case(label, partial(exported, values), forms)


def worst(raced: pd.DataFrame, form: str = BAG) -> dict[str, Any]:
    """The row of the size at which a form gains least."""
    rows = raced[raced["form"] == form]
    return rows.loc[rows["ratio"].idxmin()].to_dict()


def title(raced: pd.DataFrame) -> str:
    low, high = worst(raced), raced.loc[raced["form"] == BAG, "ratio"].max()
    sizes = f"{low['ratio']:.3g} to {high:.3g} times as fast" if high > low["ratio"] else f"{high:.3g} times as fast"
    return f"Stages 1-5 in OpenVINO: the hand-built graph is {sizes} as the exported one"


def reading(raced: pd.DataFrame) -> str:
    """The least gain of each form with its interval, and the noise floor."""
    parts = []
    for form in dict.fromkeys(raced["form"]):
        if form == BASELINE:
            continue
        row = worst(raced, form)
        parts.append(
            f"- {form}: at worst {row['ratio']:.3g} times as fast ({row['ci_low']:.3g} to {row['ci_high']:.3g}), on "
            f"{row['size']}"
        )
    return "\n".join(parts)


def drawn(raced: pd.DataFrame, forms: Sequence[str] = (BAG, SORTING)) -> pd.DataFrame:
    return raced[raced["form"].isin(forms)]
