"""A campaign on machines that hold the devices: Dask workers declare what they have, a cell asks for what it needs.

    dask scheduler --host 127.0.0.1 --dashboard-address 127.0.0.1:0
    dask worker tcp://127.0.0.1:8786 --host 127.0.0.1 --dashboard-address 127.0.0.1:0 \\
        --nthreads 1 --resources "NPU=1 HOST=1"

    with ClusterUnits(Client("tcp://127.0.0.1:8786"), ["openvino:NPU"], settings, timeout_s=60) as remote:
        done = campaign.run(folder, plan(cells, settings, remote.available), remote, reference=remote.reference)

Needs the extra `cluster` (pip install gnnlab[cluster]). A cell of an NPU needs NPU=1, of a GPU GPU=1, and every cell
HOST=1. One measurement runs per host at a time, however many workers it has. The journal stays here. What no worker has
is said at once: such cells are `unavailable`. Exported models are read from `settings.models`, which must be a folder
that the workers see too.

Whoever reaches a member of a Dask cluster can run any Python there, and Dask by itself listens on every address of a
machine. So the commands above keep it to this machine. Over several, give each its address as --host and let TLS say
who may come in: --protocol tls --tls-ca-file ca.pem --tls-cert own.pem --tls-key own.key for scheduler and workers,
DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ...__TLS__CLIENT__CERT and ...__TLS__CLIENT__KEY for gnnlab, and tls://HOST:8786.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from distributed import Client, Future, wait

from gnnlab import worker as processes
from gnnlab.campaign.campaign import CellAnswer
from gnnlab.campaign.cells import Cell, CellResult, Settings, ask
from gnnlab.campaign.reference import HERE, reference
from gnnlab.errors import GnnlabError
from gnnlab.units import registry as units
from gnnlab.units.unit import Availability

HOST = "HOST"
LOOPBACK = "--host 127.0.0.1 --dashboard-address 127.0.0.1:0"  # without them Dask listens on every address
SCHEDULER, WORKER = f"dask scheduler {LOOPBACK}", f"dask worker ADDRESS {LOOPBACK} --nthreads 1"
_LOOK_S = 2.0  # between two looks at which workers are still there

Ask = Callable[[Cell, Settings, float], CellResult]
_children: dict[str, processes.Worker] = {}  # of a worker: one process for each unit


@dataclass(frozen=True)
class Member:
    address: str
    host: str
    resources: Mapping[str, float]

    def has(self, needs: Mapping[str, int]) -> bool:
        return all(self.resources.get(name, 0) >= count for name, count in needs.items())


def needs(unit: str) -> dict[str, int]:
    """The resources of a worker that a cell of this unit needs."""
    processor = units.find(unit).processor
    return {HOST: 1} if processor == "CPU" else {processor: 1, HOST: 1}


def _missing(unit: str) -> str:
    asked = " ".join(f"{name}={count}" for name, count in needs(unit).items())
    return f"no worker has {asked}; start one with {WORKER} --resources '{asked}'"


def exposed(address: str) -> str | None:
    """A line of warning where a scheduler is on another machine, or on an address that others reach, without TLS."""
    place = urlsplit(address if "://" in address else f"tcp://{address}")
    try:
        own = ipaddress.ip_address(place.hostname or "").is_loopback
    except ValueError:
        own = place.hostname == "localhost"
    if own or place.scheme in ("tls", "inproc"):
        return None
    return f"{address} is neither this machine nor tls://: whoever reaches that cluster can run any Python on all of it"


class ClusterUnits:
    """Asks each cell of a worker that has what it needs. `ask` and `probe` run there; others than the default are for
    tests."""

    def __init__(
        self,
        client: Client,
        names: Sequence[str],
        settings: Settings,
        timeout_s: float,
        *,
        ask: Ask | None = None,
        probe: Callable[[str], Availability] | None = None,
    ) -> None:
        self.client, self.settings, self.timeout_s = client, settings, timeout_s
        self._ask = ask or ask_child
        if not self._workers():
            raise GnnlabError(f"the cluster has no workers; start one with {WORKER} --resources HOST=1")
        self.available = {name: self._probed(name, probe or probe_child) for name in dict.fromkeys(names)}

    def __enter__(self) -> ClusterUnits:
        return self

    def __exit__(self, *exception: object) -> None:
        self.client.run(close_children)

    def reference(self) -> dict[str, float]:
        """ms of the fixed work by host, one worker of each."""
        one_each = {worker.host: worker.address for worker in self._workers()}
        found = self.client.run(reference, workers=list(one_each.values()))
        return {host: found[address][HERE] for host, address in one_each.items()}

    def __call__(self, cells: Sequence[Cell]) -> Iterator[CellAnswer]:
        waiting, running = list(cells), dict[Future, tuple[Cell, Member]]()
        try:
            while waiting or running:
                workers = self._workers()
                yield from self._impossible(waiting, workers)
                self._start(waiting, running, workers)
                yield from self._ended(running, workers)
        finally:
            self.client.cancel(list(running))

    def _start(self, waiting: list[Cell], running: dict[Future, tuple[Cell, Member]], workers: list[Member]) -> None:
        """Give each idle host the first cell that one of its workers can run."""
        for worker in workers:
            if worker.host in {at.host for _, at in running.values()}:
                continue
            cell = next((cell for cell in waiting if worker.has(needs(cell.unit))), None)
            if cell is not None:
                waiting.remove(cell)
                running[self._submit(cell, worker)] = cell, worker

    def _submit(self, cell: Cell, worker: Member) -> Future:
        where = {"workers": [worker.address], "allow_other_workers": False, "resources": needs(cell.unit)}
        about = (asdict(cell), self.settings.to_json(), self.timeout_s)
        return self.client.submit(measure, self._ask, *about, **where, pure=False, retries=0)

    def _ended(self, running: dict[Future, tuple[Cell, Member]], workers: list[Member]) -> Iterator[CellAnswer]:
        if not running:
            return
        with suppress(TimeoutError):
            wait(list(running), timeout=_LOOK_S, return_when="FIRST_COMPLETED")
        alive = {worker.address for worker in workers}
        for future, (cell, worker) in list(running.items()):
            if future.done() or worker.address not in alive:
                del running[future]
                yield self._answer(future, cell, worker)

    def _answer(self, future: Future, cell: Cell, worker: Member) -> CellAnswer:
        if future.status == "finished":
            answer = future.result()
            return CellAnswer(cell, CellResult.from_json(answer["outcome"]), worker.host, answer["took_s"])
        why = f"worker {worker.address} was lost"
        if future.status == "error":
            why = f"worker {worker.address}: {future.exception()}".splitlines()[0][:300]
        future.cancel()
        return CellAnswer(cell, CellResult.unmeasured(cell, "failed", why), worker.host)

    def _impossible(self, waiting: list[Cell], workers: list[Member]) -> Iterator[CellAnswer]:
        for cell in list(waiting):
            why = self._why_not(cell.unit, workers)
            if why is not None:
                waiting.remove(cell)
                yield CellAnswer(cell, CellResult.unmeasured(cell, "unavailable", why))

    def _why_not(self, unit: str, workers: Sequence[Member]) -> str | None:
        if not any(worker.has(needs(unit)) for worker in workers):
            return _missing(unit)
        found = self.available[unit]
        return None if found.usable else found.reason

    def _probed(self, unit: str, probe: Callable[[str], Availability]) -> Availability:
        able = [worker for worker in self._workers() if worker.has(needs(unit))]
        if not able:
            return Availability(False, _missing(unit))
        return self.client.submit(probe, unit, workers=[able[0].address], pure=False).result()

    def _workers(self) -> list[Member]:
        known = self.client.scheduler_info(n_workers=-1)["workers"]
        return [Member(address, about["host"], about.get("resources", {})) for address, about in known.items()]


# ---- on a worker ----------------------------------------------------------------------------------------------------


def measure(ask: Ask, cell: Mapping[str, Any], settings: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Measure a cell on this worker; the outcome and the seconds that it took, as JSON has them."""
    start = time.perf_counter()
    outcome = ask(Cell(**cell), Settings.from_json(settings), timeout_s)
    return {"outcome": outcome.to_json(), "took_s": time.perf_counter() - start}


def ask_child(cell: Cell, settings: Settings, timeout_s: float) -> CellResult:
    return ask(_children.setdefault(cell.unit, processes.Worker()), cell, settings, timeout_s)


def probe_child(unit: str) -> Availability:
    return units.probe_by(_children.setdefault(unit, processes.Worker()), unit)


def close_children() -> None:
    while _children:
        _children.popitem()[1].close()
