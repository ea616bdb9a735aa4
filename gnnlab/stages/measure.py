"""Every block of stages, at every size, on every device: checked against torch, timed, and kept in a journal.

    sweep = measure(outputs / "stages", models=outputs / "exported_models", sizes=sizes.read(["study"]))
    sweep.frame               # `journal.read`, of what was asked for
    sweep.available           # of each device: usable here, or why not

Phase 1 is CPU and GPU, phase 2 the NPU. Each device has a process of its own: what crashes or hangs there costs one
measurement. What is known is not measured again, unless the settings, the versions, the device or the graph changed.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from gnnlab import __version__, machine, user_code
from gnnlab.child import DETAIL, Worker
from gnnlab.errors import GnnlabError, ParityError, Unavailable
from gnnlab.files import digest, locked
from gnnlab.stages import journal
from gnnlab.stages.devices import TOLERANCES, Availability, Device, Loaded, all_devices, find, probe_in
from gnnlab.stages.sizes import RANDOM, Size, graph_digest, inputs_of, layer_of
from gnnswap.errors import one_line

if TYPE_CHECKING:
    from torch import Tensor

    from gnnlab.stages.export import Model
    from gnnlab.workloads.staged import StageBlock

PHASES = {"cpugpu": "phase 1, CPU and GPU", "npu": "phase 2, NPU"}
DEFAULTS = {"layer": "sage", "features": 500, "precision": "float32", "threads": 1}  # what a key does not name
CALLS_AFTER = 12  # compared after the timing where several threads compute: a data race shows in some calls only
NO_TIME = {"samples_ms": [], **dict.fromkeys(("ms", "ms_low", "ms_high", "std_ms", "parity_error"))}
Record = dict[str, Any]  # a line of the journal
REFERENCE_S = 0.1  # of sampling: with 9 runs the reference workload itself scattered by 20 % on a shared machine


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
    def key(self) -> str:
        """S4's `1000,1000,openvino:CPU,1` ("1-5" for a block), then what differs from the defaults."""
        stages = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        more = [self.graph] if self.graph != RANDOM else []
        if (self.layer, self.features) != (DEFAULTS["layer"], DEFAULTS["features"]):
            more.append(f"{self.layer}-{self.features}")
        more += [self.precision] if self.precision != DEFAULTS["precision"] else []
        more += [f"{self.threads} threads"] if self.threads != DEFAULTS["threads"] else []
        return ",".join([str(self.nodes), str(self.edges), self.device, stages, *more])


@dataclass(frozen=True)
class Settings:
    """`models`: folder of exported models; `budget_s`: sampling time of a measurement; `timeout_s`: its limit."""

    models: str | None = None
    budget_s: float = 0.2
    timeout_s: float = 60.0


class Sweep(NamedTuple):
    """`frame`: `journal.read`, of what was asked for; `known`: how many were not measured again; `reference`: phase,
    form (before, after) and samples (ms) of the reference workload; `messages`: what a reader should know."""

    frame: pd.DataFrame
    available: Mapping[str, Availability]
    known: int
    reference: pd.DataFrame
    messages: list[str]


# ---- one measurement ------------------------------------------------------------------------------------------------


def measure_one(config: Config, settings: Settings) -> dict[str, Any]:
    """The outcome of one measurement in this process: status, reason, times in ms. What a device does is an outcome.

    Raises `GnnlabError` for an unknown device or layer.
    """
    from gnnlab.measure.conditions import Conditions

    device, layer = find(config.device), layer_of(config.layer, config.features)
    about = {"precision": config.precision, "chip": "", "runtime_version": ""}
    with Conditions(config.threads, "highest").applied(), ExitStack() as stack:
        try:
            about["precision"] = device.computes_in(config.precision)
            how = {"nodes": config.nodes, "edges": config.edges, "threads": config.threads}
            model = _model(device, config, settings.models)
            loaded = device.load(layer, config.first, config.last, model, **how, precision=about["precision"])
            stack.callback(loaded.close)
            about |= {"chip": loaded.chip, "runtime_version": loaded.version}
            outcome = _measured(loaded, config, about["precision"], settings.budget_s)
        except Unavailable as error:
            outcome = without_time("unavailable", str(error))
        except ParityError as error:
            outcome = without_time("wrong", str(error))
        except MemoryError:
            outcome = without_time("failed", "out of memory")
        except Exception as error:
            outcome = without_time("failed", one_line(error), detail=traceback.format_exc()[-DETAIL:])
    return outcome | about


