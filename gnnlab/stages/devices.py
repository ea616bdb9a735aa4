"""What can run a stage: a device is a runtime with the processor that it reaches, as "openvino:CPU".

    devices.find("openvino:CPU").load(layer, 3, 3, model, nodes=1000, edges=5000, threads=1, precision="float32")
    devices.probe(["openvino:GPU"])["openvino:GPU"].reason     # tried in a process of its own: a driver may crash

A device of your own is `module:factory`, where factory() returns a `Device`; that is its name everywhere.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnlab import user_code
from gnnlab.child import Worker
from gnnlab.errors import GnnlabError, Unavailable, meant

if TYPE_CHECKING:
    from gnnlab.stages.export import Model
    from gnnlab.workloads.staged import StagedLayer

Values = Mapping[str, np.ndarray]
Bound = tuple[Callable[[], Any], Callable[[Any], dict[str, np.ndarray]]]
# the largest error, relative to the largest magnitude, by the precision that a device computes in
TOLERANCES = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 2e-2}
PROBE_S = 30.0  # a driver that has not answered by then hangs


@dataclass(frozen=True)
class Availability:
    """Can a device be used here? If not: why, and what to install."""

    usable: bool
    why: str | None = None
    remedy: str | None = None
    chip: str = ""
    version: str = ""

    @property
    def reason(self) -> str:
        """Why it cannot be used here, and what would help, in one line."""
        return "; what helps: ".join(filter(None, (self.why, self.remedy)))


@dataclass
class Loaded:
    """A block of stages on a device. `run`: arrays by name in, arrays by name out, which are valid until its next call.

    `notes`: what to know beside its times. `close`: puts back what `load` set. `bind`: see `bound`.
    """

    run: Callable[[Values], dict[str, np.ndarray]]
    chip: str
    version: str
    notes: list[str] = field(default_factory=list)
    close: Callable[[], None] = lambda: None
    bind: Callable[[Values], Bound] | None = None

    def bound(self, values: Values) -> Bound:
        """(call, outputs): `call()` is what is timed, and `outputs(call())` are the results as arrays by name.

        Inputs in the memory of this machine are bound here, once. Where a device has memory of its own (GPU, NPU), the
        copies to it and back belong to the call. So does padding. The next `bound` or `run` ends this one.
        """
        return (partial(self.run, values), lambda results: results) if self.bind is None else self.bind(values)


def run_by(bind: Callable[[Values], Bound]) -> Callable[[Values], dict[str, np.ndarray]]:
    """The `run` of a `Loaded` that has a `bind`: it binds, calls, and fetches."""

    def run(values: Values) -> dict[str, np.ndarray]:
        call, outputs = bind(values)
        return outputs(call())

    return run


def once_per_graph(make: Callable[[Values], Any], notes: list[str]) -> Callable[[Values], Any]:
    """`make`, which sorts edges, called once for each `edge_index` that comes; `notes` then says how long it took."""
    graph, made = None, None

    def known(values: Values) -> Any:
        nonlocal graph, made
        if graph is not values["edge_index"]:
            start = time.perf_counter()
            graph, made = values["edge_index"], make(values)
            notes[:] = [f"the graph was sorted once, {(time.perf_counter() - start) * 1e3:.3g} ms, not timed"]
        return made

    return known


@dataclass(frozen=True)
class Device(ABC):
    """A device by name. `exporter` and `layout` say which exported model it runs; without them it runs the block.

    `static_shapes`: each size needs a model of its own. `precisions`: those that it can be told to compute in. Where
    float32 is none of them, it computes in the first when asked for float32, as NPUs do.
    """

    name: str
    processor: str  # CPU|GPU|NPU
    runtime: str
    exporter: str | None = None
    layout: str | None = None
    static_shapes: bool = False
    precisions: tuple[str, ...] = ("float32",)

    @abstractmethod
    def probe(self) -> Availability:
        """Try the device in this process. A driver may crash in here: `devices.probe` asks a worker instead."""

    @abstractmethod
    def load(
        self, layer: StagedLayer, first: int, last: int, model: Model | None, *, nodes: int, edges: int, threads: int,
        precision: str,
    ) -> Loaded:  # fmt: skip
        """The stages `first`..`last` of a layer, ready for a graph of `nodes` and `edges`.

        Raises `Unavailable`: the device lacks this block, precision or model.
        """

    def computes_in(self, precision: str) -> str:
        """The precision that is set when `precision` is asked for. Raises `Unavailable` where there is none."""
        if precision in self.precisions:
            return precision
        if precision == "float32":
            return self.precisions[0]
        raise Unavailable(f"{self.name} computes in {' or '.join(self.precisions)}, not in {precision}")


@cache
def all_devices() -> Mapping[str, Device]:
    """Every device of the lab by name, usable here or not."""
    from gnnlab.stages import runtimes, torch_devices

    known = (*runtimes.OPENVINO_DEVICES, runtimes.ONNX_RUNTIME, *torch_devices.TORCH_DEVICES)
    return MappingProxyType({device.name: device for device in known})


def find(name: str) -> Device:
    """A device by its name, or one of your own as `module:factory`. Raises `GnnlabError`: there is none."""
    if name in all_devices():
        return all_devices()[name]
    try:
        with user_code.importable():
            device = user_code.call(name, user_code.load(name))
        why = f"{name} gives a {type(device).__name__}"
    except GnnlabError as error:
        device, why = None, str(error)
    if not isinstance(device, Device):
        known = f"{meant(name, all_devices())}; one of {', '.join(all_devices())}"
        raise GnnlabError(f"device {name!r} is not known{known}, or module:factory for one of your own ({why})")
    return device


def probe(names: Iterable[str]) -> dict[str, Availability]:
    """Whether devices can be used here. Each is tried in a process of its own, which may hang or crash."""
    names = list(names)

    def alone(name: str) -> Availability:
        with Worker() as worker:
            return probe_in(worker, name)

    with ThreadPoolExecutor(max_workers=4) as pool:
        return dict(zip(names, pool.map(alone, names), strict=True))


def probe_in(worker: Worker, name: str) -> Availability:
    """Try a device in a worker, for `PROBE_S`."""
    answer = worker.call(f"{__name__}:probe_in_worker", {"name": name}, timeout_s=PROBE_S)
    if answer.status == "done":
        return Availability(**answer.value)
    return Availability(False, answer.reason, "repair or remove its driver" if answer.lost else None)


def probe_in_worker(name: str) -> dict[str, Any]:
    found = find(name).probe()
    if not isinstance(found, Availability):
        raise GnnlabError(f"{name}: probe() gives a {type(found).__name__}; it has to give an Availability")
    return asdict(found)
