"""What a forward pass (or anything else) computes and moves, and how near it comes to this machine's measured ceilings.

    counted = count(model, batch)
    counted.flops, counted.bytes, counted.coverage_bytes      # 34_123_456, 12_345_678, 1.0
    counted.uncounted                                         # (): nothing, else `flops` is "at least"
    counted.operators                                         # a row for each operator, most bytes first
    limits = ceilings()                                # some 3 s
    bound_ms(count(model, batch), limits) / 1.2        # 0.31 of what the machine could do, if it takes 1.2 ms

The bound is for the operators as they are: each has to move its bytes and do its FLOPs before the next begins. A fused
variant moves less and may stay below it; that is what fusing is for. How each operator is counted stands in `costs`. A
compiled model is counted in its eager form: torch does not compile what is watched operator by operator.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from threading import Lock, get_native_id
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gnnlab.errors import GnnlabError, whole_numbers
from gnnlab.machine import cache_bytes
from gnnlab.measure.conditions import Conditions
from gnnlab.measure.restore import unchanged
from gnnlab.measure.tensors import cpu_or_cuda, device_name
from gnnswap.inputs import call
from gnnswap.passes import Work, watched

from .ceiling_kernels import WORKING_SETS, best_rates
from .costs import Cost, cost
from .unseen import unseen

_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
_SUMMED = ["flops", "matrix_flops", "bytes_read", "bytes_written", "bytes"]
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd
Rates = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Count:
    """What was counted. `records` has a row for each kind of call: operator, calls, and of one call kind ("unknown":
    its FLOPs are not known), flops, matrix_flops, bytes_read, bytes_written, bytes, working_set, dtype. `unseen` names
    what ran and is not in it: operators on other threads, numpy."""

    records: pd.DataFrame
    unseen: tuple[str, ...] = ()

    def _sum(self, column: str) -> int:
        return int((self.records[column] * self.records["calls"]).sum())

    @property
    def flops(self) -> int:
        return self._sum("flops")

    @property
    def matrix_flops(self) -> int:
        """FLOPs of matrix products, convolutions and attention alone: what torch's FlopCounterMode counts."""
        return self._sum("matrix_flops")

    @property
    def bytes(self) -> int:
        """Bytes read and written, the least that these operators can move one by one."""
        return self._sum("bytes")

    @property
    def coverage_bytes(self) -> float:
        """Share of the bytes that operators move whose FLOPs are known; 1.0 when nothing ran, NaN where something ran
        unseen, whose bytes nobody knows."""
        if self.unseen:
            return math.nan
        unknown = self.records[self.records["kind"] == "unknown"]
        return 1 - float((unknown["bytes"] * unknown["calls"]).sum()) / self.bytes if self.bytes else 1.0

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Operators whose FLOPs no rule knows, and what ran unseen: where there are any, `flops` is "at least"."""
        unknown = self.records[self.records["kind"] == "unknown"]
        return (*dict.fromkeys(unknown["operator"]), *self.unseen)

    @property
    def operators(self) -> pd.DataFrame:
        """Operators, the one that moves most bytes first: operator, calls, flops, matrix_flops, bytes_read,
        bytes_written and bytes of all calls, working_set of the largest, covered (are its FLOPs known?)."""
        rows = self.records.assign(covered=self.records["kind"] != "unknown")
        rows[_SUMMED] = rows[_SUMMED].mul(rows["calls"], axis=0)
        how = {"calls": "sum", **dict.fromkeys(_SUMMED, "sum"), "working_set": "max", "covered": "all"}
        table = rows.groupby("operator", as_index=False).agg(how)
        return table.sort_values(["bytes", "flops"], ascending=False, kind="stable", ignore_index=True)


def count(work: nn.Module | Callable[..., Any], batch: Any = ()) -> Count:
    """Count the operators of one call of `work` with `batch` (see `inputs.call`), and the passes of gnnswap.

    A module is called without gradients, in the mode that it is in, and once before: what it prepares in its first call
    is not counted. A function is called once, as it is. Attention that torch may fuse in eval mode is counted operator
    by operator: inside its fused kernel nothing could be counted.

    Raises:
        GnnlabError: torch's profiler is running.
    """
    counter, is_module = _Counter(), isinstance(work, nn.Module)
    with unchanged(work, trains=False), torch.no_grad() if is_module else nullcontext(), attention_fused(False):
        if is_module:
            with _Counter():  # as below: what is compiled stays eager
                call(work, batch)
        with unseen(counter.threads) as names, watched(counter.note), counter:
            call(work, batch)
    rows = [
        {"operator": operator, "calls": calls, **asdict(each), "bytes": each.bytes_read + each.bytes_written}
        for (operator, each), calls in counter.records.items()
    ]
    columns = ["operator", "calls", *(field.name for field in fields(Cost)), "bytes"]
    return Count(pd.DataFrame(rows, columns=columns), tuple(sorted(names)))


def fuses_attention(model: nn.Module) -> bool:
    """Has the model attention layers that torch may run in a fused kernel of their own in eval mode?"""
    return any(isinstance(module, _FUSED) for module in model.modules())


@contextmanager
def attention_fused(fused: bool) -> Iterator[None]:
    """Whether torch may fuse attention layers in eval mode, inside."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fused)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class _Counter(TorchDispatchMode):
    """Inside, the cost of each operator call, counted after it ran, and of each pass that is noted. `threads` are the
    native ids of those on which operators were counted.

    Composite operators arrive as the operators that they are made of, in inference mode too; so do those of gnnswap.
    """

    def __init__(self) -> None:
        super().__init__()
        self.records: Counter[tuple[str, Cost]] = Counter()
        self.threads: set[int] = set()
        self._lock = Lock()  # autograd's threads and those that run passes count here, too

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        self.threads.add(get_native_id())
        # The C++ kernel itself: `func.decompose` prefers Python ones, which run other operators than the model does.
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE)
        if composite or func.namespace == "gnnswap":
            with self:
                return func._op_dk(_COMPOSITE if composite else _EXPLICIT, *args, **kwargs)
        output = func(*args, **kwargs)
        self._add(func._schema.name, cost(func, args, kwargs, output))
        return output

    def note(self, name: str, work: Work) -> None:
        """Count a compiled pass of gnnswap."""
        moved = work.read + work.written
        self._add(f"gnnswap::{name}", Cost("fused", work.flops, 0, work.read, work.written, moved))

    def _add(self, operator: str, each: Cost) -> None:
        with self._lock:
            self.records[operator, each] += 1


