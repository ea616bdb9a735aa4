"""How a model is trained, as one record: every switch of the training loop, checked before anything runs.

Recipe()                                                    # the lab's own, the fastest form it knows
replace(recipe, **GUIDE_BEFORE), replace(recipe, **GUIDE_AFTER)   # the loops of the guide (document 003)
"""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize.training.precision import PRECISIONS, why_not

CHOICES = {
    "precision": tuple(PRECISIONS),
    "optimizer": ("plain", "foreach", "fused"),
    "loss": ("stack", "preallocated", "weighted"),
    "pipeline": ("samples", "batches", "table"),
    "transfer": ("plain", "dictionary", "pinned"),
}
_COUNTS = {"batch_size": 1, "accumulate": 1, "epochs": 1, "seed": 0, "workers": 0, "prefetch": 0, "patience": 0}
_AMOUNTS = ("learning_rate", "weight_decay", "clip_norm")
_FLAGS = ("compile", "checkpointing", "persistent", "sharded")

# the two loops of the guide; on a GPU its "after" also pins: transfer="pinned"
GUIDE_BEFORE = {"optimizer": "plain", "loss": "stack", "pipeline": "samples", "transfer": "plain", "workers": 4}
GUIDE_AFTER = {"optimizer": "plain", "loss": "preallocated", "pipeline": "samples", "transfer": "dictionary"}


@dataclass(frozen=True)
class Recipe:
    """Switches of the training loop. `OptimizeError` where a value is not allowed or two do not go together."""

    batch_size: int = 1024  # rows of a micro-batch, over all processes together
    accumulate: int = 1  # micro-batches of an optimizer step; the gradient is the mean over all their rows
    epochs: int = 10
    learning_rate: float = 1e-3
    weight_decay: float = 0.0  # AdamW's; with 0 it is Adam
    clip_norm: float = 0.0  # largest norm of the gradient; 0: as it is
    patience: int = 0  # epochs without a better validation score after which training stops; 0: never
    seed: int = 0  # of the order of rows and of dropout
    device: str = "cpu"  # cpu|cuda|cuda:N
    precision: str = "fp32"  # fp32|bf16|fp16, of the forward pass; weights stay as they are
    optimizer: str = "fused"  # plain|foreach|fused
    loss: str = "weighted"  # stack|preallocated|weighted, see `losses`
    pipeline: str = "table"  # samples|batches|table, see `input_pipeline`
    transfer: str = (
        "plain"  # plain: one column after the other|dictionary: all, non-blocking|pinned: from pinned memory
    )
    workers: int = 0  # processes that load batches
    persistent: bool = False  # the workers live on from epoch to epoch
    prefetch: int = 0  # batches that a worker keeps ready; 0: torch's own number
    compile: bool = False  # forward pass and loss by torch.compile
    checkpointing: bool = False  # the deep branch is computed again in the backward pass, not kept
    sharded: bool = False  # fully_shard: weights, gradients and optimizer state split over the processes

    def __post_init__(self) -> None:
        for name, problem in ((name, _problem(name, value)) for name, value in asdict(self).items()):
            if problem:
                raise OptimizeError(f"{name}={getattr(self, name)!r}: {problem}")
        for wrong, problem in self._combinations():
            if wrong:
                raise OptimizeError(problem)
        if problem := why_not(self.precision, self.device):
            raise OptimizeError(f"precision={self.precision!r} on {self.device}: {problem}")

    def _combinations(self) -> list[tuple[bool, str]]:
        on_cuda, in_memory = self.device != "cpu", self.pipeline == "table"
        idle = self.persistent or self.prefetch > 0
        loads = self.workers > 0 or idle or self.transfer != "plain"
        return [
            (in_memory and loads, "pipeline='table' loads and moves nothing: leave workers, persistent, prefetch and "
             "transfer as they are, or take pipeline='batches'"),
            (idle and not self.workers, "persistent and prefetch are about workers: set workers to 1 or more"),
            (self.transfer == "pinned" and not on_cuda, "transfer='pinned' is for a CUDA device, memory is pinned for "
             "its copies; take 'plain' or 'dictionary' on a processor"),
            (self.compile and not on_cuda and not _compiler(), "compile=True needs a C++ compiler, none was found: "
             "install one (g++, clang++ or cl) or set compile=False"),
            (self.compile and self.sharded, "compile=True and sharded=True are not supported together; choose one"),
            (self.precision == "fp16" and self.sharded, "precision='fp16' scales the loss by all gradients, and with "
             "sharded=True no process has them; take bf16"),
        ]  # fmt: skip

    @property
    def step_rows(self) -> int:
        """Rows of an optimizer step, over all processes."""
        return self.batch_size * self.accumulate


def from_json(values: Any) -> Recipe:
    """A recipe from what a JSON file holds, an object of switches. `OptimizeError` names a switch that there is not."""
    if not isinstance(values, dict):
        raise OptimizeError(f"a recipe is an object of switches, got {type(values).__name__}")
    known = Recipe.__dataclass_fields__
    if unknown := sorted(set(values) - set(known)):
        raise OptimizeError(f"a recipe has no {', '.join(unknown)}; it has {', '.join(known)}")
    return Recipe(**values)


def _problem(name: str, value: Any) -> str | None:
    if name in CHOICES:
        return None if value in CHOICES[name] else f"one of {', '.join(CHOICES[name])} is needed"
    if name in _COUNTS:
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= _COUNTS[name]
        return None if fits else f"an integer of {_COUNTS[name]} or more is needed"
    if name in _AMOUNTS:
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        fits = number and (value > 0 if name == "learning_rate" else value >= 0)
        return None if fits else f"a number {'above 0' if name == 'learning_rate' else 'of 0 or more'} is needed"
    if name in _FLAGS:
        return None if isinstance(value, bool) else "True or False is needed"
    return _device_problem(value)


def _device_problem(device: Any) -> str | None:
    try:
        kind = torch.device(device)
    except (RuntimeError, TypeError):
        return "a device is cpu, cuda or cuda:N"
    if not isinstance(device, str) or kind.type not in ("cpu", "cuda") or (kind.type == "cpu" and device != "cpu"):
        return "a device is cpu, cuda or cuda:N"
    if kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        return (
            f"torch finds {count or 'no'} CUDA device{'s' * (count != 1)} here; use cpu"
            + " or a lower number" * bool(count)
        )
    return None


def _compiler() -> bool:
    wanted = [os.environ.get("CXX"), "g++", "clang++", "c++", "cl", "icx"]
    return any(shutil.which(name) for name in wanted if name)
