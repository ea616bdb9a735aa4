"""How long a model's forward pass, backward pass and training step take.

    stats = profile_forward(model, batch, num_runs=100, warmup_runs=10)
    print(stats)        # 1.22 ms (median; 95 % interval 1.20 to 1.25, 100 runs)

The names are those of the profiling framework (document 001). Two of its faults are mended: `profile_backward` times
the backward pass alone, and beside mean and standard deviation stand the median and its interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from . import timing
from .context import call, unchanged
from .dispatch import device_of
from .intervals import median_interval, percentile

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class RuntimeStats:
    """Times of `num_runs` runs, in ms."""

    mean: float
    std: float
    min: float
    max: float
    num_runs: int
    median: float
    ci: tuple[float, float]  # 95 % interval of the median
    samples: tuple[float, ...] = field(repr=False)
    notes: tuple[str, ...] = ()  # what the reader should know: drift, noise, an interval too wide

    @classmethod
    def of(cls, samples_ms: list[float], notes: tuple[str, ...] = ()) -> RuntimeStats:
        """Statistics of samples in ms."""
        x = np.asarray(samples_ms)
        return cls(
            mean=float(x.mean()),
            std=float(x.std()),
            min=float(x.min()),
            max=float(x.max()),
            num_runs=len(x),
            median=float(np.median(x)),
            ci=median_interval(x),
            samples=tuple(x.tolist()),
            notes=notes,
        )

    def percentile(self, q: int) -> float | None:
        """The q-th percentile in ms, or None below its sample floor (p90: 64, p95: 130, p99: 662)."""
        return percentile(self.samples, q)

    def to_dict(self) -> dict[str, Any]:
        """The JSON of document 001, with what it lacks."""
        percentiles = {f"p{q}": self.percentile(q) for q in (90, 95, 99)}
        return {
            "mean": self.mean,
            "std": self.std,
            "min": self.min,
            "max": self.max,
            "num_runs": self.num_runs,
            "median": self.median,
            "ci": list(self.ci),
            **percentiles,
            "unit": "ms",
        }

    def __str__(self) -> str:
        low, high = self.ci
        return f"{self.median:.4g} ms (median; 95 % interval {low:.4g} to {high:.4g}, {self.num_runs} runs)"


def benchmark_function(
    fn: Callable[..., Any],
    *args: Any,
    num_runs: int | None = 100,
    warmup_runs: int = 10,
    budget_s: float = 1.0,
    device: Any = "cpu",
    setup: Callable[[], Any] | None = None,
    **kwargs: Any,
) -> RuntimeStats:
    """Time `fn(*args, **kwargs)`: `warmup_runs` calls that do not count, then `num_runs` that do.

    With `num_runs=None`, `timing.measure` decides: until it is warm, then until the interval of the median is within
    2 % or `budget_s` is spent. With `setup`, each run calls `fn(setup(), *args, **kwargs)` and the set-up is not timed.
    `device` is synchronized around each run.
    """
    if num_runs is None:
        timed = timing.measure(lambda *made: fn(*made, *args, **kwargs), setup=setup, device=device, budget_s=budget_s)
        return RuntimeStats.of(list(timed.samples_ms), timed.notes)
    if num_runs < 1 or warmup_runs < 0:
        raise ValueError(
            f"num_runs={num_runs}, warmup_runs={warmup_runs}: wanted at least 1 run and no negative warm-up"
        )
    samples = timing.sample(
        lambda *made: fn(*made, *args, **kwargs), runs=num_runs, warm_up=warmup_runs, setup=setup, device=device
    )
    return RuntimeStats.of(samples)


def profile_forward(
    model: nn.Module, batch: Any, num_runs: int | None = 100, warmup_runs: int = 10, **options: Any
) -> RuntimeStats:
    """Time the forward pass in inference mode; the model's train or eval mode is left as it is.

    Options of this and the next two go to `benchmark_function`.
    """

    def forward() -> Any:
        with torch.inference_mode():
            return call(model, batch)

    return benchmark_function(forward, num_runs=num_runs, warmup_runs=warmup_runs, device=device_of(model), **options)


def profile_backward(
    model: nn.Module,
    batch: Any,
    loss_fn: Loss | None = None,
    num_runs: int | None = 100,
    warmup_runs: int = 10,
    **options: Any,
) -> RuntimeStats:
    """Time the backward pass alone: each run gets a fresh graph, whose forward pass is not timed.

    `loss_fn(output, target)` compares with zeros of the output's shape; mean squared error unless given.
    Gradients that the model had are put back.
    """
    with _without_gradients(model):
        return benchmark_function(
            lambda loss: loss.backward(),
            setup=lambda: _loss(model, batch, loss_fn),
            num_runs=num_runs,
            warmup_runs=warmup_runs,
            device=device_of(model),
            **options,
        )


def profile_training_step(
    model: nn.Module,
    batch: Any,
    optimizer: torch.optim.Optimizer | None = None,
    loss_fn: Loss | None = None,
    num_runs: int | None = 100,
    warmup_runs: int = 10,
    **options: Any,
) -> RuntimeStats:
    """Time a whole step: zero gradients, forward, loss, backward, optimizer (plain Adam unless given).

    The weights, buffers and gradients that the model had are put back, so profiling does not train it.
    """
    with _without_gradients(model, optimizer):
        step_optimizer = optimizer or torch.optim.Adam(model.parameters())

        def step() -> None:
            step_optimizer.zero_grad()
            _loss(model, batch, loss_fn).backward()
            step_optimizer.step()

        return benchmark_function(step, num_runs=num_runs, warmup_runs=warmup_runs, device=device_of(model), **options)


def profile_pe_computation(pe_transform: Callable[[Any], Any], data: Any, num_runs: int = 10) -> RuntimeStats:
    """Time a positional encoding on a fresh copy of `data` each run (a cost paid once a graph)."""
    return benchmark_function(pe_transform, setup=data.clone, num_runs=num_runs, warmup_runs=1)


class RuntimeProfiler:
    """Forward pass, backward pass and training step of one model."""

    def __init__(
        self, model: nn.Module, device: Any = None, num_runs: int | None = 100, warmup_runs: int = 10, **options: Any
    ) -> None:
        self.model = model if device is None else model.to(device)
        self.options = {"num_runs": num_runs, "warmup_runs": warmup_runs} | options

    def profile_all(
        self, batch: Any, optimizer: torch.optim.Optimizer | None = None, loss_fn: Loss | None = None
    ) -> dict[str, RuntimeStats]:
        """Stats under "forward", "backward" and "training_step"; the last two only if there is anything to train."""
        stats = {"forward": profile_forward(self.model, batch, **self.options)}
        if any(p.requires_grad for p in self.model.parameters()):
            stats["backward"] = profile_backward(self.model, batch, loss_fn, **self.options)
            stats["training_step"] = profile_training_step(self.model, batch, optimizer, loss_fn, **self.options)
        return stats


def _loss(model: nn.Module, batch: Any, loss_fn: Loss | None) -> torch.Tensor:
    output = call(model, batch)
    if not isinstance(output, torch.Tensor):
        raise ValueError(
            f"{type(model).__name__} returns {type(output).__name__}, not a tensor: its backward pass needs one; "
            "wrap the model in a module that returns the tensor to train on"
        )
    loss_fn = loss_fn or nn.functional.mse_loss
    return loss_fn(output, torch.zeros_like(output))


@contextmanager
def _without_gradients(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Start without gradients; afterwards weights, gradients and the optimizer's state are as before."""
    with unchanged(model, optimizer):
        model.zero_grad(set_to_none=True)
        yield
