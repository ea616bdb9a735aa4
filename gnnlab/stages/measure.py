"""Every block of stages, at every size, on every device, kept in a journal.

    sweep = measure(outputs / "stages", models=outputs / "exported_models", sizes=sizes.read(["study"]))
    sweep.frame               # `journal.read`, of what was asked for
    sweep.available           # of each device: usable here, or why not

Phase 1 is CPU and GPU, phase 2 the NPU. Each device has a process of its own: what crashes or hangs there costs one
measurement. What is known is not measured again, unless the settings, the versions, the device or the graph changed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from gnnlab import __version__, machine, user_code
from gnnlab.child import Worker
from gnnlab.files import digest, locked
from gnnlab.stages import journal
from gnnlab.stages.devices import Availability, all_devices, find, probe_in
from gnnlab.stages.measurement import Config, Record, Settings, ask, measure_one, record, without_time
from gnnlab.stages.sizes import Size, graph_digest, layer_of

__all__ = ["Config", "LocalDevices", "Settings", "Sweep", "devices_at_work", "measure", "measure_one", "run"]

PHASES = {"phase 1, CPU and GPU": False, "phase 2, NPU": True}  # the NPU's?
REFERENCE_S = 0.1  # of sampling: with 9 runs the reference workload itself scattered by 20 % on a shared machine


class Sweep(NamedTuple):
    """`frame`: `journal.read`, of what was asked for; `known`: how many were not measured again; `reference`: phase,
    variant (before, after) and samples (ms) of the reference workload; `messages`: what a reader should know."""

    frame: pd.DataFrame
    available: Mapping[str, Availability]
    known: int
    reference: pd.DataFrame
    messages: list[str]


class LocalDevices(AbstractContextManager):
    """Measures on this machine, one at a time, each device in a process of its own; `available` from the beginning."""

    def __init__(self, names: Sequence[str], settings: Settings) -> None:
        self.settings, self._workers = settings, {name: Worker() for name in names}
        with ThreadPoolExecutor() as pool:  # at once: nothing is timed yet
            probed = pool.map(probe_in, self._workers.values(), self._workers)
            self.available = dict(zip(self._workers, probed, strict=True))

    def call(self, function: Callable[..., Any]) -> Any:
        """What a function gives on the machine that measures."""
        return function()

    def __call__(self, configs: Sequence[Config]) -> Iterator[Record]:
        """The records of configurations of usable devices."""
        return (ask(self._workers[config.device], config, self.settings) for config in configs)

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers.values():
            worker.close()


def devices_at_work(
    names: Sequence[str], settings: Settings, cluster: str | None = None
) -> AbstractContextManager[Any]:
    """The devices of this machine, or of the workers of the Dask scheduler at the address `cluster`."""
    if cluster is None:
        return LocalDevices(names, settings)
    from gnnlab.stages.cluster import cluster_devices

    return cluster_devices(cluster, names, settings)


def run(folder: Path, configs: Sequence[Config], working: Any, *, seed: int = 0, force: bool = False) -> Sweep:
    """Measure what the journal in `folder` does not know (with `force` all), in random order, phase after phase.

    `working`: what `devices_at_work` gives. Raises `GnnlabError`: the disk refuses, another process measures into the
    folder, or there is nothing in it and nothing to measure.
    """
    configs, random = list(dict.fromkeys(configs)), np.random.default_rng(seed)
    conditions = {name: _conditions(name, working) for name in {config.device for config in configs}}
    messages, reference = [], []
    with locked(folder, "measures into"):
        there = set() if force else journal.known(folder)
        todo = [c for c in configs if journal.identity(c.key, c.graph_digest, conditions[c.device]) not in there]
        for phase, npu in PHASES.items():
            of_phase = [config for config in todo if (find(config.device).processor == "NPU") == npu]
            messages.append(f"{phase}: {len(of_phase)} to measure")
            if of_phase:
                random.shuffle(of_phase)
                reference.append((phase, "before", working.call(reference_workload)))
                usable = [config for config in of_phase if working.available[config.device].usable]
                measured = chain(working(usable), (_absent(c, working) for c in of_phase if c not in usable))
                for each in tqdm(measured, "measurements", len(of_phase), leave=False, disable=None):
                    journal.append(folder, {**each, "conditions": conditions[each["device"]]})
                reference.append((phase, "after", working.call(reference_workload)))
            if of_phase or npu:
                lacking = journal.write_files(folder)
    frame, known = journal.read(folder), len(configs) - len(todo)
    frame = frame[frame["key"].isin({config.key for config in configs})].reset_index(drop=True)
    took = f"they took {frame['took_s'].sum():,.0f} s"
    messages += [*lacking, f"{len(configs)} measurements, {known} known before; {took}"]
    samples = pd.DataFrame(reference, columns=["phase", "variant", "samples"])
    return Sweep(frame, working.available, known, samples, messages)


def _absent(config: Config, working: Any) -> Record:
    return record(config, without_time("unavailable", working.available[config.device].reason))


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

    given = np.linspace(0, 1, 100_000), np.ones(2**21)  # 0.8 MB; 16 MiB
    exp, copied = map(np.empty_like, given)
    timed = timing.measure(lambda: (np.exp(given[0], exp), np.copyto(copied, given[1])), budget_s=REFERENCE_S)
    return list(timed.samples_ms)


def measure(
    folder: Path,
    *,
    models: Path,
    sizes: Sequence[Size],
    blocks: Sequence[str] = ("stages",),
    devices: Sequence[str] = (),
    features: int = 500,
    precision: str = "float32",
    threads: int = 1,
    budget_s: float = 0.2,
    timeout_s: float = 60.0,
    force: bool = False,
    cluster: str | None = None,
) -> Sweep:
    """Measure every block at every size on every device (none named: all), as far as it is not known.

    Raises `GnnlabError`: something asked for is not there; or as `run`.
    """
    spans = layer_of("sage", features).blocks(blocks)
    names = [name for name in devices if find(name)] or list(all_devices())
    digests = {size: graph_digest(size, features) for size in sizes}
    configs = [
        Config("sage", features, size.nodes, size.edges, *span, name, precision, threads, size.graph, digests[size])
        for size in sizes
        for span in spans
        for name in names
    ]
    with devices_at_work(names, Settings(str(models), budget_s, timeout_s), cluster) as working:
        return run(folder, configs, working, force=force)
