"""How long a model's forward pass, backward pass and training step take.

    stats = profile_forward(model, batch, num_runs=100, warmup_runs=10)
    print(stats)        # 1.22 ms (median; 95 % interval 1.20 to 1.25, 100 runs)

The names are those of the profiling framework (S1). Two of its faults are mended: `profile_backward` times
the backward pass alone, and beside mean and standard deviation stand the median and its interval.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnlab.errors import GnnlabError
from gnnlab.measure import timing
from gnnlab.measure.estimates import percentile
from gnnlab.measure.restore import unchanged
from gnnlab.measure.tensors import device_of
from gnnlab.measure.timing import Timing
from gnnswap.inputs import call, parameters_of

OPTIONS = ("num_runs", "warmup_runs", "budget_s", "device", "setup")
TIME = {"unit": "ms", "better": "lower", "origin": "measured", "statistic": "median"}  # fields of a row of times
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of output and target


class RuntimeStats(Timing):
    """A `Timing` by the names of S1, in ms; `ci` is the 95 % interval of the median, None below six runs."""

    mean = property(lambda self: float(np.mean(self.samples_ms)))
    std = property(lambda self: float(np.std(self.samples_ms)))
    min = property(lambda self: min(self.samples_ms))
    max = property(lambda self: max(self.samples_ms))
    num_runs = property(lambda self: self.n)
    median = property(lambda self: self.median_ms)
    ci = property(lambda self: self.ci_ms)

    def to_dict(self) -> dict[str, Any]:
        """The JSON of S1, with what it lacks; percentiles that the runs are too few for are None."""
        names = ("mean", "std", "min", "max", "num_runs", "median")
        percentiles = {f"p{q}": percentile(self.samples_ms, q) for q in (90, 95, 99)}
        ci = None if self.ci is None else list(self.ci)
        return {name: getattr(self, name) for name in names} | {"ci": ci, **percentiles, "unit": "ms"}

    def __str__(self) -> str:
        runs = f"{self.num_runs} run{'s' * (self.num_runs != 1)}"
        interval = "no 95 % interval below six runs"
        if self.ci is not None:
            interval = "95 % interval {:.4g} to {:.4g}".format(*self.ci)
        return f"{self.median:.4g} ms (median; {interval}, {runs})"


def benchmark_function(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> RuntimeStats:
    """Time `fn(*args, **kwargs)`: `warmup_runs` calls (10) that do not count, then `num_runs` (100) that do.

    Keywords that are options of the measurement are not for `fn`: num_runs, warmup_runs, budget_s, device, setup. With
    `num_runs=None`, `timing.measure` decides: until it is warm, then until the interval of the median is within 2 % or
    `budget_s` (1.0) is spent. With `setup`, each run calls `fn(setup(), *args, **kwargs)` and the set-up is not timed.
    Each run begins and ends when `device` is idle (`timing.synchronizer`).

    Raises:
        GnnlabError: `fn` names an option that is given as an argument, too; or no runs.
    """
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    bound = fn.keywords if isinstance(fn, partial) else {}
    own = [p.name for p in parameters_of(fn.forward if isinstance(fn, nn.Module) else fn) or [] if p.name not in bound]
    if both := [name for name in options if name in own]:
        raise GnnlabError(
            f"{both[0]} is an option of benchmark_function and an argument of the function, too; "
            f"give the function its own one by functools.partial(fn, {both[0]}=...)"
        )
    return _timed(lambda *prepared: fn(*prepared, *args, **kwargs), **options)


def _timed(
    variant: Callable[..., Any],
    *,
    num_runs: int | None = 100,
    warmup_runs: int = 10,
    budget_s: float = 1.0,
    device: Any = None,
    setup: Callable[[], Any] | None = None,
) -> RuntimeStats:
    if num_runs is None:
        timed = timing.measure(variant, setup=setup, device=device, budget_s=budget_s)
        return RuntimeStats(timed.samples_ms, timed.notes)
    if num_runs < 1 or warmup_runs < 0:
        raise GnnlabError(f"num_runs {num_runs}, warmup_runs {warmup_runs}: at least 1 run and 0 to warm up are needed")
    return RuntimeStats(tuple(timing.sample(variant, runs=num_runs, warm_up=warmup_runs, setup=setup, device=device)))


def profile_forward(model: nn.Module, batch: Any, **options: Any) -> RuntimeStats:
    """Time the forward pass in inference mode, in the model's train or eval mode; the model is as before after it.

    Options of this and the others (num_runs, warmup_runs, budget_s) are those of `benchmark_function`.

    >>> stats = profile_forward(nn.Linear(8, 8), torch.randn(100, 8), num_runs=20)
    >>> len(stats.samples_ms)
    20
    """

    def forward() -> Any:
        with torch.inference_mode():
            return call(model, batch)

    with unchanged(model, trains=False):
        return _timed(forward, device=device_of(model, batch), **options)


def profile_backward(model: nn.Module, batch: Any, loss_fn: Loss | None = None, **options: Any) -> RuntimeStats:
    """Time the backward pass alone: each run gets a fresh graph, whose forward pass is not timed.

    `loss_fn(output, target)` compares with zeros of the output's shape; mean squared error unless given.
    The model is as before after it.

    Raises:
        GnnlabError: no module, none of its parameters wants a gradient, or its result is no tensor.
    """
    _require_trainable(model, "profile_backward")
    options["setup"] = lambda: _training_loss(model, batch, loss_fn)
    with unchanged(model):
        model.zero_grad(set_to_none=True)
        return _timed(lambda loss: loss.backward(), device=device_of(model, batch), **options)


def profile_training_step(
    model: nn.Module,
    batch: Any,
    optimizer: torch.optim.Optimizer | None = None,
    loss_fn: Loss | None = None,
    **options: Any,
) -> RuntimeStats:
    """Time a whole step: zero gradients, forward, loss, backward, optimizer (plain Adam unless given).

    Model and optimizer are put back as they were, so profiling does not train them.

    Raises:
        GnnlabError: as `profile_backward`.
    """
    _require_trainable(model, "profile_training_step")
    optimizer = optimizer or torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        _training_loss(model, batch, loss_fn).backward()
        optimizer.step()

    with unchanged(model, optimizer):
        model.zero_grad(set_to_none=True)
        return _timed(step, device=device_of(model, batch), **options)


def _require_trainable(model: nn.Module, name: str) -> None:
    if not isinstance(model, nn.Module):
        raise GnnlabError(f"{name} needs a torch.nn.Module, not {type(model).__name__}: wrap the function in a module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise GnnlabError(f"{name}: {type(model).__name__} has no parameters that want gradients: nothing to train")


def _training_loss(model: nn.Module, batch: Any, loss_fn: Loss | None) -> torch.Tensor:
    """`loss_fn(output, target)` with zeros as the target; mean squared error unless given.

    Raises:
        GnnlabError: the model returns something else than a tensor.
    """
    output = call(model, batch)
    if not isinstance(output, torch.Tensor):
        raise GnnlabError(
            f"{type(model).__name__} returns {type(output).__name__}, not a tensor: training needs one; "
            "wrap the model in a module that returns the tensor to train on"
        )
    return (loss_fn or nn.functional.mse_loss)(output, torch.zeros_like(output))


def profile_pe_computation(pe_transform: Callable[[Any], Any], data: Any, **options: Any) -> RuntimeStats:
    """Time a positional encoding (a cost paid once a graph), on a fresh copy of `data` in each of 10 runs."""
    return _timed(pe_transform, setup=data.clone, **{"num_runs": 10, "warmup_runs": 1} | options)


class RuntimeProfiler:
    """Forward pass, backward pass and training step of one model."""

    def __init__(self, model: nn.Module, device: Any = None, **options: Any) -> None:
        self.model = model if device is None else model.to(device)
        self.options = options

    def profile_all(
        self, batch: Any, optimizer: torch.optim.Optimizer | None = None, loss_fn: Loss | None = None
    ) -> dict[str, RuntimeStats]:
        """Stats under "forward", "backward" and "training_step"; the last two only if there is anything to train."""
        stats = {"forward": profile_forward(self.model, batch, **self.options)}
        if any(p.requires_grad for p in self.model.parameters()):
            stats["backward"] = profile_backward(self.model, batch, loss_fn, **self.options)
            stats["training_step"] = profile_training_step(self.model, batch, optimizer, loss_fn, **self.options)
        return stats
