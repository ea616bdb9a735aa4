"""The campaign of notebook 05 and of `gnnlab stages`, in one call: units tried, cells measured, files written.

measured = measure(outputs / "stages", models=outputs / "exported_models", sizes=sizes.read(["study"]))
measured.cells          # a row for each cell
measured.done           # what was known, what was measured, how long it took
measured.available      # of each unit: usable here, or why not
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gnnlab.stages.campaign import (
    campaign,
    checkpoints,
)
from gnnlab.stages.campaign import (
    study_reading as campaign_reading,
)
from gnnlab.stages.campaign import (
    table as campaign_table,
)
from gnnlab.stages.campaign import (
    wanted_cells as campaign_cells,
)
from gnnlab.stages.campaign.campaign import Done
from gnnlab.stages.campaign.cell_inputs import layer_of
from gnnlab.stages.campaign.cells import Settings
from gnnlab.stages.campaign.local_units import LocalUnits
from gnnlab.stages.campaign.sizes import Size
from gnnlab.stages.errors import StageError
from gnnlab.stages.units import registry as units
from gnnlab.stages.units.unit import Availability


@dataclass(frozen=True)
class Measured:
    """A campaign at its end: its cells as a table, what it did, and which units it could use."""

    cells: pd.DataFrame
    done: Done
    available: Mapping[str, Availability]


def measure(
    folder: Path,
    *,
    models: Path,
    sizes: Sequence[Size],
    blocks: Sequence[str] = ("stages",),
    names: Sequence[str] = (),
    layer: str = "sage",
    features: int = 500,
    precision: str = "float32",
    threads: int = 1,
    budget_s: float = 0.2,
    timeout_s: float = 60.0,
    seed: int = 0,
    anew: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Measured:
    """Measure what is not known yet of every block at every size on the units `names` (none: all that there are).

    With `anew` what is known is measured again: every time is then of this call.

    Raises:
        StageError: something asked for is not there, another campaign holds the folder, or the disk refuses.
    """
    numbers = campaign_cells.blocks(blocks, len(layer_of(layer, features).stages))
    chosen = [name for name in names if units.find(name)] or list(units.all_units())
    settings = Settings(models=str(models), budget_s=budget_s)
    with LocalUnits(chosen, settings, timeout_s) as local:
        conditions = {"precision": precision, "threads": threads}
        cells = campaign_cells.cells(layer, features, sizes, numbers, chosen, **conditions)
        plan = campaign_cells.plan(cells, settings, local.available, uuid.uuid4().hex if anew else None)
        done = campaign.run(folder, plan, local, seed=seed, say=say)
        available = local.available
    return Measured(analyze(folder), done, available)


def analyze(folder: Path) -> pd.DataFrame:
    """Merge the checkpoints that are there, write `profiling_report.txt`, and give the cells as a table.

    Raises:
        StageError: nothing has been measured, or a file is damaged.
    """
    messages = checkpoints.merge(folder)
    cells = campaign_table.table(checkpoints.raw(folder))
    checkpoints.write_report(folder, campaign_reading.report(cells, messages))
    return cells


def report(folder: Path) -> str:
    """The text of `profiling_report.txt`. Raises `StageError` where there is none."""
    path = folder / checkpoints.REPORT
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise StageError(
            f"could not read {path}: {error.strerror or error}; gnnlab stages --analyze writes it"
        ) from None
