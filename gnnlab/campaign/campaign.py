"""Measures blocks of stages at sizes on units, in random order, and keeps each cell once it is measured.

    measured = measure(outputs / "stages", models=outputs / "exported_models", sizes=sizes.read(["study"]))
    measured.cells            # `table.table`: a row for each cell
    measured.available        # of each unit: usable here, or why not

Phase 1 is the CPU and the GPU, phase 2 the NPU, each with its checkpoint; phase 3 merges them. A cell that has a time
is not measured again unless its settings, its unit, the versions of the runtimes or the code of this package changed.
So a campaign that was killed goes on where it was, and what failed is tried again by the next one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from gnnlab import machine
from gnnlab.campaign import checkpoints, table
from gnnlab.campaign.cells import Cell, CellResult, Settings, ask, layer_of
from gnnlab.campaign.checkpoints import Record, record
from gnnlab.campaign.sizes import GraphSize
from gnnlab.child import Worker
from gnnlab.errors import GnnlabError
from gnnlab.files import digest, locked, write_atomically
from gnnlab.measure import timing
from gnnlab.units import registry as units
from gnnlab.units.unit import Availability

PHASES = {"cpugpu": "phase 1, CPU and GPU", "npu": "phase 2, NPU"}
_REFERENCE_S = 0.1  # of sampling: with 9 runs the reference workload itself scattered by 20 % on a shared machine


class Done(NamedTuple):
    """A record for every cell that was asked for, how many of them were known before, what the reference workload took
    before and after each phase (rows of phase, form, samples in ms), and what a reader should know."""

    records: list[Record]
    known: int
    reference: pd.DataFrame
    messages: list[str]


class Measured(NamedTuple):
    """A campaign at its end: its cells as a table, which units it could use; the rest as in `Done`."""

    cells: pd.DataFrame
    available: Mapping[str, Availability]
    known: int
    reference: pd.DataFrame
    messages: list[str]


def cells_of(
    layer: str,
    features: int,
    sizes: Iterable[GraphSize],
    blocks: Sequence[tuple[int, int]],
    names: Sequence[str],
    **conditions: Any,
) -> list[Cell]:
    """A cell for every size, block and unit. `conditions`: precision and threads, as `Cell` has them."""
    return [
        Cell(layer, features, nodes, edges, first, last, unit, graph=graph, **conditions)
        for nodes, edges, graph in sizes
        for first, last in blocks
        for unit in dict.fromkeys(names)
    ]


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
) -> Measured:
    """Measure every block at every size on the units `names` (none: all that there are), as far as it is not known.

    With `anew` what is known is measured again: every time is then of this call. `cluster`: address of a Dask scheduler
    whose workers measure; none: this machine does.

    Raises:
        GnnlabError: something asked for is not there, or another campaign holds the folder.
    """
    spans = layer_of(layer, features).blocks(blocks)
    chosen = [name for name in names if units.find(name)] or list(units.all_units())
    cells = cells_of(layer, features, sizes, spans, chosen, precision=precision, threads=threads)
    with units_at_work(chosen, Settings(models=str(models), budget_s=budget_s), timeout_s, cluster) as working:
        done = run(folder, cells, working, seed=seed, anew=anew)
    return Measured(analyze(folder), working.available, done.known, done.reference, done.messages)


def analyze(folder: Path) -> pd.DataFrame:
    """Merge the checkpoints that are there, write `profiling_report.txt`, and give the cells as a table.

    Raises:
        GnnlabError: nothing has been measured, or a file is damaged.
    """
    messages = checkpoints.merge(folder)
    cells = table.table(checkpoints.raw(folder))
    text = checkpoints.report(cells, messages)
    write_atomically(folder / checkpoints.REPORT, lambda file: file.write(text))
    return cells


def run(folder: Path, cells: Sequence[Cell], working: Any, *, seed: int = 0, anew: bool = False) -> Done:
    """Measure the cells that are not known, in random order by `seed`, phase after phase.

    `working`: `LocalUnits`, or the like: called with cells, it gives a record for each as they come. `folder` gets the
    journal, both checkpoints and `raw_measurements.json`.

    Raises:
        GnnlabError: no cells, two of one key, or another campaign holds the folder.
    """
    if not cells:
        raise GnnlabError("no cells to measure; give at least one size, one block of stages and one unit")
    key, times = Counter(cell.key for cell in cells).most_common(1)[0]
    if times > 1:
        raise GnnlabError(f"cell {key} is asked for twice; a campaign has one layer, precision and thread count")
    settings = {**asdict(working.settings), "models": None}  # wherever that folder lies
    made_by = {"settings": settings, "code": package_digest(), "versions": machine.versions()}
    known_by = {cell.key: _known_by(cell, working.available[cell.unit], made_by) for cell in cells}
    random, messages, taken = np.random.default_rng(seed), [], []

    with locked(folder, "measures into"):
        earlier = {} if anew else checkpoints.read_journal(folder / checkpoints.JOURNAL)
        records = {key: earlier[by] for key, by in known_by.items() if by in earlier}
        known = len(records)
        for phase, words in PHASES.items():
            of_phase = [cell for cell in cells if phase_of(cell) == phase]
            todo = [cell for cell in of_phase if cell.key not in records]
            messages.append(f"{words}: {len(todo)} cells to measure, {len(of_phase) - len(todo)} known")
            reference_ms: list[list[float]] = []
            if todo:
                before_ms, shuffled = working.call(reference), [todo[place] for place in random.permutation(len(todo))]
                with checkpoints.open_journal(folder) as journal:
                    for each in tqdm(working(shuffled), "cells", len(todo), leave=False, disable=None):
                        checkpoints.append(journal, {"known_by": known_by[each["key"]], **each})
                        records[each["key"]] = each
                reference_ms = [before_ms, working.call(reference)]
                medians = map(np.median, reference_ms)
                messages.append("reference workload: {:.3g} ms before, {:.3g} ms after".format(*medians))
                taken += [(words, *each) for each in zip(("before", "after"), reference_ms, strict=True)]
            of_phase = [records[cell.key] for cell in of_phase]
            checkpoints.write(folder, phase, of_phase, digest(made_by), reference_ms)
        messages += checkpoints.merge(folder)
    done = [records[cell.key] for cell in cells]
    seconds = sum(each["took_s"] for each in done)
    messages.append(f"{len(cells)} cells, {known} known before. All of them took {seconds:,.0f} s.")
    return Done(done, known, pd.DataFrame(taken, columns=["phase", "form", "samples"]), messages)


def phase_of(cell: Cell) -> str:
    return "npu" if units.find(cell.unit).processor == "NPU" else "cpugpu"


def _known_by(cell: Cell, available: Availability, made_by: Mapping[str, Any]) -> str:
    """The digest of what could change the time of a cell."""
    parts = {"cell": asdict(cell), "unit": available.to_json(), **made_by}
    if cell.unit not in units.all_units():
        module, here = cell.unit.partition(":")[0].replace(".", "/"), Path.cwd()
        parts["unit_code"] = digest(*sorted([*here.glob(f"{module}.py"), *here.glob(f"{module}/**/*.py")]))
    return digest(parts)


@cache
def package_digest() -> str:
    """The digest of the files of this package."""
    return digest(*sorted(Path(__file__).parents[1].rglob("*.py")))


def reference() -> list[float]:
    """ms of each run of a fixed piece of work, the reference workload: numbers for the arithmetic and a copy for the
    memory, on one core.

    It tells of other load, of heat and of a changed clock; it knows nothing of the clock of a GPU or an NPU.
    """
    numbers, source = np.linspace(0, 1, 100_000), np.ones(2**21)  # 0.8 MB; 16 MiB
    target, out = np.empty_like(source), np.empty_like(numbers)

    def work() -> None:
        np.exp(numbers, out=out)
        np.copyto(target, source)

    return list(timing.measure(work, budget_s=_REFERENCE_S).samples_ms)


# ---- units at work --------------------------------------------------------------------------------------------------


class LocalUnits(AbstractContextManager):
    """Asks each cell of the worker of its unit, one at a time; what a unit does to it costs its own cell alone.

    `available` is known from the beginning: each unit is tried once, in its worker.
    """

    def __init__(self, names: Sequence[str], settings: Settings, timeout_s: float) -> None:
        self.settings, self.timeout_s = settings, timeout_s
        with ExitStack() as stack:
            self._workers = {unit: stack.enter_context(Worker()) for unit in dict.fromkeys(names)}
            with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:  # at once: nothing is timed yet
                probed = pool.map(units.probe_by, self._workers.values(), self._workers)
                self.available = dict(zip(self._workers, probed, strict=True))
            self._stack = stack.pop_all()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function gives on the machine that measures."""
        return function(*arguments)

    def __call__(self, cells: Sequence[Cell]) -> Iterator[Record]:
        for cell in cells:
            with timing.stopwatch() as took:
                if (available := self.available[cell.unit]).usable:
                    outcome = ask(self._workers[cell.unit], cell, self.settings, self.timeout_s)
                else:
                    outcome = CellResult.unmeasured(cell, "unavailable", available.reason)
            yield record(cell, outcome, took_s=took.s)

    def __exit__(self, *exception: object) -> None:
        self._stack.__exit__(*exception)


def units_at_work(
    names: Sequence[str], settings: Settings, timeout_s: float, cluster: str | None = None
) -> AbstractContextManager[Any]:
    """The units of this machine, or those of the workers of a Dask cluster (`cluster`: address of its scheduler)."""
    if cluster is None:
        return LocalUnits(names, settings, timeout_s)
    from gnnlab.campaign.cluster import ClusterUnits

    return ClusterUnits(cluster, names, settings, timeout_s)
