"""The campaign of notebook 05 and of `gnnlab stages`, in one call: units tried, cells measured, files written.

measured = measure(outputs / "stages", models=outputs / "exported_models", sizes=sizes.read(["study"]))
measured.cells          # a row for each cell
measured.done           # what was known, what was measured, how long it took
measured.available      # of each unit: usable here, or why not
measured.latency()      # rows for the lab's one table
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from gnnlab.campaign import campaign, checkpoints, report, table, wanted_cells
from gnnlab.campaign.campaign import CellAnswer, Finished
from gnnlab.campaign.cell_inputs import layer_of
from gnnlab.campaign.cells import Cell, CellResult, Settings, ask
from gnnlab.campaign.reference import reference
from gnnlab.campaign.sizes import GraphSize
from gnnlab.errors import GnnlabError, Unavailable, one_line
from gnnlab.profiling.timing import stopwatch
from gnnlab.units import registry as units
from gnnlab.units.unit import Availability
from gnnlab.worker import Worker

CONNECT_S = 10  # for a scheduler to answer


class LocalUnits(AbstractContextManager):
    """Asks each cell of the worker of its unit, one at a time; what a unit does to it costs its own cell alone.

    `available` is known from the beginning: each unit is tried once, in its worker.
    """

    reference = staticmethod(reference)
    made_by = None  # this machine, which every fingerprint holds

    def __init__(self, names: Sequence[str], settings: Settings, timeout_s: float) -> None:
        self.settings, self.timeout_s = settings, timeout_s
        with ExitStack() as stack:
            self._workers = {unit: stack.enter_context(Worker()) for unit in dict.fromkeys(names)}
            with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:  # at once: nothing is timed yet
                found = pool.map(lambda pair: units.probe_by(pair[1], pair[0]), self._workers.items())
                self.available = dict(zip(self._workers, found, strict=True))
            self._stack = stack.pop_all()

    def on_host(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function gives on the machine that measures: this one."""
        return function(*arguments)

    def __call__(self, cells: Sequence[Cell]) -> Iterator[CellAnswer]:
        for cell in cells:
            with stopwatch() as took:
                found = self.available[cell.unit]
                if found.usable:
                    outcome = ask(self._workers[cell.unit], cell, self.settings, self.timeout_s)
                else:
                    outcome = CellResult.unmeasured(cell, "unavailable", found.reason)
            yield CellAnswer(cell, outcome, took_s=took.s)

    def __exit__(self, *exception: object) -> None:
        self._stack.__exit__(*exception)


@dataclass(frozen=True)
class Measured:
    """A campaign at its end: its cells as a table, what it did, and which units it could use.

    Its methods give rows for `Lab.record`.
    """

    cells: pd.DataFrame
    done: Finished
    available: Mapping[str, Availability]

    @property
    def timed(self) -> list[str]:
        """The units that have a time at all."""
        return list(dict.fromkeys(table.timed(self.cells)["unit"]))

    def need_times(self, skip: Callable[[str], None]) -> None:
        """Go on if a cell has a time; else `skip`, with what the units say."""
        if not self.timed:
            skip(f"no cell has a time: {table.reasons(self.cells)}")

    def latency(self) -> pd.DataFrame:
        """A row for each cell, keys size and stage, form the unit."""
        return table.cell_rows(self.cells, self.available)

    def roofline(self, bound_ms: Callable[[int, int, int, int], float], samples: int) -> pd.DataFrame:
        """Share that each cell of this CPU reaches of `bound_ms(first, last, nodes, edges)`."""
        return table.roof_rows(self.cells, bound_ms, samples)

    def sums(self) -> pd.DataFrame:
        """How many times as long stages one by one take as fused, keys size and block."""
        return table.sum_rows(self.cells)

    def duration(self) -> pd.DataFrame:
        """Minutes of this campaign, hours of one with as many cells as S4 measured."""
        return table.duration_rows(self.cells, self.available, self.done.known)

    def winners(self) -> pd.DataFrame:
        """For each stage the CPU's fastest unit and the next one."""
        return table.winners(self.cells)


def measure(
    folder: Path,
    *,
    models: Path,
    sizes: Sequence[GraphSize],
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
    cluster: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Measured:
    """Measure what is not known yet of every block at every size on the units `names` (none: all that there are).

    With `anew` what is known is measured again: every time is then of this call. `cluster`: address of a Dask scheduler
    whose workers measure; none: this machine does.

    Raises:
        GnnlabError: something asked for is not there, another campaign holds the folder, or the disk refuses.
    """
    numbers = layer_of(layer, features).blocks(blocks)
    chosen = [name for name in names if units.find(name)] or list(units.all_units())
    settings = Settings(models=str(models), budget_s=budget_s)
    with at_work(chosen, settings, timeout_s, cluster, say) as working:
        conditions = {"precision": precision, "threads": threads}
        cells = wanted_cells.cells(layer, features, sizes, numbers, chosen, **conditions)
        token = uuid.uuid4().hex if anew else None
        plan = wanted_cells.plan(cells, settings, working.available, token, working.made_by)
        done = campaign.run(folder, plan, working, reference=working.reference, seed=seed, say=say)
    return Measured(analyze(folder), done, working.available)


@contextmanager
def at_work(
    names: Sequence[str],
    settings: Settings,
    timeout_s: float,
    cluster: str | None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Any]:
    """The units of this machine, or those that the workers of a cluster have (`cluster`: address of its scheduler)."""
    if cluster is None:
        with LocalUnits(names, settings, timeout_s) as local:
            yield local
        return
    try:
        from distributed import Client

        from gnnlab.campaign.cluster import ClusterUnits, exposed, remedy
    except ImportError:
        raise Unavailable("a cluster needs Dask: pip install 'gnnlab[cluster]'") from None
    if warning := exposed(cluster):
        say(warning)
    try:
        client = Client(cluster, timeout=CONNECT_S)
    except (OSError, ValueError, TypeError) as error:  # TypeError: TLS without certificates
        raise GnnlabError(f"no Dask scheduler answers at {cluster!r}: {one_line(error)}; {remedy(cluster)}") from None
    with client, ClusterUnits(client, names, settings, timeout_s, say=say) as remote:
        yield remote


def analyze(folder: Path) -> pd.DataFrame:
    """Merge the checkpoints that are there, write `profiling_report.txt`, and give the cells as a table.

    Raises:
        GnnlabError: nothing has been measured, or a file is damaged.
    """
    messages = checkpoints.merge(folder)
    cells = table.table(checkpoints.raw(folder))
    checkpoints.write_report(folder, report.report(cells, messages))
    return cells
