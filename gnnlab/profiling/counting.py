"""Counting what a forward pass (or anything else) does: operators, FLOPs, bytes, by operator and by module.

    counted = count(model, batch)
    counted.flops, counted.bytes, counted.coverage_calls      # 34_123_456, 12_345_678, 1.0
    counted.frame()                                           # a row for each operator, most bytes first

How each operator is counted stands in `costs`. A compiled model is counted in its eager form: torch does not compile
what is watched operator by operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import nn

from .context import call
from .costs import Cost, cost
from .dispatch import OUTSIDE, ModuleStack, Watch, name_of

_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


@dataclass(frozen=True)
class OperatorCount:
    """All calls of one operator. Bytes are the least it can move; the working set is that of its largest call."""

    operator: str
    calls: int
    flops: int
    bytes_read: int
    bytes_written: int
    working_set: int
    covered: bool


@dataclass(frozen=True)
class Count:
    """What was counted: how many calls of each kind `(operator, module, cost)`."""

    records: Counter[tuple[str, str, Cost]]
    module_classes: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def _sum(self, of: Callable[[Cost], int]) -> int:
        return sum(of(each) * calls for (_, _, each), calls in self.records.items())

    @property
    def calls(self) -> int:
        """Operator calls, views and allocations included."""
        return self.records.total()

    @property
    def flops(self) -> int:
        return self._sum(lambda each: each.flops)

    @property
    def matrix_flops(self) -> int:
        """FLOPs of matrix products, convolutions and attention alone: what torch's FlopCounterMode counts."""
        return self._sum(lambda each: each.matrix_flops)

    @property
    def bytes_read(self) -> int:
        return self._sum(lambda each: each.bytes_read)

    @property
    def bytes_written(self) -> int:
        return self._sum(lambda each: each.bytes_written)

    @property
    def bytes(self) -> int:
        """Bytes read and written, the least that these operators can move one by one."""
        return self.bytes_read + self.bytes_written

    @property
    def coverage_calls(self) -> float:
        """Share of the operator calls whose FLOPs are known; 1.0 when nothing ran."""
        return 1 - self._sum(lambda each: each.kind == "unknown") / self.calls if self.calls else 1.0

    @property
    def coverage_bytes(self) -> float:
        """The same, by bytes."""
        unknown = self._sum(lambda each: (each.bytes_read + each.bytes_written) * (each.kind == "unknown"))
        return 1 - unknown / self.bytes if self.bytes else 1.0

    @property
    def operators(self) -> list[OperatorCount]:
        """Operators, the one that moves most bytes first; views and allocations come last."""
        groups: dict[str, list[tuple[Cost, int]]] = {}
        for (name, _, each), calls in self.records.items():
            groups.setdefault(name, []).append((each, calls))
        rows = [_row(name, costs) for name, costs in groups.items()]
        return sorted(rows, key=lambda row: (-row.bytes_read - row.bytes_written, -row.flops, row.operator))

    @property
    def uncovered(self) -> list[str]:
        """Names of operators whose FLOPs are not known."""
        return [row.operator for row in self.operators if not row.covered]

    def frame(self) -> pd.DataFrame:
        """`operators` as a table."""
        return pd.DataFrame([vars(row) for row in self.operators], columns=list(OperatorCount.__dataclass_fields__))

    def modules(self) -> pd.DataFrame:
        """A row for each module: path, class, calls, FLOPs and bytes, of itself and with the modules inside it.

        The model itself has the path ""; work that no module called has the path "(outside)".
        """
        paths = list(self.module_classes) or [""]
        if any(module == OUTSIDE for _, module, _ in self.records):
            paths.append(OUTSIDE)
        return pd.DataFrame([self._module(path) for path in paths])

    def _module(self, path: str) -> dict[str, Any]:
        row = {"module": path, "class": self.module_classes.get(path, ""), "calls": 0}
        row |= {"flops": 0, "bytes": 0, "self_flops": 0, "self_bytes": 0}
        for (_, module, each), calls in self.records.items():
            moved = each.bytes_read + each.bytes_written
            if module == path:
                row["self_flops"] += each.flops * calls
                row["self_bytes"] += moved * calls
            if _within(module, path):
                row["calls"] += calls
                row["flops"] += each.flops * calls
                row["bytes"] += moved * calls
        return row

    def to_dict(self) -> dict[str, Any]:
        """Totals, coverage and operators, for JSON."""
        names = ("calls", "flops", "matrix_flops", "bytes_read", "bytes_written", "coverage_calls", "coverage_bytes")
        rows = {"uncovered": self.uncovered, "operators": [vars(row) for row in self.operators]}
        return {name: getattr(self, name) for name in names} | rows | {"notes": list(self.notes)}


def count(work: nn.Module | Callable[..., Any], batch: Any = (), *, model: nn.Module | None = None) -> Count:
    """Count the operators of `work`, called once with `batch` (see `context.call`).

    A module is called without gradients, in the mode that it is in. A function is called as it is, so that it may run
    a backward pass and an optimizer; `model` then names the module whose parts the work is assigned to.
    """
    follow = work if model is None else model
    counter = _Counter()
    gradients = torch.no_grad() if isinstance(work, nn.Module) else nullcontext()
    with gradients, _expanded_attention(follow) as notes, counter.stack.following(follow), counter:
        call(work, batch)
    modules = follow.named_modules() if isinstance(follow, nn.Module) else ()
    return Count(counter.records, {path: type(module).__name__ for path, module in modules}, notes)


def fuses_attention(model: nn.Module) -> bool:
    """Has the model attention layers that torch may run in a fused kernel of their own in eval mode?"""
    return any(isinstance(module, _FUSED) for module in model.modules())


class _Counter(Watch):
    def __init__(self) -> None:
        super().__init__()
        self.records: Counter[tuple[str, str, Cost]] = Counter()
        self.stack = ModuleStack()

    def seen(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict, output: Any) -> None:
        self.records[name_of(func), self.stack.path, cost(func, args, kwargs, output)] += 1


@contextmanager
def _expanded_attention(model: Any) -> Iterator[tuple[str, ...]]:
    """Take the fused kernel of attention layers in eval mode apart: inside it nothing could be counted."""
    fused = isinstance(model, nn.Module) and fuses_attention(model)
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield ("attention layers are counted operator by operator; in eval mode torch may fuse them",) if fused else ()
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _row(name: str, costs: list[tuple[Cost, int]]) -> OperatorCount:
    return OperatorCount(
        operator=name,
        calls=sum(calls for _, calls in costs),
        flops=sum(each.flops * calls for each, calls in costs),
        bytes_read=sum(each.bytes_read * calls for each, calls in costs),
        bytes_written=sum(each.bytes_written * calls for each, calls in costs),
        working_set=max(each.working_set for each, _ in costs),
        covered=all(each.kind != "unknown" for each, _ in costs),
    )


def _within(module: str, path: str) -> bool:
    """Is `module` the module at `path`, or inside it? The path of the model itself is ""."""
    return module == path or (module != OUTSIDE and (path == "" or module.startswith(f"{path}.")))
