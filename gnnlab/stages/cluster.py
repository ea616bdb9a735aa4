"""Measures on a Dask cluster: each measurement goes to a worker that declares the processor of its device.

    dask scheduler
    dask worker tcp://ADDRESS:8786 --nthreads 1 --resources "CPU=1"
    dask worker tcp://ADDRESS:8786 --nthreads 1 --resources "NPU=1"

    gnnlab stages --measure --cluster tcp://ADDRESS:8786

Needs the extra `cluster`, the same gnnlab on every worker, and a folder of exported models that all of them see. A
worker measures one at a time. What a lost worker measured goes to another that declares the same, or waits for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gnnlab import machine
from gnnlab.child import KEEP_MEMORY, Worker
from gnnlab.errors import GnnlabError, Unavailable
from gnnlab.stages.devices import Availability, find, probe_in
from gnnlab.stages.measure import versions
from gnnlab.stages.measurement import Config, Record, Settings, ask, record, without_time
from gnnswap.errors import one_line

try:
    from distributed import Client, Future, as_completed
except ImportError:
    raise Unavailable("a cluster needs Dask: pip install 'gnnlab[cluster]'") from None

CONNECT_S = 10  # for a scheduler to answer
_children: dict[str, Worker] = {}  # on a worker of the cluster: a process for each device


@contextmanager
def cluster_devices(address: str, names: Sequence[str], settings: Settings) -> Iterator[ClusterDevices]:
    """The devices of the workers of the scheduler at `address`.

    Raises `GnnlabError`: no scheduler answers, a worker has other versions, or two kinds of machine declare the same.
    """
    try:
        client = Client(address, timeout=CONNECT_S)
    except (OSError, ValueError, TypeError) as error:  # TypeError: TLS without certificates
        raise GnnlabError(f"no Dask scheduler answers at {address!r}: {one_line(error)}; start one") from None
    with client:
        try:
            yield ClusterDevices(client, names, settings)
        finally:
            client.run(_close_children, on_error="ignore")


class ClusterDevices:
    """As `LocalDevices`, by a client of the cluster."""

    def __init__(self, client: Client, names: Sequence[str], settings: Settings) -> None:
        self.client, self.settings, self.available = client, settings, {}
        self._declared = self._declarations()
        for name in names:
            processor = find(name).processor
            why = f'no worker declares {processor}=1 (dask worker --resources "{processor}=1")'
            there = processor in self._declared
            self.available[name] = self._submit(processor, _probe, name).result() if there else Availability(False, why)

    def call(self, function: Callable[..., Any]) -> Any:
        """What a function gives on a machine that measures, the CPU where a worker declares one."""
        return self._submit(min(self._declared, default=None), function).result()

    def __call__(self, configs: Sequence[Config]) -> Iterator[Record]:
        running = {self._submit(find(each.device).processor, _measure, each, self.settings): each for each in configs}
        for future in as_completed(running):
            if future.status == "finished":
                yield future.result()
            elif future.status == "error":
                yield record(running[future], without_time("failed", one_line(future.exception())))
            else:
                raise GnnlabError("the scheduler of the cluster is gone; the same command goes on from what is known")

    def _submit(self, processor: str | None, function: Callable[..., Any], *arguments: Any) -> Future:
        needs = {processor: 1} if processor else None
        return self.client.submit(function, *arguments, resources=needs, pure=False)

    def _declarations(self) -> set[str]:
        """The processors that workers declare, each of one kind of machine: a table mixes no machines."""
        about, kinds = self.client.run(_about, on_error="return"), {}
        for address, worker in self.client.scheduler_info(n_workers=-1)["workers"].items():
            found = about.get(address)  # an exception where its gnnlab has no such function
            if not isinstance(found, tuple) or found[0] != versions():
                raise GnnlabError(f"worker {address} has other versions than this machine; install the same on both")
            for processor in worker["resources"]:
                if kinds.setdefault(processor, found) != found:
                    raise GnnlabError(f"worker {address} declares {processor}=1, and so does another kind of machine")
        return set(kinds)


def _about() -> tuple[dict[str, str], str, int]:
    return versions(), machine.processor(), machine.cores()


def _measure(config: Config, settings: Settings) -> Record:
    return ask(_child(config.device), config, settings)


def _probe(device: str) -> Availability:
    return probe_in(_child(device), device)


def _child(device: str) -> Worker:
    return _children.setdefault(device, Worker(**KEEP_MEMORY))  # `dask worker` sets some of these variables otherwise


def _close_children() -> None:
    while _children:
        _children.popitem()[1].close()
