"""The ladder of study 1: its three optimizations, each alone and all together, on equal weights (seed 000).

    ladder = Ladder(symptoms.from_conditions(conditions))
    table = ladder.climb((1, 8, 16, 32, 64))      # ratio with interval for each rung and batch size
    costs = ladder.compile_costs(table)           # seconds, graph breaks, calls after which compiling has paid

One compiled forward serves all batch sizes: what is compiled is the embedding of the graph, one row, and the rows of
the batch are made from it outside by the rung's own operation (a microsecond). So each compiled rung compiles once
instead of once for batch 1 and once for the rest. Everything runs in inference mode, the guide's own setting being
the benefit of the doubt: compiled code has no graph to record there either.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Data

from gnnlab.profiling.timing import Comparison, race
from gnnlab.workloads.errors import one_line
from gnnlab.workloads.symptom_gat import SymptomGAT

BASELINE = "baseline"
BATCH_SIZES = (1, 8, 16, 32, 64)
SEED_MODE = "reduce-overhead"  # the guide's; on a CPU it generates the same code as "default"
MODES = ("default", "reduce-overhead")
Rung = Callable[[int], Tensor]  # batch size -> (batch, 256)


class LadderError(ValueError):
    """A ladder that cannot be built or climbed as asked."""


@dataclass
class CompileCost:
    """What compiling one rung took: seconds of its first call beyond a later one, graphs, and breaks between them.

    `cache_hits` graphs came compiled from the cache on disk. A rung that is `shared` follows another compiled rung,
    whose graphs it takes where they fit: only the first one's cost is that of compiling the model.
    """

    seconds: float
    graphs: int
    graph_breaks: int
    cache_hits: int
    shared: bool
    reasons: tuple[str, ...] = ()


@dataclass
class Ladder:
    """The rungs of one graph on the weights of one baseline; `modes` are those of the compiled rungs.

    `modes=()` leaves compilation out. `fresh` compiles into an empty cache, so that the time is what a first run takes;
    without it, graphs that an earlier run compiled are taken from the disk. A rung that does not compile is not part
    of the table; why stands in `failed`.
    """

    graph: Data
    modes: Sequence[str] = (SEED_MODE,)
    seed: int = 0
    fresh: bool = False
    device: str = "cpu"
    costs: dict[str, CompileCost] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for mode in self.modes:
            if mode not in MODES:
                raise LadderError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        self._baseline = self._new()
        self._rungs: dict[str, Rung] | None = None

    def rungs(self) -> dict[str, Rung]:
        """Name -> callable of the batch size, the baseline first; compiles at the first call."""
        if self._rungs is None:
            self._rungs = {
                BASELINE: _eager(self._baseline),
                "cached ids": _eager(self._model(cached_ids=True)),
                "expand": _eager(self._model(expand=True)),
            }
            for mode in self.modes:
                suffix = "" if len(self.modes) == 1 else f" ({mode})"
                # the seed's whole ladder first: the one whose cost counts shares nothing with others
                self._compile(f"all together{suffix}", self._model(cached_ids=True, expand=True), mode)
                self._compile(f"compile{suffix}", self._model(), mode)
        return self._rungs

    def climb(
        self, batch_sizes: Sequence[int] = BATCH_SIZES, budget_s: float = 2.0, *, control: bool = True, **options: Any
    ) -> pd.DataFrame:
        """Every rung against the baseline at each batch size; `budget_s` seconds a batch size, for all rungs.

        Columns: rung, batch, ratio, ci_low, ci_high (latency, above 1 is faster), n (rounds), parity_error,
        throughput_ratio (of calls finished in the same time, from the mean), latency_ms, baseline_ms, notes, and
        rounds (n, 2): ms of the baseline and of the rung in each round. The rung "A/A" is the baseline against itself.
        `options` go to `timing.race`.
        """
        if not batch_sizes or any(type(b) is not int or b < 1 for b in batch_sizes):
            raise LadderError(f"batch_sizes must be integers of 1 or more, got {list(batch_sizes)}")
        rungs = self.rungs()
        rows = []
        for batch in batch_sizes:
            forms = {name: _at(rung, batch) for name, rung in rungs.items()}
            baseline = forms.pop(BASELINE)
            results = race(baseline, forms, control=control, budget_s=budget_s, device=self.device, **options)
            rows += [_row(name, batch, comparison) for name, comparison in results.items()]
        return pd.DataFrame(rows)

    def compile_costs(self, climbed: pd.DataFrame | None = None) -> pd.DataFrame:
        """Columns as in `CompileCost`; with a table of `climb` also saved_ms and paid_after.

        `saved_ms` is the median saving a call over the batch sizes; `paid_after` the number of calls after which the
        compile time is earned back, NaN where no saving is seen: where the interval of some batch size holds 1.
        """
        self.rungs()
        rows = []
        for name, cost in self.costs.items():
            row = {"rung": name, **asdict(cost), "reasons": "; ".join(cost.reasons)}
            if climbed is not None:
                part = climbed[climbed["rung"] == name]
                row["saved_ms"] = float((part["baseline_ms"] - part["latency_ms"]).median())
                seen = bool((part["ci_low"] > 1).all())
                row["paid_after"] = paid_after(cost.seconds, row["saved_ms"]) if seen else math.nan
            rows.append(row)
        return pd.DataFrame(rows)

    def _model(self, **options: bool) -> SymptomGAT:
        model = self._new(**options)
        model.load_state_dict(self._baseline.state_dict())
        return model

    def _new(self, **options: bool) -> SymptomGAT:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return SymptomGAT.from_graph(self.graph, **options).eval().to(self.device)

    def _compile(self, name: str, model: SymptomGAT, mode: str) -> None:
        from torch._inductor.utils import fresh_cache

        try:
            with fresh_cache() if self.fresh else nullcontext():
                rung, cost = _compiled(model, mode, shared=bool(self.costs))
        except Exception as error:  # whatever the compiler could not do: the table goes without, and says so
            self.failed[name] = one_line(error)
            return
        self._rungs[name], self.costs[name] = rung, cost


def rungs(graph: Data, modes: Sequence[str] = (SEED_MODE,)) -> dict[str, Rung]:
    """`Ladder(graph, modes).rungs()`: name -> callable of the batch size, all on the same weights."""
    return Ladder(graph, modes).rungs()


def paid_after(compile_s: float, saved_ms: float) -> float:
    """Calls after which `compile_s` seconds are earned back at `saved_ms` a call; NaN where nothing is saved."""
    return compile_s * 1e3 / saved_ms if saved_ms > 0 else float("nan")


def _eager(model: SymptomGAT) -> Rung:
    def rung(batch_size: int) -> Tensor:
        with torch.inference_mode():
            return model(batch_size)

    return rung


def _compiled(model: SymptomGAT, mode: str, shared: bool) -> tuple[Rung, CompileCost]:
    from torch._dynamo.utils import counters

    row = torch.compile(model._forward_impl, mode=mode, dynamic=False, recompile_limit=64)
    expand = model.expand

    def rung(batch_size: int) -> Tensor:
        with torch.inference_mode():
            graph = row(1)  # (1, 256)
            if expand:
                return graph.expand(batch_size, -1).contiguous() if batch_size > 1 else graph
            return graph.repeat(batch_size, 1)

    before = _counts(counters)
    first = _seconds(rung)
    later = min(_seconds(rung) for _ in range(3))
    graphs, hits, reasons = (now - then for now, then in zip(_counts(counters), before, strict=True))
    lines = tuple(reason.strip().splitlines()[0] for reason in reasons)
    return rung, CompileCost(first - later, graphs.total(), reasons.total(), hits.total(), shared, lines)


def _counts(counters: Any) -> tuple[Counter, Counter, Counter]:
    """Graphs captured, graphs found in the cache, and breaks by reason, so far in this process."""
    stats, inductor = counters["stats"], counters["inductor"]
    graphs, hits = stats["unique_graphs"], inductor["fxgraph_cache_hit"]
    return Counter(graphs=graphs), Counter(hits=hits), Counter(counters["graph_break"])


def _seconds(rung: Rung) -> float:
    start = time.perf_counter()
    rung(1)
    return time.perf_counter() - start


def _at(rung: Rung, batch: int) -> Callable[[], Tensor]:
    return lambda: rung(batch)


def _row(name: str, batch: int, comparison: Comparison) -> dict[str, Any]:
    baseline, candidate = comparison.baseline, comparison.candidate
    return {
        "rung": name,
        "batch": batch,
        "ratio": comparison.ratio,
        "ci_low": comparison.ci[0],
        "ci_high": comparison.ci[1],
        "n": comparison.n,
        "parity_error": comparison.parity_error,
        "throughput_ratio": baseline.mean_ms / candidate.mean_ms,
        "latency_ms": candidate.median_ms,
        "baseline_ms": baseline.median_ms,
        "notes": "; ".join(comparison.notes),
        "rounds": np.column_stack([baseline.samples_ms, candidate.samples_ms]),
    }