@dataclass(frozen=True)
class Ceilings:
    """What a device can do at most: the best of several samples, as STREAM has it (McCalpin 1995).

    `copy_gb_s`: (bytes of the working set, GB/s) of a copy, smallest first; the working set is source and target
    together, and both the bytes read and the bytes written count. `read_gb_s`, `write_gb_s`, `in_place_gb_s` (each byte
    read and written): likewise; a copy's where there are none. `gemm_gflop_s`: a large square product of float32
    matrices; `peaks_gflop_s`: of other types, by their names. GB and GFLOP are 1e9.
    """

    copy_gb_s: Rates
    gemm_gflop_s: float
    precision: str
    threads: int
    device: str
    samples: int = 1  # of each figure, the least
    read_gb_s: Rates = ()
    write_gb_s: Rates = ()
    in_place_gb_s: Rates = ()
    peaks_gflop_s: Mapping[str, float] = field(default_factory=dict)

    def bandwidth_gb_s(self, working_set: Any) -> Any:
        """GB/s of copies at one or many working sets in bytes: between two measured ones on a logarithmic scale, beyond
        them the end's."""
        sizes, speeds = zip(*self.copy_gb_s, strict=True)
        return np.interp(np.log2(np.maximum(np.asarray(working_set, dtype=float), 1)), np.log2(sizes), speeds)

    def named_bandwidths(self) -> list[tuple[str, float]]:
        """For a figure: the fastest working set and the largest one, named by their sizes, with GB/s."""
        fastest, largest = max(self.copy_gb_s, key=lambda pair: pair[1]), self.copy_gb_s[-1]
        return [(f"copy within {size_text(size)}", rate) for size, rate in dict.fromkeys([fastest, largest])]

    def peak_gflop_s(self, dtype: str) -> float:
        """GFLOP/s that no product of this type exceeds. Numbers of 16 bits may be multiplied as float32; a type that
        was not measured, or "" for what is no product, may be as fast as the fastest."""
        peaks = {"float32": self.gemm_gflop_s, **self.peaks_gflop_s}
        own = peaks.get(dtype, max(peaks.values()))
        return own if dtype == "float64" else max(own, self.gemm_gflop_s)


