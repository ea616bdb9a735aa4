"""Where the time inside a block goes: each operator that a unit ran in it, by the profiler of the unit's runtime.

found = look_inside(models=outputs / "exported_models", size=at[-1], blocks=["3", "1-7"], names=["openvino:CPU"])
found.calls()           # rows for the lab's table: a call with the profiler and without, interleaved
found.operators()       # rows: each operator; with what lies between them they add up to a call under the profiler
found.sentences()       # what takes most of each block on each unit, or why nothing tells

Each runtime looks at itself in its own way (`Unit.profile`); operators, nodes and kernels are called as it calls them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gnnlab.campaign import cells, table, wanted_cells
from gnnlab.campaign.cell_inputs import Cell, layer_of, load_profile, values_of
from gnnlab.campaign.cells import CellResult, Settings
from gnnlab.campaign.sizes import GraphSize
from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import LEAST_SAMPLES, Estimate
from gnnlab.profiling.sampling import quiet
from gnnlab.progress import progress
from gnnlab.units.registry import find
from gnnlab.units.unit import Loaded, Operator, Profile, Unit, Values, clocked
from gnnlab.worker import Worker

if TYPE_CHECKING:
    from gnnlab.workloads.staged import StagedLayer

BETWEEN = Operator("between operators")  # binding inputs, fetching results, Python, the way into the runtime
OFF, ON = "without a profiler", "under its profiler"
_BATCH_MS = 3.0  # shorter blocks are called several times a sample
_MOST_CALLS, _MOST_ROUNDS = 200, 100
_STALLED = 2.0  # medians; a round with a longer call is left out: what the machine held up is no operator's time
_LEFT_OUT = "rounds are left out: a call took over twice the median"
_MOST_STALLED = 0.5  # of the rounds; where more would go there is no middle, and all stay
_OVERLAP = 1.05  # of a call; operators that take more ran beside each other
_SHOWN = 1  # % of a block; what takes less is in no table for reading
_NAMED = 3  # operators in a sentence


@dataclass(frozen=True)
class CellProfile(CellResult):
    """A cell that was looked into: `samples_ms` are of calls without the profiler, `profiled_ms` of those with it, one
    of each in a round; `operators` are type, name, kernel, and ms of a call in each round."""

    profiled_ms: tuple[float, ...] = ()
    operators: tuple[tuple[str, str, str, tuple[float, ...]], ...] = ()

    @property
    def parts(self) -> dict[Operator, np.ndarray]:
        """ms in each round (R,) by operator, and between them: together `profiled_ms`."""
        found = {Operator(*told): np.asarray(ms) for *told, ms in self.operators}
        return {**found, BETWEEN: np.asarray(self.profiled_ms) - sum(found.values())}

    @property
    def shares(self) -> dict[str, Estimate]:
        """Share of the call by type of operator, the largest first, and between operators."""
        by_type: dict[str, Any] = {}
        for operator, ms in self.parts.items():
            by_type[operator.type] = by_type.get(operator.type, 0.0) + ms
        found = {kind: estimates.share(ms, self.profiled_ms) for kind, ms in by_type.items()}
        return dict(sorted(found.items(), key=lambda pair: -pair[1].value))

    @property
    def slower(self) -> Estimate:
        """How many times as long a call takes under the profiler."""
        return estimates.ratio(self.profiled_ms, self.samples_ms)


@dataclass(frozen=True)
class Inside:
    """What runs inside blocks, by cell. Its frames hold rows for `Lab.record`, whose form is the unit."""

    of: Mapping[Cell, CellProfile]

    def calls(self) -> pd.DataFrame:
        """A call without the profiler, which is the baseline, and under it: these are the forms here; keys size, stage
        and pu, the unit."""
        rows = []
        for fields, found in self._cells():
            fields = {**fields, "pu": fields["form"]}
            rows.append({**fields, "form": OFF})
            if found.profiled_ms:
                ratio = estimates.ratio(found.samples_ms, found.profiled_ms)
                against = {"baseline": OFF, "ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high}
                rows.append({**fields, "form": ON, "samples": found.profiled_ms, **against})
        return pd.DataFrame(rows)

    def operators(self) -> pd.DataFrame:
        """Each operator, and what lies between them; keys size, stage, operator (its type), name and kernel.

        In each round they add up to a call under the profiler, and so do their means.
        """
        rows = []
        for fields, found in self._cells():
            parts = found.parts if found.profiled_ms else {Operator(""): ()}
            for (kind, name, kernel), ms in parts.items():
                rows.append({**fields, "operator": kind, "name": name, "kernel": kernel, "samples": ms})
        return pd.DataFrame(rows)

    def largest(self) -> pd.DataFrame:
        """For reading: what takes a hundredth of its block or more, the largest first."""
        rows = []
        for fields, found in self._cells():
            means = {operator: float(np.mean(ms)) for operator, ms in found.parts.items()} if found.profiled_ms else {}
            for operator in sorted(means, key=lambda operator: -means[operator]):
                percent = 100 * means[operator] / float(np.mean(found.profiled_ms))
                if percent >= _SHOWN:
                    told = {"block": fields["stage"], "unit": fields["form"], "operator": operator.type}
                    told |= {"ms a call": means[operator], "% of the block": percent}
                    rows.append({**told, "kernel": operator.kernel})
        return pd.DataFrame(rows)

    def sentences(self) -> list[str]:
        """What takes most of each block on each unit, and what the profiler costs there; at the end why others have
        nothing to tell."""
        said, reasons = [], {}
        for fields, found in self._cells():
            if not found.profiled_ms:
                reasons[f"- not looked into on {fields['form']}: {found.reason}"] = None
                continue
            shares = found.shares
            between = shares.pop(BETWEEN.type)
            named = ", ".join(f"{kind} {_percent(shares[kind])}" for kind in list(shares)[:_NAMED])
            ratio = found.slower
            slower = f"{ratio.value:.3g} ({ratio.low:.3g} to {ratio.high:.3g}) times"
            call = f"{np.mean(found.samples_ms):.3g} ms a call, {slower} as long under the profiler"
            where = f"- {fields['stage']} on {fields['form']}"
            left_out = [note for note in found.notes if note.endswith(_LEFT_OUT)]
            said.append("; ".join([f"{where}: {named}", f"{_percent(between)} between operators", call, *left_out]))
        return [*said, *reasons]

    def finding(self) -> str:
        """Which operator takes most of the slowest stage that was looked into, on the slowest unit of each runtime.

        Where the intervals do not tell it from others, that is said.
        """
        alone = any(cell.first == cell.last for cell in self.of)
        timed = [(fields, found) for fields, found in self._cells(fused=not alone) if found.profiled_ms]
        if not timed:
            return "No runtime tells what runs inside its blocks"
        slowest: dict[str, tuple[dict[str, Any], CellProfile]] = {}
        for fields, found in sorted(timed, key=lambda pair: np.mean(pair[1].samples_ms)):
            slowest.pop(runtime := find(fields["form"]).runtime, None)
            slowest[runtime] = fields, found  # the last one is the slowest
        stages = dict.fromkeys(fields["stage"] for fields, _ in slowest.values())
        one = len(stages) == 1
        told = []
        for fields, found in reversed(slowest.values()):
            where = fields["form"] if one else f"{fields['form']}, {fields['stage']}"
            told.append(_largest(found, where))
        return f"Largest part of {next(iter(stages)) if one else 'the slowest stage'}: {', '.join(told)}"

    def _cells(self, fused: bool | None = None) -> Iterator[tuple[dict[str, Any], CellProfile]]:
        """The fields that all rows of a cell share, and what became of it; `fused` or not, both unless told."""
        for cell, found in self.of.items():
            if fused in (None, cell.first != cell.last):
                known = {cell.key: {"cell": asdict(cell), "outcome": found.to_json(), "host": ""}}
                (row,) = table.cell_rows(table.table(known), {}).to_dict("records")
                yield {**row, "statistic": "mean", "notes": "; ".join(found.notes)}, found


def _largest(found: CellProfile, where: str) -> str:
    """The type of operator with the largest share; where intervals do not tell it from others, what else it may be."""
    shares = {kind: share for kind, share in found.shares.items() if kind != BETWEEN.type}
    first, *others = (kind for kind, share in shares.items() if share.high >= next(iter(shares.values())).low)
    if not others:
        return f"{first} ({_whole(shares[first].value)} % of {where})"
    other = others[0] if len(others) == 1 else f"one of {len(others)} others"
    return f"{first} or {other} (of {where}, too noisy to tell)"


def _percent(share: Estimate) -> str:
    return f"{_whole(share.value)} % ({_whole(share.low)} to {_whole(share.high)})"


def _whole(share: float) -> str:
    """In percent: "64", "0.65"."""
    return f"{100 * share:.0f}" if share >= 0.0995 else f"{100 * share:.2g}"


# ---- looking --------------------------------------------------------------------------------------------------------


def look_inside(
    *,
    models: Path,
    size: GraphSize,
    blocks: Sequence[str],
    names: Sequence[str],
    layer: str = "sage",
    features: int = 500,
    precision: str = "float32",
    threads: int = 1,
    budget_s: float = 0.1,
    timeout_s: float = 60.0,
) -> Inside:
    """Look into every block on the units `names`, at one size, in a worker; `budget_s`: sampling time of one of them.

    Raises:
        GnnlabError: a block or a unit is not known.
    """
    spans = layer_of(layer, features).blocks(blocks)
    wanted = wanted_cells.cells(layer, features, [size], spans, names, precision=precision, threads=threads)
    settings, target = Settings(models=str(models), budget_s=budget_s), f"{__name__}:profile_here"
    found = {}
    with Worker() as worker, progress("blocks looked into", len(wanted)) as step:
        for cell in wanted:
            found[cell] = cells.ask(worker, cell, settings, timeout_s, target, CellProfile)
            step(cell.key)
    return Inside(found)


def profile_here(cell: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Look into a cell in this process; for a worker, from JSON to JSON."""
    return cells.measure(Cell(**cell), Settings.from_json(settings), _profiled).to_json()