def _model(device: Device, config: Config, models: str | None) -> Model | None:
    if device.exporter is None:
        return None
    from gnnlab.stages.export import model_for  # loads the runtimes of all exporters

    return model_for(device, config, models)


def without_time(status: str, reason: str | None, **more: Any) -> dict[str, Any]:
    """An outcome that has no time: wrong, failed, timeout or unavailable."""
    return {"status": status, "reason": reason, **NO_TIME, "notes": [], **more}


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
    low, high = times.ci_ms or (None, None)
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
    if error.why:
        raise ParityError(f"{call}: {error.of}: {error.why}")
    if not error <= allowed:
        off = f"differs from torch's float32 block by {error:.2e} relative"
        raise ParityError(f"{call} {off}, allowed is {allowed:.0e} in {precision}")
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


def ask(worker: Worker, config: Config, settings: Settings, host: str = "here") -> Record:
    """What became of a measurement in a child process, which may hang (timeout) or end (failed)."""
    from gnnlab.measure.timing import stopwatch

    asked = {"config": asdict(config), "settings": asdict(settings)}
    with stopwatch() as took:
        answer = worker.call(f"{__name__}:measure_in_child", asked, timeout_s=settings.timeout_s)
    status = "timeout" if answer.status == "timeout" else "failed"
    lost = without_time(status, answer.reason, detail=answer.detail)
    return record(config, answer.value if answer.status == "done" else lost, host, took.s)


def record(config: Config, outcome: Mapping[str, Any], host: str = "here", took_s: float = 0.0) -> Record:
    """A line of the journal, but for the conditions under which it is known."""
    block = layer_of(config.layer, config.features).block(config.first, config.last)
    stage = f"{config.first}" if config.first == config.last else f"{config.first}-{config.last}"
    what = {"key": config.key, "stage": f"{stage} {block.name}", "processor": find(config.device).processor}
    return {**what, "config": asdict(config), "outcome": dict(outcome), "host": host, "took_s": round(took_s, 4)}


# ---- many measurements ----------------------------------------------------------------------------------------------