def ceilings(device: Any = "cpu", threads: int | None = None, budget_s: float = 2.5) -> Ceilings:
    """Measure the ceilings of a device, products in full precision, in about `budget_s` seconds, half of one at least.

    `threads` (of torch, on a CPU) are as they are unless given. Each ceiling is the best of several kernels and of all
    their samples, not a median: on a shared machine one of two threads can be kept waiting in most of them, and a
    ceiling from there would be no ceiling. On a machine that is busy all the time ceilings are too low even so. A
    smaller working set counts as no slower than a larger one: where it seems to be, it is the way into torch that was
    measured.

    Raises:
        GnnlabError: the device is not there, or the budget or the threads are no positive number.
    """
    where = cpu_or_cuda(device, "a ceiling")
    if not budget_s > 0:
        raise GnnlabError(f"budget_s must be a positive number of seconds, not {budget_s!r}")
    threads = torch.get_num_threads() if threads is None else threads
    whole_numbers(1, threads=threads)
    with Conditions(1, "highest").applied(), torch.no_grad():
        best, samples = best_rates(where, threads, budget_s)

    def rates(what: str) -> Rates:
        speeds = np.maximum.accumulate([best[what, size] for size in WORKING_SETS[::-1]])[::-1]
        return list(zip(WORKING_SETS, speeds.tolist(), strict=True))

    return Ceilings(
        copy_gb_s=rates("copy"),
        gemm_gflop_s=best["product", "float32"],
        precision="float32",
        threads=threads,
        device=device_name(where),
        samples=samples,
        read_gb_s=rates("read"),
        write_gb_s=rates("write"),
        in_place_gb_s=rates("in place"),
        peaks_gflop_s={at: rate for (what, at), rate in best.items() if what == "product"},
    )


def last_cache_bytes(device: Any = "cpu") -> int | None:
    """Bytes of the last cache before the memory of `device`; None where the system does not tell."""
    if str(device).startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return cache_bytes()[3]


def size_text(size: float) -> str:
    """Bytes for a reader: "32 KiB", "1.5 MiB"."""
    for unit, bytes_ in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= bytes_:
            return f"{size / bytes_:.3g} {unit}"
    return f"{size:.0f} bytes"


def bound_ms(count: Count, limits: Ceilings) -> float:
    """The least time for the counted operators one after another, in ms.

    The sum over the calls of the longest of: bytes read, bytes written, bytes copied (as many read as written) and
    bytes changed in place, each at the rate of its kind at the working set of that call; FLOPs of products at the peak
    of their type; and all FLOPs at the highest peak. Between two measured working sets the rate is that of the smaller.
    Operators whose FLOPs are not known count with their bytes, so the bound stays one.
    """
    columns = ("calls", "flops", "matrix_flops", "bytes_read", "bytes_written", "working_set")
    calls, flops, matrix, read, written, touched = (count.records[name].to_numpy(float) for name in columns)
    in_place = read + written - touched
    copied = 2 * np.minimum(read, written) - 2 * in_place
    kinds = {"read": read, "write": written, "copy": copied, "in_place": in_place * 2}
    times = [moved / _rates(limits, kind, touched) for kind, moved in kinds.items()]
    peaks = np.array([limits.peak_gflop_s(dtype) for dtype in count.records["dtype"]], dtype=float)
    times += [matrix / peaks, flops / limits.peak_gflop_s("")]
    return float((np.maximum.reduce(times) * calls).sum()) / 1e6


def _rates(limits: Ceilings, kind: str, working_set: np.ndarray) -> np.ndarray:
    """GB/s at each of these working sets in bytes: of the largest measured one that is no larger, else the smallest."""
    sizes, speeds = zip(*(getattr(limits, f"{kind}_gb_s") or limits.copy_gb_s), strict=True)
    return np.asarray(speeds)[np.maximum(np.searchsorted(sizes, working_set, side="right") - 1, 0)]
