"""Which form of the pair terms is fastest here, for a number of fields, a batch, a width and a device: measured.

    choices = Choices(FORMS)
    choices.name(4, 4096, 256, "cpu")        # measured at the first question about this size, known from then on

A size is measured in two races: of all forms that are not far behind, then of those that may be the best against the
leader, until it is clear that none beats it by more than 5 % or the budget is spent. A batch near one that was
measured (the nearest power of two) is not measured again, so the ragged last batch of an epoch costs nothing.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnnlab.kernels.errors import OptimizeError
from gnnlab.profiling.parity import ParityError, require_equal
from gnnlab.profiling.sampling import synchronizer
from gnnlab.profiling.timing import Comparison, measure, race
from gnnlab.safe_files import write_json

Form = Callable[[Any], Tensor]
BEHIND = 0.05  # how far behind the best the chosen form may be
FAR_BEHIND = 4  # times the quickest: a form that slow is not raced
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
FORMAT = 1


@dataclass(frozen=True)
class Size:
    """What a choice depends on. `batch` is a power of two; `training` is with the backward pass."""

    fields: int
    batch: int
    dim: int
    device: str = "cpu"
    dtype: str = "float32"
    training: bool = True
    threads: int = 1


@dataclass
class Choices:
    """Forms by size, kept in `table` (size -> form -> ms), and in the JSON file `path` where one is given.

    `budget_s` is for each of the two races of a size. `clock` is for tests.
    """

    forms: Mapping[str, Form]
    path: Path | None = None
    budget_s: float = 0.3
    clock: Callable[[], float] = time.perf_counter
    table: dict[Size, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and Path(self.path).exists():
            self.table |= _read(Path(self.path), self.forms)

    def name(
        self, fields: int, batch: int, dim: int, device: Any = "cpu", *, dtype: Any = torch.float32, training=True
    ) -> str:
        """The fastest form; measured now if this size is new.

        Raises:
            OptimizeError: a number that is none, or no form runs here.
        """
        for what, value, least in (("fields", fields, 2), ("batch", batch, 0), ("dim", dim, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptimizeError(f"{what} must be a whole number of at least {least}, not {value!r}")
        power = 1 << max(0, round(math.log2(max(batch, 1))))
        kind = str(torch.device(device)), str(dtype).removeprefix("torch."), bool(training), torch.get_num_threads()
        size = Size(fields, power, dim, *kind)
        if size not in self.table:
            self.table[size] = times(self.forms, size, budget_s=self.budget_s, clock=self.clock)
            if self.path is not None:
                _write(Path(self.path), self.forms, self.table)
        return min(self.table[size], key=self.table[size].__getitem__)


def times(
    forms: Mapping[str, Form], size: Size, *, budget_s: float = 0.3, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """ms of each form that runs here, agrees with the first one and is not far behind, at this size.

    Raises `OptimizeError` where none of them runs.
    """
    with torch.inference_mode(False):
        runs = {name: form_run(form, size) for name, form in forms.items()}
        running = _agreeing(runs, TOLERANCES.get(getattr(torch, size.dtype), 1e-5))
        if not running:
            raise OptimizeError(f"no form of the pair terms runs at {size}; choose among forms that do")
        options = {"device": size.device, "budget_s": budget_s, "clock": clock}
        running = _quickest(running, synchronizer(size.device), clock)
        first, *others = running
        if not others:
            return {first: measure(running[first], **options).median_ms}
        options["parity"] = None
        found = race(running[first], {name: running[name] for name in others}, **options)
        known = {first: 1.0} | {name: 1 / comparison.ratio for name, comparison in found.items()}  # over the first
        known |= _closer(running, known, _open(found, known), options)
    return {name: share * found[others[0]].baseline.median_ms for name, share in known.items()}


def _quickest(
    running: Mapping[str, Callable[[], Any]], wait: Callable[[], None], clock: Callable[[], float]
) -> dict[str, Callable[[], Any]]:
    """Those that are not far behind at once: a race would spend most of its time on the others."""
    best = {}
    for name, run in running.items():
        calls = []
        for _ in range(3):
            begun = clock()
            run()
            wait()
            calls.append(clock() - begun)
        best[name] = min(calls)
    bound = FAR_BEHIND * min(best.values())
    return {name: run for name, run in running.items() if best[name] <= bound}


def _open(found: Mapping[str, Comparison], known: Mapping[str, float]) -> list[str]:
    """The leader, then those whose interval does not rule out that they are faster than it."""
    leader = min(known, key=known.__getitem__)
    bound = {name: 1 / comparison.ci[1] for name, comparison in found.items()}  # the least time that may be
    slowest = 1 / found[leader].ci[0] if leader in found else 1.0  # the most that the leader may take
    return [leader, *(name for name in known if name != leader and bound.get(name, 1.0) <= slowest)]


def _closer(
    running: Mapping[str, Callable[[], Any]], known: Mapping[str, float], names: list[str], options: dict[str, Any]
) -> dict[str, float]:
    """Times of those still open, over the first form, from a race among them; twice as long if it does not settle."""
    leader, *others = names
    if not others:
        return {}
    for budget_s in (options["budget_s"], 2 * options["budget_s"]):
        found = race(running[leader], {n: running[n] for n in others}, **options | {"budget_s": budget_s})
        if all(comparison.ci[1] <= 1 + BEHIND or comparison.ci[0] > 1 for comparison in found.values()):
            break
    return {name: known[leader] / comparison.ratio for name, comparison in found.items()}


def form_run(form: Form, size: Size, *, as_list: bool = False, columns: int | None = None) -> Callable[[], Any]:
    """A call of the form on random embeddings (B, M, D) or M of (B, D), with the gradient of each if `training`.

    The form gives (B, `columns`), a column for each pair unless told.
    """
    columns = columns or size.fields * (size.fields - 1) // 2
    like = {"dtype": getattr(torch, size.dtype), "device": size.device}
    generator = torch.Generator().manual_seed(0)
    stack = torch.randn(size.batch, size.fields, size.dim, generator=generator).to(**like)
    parts = [part.clone() for part in stack.unbind(1)] if as_list else [stack]
    for part in parts:
        part.requires_grad_(size.training)
    given = parts if as_list else stack
    grad = torch.randn(size.batch, columns, generator=generator).to(**like)
    return partial(_forward_backward, form, given, parts, grad) if size.training else partial(form, given)


def _forward_backward(form: Form, given: Any, parts: list[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    with torch.inference_mode(False):  # gradients are on then, whatever was before
        out = form(given)
        return out, *torch.autograd.grad(out, parts, grad)


def _agreeing(runs: Mapping[str, Callable[[], Any]], tolerance: float) -> dict[str, Callable[[], Any]]:
    """Those that run here and give what the first of them gives."""
    expected, agreeing = None, {}
    for name, run in runs.items():
        try:
            got = run()
            expected = got if expected is None else expected
            require_equal(expected, got, tolerance, name)
        except (RuntimeError, NotImplementedError, ParityError):  # no compiler or no kernel here, or other results
            continue
        agreeing[name] = run
    return agreeing


def fingerprint(forms: Mapping[str, Form]) -> dict[str, Any]:
    """What measured times hold for; a file with another fingerprint is measured anew."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "format": FORMAT,
        "torch": torch.__version__,
        "processor": f"{platform.machine()} {platform.processor()} {torch.backends.cpu.get_cpu_capability()}",
        "cuda": device,
        "forms": list(forms),
    }


def _write(path: Path, forms: Mapping[str, Form], table: Mapping[Size, dict[str, float]]) -> None:
    rows = [asdict(size) | {"ms": ms} for size, ms in table.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"fingerprint": fingerprint(forms), "sizes": rows})


def _read(path: Path, forms: Mapping[str, Form]) -> dict[Size, dict[str, float]]:
    """The table in a file, empty if it holds for another machine or version. `OptimizeError` for a damaged file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["fingerprint"] != fingerprint(forms):
            return {}
        found = {}
        for row in content["sizes"]:
            ms = {str(name): float(value) for name, value in row.pop("ms").items()}
            if not ms or not ms.keys() <= forms.keys() or not all(0 < v < math.inf for v in ms.values()):
                raise ValueError("times that are none")
            found[Size(**row)] = ms
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptimizeError(
            f"{path} is no table of measured forms ({type(error).__name__}); move it away and they are measured again"
        ) from error