class LocalDevices(AbstractContextManager):
    """Measures on this machine, one at a time, each device in a process of its own; `available` from the beginning."""

    def __init__(self, names: Sequence[str], settings: Settings) -> None:
        self.settings = settings
        with ExitStack() as stack:
            self._workers = {name: stack.enter_context(Worker()) for name in dict.fromkeys(names)}
            with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:  # at once: nothing is timed yet
                probed = pool.map(probe_in, self._workers.values(), self._workers)
                self.available = dict(zip(self._workers, probed, strict=True))
            self._stack = stack.pop_all()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function gives on the machine that measures."""
        return function(*arguments)

    def __call__(self, configs: Sequence[Config]) -> Iterator[Record]:
        for config in configs:
            if (available := self.available[config.device]).usable:
                yield ask(self._workers[config.device], config, self.settings)
            else:
                yield record(config, without_time("unavailable", available.reason))

    def __exit__(self, *exception: object) -> None:
        self._stack.__exit__(*exception)


def devices_at_work(
    names: Sequence[str], settings: Settings, cluster: str | None = None
) -> AbstractContextManager[Any]:
    """The devices of this machine, or of the workers of the Dask scheduler at the address `cluster`."""
    if cluster is None:
        return LocalDevices(names, settings)
    from gnnlab.stages.cluster import ClusterDevices

    return ClusterDevices(cluster, names, settings)


def run(folder: Path, configs: Sequence[Config], working: Any, *, seed: int = 0, force: bool = False) -> Sweep:
    """Measure what the journal in `folder` does not know (with `force` all), in random order, phase after phase.

    `working`: `LocalDevices` or the like. Raises `GnnlabError`: nothing is asked for, something twice, the disk
    refuses, or another process measures into the folder.
    """
    key, times = Counter(config.key for config in configs).most_common(1)[0] if configs else (None, 0)
    if times != 1:
        raise GnnlabError(f"{key} is asked for twice; name it once" if times else "no size, block or device to measure")
    conditions = {name: _conditions(name, working) for name in {config.device for config in configs}}
    random, messages, reference = np.random.default_rng(seed), [], []
    with locked(folder, "measures into"):
        there = set() if force else journal.known(folder)
        todo = [c for c in configs if journal.identity(asdict(c), conditions[c.device]) not in there]
        for phase, words in PHASES.items():
            of_phase = [c for c in todo if (find(c.device).processor == "NPU") == (phase == "npu")]
            messages.append(f"{words}: {len(of_phase)} to measure")
            if of_phase:
                before_ms, order = working.call(reference_workload), random.permutation(len(of_phase))
                asked = working([of_phase[place] for place in order])
                for each in tqdm(asked, "measurements", len(of_phase), leave=False, disable=None):
                    journal.append(folder, {**each, "conditions": conditions[each["config"]["device"]]})
                after_ms = working.call(reference_workload)
                reference += [(words, "before", before_ms), (words, "after", after_ms)]
            if of_phase or phase == "npu":
                lacking = journal.write_files(folder)
    frame = journal.read(folder)
    frame = frame[frame["key"].isin({config.key for config in configs})].reset_index(drop=True)
    known = len(configs) - len(todo)
    took = f"they took {frame['took_s'].sum():,.0f} s"
    messages += [*lacking, f"{len(configs)} measurements, {known} known before; {took}"]
    samples = pd.DataFrame(reference, columns=["phase", "form", "samples"])
    return Sweep(frame, working.available, known, samples, messages)


def _conditions(name: str, working: Any) -> dict[str, Any]:
    """What a time depends on besides its configuration. Where one of these changes, it is measured again."""
    of_device = working.available[name]
    about = {"chip": of_device.chip, "version": of_device.version, "code": _code_digest(name)}
    return {"budget_s": working.settings.budget_s, "versions": versions(), **about}


def versions() -> dict[str, str]:
    """Versions of gnnlab, of Python and of the packages that compute."""
    return {"gnnlab": __version__, **machine.versions()}


def _code_digest(name: str) -> str:
    """A digest of the module, or package, of a device of the user's own; "" of one of the lab's."""
    if name in all_devices():
        return ""
    module = name.partition(":")[0]
    with user_code.importable():
        file = Path(importlib.util.find_spec(module).origin)
    alone = "." not in module and file.name != "__init__.py"
    return digest(*([file] if alone else sorted(file.parent.rglob("*.py"))))


def reference_workload() -> list[float]:
    """ms of each run of a fixed exp and copy on one core: it tells of other load, of heat, of a changed clock."""
    from gnnlab.measure import timing

    numbers, source = np.linspace(0, 1, 100_000), np.ones(2**21)  # 0.8 MB; 16 MiB
    target, out = np.empty_like(source), np.empty_like(numbers)

    def work() -> None:
        np.exp(numbers, out=out)
        np.copyto(target, source)

    return list(timing.measure(work, budget_s=REFERENCE_S).samples_ms)


def measure(
    folder: Path,
    *,
    models: Path,
    sizes: Sequence[Size],
    blocks: Sequence[str] = ("stages",),
    devices: Sequence[str] = (),
    layer: str = "sage",
    features: int = 500,
    precision: str = "float32",
    threads: int = 1,
    budget_s: float = 0.2,
    timeout_s: float = 60.0,
    seed: int = 0,
    force: bool = False,
    cluster: str | None = None,
) -> Sweep:
    """Measure every block at every size on every device (none named: all), as far as it is not known.

    Raises `GnnlabError`: something asked for is not there; or as `run`.
    """
    spans = layer_of(layer, features).blocks(blocks)
    names = [name for name in dict.fromkeys(devices) if find(name)] or list(all_devices())
    digests = {size: graph_digest(size, features) for size in sizes}
    configs = [
        Config(layer, features, size.nodes, size.edges, *span, name, precision, threads, size.graph, digests[size])
        for size in sizes
        for span in spans
        for name in names
    ]
    with devices_at_work(names, Settings(str(models), budget_s, timeout_s), cluster) as working:
        return run(folder, configs, working, seed=seed, force=force)
