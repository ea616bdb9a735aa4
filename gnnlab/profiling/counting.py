"""Counting what a forward pass (or anything else) does: operators, FLOPs, bytes.

    counted = count(model, batch)
    counted.flops, counted.bytes, counted.coverage_bytes      # 34_123_456, 12_345_678, 1.0
    counted.operators                                         # a row for each operator, most bytes first

How each operator is counted stands in `costs`. A compiled model is counted in its eager form: torch does not compile
what is watched operator by operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from typing import Any

import pandas as pd
import torch
from torch import nn

from .context import call
from .costs import Cost, cost
from .dispatch import OperatorWatch, name_of

_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
_SUMMED = ["flops", "matrix_flops", "bytes_read", "bytes_written", "bytes"]


@dataclass(frozen=True)
class Count:
    """What was counted. `records` has a row for each kind of call: operator, calls, and of one call kind ("unknown":
    its FLOPs are not known), flops, matrix_flops, bytes_read, bytes_written, bytes, working_set."""

    records: pd.DataFrame
    notes: tuple[str, ...] = ()

    def _sum(self, column: str) -> int:
        return int((self.records[column] * self.records["calls"]).sum())

    @property
    def calls(self) -> int:
        """Operator calls, views and allocations included."""
        return int(self.records["calls"].sum())

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

    A module is called without gradients, in the mode that it is in. A function is called as it is, so that it may run
    a backward pass and an optimizer.
    """
    counter = _Counter()
    gradients = torch.no_grad() if isinstance(work, nn.Module) else nullcontext()
    with gradients, _expanded_attention(work) as notes, counter:
        call(work, batch)
    rows = [
        {"operator": operator, "calls": calls, **asdict(each), "bytes": each.bytes_read + each.bytes_written}
        for (operator, each), calls in counter.records.items()
    ]
    columns = ["operator", "calls", *(field.name for field in fields(Cost)), "bytes"]
    return Count(pd.DataFrame(rows, columns=columns), notes)


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


class _Counter(OperatorWatch):
    def __init__(self) -> None:
        super().__init__()
        self.records: Counter[tuple[str, Cost]] = Counter()

    def seen(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict, output: Any) -> None:
        self.records[name_of(func), cost(func, args, kwargs, output)] += 1


@contextmanager
def _expanded_attention(work: Any) -> Iterator[tuple[str, ...]]:
    """Take the fused kernel of attention layers in eval mode apart: inside it nothing could be counted."""
    fused = isinstance(work, nn.Module) and fuses_attention(work)
    with attention_fused(False):
        yield ("attention layers are counted operator by operator; in eval mode torch may fuse them",) if fused else ()
