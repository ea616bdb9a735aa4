"""Conditions under which torch computes on a CPU, set and not inherited, and put back afterwards.

fast = under(conv, precision="medium")     # a form whose products may be relaxed, in each of its calls
with Conditions(1, "highest").held(): ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

PRECISIONS = ("highest", "high", "medium")  # of float32 matrix products, as torch names them


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
    def held(self) -> Iterator[None]:
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
    """A form that runs under `conditions` in each of its calls, whatever they are around it."""

    def __init__(self, form: Callable[..., Any], conditions: Conditions) -> None:
        self.form, self.conditions = form, conditions
        bare = getattr(form, "_orig_mod", form)  # a compiled module has the signature of its own
        self.__signature__ = inspect.signature(bare.forward if hasattr(bare, "forward") else bare)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with self.conditions.held():
            return self.form(*arguments, **named)


def under(form: Callable[..., Any], *, threads: int | None = None, precision: str | None = None) -> Under:
    """`form` with so many threads of torch, or with float32 products so exact, in each of its calls.

    Raises:
        ValueError: a precision that torch does not know.
    """
    now = Conditions.now()
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    return Under(form, Conditions(threads or now.threads, precision or now.precision))
