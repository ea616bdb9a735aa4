"""One measurement: a block of stages at a size on a device, checked against torch before and after it is timed.

    config = Config("sage", 500, nodes=1000, edges=5000, first=1, last=5, device="openvino:CPU")
    outcome = measure_one(config, Settings("outputs/quick/exported_models"))
    outcome["status"], outcome["ms"], outcome["reason"]      # measured, 0.31, None

What differs from torch's float32 block is `wrong` and keeps no time. Nothing is filled in from another device.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnlab.child import Worker
from gnnlab.errors import GnnlabError, ParityError, Unavailable
from gnnlab.stages.devices import TOLERANCES, Loaded, find
from gnnlab.stages.sizes import RANDOM, Size, graph_digest, inputs_of, layer_of

if TYPE_CHECKING:
    from torch import Tensor

    from gnnlab.workloads.staged import StageBlock

USUAL = (RANDOM, "sage-500", "float32", "1 threads")  # what a key does not name: graph, layer, precision, threads
CALLS_AFTER = 12  # compared after the timing where several threads compute: a data race shows in some calls only
NO_TIME = {"samples_ms": [], **dict.fromkeys(("ms", "ms_low", "ms_high", "std_ms", "parity_error")), "notes": []}
Record = dict[str, Any]  # a line of the journal


@dataclass(frozen=True)
class Config:
    """What is measured: the stages `first`..`last` of a layer, at a size, on a device, under these conditions."""

    layer: str
    features: int
    nodes: int
    edges: int
    first: int
    last: int
    device: str
    precision: str = "float32"
    threads: int = 1
    graph: str = RANDOM
    graph_digest: str = ""

    @property
    def size(self) -> Size:
        return Size(self.nodes, self.edges, self.graph)

    @property
    def stages(self) -> str:
        """ "3", or "1-5" for a block."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    @property
    def key(self) -> str:
        """S4's `1000,1000,openvino:CPU,1`, then what differs from the defaults."""
        more = (self.graph, f"{self.layer}-{self.features}", self.precision, f"{self.threads} threads")
        unusual = [text for text, usual in zip(more, USUAL, strict=True) if text != usual]
        return ",".join([str(self.nodes), str(self.edges), self.device, self.stages, *unusual])


@dataclass(frozen=True)
class Settings:
    """`models`: folder of exported models; `budget_s`: sampling time of a measurement; `timeout_s`: its limit."""

    models: str | None = None
    budget_s: float = 0.2
    timeout_s: float = 60.0


def measure_one(config: Config, settings: Settings) -> dict[str, Any]:
    """The outcome of one measurement in this process: measured, wrong or unavailable, with times in ms.

    Raises `GnnlabError` for an unknown device, layer or graph, and whatever else the device raises.
    """
    from gnnlab.measure.conditions import Conditions
    from gnnlab.stages.export import model_for

    device, layer, about = find(config.device), layer_of(config.layer, config.features), {}
    with Conditions(config.threads, "highest").applied(), ExitStack() as stack:
        try:
            about["precision"] = precision = device.computes_in(config.precision)
            how = {"nodes": config.nodes, "edges": config.edges, "threads": config.threads, "precision": precision}
            model = model_for(device, config, settings.models)
            loaded = device.load(layer, config.first, config.last, model, **how)
            stack.callback(loaded.close)
            about |= {"chip": loaded.chip, "runtime_version": loaded.version}
            return about | _measured(loaded, config, precision, settings.budget_s)
        except Unavailable as error:
            return without_time("unavailable", str(error), **about)
        except ParityError as error:
            return without_time("wrong", str(error), **about)


def without_time(status: str, reason: str | None, **more: Any) -> dict[str, Any]:
    """An outcome that has no time: wrong, failed, timeout or unavailable."""
    return {"status": status, "reason": reason, **NO_TIME, **more}