def _profiled(
    unit: Unit, layer: StagedLayer, loaded: Loaded, cell: Cell, settings: Settings, precision: str
) -> CellResult:
    """Both calls are compared with torch's block before they are timed."""
    batch, values = load_profile(unit, cell, settings.models, precision), values_of(cell)
    errors = []
    for outputs in (loaded.run(values), batch(values, 1).outputs):
        error, why = cells.parity(cell, outputs, precision)
        if why is not None:
            return CellResult("wrong", why, parity_error=error, notes=tuple(loaded.notes))
        errors.append(error)
    off, on, operators, stalled = _rounds(loaded.run, batch, values, settings.budget_s)
    if not operators:
        return CellResult("unavailable", "its operators take less than the profiler of its runtime tells apart")
    over = sum(map(sum, operators.values())) / sum(on)
    if over > _OVERLAP:
        why = f"its operators take {over:.2f} times as long as the call: they ran beside each other and have no shares"
        return CellResult("unavailable", why)
    told = tuple((*operator, tuple(ms)) for operator, ms in operators.items())
    left_out = (f"{stalled} of {stalled + len(on)} {_LEFT_OUT}",)
    plain = cells.timed("measured", off, (*loaded.notes, *(left_out if stalled else ())))
    fields = {**vars(plain), "parity_error": max(errors), "profiled_ms": on, "operators": told}
    return CellProfile(**fields)


