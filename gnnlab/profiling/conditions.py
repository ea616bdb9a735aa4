"""Conditions under which torch computes on a CPU, set and not inherited, put back after; what a form says of itself.

fast = under(conv, precision="medium")     # a form whose products may be relaxed, in each of its calls
onnx = under(session_run, runtime="onnxruntime 1.31", precision="int8")      # what computes it, in its rows
with Conditions(1, "highest").applied(): ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

PRECISIONS = ("highest", "high", "medium")  # of float32 matrix products, as torch names them
TOLD = ("float32", "float16", "bfloat16", "int8")  # what a form computes in by itself


@dataclass(frozen=True)
class Conditions:
    """Threads of torch on the CPU, and how exact float32 products are (highest, high, medium)."""

    threads: int
    precision: str

    @classmethod
    def now(cls) -> Conditions:
        return cls(torch.get_num_threads(), torch.get_float32_matmul_precision())

    def set(self) -> None:
        torch.set_num_threads(self.threads)
        torch.set_float32_matmul_precision(self.precision)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """These conditions inside, the ones before after it."""
        before = Conditions.now()
        try:
            self.set()
            yield
        finally:
            before.set()

    def __str__(self) -> str:
        return f"{self.threads} thread{'s' * (self.threads != 1)}, {self.precision}"


class Under:
    """A form that runs under `conditions` in each of its calls, whatever they are around it; None leaves those.

    `row` are fields of its rows.
    """

    def __init__(
        self, form: Callable[..., Any], conditions: Conditions | None, row: Mapping[str, Any] | None = None
    ) -> None:
        self.form, self.conditions, self.row = form, conditions, row_of(form) | dict(row or {})
        bare = getattr(form, "_orig_mod", form)  # a compiled module has the signature of its own
        self.__signature__ = inspect.signature(bare.forward if hasattr(bare, "forward") else bare)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.conditions is None:
            return self.form(*arguments, **named)
        with self.conditions.applied():
            return self.form(*arguments, **named)


def under(form: Callable[..., Any], *, threads: int | None = None, precision: str | None = None, **row: Any) -> Under:
    """`form` with so many threads of torch, or with float32 products so exact, in each of its calls.

    A `precision` of `TOLD` and the fields `row` (runtime, device, notes) change nothing; the rows of the form say them.

    Raises:
        ValueError: a precision that is not known.
    """
    if precision not in (None, *PRECISIONS, *TOLD):
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS + TOLD)}, got {precision!r}")
    products = precision if precision in PRECISIONS else None
    told = {"precision": precision} if precision in TOLD else {}
    told |= {} if threads is None else {"threads": threads}
    now = Conditions.now()
    applied = Conditions(threads or now.threads, products or now.precision) if threads or products else None
    return Under(form, applied, told | row)


def row_of(form: Any) -> dict[str, Any]:
    """What the rows of a form say besides: its own `row`, or those of what it is bound to (the arguments of a partial,
    the object of a method)."""
    own = getattr(form, "row", None)
    if isinstance(own, Mapping):
        return dict(own)
    if isinstance(form, partial):
        bound = (form.func, *form.args, *form.keywords.values())
        return {name: value for part in bound for name, value in row_of(part).items()}
    return row_of(form.__self__) if inspect.ismethod(form) else {}