def _measured(loaded: Loaded, config: Config, precision: str, budget_s: float) -> dict[str, Any]:
    """Times of what is right before and after they are taken, in the same process, with the same threads."""
    from gnnlab.measure import timing

    block = layer_of(config.layer, config.features).block(config.first, config.last)
    values = _values(config.layer, config.features, config.size, config.graph_digest)
    given = {name: values[name].clone().numpy() for name in {*block.reads, "x", "edge_index"}}
    call, outputs = loaded.bound(given)
    first = {name: np.array(array) for name, array in outputs(call()).items()}
    error = _error(first, block, values, precision, "the first call")
    times = timing.measure(call, budget_s=budget_s)
    if written := [name for name in given if not np.array_equal(given[name], values[name].numpy(), equal_nan=True)]:
        raise ParityError(f"it writes into its input {', '.join(written)}")
    for number in range(1, 1 + (CALLS_AFTER if config.threads > 1 else 1)):
        results = outputs(call())
        if any(not np.array_equal(results[name], first[name]) for name in first):
            error = max(error, _error(results, block, values, precision, f"call {number} after the timing"))
    low, high = times.ci_ms
    known = {"samples_ms": list(times.samples_ms), "ms": times.median_ms, "ms_low": low, "ms_high": high}
    known |= {"std_ms": float(np.std(times.samples_ms)), "parity_error": error}
    return {"status": "measured", "reason": None, **known, "notes": [*loaded.notes, *times.notes]}


def _error(got: Mapping[str, Any], block: StageBlock, values: Mapping[str, Tensor], precision: str, call: str) -> float:
    """The relative error of results against torch's float32 block; where that is more than the precision allows,
    against float64, in which torch's own rounding counts. Raises `ParityError` where it still is."""
    from gnnswap import parity

    expected, allowed = {name: values[name] for name in block.writes}, TOLERANCES[precision]
    error = parity.error(got, expected)
    if not error <= allowed and not error.why:
        reads = (values[name] for name in block.reads)
        exact = copy.deepcopy(block).double()(*(v.double() if v.is_floating_point() else v for v in reads))
        error = parity.error(got, expected, dict(zip(block.writes, exact, strict=True)), rtol=allowed)
    if not error <= allowed:
        off = f"off from torch's float32 block by {error:.2e} relative, allowed is {allowed:.0e} in {precision}"
        raise ParityError(f"{call}: " + (f"{error.of}: {error.why}" if error.why else off))
    return float(error)


@lru_cache(maxsize=2)
def _values(layer: str, features: int, size: Size, digest: str) -> dict[str, Tensor]:
    """Every value of the layer on a graph, by torch's float32 stages; not to be written to."""
    import torch

    if digest != graph_digest(size, features):
        raise GnnlabError(f"graph {size.graph} changed after it was asked for; measure again")
    with torch.inference_mode(False), torch.no_grad():
        return layer_of(layer, features).trace(**inputs_of(size, features))


def measure_in_child(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """`measure_one` from JSON to JSON."""
    return measure_one(Config(**config), Settings(**settings))


def ask(worker: Worker, config: Config, settings: Settings) -> Record:
    """What became of a measurement in a child process. The device may hang there (timeout), raise or crash (failed)."""
    from gnnlab.measure.timing import stopwatch

    asked = {"config": asdict(config), "settings": asdict(settings)}
    with stopwatch() as took:
        answer = worker.call(f"{__name__}:measure_in_child", asked, timeout_s=settings.timeout_s)
    status = "timeout" if answer.status == "timeout" else "failed"
    lost = without_time(status, answer.reason, detail=answer.detail)
    return record(config, answer.value if answer.status == "done" else lost, took.s)


def record(config: Config, outcome: Mapping[str, Any], took_s: float = 0.0) -> Record:
    """A line of the journal, but for the conditions under which it is known."""
    block = layer_of(config.layer, config.features).block(config.first, config.last)
    about = {"key": config.key, "stage": f"{config.stages} {block.name}", "processor": find(config.device).processor}
    about |= {"chip": "", "runtime_version": "", "took_s": round(took_s, 4)}
    return {**asdict(config), **about, **outcome}
