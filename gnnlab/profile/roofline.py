"""What a forward pass (or anything else) computes and moves, and how near it comes to this machine's measured ceilings.

    counted = count(model, batch)
    counted.flops, counted.bytes, counted.coverage_bytes      # 34_123_456, 12_345_678, 1.0
    counted.operators                                         # a row for each operator, most bytes first
    limits = ceilings()                                # some 3 s
    bound_ms(count(model, batch), limits) / 1.2        # 0.31 of what the machine could do, if it takes 1.2 ms

The bound is for the operators as they are: each has to move its bytes and do its FLOPs before the next begins. A fused
form moves less and may stay below it; that is what fusing is for. How each operator is counted stands in `costs`. A
compiled model is counted in its eager form: torch does not compile what is watched operator by operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from functools import partial
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
from gnnlab.measure.timing import race
from gnnswap.fused import Compiled
from gnnswap.inputs import call

from .costs import Cost, cost, surely_computes

WORKING_SETS = tuple(kib * 1024 for kib in (32, 64, 256, 1024, 2048, 8192, 32768, 65536, 131072, 262144))  # bytes
_GEMM_SIZE = {"cpu": 1024, "cuda": 8192}
_LEAST_COPIED = 4 * 2**20  # bytes of one sample: smaller working sets are copied several times
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
_SUMMED = ["flops", "matrix_flops", "bytes_read", "bytes_written", "bytes"]
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_TARGET = 0.001  # of the intervals of the race, so that it lasts as long as the budget


@dataclass(frozen=True)
class Count:
    """What was counted. `records` has a row for each kind of call: operator, calls, and of one call kind ("unknown":
    its FLOPs are not known), flops, matrix_flops, bytes_read, bytes_written, bytes, working_set. `passes`: how many
    compiled passes of gnnswap ran, which are no operators of torch: their FLOPs and bytes are not in it."""

    records: pd.DataFrame
    passes: int = 0

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
        """Share of the bytes that operators move whose FLOPs are known; 1.0 when nothing ran."""
        unknown = self.records[self.records["kind"] == "unknown"]
        return 1 - float((unknown["bytes"] * unknown["calls"]).sum()) / self.bytes if self.bytes else 1.0

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Operators that surely compute and whose FLOPs no rule knows: where there are any, `flops` is "at least"."""
        unknown = self.records[self.records["kind"] == "unknown"]
        names = [name for name in dict.fromkeys(unknown["operator"]) if surely_computes(name)]
        return (*names, *["compiled passes of gnnswap"] * bool(self.passes))

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
    """Count the operators of `work`, called once with `batch` (see `context.call`).

    A module is called without gradients, in the mode that it is in, a function as it is. Attention that torch may fuse
    in eval mode is counted operator by operator.
    """
    counter, passes = _Counter(), Compiled.passes
    gradients = torch.no_grad() if isinstance(work, nn.Module) else nullcontext()
    with (
        unchanged(work, trains=False),
        gradients,
        attention_fused(False),
        counter,
    ):  # inside torch's fused kernel nothing could be counted
        call(work, batch)
    rows = [
        {"operator": operator, "calls": calls, **asdict(each), "bytes": each.bytes_read + each.bytes_written}
        for (operator, each), calls in counter.records.items()
    ]
    columns = ["operator", "calls", *(field.name for field in fields(Cost)), "bytes"]
    return Count(pd.DataFrame(rows, columns=columns), Compiled.passes - passes)


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
    """Inside, the cost of each operator call, counted after it ran.

    Composite operators arrive as the operators that they are made of, in inference mode too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.records: Counter[tuple[str, Cost]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        # The C++ kernel itself: `func.decompose` prefers Python ones, which run other operators than the model does.
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE):
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        output = func(*args, **kwargs)
        self.records[func._schema.name, cost(func, args, kwargs, output)] += 1
        return output


@dataclass(frozen=True)
class Ceilings:
    """What a device can do at most: the best of several samples, as STREAM has it (McCalpin 1995).

    `copy_gb_s`: (bytes of the working set, GB/s) of a copy, smallest first; the working set is source and target
    together, and both the bytes read and the bytes written count. `gemm_gflop_s`: a large square matrix product. GB
    and GFLOP are 1e9.
    """

    copy_gb_s: list[tuple[int, float]]
    gemm_gflop_s: float
    precision: str
    threads: int
    device: str
    samples: int = 1  # of each figure, the least

    def bandwidth_gb_s(self, working_set: Any) -> Any:
        """GB/s at one or many working sets in bytes: between two measured ones on a logarithmic scale, beyond them the
        end's."""
        sizes, speeds = zip(*self.copy_gb_s, strict=True)
        return np.interp(np.log2(np.maximum(np.asarray(working_set, dtype=float), 1)), np.log2(sizes), speeds)

    def named_bandwidths(self) -> list[tuple[str, float]]:
        """For a figure: the fastest working set and the largest one, named by their sizes, with GB/s."""
        fastest, largest = max(self.copy_gb_s, key=lambda pair: pair[1]), self.copy_gb_s[-1]
        return [(f"copy within {size_text(size)}", rate) for size, rate in dict.fromkeys([fastest, largest])]


