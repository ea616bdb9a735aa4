"""Every block of stages, at every size, on every device, kept in a journal.

    sweep = measure(outputs / "stages", models=outputs / "exported_models", sizes=sizes.read(["study"]))
    sweep.frame               # `journal.read`, of what was asked for
    sweep.available           # of each device: usable here, or why not

Phase 1 is CPU and GPU, phase 2 the NPU. Each device has a process of its own: what crashes or hangs there costs one
measurement. What is known is not measured again, unless the settings, the versions, the device or the graph changed.
"""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from gnnlab import __version__, machine, user_code
from gnnlab.child import Worker
from gnnlab.errors import GnnlabError
from gnnlab.files import digest, locked
from gnnlab.stages import journal
from gnnlab.stages.devices import Availability, all_devices, find, probe_in
from gnnlab.stages.measurement import Config, Record, Settings, ask, measure_one, record, without_time
from gnnlab.stages.sizes import Size, graph_digest, layer_of

__all__ = ["Config", "LocalDevices", "Settings", "Sweep", "devices_at_work", "measure", "measure_one", "run"]

PHASES = {"cpugpu": "phase 1, CPU and GPU", "npu": "phase 2, NPU"}
REFERENCE_S = 0.1  # of sampling: with 9 runs the reference workload itself scattered by 20 % on a shared machine


class Sweep(NamedTuple):
    """`frame`: `journal.read`, of what was asked for; `known`: how many were not measured again; `reference`: phase,
    form (before, after) and samples (ms) of the reference workload; `messages`: what a reader should know."""

    frame: pd.DataFrame
    available: Mapping[str, Availability]
    known: int
    reference: pd.DataFrame
    messages: list[str]


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
