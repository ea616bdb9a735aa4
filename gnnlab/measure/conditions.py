"""The conditions under which torch computes, set and not inherited: threads, and how exact float32 products are.

fast = under(conv, precision="medium")     # a variant whose products may be relaxed, in each of its calls
onnx = under(session_run, runtime="onnxruntime 1.31", precision="int8")      # what computes it, in its rows
with Conditions(1, "highest").applied(): ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

PRECISIONS = ("highest", "high", "medium")  # of float32 matrix products, as torch names them
OWN_PRECISIONS = ("float32", "float16", "bfloat16", "int8")  # what a variant computes in by itself


def products() -> str:
    """How exact float32 products are: highest, high or medium. CUDA computes high and medium in TF32."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # torch refuses where they were set by backend: `torch.backends.cuda.matmul.fp32_precision`
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


@dataclass(frozen=True)
class Conditions:
    """Threads of torch on the CPU, and how exact float32 products are (highest, high, medium)."""

    threads: int
    precision: str

    @classmethod
    def now(cls) -> Conditions:
        return cls(torch.get_num_threads(), products())

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


class under:
    """`variant` with so many threads of torch, or with float32 products so exact, in each of its calls.

    A `precision` of `OWN_PRECISIONS` and the fields `row` (runtime, device, notes) change nothing: they are said in the
    rows of the variant.

    Raises:
        ValueError: a precision that is not known.
    """

    def __init__(
        self, variant: Callable[..., Any], *, threads: int | None = None, precision: str | None = None, **row: Any
    ) -> None:
        if precision not in (None, *PRECISIONS, *OWN_PRECISIONS):
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS + OWN_PRECISIONS)}, got {precision!r}")
        products, now = precision if precision in PRECISIONS else None, Conditions.now()
        own = {"precision": precision if precision in OWN_PRECISIONS else None, "threads": threads}
        self.variant, self.row = variant, row_of(variant) | row | {name: value for name, value in own.items() if value}
        changes = bool(threads or products)
        self.conditions = Conditions(threads or now.threads, products or now.precision) if changes else None
        bare = getattr(variant, "_orig_mod", variant)  # a compiled module has the signature of its own
        self.__signature__ = inspect.signature(bare.forward if hasattr(bare, "forward") else bare)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with self.conditions.applied() if self.conditions else nullcontext():
            return self.variant(*arguments, **named)


def row_of(variant: Any) -> dict[str, Any]:
    """What the rows of a variant say besides: its own `row`, or those of what it is bound to (the arguments of a
    partial, the object of a method)."""
    own = getattr(variant, "row", None)
    if isinstance(own, Mapping):
        return dict(own)
    if isinstance(variant, partial):
        bound = (variant.func, *variant.args, *variant.keywords.values())
        return {name: value for part in bound for name, value in row_of(part).items()}
    return row_of(variant.__self__) if inspect.ismethod(variant) else {}
