"""A campaign on a Dask cluster: each cell goes to a worker that declares the processor which the cell needs.

    dask scheduler
    dask worker tcp://ADDRESS:8786 --nthreads 1 --resources "CPU=1"
    dask worker tcp://ADDRESS:8786 --nthreads 1 --resources "NPU=1"

    gnnlab stages --measure --cluster tcp://ADDRESS:8786

Needs the extra `cluster`, the same gnnlab on every worker, and a folder of exported models that all of them see. A
worker measures one cell at a time. The cell of a lost worker goes to another that declares the same, or waits for one;
what kills four of them fails. Who may reach a cluster is Dask's own configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlsplit

from gnnlab import machine
from gnnlab.campaign.campaign import package_digest
from gnnlab.campaign.cells import Cell, CellResult, Settings, ask
from gnnlab.campaign.checkpoints import Record, record
from gnnlab.child import KEEP_MEMORY, Worker
from gnnlab.errors import GnnlabError, Unavailable
from gnnlab.measure.timing import stopwatch
from gnnlab.units import registry as units
from gnnlab.units.unit import Availability
from gnnswap.errors import one_line

try:
    from distributed import Client, as_completed, get_worker
except ImportError:
    raise Unavailable("a cluster needs Dask: pip install 'gnnlab[cluster]'") from None

CONNECT_S = 10  # for a scheduler to answer
_children: dict[str, Worker] = {}  # on a worker: a process for each unit


class ClusterUnits(AbstractContextManager):
    """Asks each cell of a worker that declares its processor. `available`: each unit was tried on such a worker.

    Raises:
        GnnlabError: no scheduler answers, a worker has another gnnlab, or two machines declare the same processor.
    """

    def __init__(self, address: str, names: Sequence[str], settings: Settings, timeout_s: float) -> None:
        self.settings, self.timeout_s, self.available = settings, timeout_s, {}
        try:
            self.client = Client(address, timeout=CONNECT_S)
        except (OSError, ValueError, TypeError) as error:  # TypeError: TLS without certificates
            raise GnnlabError(f"no Dask scheduler answers at {address!r}: {one_line(error)}; start one") from None
        try:
            self._declared = self._declarations()
            for name in dict.fromkeys(names):
                (processor,) = needs = _needs(name)
                why = f'no worker declares {processor}=1 (dask worker --resources "{processor}=1")'
                self.available[name] = Availability(False, why)
                if processor in self._declared:
                    probed = self.client.submit(_probe_child, name, resources=needs, pure=False)
                    self.available[name] = probed.result()
        except BaseException:
            self.client.close()
            raise

    def __exit__(self, *exception: object) -> None:
        self.client.run(_close_children, on_error="ignore")
        self.client.close()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function gives on the machine that measures the CPU's cells; any, where no worker does."""
        resources = {"CPU": 1} if "CPU" in self._declared else None
        return self.client.submit(function, *arguments, resources=resources, pure=False).result()

    def __call__(self, cells: Sequence[Cell]) -> Iterator[Record]:
        running = {}
        for cell in cells:
            if (available := self.available[cell.unit]).usable:
                asked = (cell, self.settings, self.timeout_s)
                running[self.client.submit(_measure, *asked, resources=_needs(cell.unit), pure=False)] = cell
            else:
                yield record(cell, CellResult.unmeasured(cell, "unavailable", available.reason))
        for future in as_completed(running):
            cell = running[future]
            if future.status == "finished":
                yield future.result()
            elif future.status == "error":
                yield record(cell, CellResult.unmeasured(cell, "failed", one_line(future.exception())))
            else:
                raise GnnlabError("the scheduler of the cluster is gone; the same command goes on from what is known")

    def _declarations(self) -> set[str]:
        """The processors that workers declare, each of one kind of machine: a table mixes no machines."""
        about, machines = self.client.run(_about, on_error="return"), {}
        for address, worker in self.client.scheduler_info(n_workers=-1)["workers"].items():
            if not isinstance(about.get(address), tuple) or about[address][0] != package_digest():
                raise GnnlabError(f"worker {address} has another gnnlab than this one, or none; install the same")
            for processor in worker["resources"]:
                if machines.setdefault(processor, about[address][1]) != about[address][1]:
                    raise GnnlabError(f"worker {address} declares {processor}=1, and so does another kind of machine")
        return set(machines)


def _needs(unit: str) -> dict[str, int]:
    return {units.find(unit).processor: 1}


def _about() -> tuple[str, Any]:
    return package_digest(), {"processor": machine.processor(), "cores": machine.cores()}


def _measure(cell: Cell, settings: Settings, timeout_s: float) -> Record:
    with stopwatch() as took:
        outcome = ask(_child(cell.unit), cell, settings, timeout_s)
    return record(cell, outcome, host=urlsplit(get_worker().address).hostname or "", took_s=took.s)


def _probe_child(unit: str) -> Availability:
    return units.probe_by(_child(unit), unit)


def _child(unit: str) -> Worker:
    return _children.setdefault(unit, Worker(**KEEP_MEMORY))  # `dask worker` sets some of these variables otherwise


def _close_children() -> None:
    while _children:
        _children.popitem()[1].close()