def ceilings(device: Any = "cpu", threads: int | None = None, budget_s: float = 2.5) -> Ceilings:
    """Measure the ceilings of a device in float32, products in full float32 precision, in about `budget_s` seconds.

    `threads` (of torch, on a CPU) are as they are unless given. The best of several samples counts, not their median:
    on a shared machine the other half of two threads can be kept waiting in most of them, and a ceiling from there
    would be no ceiling. A smaller working set counts as no slower than a larger one: where its copies seem to be, it
    is the way into torch that was measured.

    Raises:
        GnnlabError: the device is not there, or the budget or the threads are no positive number.
    """
    where = cpu_or_cuda(device, "a ceiling")
    if not budget_s > 0:
        raise GnnlabError(f"budget_s must be a positive number of seconds, not {budget_s!r}")
    threads = torch.get_num_threads() if threads is None else threads
    whole_numbers(1, threads=threads)
    with Conditions(threads, "highest").applied(), torch.no_grad():
        n = _GEMM_SIZE[where.type]
        a, b = torch.ones(n, n, device=where), torch.ones(n, n, device=where)
        product = partial(torch.mm, a, b, out=torch.empty(n, n, device=where))
        timed = race({"product": product} | _copies(where), device=where, budget_s=budget_s, target=_TARGET)
        best = [_times(size) * size / min(timed[f"{size}"].samples_ms) / 1e6 for size in WORKING_SETS]
        speeds = np.maximum.accumulate(best[::-1])[::-1].tolist()
        return Ceilings(
            copy_gb_s=list(zip(WORKING_SETS, speeds, strict=True)),
            gemm_gflop_s=2 * n**3 / min(timed["product"].samples_ms) / 1e6,
            precision="float32",
            threads=threads,
            device=device_name(where),
            samples=timed["product"].n,
        )


def _copies(device: torch.device) -> dict[str, Callable[[], None]]:
    """For each working set copies of half of it to the other half: one call of torch, so that the way into torch does
    not count where they are small."""
    floats = max(WORKING_SETS) // 8
    source, target = torch.ones(floats, device=device), torch.zeros(floats, device=device)
    copies = {}
    for size in WORKING_SETS:
        ends = ([half[: size // 8]] * _times(size) for half in (target, source))
        copies[f"{size}"] = partial(torch._foreach_copy_, *ends)
    return copies


def _times(size: int) -> int:
    return max(1, _LEAST_COPIED // size)


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

    The sum over the calls of max(bytes / bandwidth at the working set of that call, FLOPs / peak). Operators whose
    FLOPs are not known count with their bytes, so the bound stays one.
    """
    memory = count.records["bytes"] / limits.bandwidth_gb_s(count.records["working_set"]) / 1e6
    compute = count.records["flops"] / limits.gemm_gflop_s / 1e6
    return float((np.maximum(memory, compute) * count.records["calls"]).sum())
