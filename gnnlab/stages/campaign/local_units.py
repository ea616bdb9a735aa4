"""The units of this machine, each behind a child process of its own.

with LocalUnits(["openvino:CPU", "torch:CPU"], settings, timeout_s=60) as local:
    done = campaign.run(folder, plan(cells, settings, local.available), local)
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType

from gnnlab.stages.campaign.campaign import Answer
from gnnlab.stages.campaign.cells import Cell, Outcome, Settings
from gnnlab.stages.campaign.child import Child
from gnnlab.stages.units.registry import PROBE_S
from gnnlab.stages.units.unit import Availability


class LocalUnits:
    """Asks each cell of the child of its unit, one at a time; what a unit does to its child costs its own cell alone.

    `available` is known from the beginning: each unit is tried once, in its child.
    """

    def __init__(self, units: Sequence[str], settings: Settings, timeout_s: float) -> None:
        self.settings, self.timeout_s = settings, timeout_s
        with ExitStack() as stack:
            self._children = {unit: stack.enter_context(Child()) for unit in dict.fromkeys(units)}
            self.available = self._probed()
            self._stack = stack.pop_all()

    def _probed(self) -> dict[str, Availability]:
        """Each unit tried in its child, several at once: nothing is timed yet."""
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            found = pool.map(lambda pair: pair[1].probe(pair[0], PROBE_S), self._children.items())
            return dict(zip(self._children, found, strict=True))

    def __call__(self, cells: Sequence[Cell]) -> Iterator[Answer]:
        for cell in cells:
            start = time.perf_counter()
            outcome = self._outcome(cell)
            yield Answer(cell, outcome, took_s=time.perf_counter() - start)

    def _outcome(self, cell: Cell) -> Outcome:
        found = self.available[cell.unit]
        if not found.usable:
            return Outcome("unavailable", reason(found), precision=cell.precision, threads=cell.threads)
        return self._children[cell.unit].ask(cell, self.settings, self.timeout_s)

    def __enter__(self) -> LocalUnits:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def reason(found: Availability) -> str:
    """Why a unit cannot be used here, and what would help, in one line."""
    return "; what helps: ".join(filter(None, (found.why, found.remedy)))
