"""A campaign on machines that hold the devices: Dask workers declare what they have, a cell asks for what it needs.

    dask scheduler --host 127.0.0.1 --dashboard-address 127.0.0.1:0
    dask worker tcp://127.0.0.1:8786 --host 127.0.0.1 --dashboard-address 127.0.0.1:0 \\
        --nthreads 1 --resources "NPU=1 HOST=1"

    with ClusterUnits(Client("tcp://127.0.0.1:8786"), ["openvino:NPU"], settings, timeout_s=60) as remote:
        done = campaign.run(folder, plan(cells, settings, remote.available), remote, reference=remote.reference)

Needs the extra `cluster` (pip install gnnlab[cluster]). A cell of an NPU needs NPU=1, of a GPU GPU=1, and every cell
HOST=1. One measurement runs per host at a time, however many workers it has. The journal stays here. What no worker has
is said at once: such cells are `unavailable`. A worker that is lost costs the cell that it was at. Exported models are
read from `settings.models`, which must be a folder that the workers see too.

Times of a unit are those of one kind of machine, the first that can run it: same processor, cores and versions. Workers
of another kind are not asked for it, and workers with other measuring code than here for nothing.

Whoever reaches a member of a Dask cluster can run any Python there, and Dask by itself listens on every address of a
machine. So the commands above keep it to this machine. Over several, give each its address as --host and let TLS say
who may come in: `TLS` for scheduler and workers, `TLS_SETTINGS` in the environment of gnnlab, and tls://HOST:8786.
Dask asks whether a certificate was signed by that CA, not whose it is: sign those of one cluster by a CA of its own.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from distributed import Client, Future, wait

from gnnlab import machine
from gnnlab import worker as processes
from gnnlab.campaign.campaign import CellAnswer
from gnnlab.campaign.cells import Cell, CellResult, Settings, ask
from gnnlab.campaign.reference import HERE, reference
from gnnlab.campaign.wanted_cells import MEASURES, code
from gnnlab.errors import GnnlabError, one_line
from gnnlab.profiling.timing import stopwatch
from gnnlab.units import registry as units
from gnnlab.units.unit import Availability

HOST = "HOST"
LOOPBACK = "--host 127.0.0.1 --dashboard-address 127.0.0.1:0"  # without them Dask listens on every address
SCHEDULER, WORKER = f"dask scheduler {LOOPBACK}", f"dask worker ADDRESS {LOOPBACK} --nthreads 1"
TLS = "--protocol tls --tls-ca-file ca.pem --tls-cert own.pem --tls-key own.key"
TLS_SETTINGS = tuple(f"DASK_DISTRIBUTED__COMM__TLS__{name}" for name in ("CA_FILE", "CLIENT__CERT", "CLIENT__KEY"))
GONE_S = 30.0  # without the scheduler, or a worker that was there, after which it is taken to be gone
_LOOK_S = 2.0  # between two looks at which workers are still there
_LOST = OSError, TimeoutError, CancelledError, RuntimeError, AttributeError  # of a client whose scheduler is gone

Ask = Callable[[Cell, Settings, float], CellResult]
_children: dict[str, processes.Worker] = {}  # of a worker: one process for each unit


@dataclass(frozen=True)
class Member:
    """A worker: `made_by` is the machine and the versions that its times are of."""

    address: str
    host: str
    resources: Mapping[str, float]
    made_by: Mapping[str, Any]

    def has(self, needs: Mapping[str, int]) -> bool:
        return all(self.resources.get(name, 0) >= count for name, count in needs.items())

    def __str__(self) -> str:
        return f"{self.address} ({self.made_by['processor']}, {self.made_by['cores']} cores)"


def needs(unit: str) -> dict[str, int]:
    """The resources of a worker that a cell of this unit needs."""
    processor = units.find(unit).processor
    return {HOST: 1} if processor == "CPU" else {processor: 1, HOST: 1}


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


def remedy(address: str) -> str:
    """What to do where no scheduler answers there."""
    if address.startswith("tls://"):
        return f"set {', '.join(TLS_SETTINGS)} to files that its CA signed, or start one: {SCHEDULER} {TLS}"
    return f"start one: {SCHEDULER}; one that was started with TLS is named tls://HOST:PORT"


class ClusterUnits(AbstractContextManager):
    """Asks each cell of a worker that has what it needs. `made_by`: of each unit the machine and versions that its
    times are of. `ask` and `probe` run there; others than the default are for tests.

    Raises:
        GnnlabError: there is no worker that could measure anything, or, on the way, the scheduler is gone.
    """

    def __init__(
        self,
        client: Client,
        names: Sequence[str],
        settings: Settings,
        timeout_s: float,
        *,
        say: Callable[[str], None] = lambda line: None,
        ask: Ask | None = None,
        probe: Callable[[str], Availability] | None = None,
    ) -> None:
        self.client, self.settings, self.timeout_s, self.say = client, settings, timeout_s, say
        self._ask = ask or ask_child
        self._about: dict[str, dict[str, Any] | str] = {}  # by address, or why not to ask that worker
        self._models = settings.models if any(units.find(name).exporter for name in names) else None
        self._own_code = code(MEASURES)
        self._lost_since: float | None = None
        self.made_by: dict[str, Mapping[str, Any]] = {}
        if not self._workers():
            refused = next((why for why in self._about.values() if isinstance(why, str)), None)
            raise GnnlabError(refused or f"the cluster has no workers; start one with {self._start_one({HOST: 1})}")
        self.available = {name: self._probed(name, probe or probe_child) for name in dict.fromkeys(names)}

    def __exit__(self, *exception: object) -> None:
        with suppress(Exception):  # as above
            self.client.run(close_children, on_error="ignore")

    def reference(self) -> dict[str, float]:
        """ms of the fixed work by host, one worker of each."""
        one_each = {worker.host: worker.address for worker in self._workers()}
        found = self._on_each(reference, workers=list(one_each.values()))
        answers = {host: found.get(address) for host, address in one_each.items()}  # one may be lost just now
        return {host: answer[HERE] for host, answer in answers.items() if isinstance(answer, dict)}

    def on_host(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function gives on the machine that measures, for what is no cell: on the first worker with HOST=1."""
        able = [worker for worker in self._workers() if worker.has({HOST: 1})]
        if not able:
            raise GnnlabError(self._missing({HOST: 1}))
        return self.client.submit(function, *arguments, workers=[able[0].address], pure=False).result()

    def __call__(self, cells: Sequence[Cell]) -> Iterator[CellAnswer]:
        waiting, running = list(cells), dict[Future, tuple[Cell, Member]]()
        try:
            while waiting or running:
                workers = self._workers()
                yield from self._impossible(waiting, workers, idle=not running)
                self._start(waiting, running, workers)
                yield from self._ended(running, workers)
        finally:
            with suppress(Exception):  # a client without its scheduler raises many things
                self.client.cancel(list(running))

    def _start(self, waiting: list[Cell], running: dict[Future, tuple[Cell, Member]], workers: list[Member]) -> None:
        """Give each idle host the first cell that one of its workers can run."""
        for worker in workers:
            if worker.host in {at.host for _, at in running.values()}:
                continue
            cell = next((cell for cell in waiting if self._can(worker, cell.unit)), None)
            if cell is not None:
                waiting.remove(cell)
                where = {"workers": [worker.address], "allow_other_workers": False, "resources": needs(cell.unit)}
                about = (asdict(cell), self.settings.to_json(), self.timeout_s)
                future = self.client.submit(measure, self._ask, *about, **where, pure=False, retries=0)
                running[future] = cell, worker

    def _able(self, unit: str, workers: Sequence[Member]) -> bool:
        return any(self._can(worker, unit) for worker in workers)

    def _can(self, worker: Member, unit: str) -> bool:
        return worker.has(needs(unit)) and worker.made_by == self.made_by.get(unit, worker.made_by)

    def _ended(self, running: dict[Future, tuple[Cell, Member]], workers: list[Member]) -> Iterator[CellAnswer]:
        if not running:
            return
        try:
            wait(list(running), timeout=_LOOK_S, return_when="FIRST_COMPLETED")
        except TimeoutError:
            pass
        except CancelledError:  # by Dask: the connection to the scheduler was lost
            self._known()
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

    def _impossible(self, waiting: list[Cell], workers: list[Member], idle: bool) -> Iterator[CellAnswer]:
        """Those that nobody can measure. A worker that was lost may come back, as `dask worker` starts it again."""
        lost = {cell.unit for cell in waiting if cell.unit in self.made_by and not self._able(cell.unit, workers)}
        if not lost:
            self._lost_since = None
        elif self._lost_since is None:
            self._lost_since = time.monotonic()
        patient = self._lost_since is not None and time.monotonic() < self._lost_since + GONE_S
        if patient and idle and lost >= {cell.unit for cell in waiting}:
            time.sleep(min(_LOOK_S, GONE_S))
        for cell in [cell for cell in waiting if not (patient and cell.unit in lost)]:
            able, found = self._able(cell.unit, workers), self.available[cell.unit]
            if not (able and found.usable):
                why = found.reason if able else self._missing(needs(cell.unit))
                waiting.remove(cell)
                yield CellAnswer(cell, CellResult.unmeasured(cell, "unavailable", why))

    def _missing(self, needs: Mapping[str, int]) -> str:
        return f"no worker has {_words(needs)}; start one with {self._start_one(needs)}"

    def _start_one(self, needs: Mapping[str, int]) -> str:
        return f'{WORKER.replace("ADDRESS", self.client.scheduler.address)} --resources "{_words(needs)}"'

    def _probed(self, unit: str, probe: Callable[[str], Availability]) -> Availability:
        able = [worker for worker in self._workers() if worker.has(needs(unit))]
        if not able:
            return Availability(False, self._missing(needs(unit)))
        self.made_by[unit] = able[0].made_by
        if others := [str(worker) for worker in able if not self._can(worker, unit)]:
            self.say(f"{unit} is measured on {able[0]}, not on {', '.join(others)}: other machine or versions")
        try:
            asked = self.client.submit(probe, unit, workers=[able[0].address], pure=False)
            return asked.result(timeout=2 * units.PROBE_S)
        except Exception as error:  # whatever a worker raises, or that it was lost
            return Availability(False, f"worker {able[0].address} could not try it: {one_line(error)}")

    def _workers(self) -> list[Member]:
        """Those that may be asked; one that is new says of itself what it is."""
        known = self._known()
        new = [address for address in known if address not in self._about]
        for address, answer in (self._on_each(about, self._models, workers=new) if new else {}).items():
            self._about[address] = judged = self._judged(address, answer)
            if isinstance(judged, str):
                self.say(judged)
        return [
            Member(address, said["host"], said.get("resources", {}), self._about[address])
            for address, said in known.items()
            if isinstance(self._about.get(address), dict)
        ]

    def _on_each(self, function: Callable[..., Any], *arguments: Any, workers: list[str]) -> dict[str, Any]:
        """By address what a function gives on each of the workers, or the exception that it ended in."""
        try:
            return self.client.run(function, *arguments, workers=workers, on_error="return")
        except _LOST:
            self._known()
            return {}

    def _known(self) -> dict[str, Any]:
        """What the scheduler says of its workers, asked anew."""
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline and self.client.status in ("running", "connecting"):
            with suppress(*_LOST):
                return self.client.sync(self.client.scheduler.identity, n_workers=-1)["workers"]
            time.sleep(_LOOK_S)
        raise GnnlabError(
            "the scheduler of the cluster is gone; what was measured is kept: start scheduler and workers again, then "
            "give the same command"
        )

    def _judged(self, address: str, answer: Any) -> dict[str, Any] | str:
        """What a worker says of itself, or why it is not to be asked."""
        if not isinstance(answer, dict):
            return f"worker {address} measures nothing: {one_line(answer)}; it needs the gnnlab that is here"
        if answer["code"] != self._own_code:
            return f"worker {address} measures nothing: its gnnlab measures by other code; install the one that is here"
        if not answer["models"]:
            return f"worker {address} measures nothing: it does not see {self._models}; share that folder with it"
        return answer["made_by"]


def _words(needs: Mapping[str, int]) -> str:
    return " ".join(f"{name}={count}" for name, count in needs.items())


# ---- on a worker ----------------------------------------------------------------------------------------------------


def about(models: str | None) -> dict[str, Any]:
    """What decides over this worker's times, and whether it sees the exported models."""
    made_by = {**machine.about(), "versions": machine.versions()}
    return {"code": code(MEASURES), "made_by": made_by, "models": models is None or Path(models).is_dir()}


def measure(ask: Ask, cell: Mapping[str, Any], settings: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Measure a cell on this worker; the outcome and the seconds that it took, as JSON has them."""
    with stopwatch() as took:
        outcome = ask(Cell(**cell), Settings.from_json(settings), timeout_s)
    return {"outcome": outcome.to_json(), "took_s": took.s}


def ask_child(cell: Cell, settings: Settings, timeout_s: float) -> CellResult:
    return ask(_children.setdefault(cell.unit, processes.Worker()), cell, settings, timeout_s)


def probe_child(unit: str) -> Availability:
    return units.probe_by(_children.setdefault(unit, processes.Worker()), unit)


def close_children() -> None:
    while _children:
        _children.popitem()[1].close()
