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
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlsplit

from gnnlab import machine
from gnnlab.child import KEEP_MEMORY, Worker
from gnnlab.errors import GnnlabError, Unavailable
from gnnlab.stages.devices import Availability, find, probe_in
from gnnlab.stages.measure import versions
from gnnlab.stages.measurement import Config, Record, Settings, ask, record, without_time
from gnnswap.errors import one_line

try:
    from distributed import Client, as_completed, get_worker
except ImportError:
    raise Unavailable("a cluster needs Dask: pip install 'gnnlab[cluster]'") from None

CONNECT_S = 10  # for a scheduler to answer
_children: dict[str, Worker] = {}  # on a worker of the cluster: a process for each device


class ClusterDevices(AbstractContextManager):
    """As `LocalDevices`, on the workers of the scheduler at `address`.

    Raises `GnnlabError`: no scheduler answers, a worker has other versions, or two kinds of machine declare the same.
    """

    def __init__(self, address: str, names: Sequence[str], settings: Settings) -> None:
        self.settings, self.available = settings, {}
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
                    self.available[name] = self.client.submit(_probe, name, resources=needs, pure=False).result()
        except BaseException:
            self.client.close()
            raise

    def __exit__(self, *exception: object) -> None:
        self.client.run(_close_children, on_error="ignore")
        self.client.close()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function gives on the machine that measures the CPU; on any, where no worker declares one."""
        resources = {"CPU": 1} if "CPU" in self._declared else None
        return self.client.submit(function, *arguments, resources=resources, pure=False).result()

    def __call__(self, configs: Sequence[Config]) -> Iterator[Record]:
        running = {}
        for config in configs:
            if (available := self.available[config.device]).usable:
                needs = _needs(config.device)
                running[self.client.submit(_measure, config, self.settings, resources=needs, pure=False)] = config
            else:
                yield record(config, without_time("unavailable", available.reason))
        for future in as_completed(running):
            if future.status == "finished":
                yield future.result()
            elif future.status == "error":
                yield record(running[future], without_time("failed", one_line(future.exception())))
            else:
                raise GnnlabError("the scheduler of the cluster is gone; the same command goes on from what is known")

    def _declarations(self) -> set[str]:
        """The processors that workers declare, each of one kind of machine: a table mixes no machines."""
        about, machines = self.client.run(_about, on_error="return"), {}
        for address, worker in self.client.scheduler_info(n_workers=-1)["workers"].items():
            if not isinstance(about.get(address), tuple) or about[address][0] != versions():
                raise GnnlabError(f"worker {address} has other versions than this machine; install the same on both")
            for processor in worker["resources"]:
                if machines.setdefault(processor, about[address][1]) != about[address][1]:
                    raise GnnlabError(f"worker {address} declares {processor}=1, and so does another kind of machine")
        return set(machines)


def _needs(device: str) -> dict[str, int]:
    return {find(device).processor: 1}


def _about() -> tuple[dict[str, str], Any]:
    return versions(), (machine.processor(), machine.cores())


def _measure(config: Config, settings: Settings) -> Record:
    return ask(_child(config.device), config, settings, urlsplit(get_worker().address).hostname or "")


def _probe(device: str) -> Availability:
    return probe_in(_child(device), device)


def _child(device: str) -> Worker:
    return _children.setdefault(device, Worker(**KEEP_MEMORY))  # `dask worker` sets some of these variables otherwise


def _close_children() -> None:
    while _children:
        _children.popitem()[1].close()