def _rounds(
    run: Callable[[Values], Any], batch: Profile, values: Values, budget_s: float
) -> tuple[tuple[float, ...], tuple[float, ...], dict[Operator, list[float]], int]:
    """ms of a call without the profiler and with it, one of each a round, in random order; of the latter by operator
    that has a time, 0 where it did not run in a round; and how many rounds were left out, because a call stalled."""
    once_ms, _ = clocked(run, values, 2)
    calls = max(1, min(_MOST_CALLS, math.ceil(_BATCH_MS / once_ms)))
    order, off, on = np.random.default_rng(0), [], []
    with quiet():
        deadline = time.perf_counter() + budget_s
        while len(on) < 2 * LEAST_SAMPLES or (time.perf_counter() < deadline and len(on) < _MOST_ROUNDS):
            for profiled in order.permutation([False, True]):
                if profiled:
                    on.append(batch(values, calls))
                else:
                    off.append(clocked(run, values, calls)[0])
    both = np.array([off, [one.ms for one in on]])  # (2, R)
    kept = np.all(both <= _STALLED * np.median(both, axis=1, keepdims=True), axis=0)
    if kept.mean() < 1 - _MOST_STALLED:
        kept[:] = True
    on = [one for one, stays in zip(on, kept, strict=True) if stays]
    names = dict.fromkeys(operator for one in on for operator in one.operators)
    by_name = {name: [one.operators.get(name, 0.0) for one in on] for name in names}
    operators = {name: ms for name, ms in by_name.items() if sum(ms) > 0}
    return tuple(both[0, kept].tolist()), tuple(one.ms for one in on), operators, int((~kept).sum())
