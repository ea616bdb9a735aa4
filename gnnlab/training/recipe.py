"""How a model is trained, as one record: every switch of the training loop, checked before anything runs.

TrainingRecipe(epochs=20, precision="bf16")      # refused where a value, or this device, does not allow it
why_not("bf16", "cpu")                           # None, or why a device does not train in a precision: measured
"""

from __future__ import annotations

import math
import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch

from gnnlab.errors import GnnlabError
from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import Estimate
from gnnlab.profiling.races import require_equal
from gnnlab.profiling.timing import race

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
_COUNTS = {"batch_size": 1, "accumulate": 1, "epochs": 1, "seed": 0, "patience": 0}
_AMOUNTS = ("learning_rate", "weight_decay", "clip_norm")
_FLAGS = ("compile", "checkpointing", "sharded")
_PROBE = {"size": 512, "tolerance": 2e-2, "budget_s": 0.2}  # a product in bf16, which keeps 8 bits


@dataclass(frozen=True)
class TrainingRecipe:
    """Switches of the training loop. `GnnlabError` where a value is not allowed or two do not go together."""

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
    compile: bool = False  # forward pass and loss by torch.compile
    checkpointing: bool = False  # the deep branch is computed again in the backward pass, not kept
    sharded: bool = False  # fully_shard: weights, gradients and optimizer state split over the processes

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if problem := _problem(name, value):
                raise GnnlabError(f"{name}={value!r}: {problem}")
        compilers = [os.environ.get("CXX"), "g++", "clang++", "c++", "cl", "icx"]
        if self.compile and self.device == "cpu" and not any(shutil.which(name) for name in compilers if name):
            raise GnnlabError("compile=True needs a C++ compiler, none was found: install one (g++, clang++ or cl)")
        if self.compile and self.sharded:
            raise GnnlabError("compile=True and sharded=True are not supported together; choose one")
        if self.precision == "fp16" and self.sharded:
            raise GnnlabError("precision='fp16' scales the loss by all gradients, and with sharded=True no process has "
                              "them; take bf16")  # fmt: skip
        if problem := why_not(self.precision, self.device):
            raise GnnlabError(f"precision={self.precision!r} on {self.device}: {problem}")

    @property
    def step_rows(self) -> int:
        """Rows of an optimizer step, over all processes."""
        return self.batch_size * self.accumulate


def from_json(values: Any) -> TrainingRecipe:
    """A recipe from what a JSON file holds, an object of switches. `GnnlabError` names a switch that there is not."""
    if not isinstance(values, dict):
        raise GnnlabError(f"a recipe is an object of switches, got {type(values).__name__}")
    known = TrainingRecipe.__dataclass_fields__
    if unknown := sorted(set(values) - set(known)):
        raise GnnlabError(f"a recipe has no {', '.join(unknown)}; it has {', '.join(known)}")
    return TrainingRecipe(**values)


def _problem(name: str, value: Any) -> str | None:
    if name == "precision":
        fits = isinstance(value, str) and value in PRECISIONS
        return None if fits else f"one of {', '.join(PRECISIONS)} is needed"
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
    count = torch.cuda.device_count()
    if kind.type == "cuda" and (kind.index or 0) >= count:
        found = f"torch finds {count or 'no'} CUDA device{'s' * (count != 1)} here"
        return f"{found}; use cpu" + " or a lower number" * bool(count)
    return None


# ---- precision: asked of the device and, on a processor, measured ---------------------------------------------------


@dataclass(frozen=True)
class Bf16Probe:
    """How many times as fast as in float32 this processor multiplies in bf16."""

    ratio: Estimate
    capability: str  # the vector instructions that torch uses
    instructions: bool  # has the processor any for bf16, as torch reads its flags?

    @property
    def native(self) -> bool:
        """Seen to be faster; or, where the measurement is too disturbed to tell, the instructions are there."""
        low, high = self.ratio.interval
        return low > 1 or (self.instructions and high > 1)

    @property
    def sentence(self) -> str:
        low, high = self.ratio.interval
        none = "has instructions for bf16 that gain nothing here" if self.instructions else "shows no native bf16"
        verdict = "multiplies in bf16 natively" if self.native else none
        size = f"{_PROBE['size']} x {_PROBE['size']}"
        return (
            f"this processor ({self.capability}) {verdict}: a product of {size} runs {self.ratio.value:.2f} times as "
            f"fast as in float32 (95 % interval {low:.2f} to {high:.2f}, {self.ratio.n} pairs)"
        )


@cache
def bf16_on_cpu() -> Bf16Probe:
    """Measured once a process, in a fifth of a second, with the threads that torch has at that time."""
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randn(_PROBE["size"], _PROBE["size"], generator=random) for _ in range(2))
    low_a, low_b = a.bfloat16(), b.bfloat16()
    with torch.no_grad():
        require_equal(a @ b, low_a @ low_b, _PROBE["tolerance"], "bf16")
        found = race({"float32": lambda: a @ b, "bf16": lambda: low_a @ low_b}, budget_s=_PROBE["budget_s"])
    instructions = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    ratio = estimates.ratio(found["float32"].samples_ms, found["bf16"].samples_ms)
    return Bf16Probe(ratio, torch.backends.cpu.get_cpu_capability(), instructions)


def why_not(precision: str, device: str) -> str | None:
    """Why `device` (cpu|cuda|cuda:N) does not train in `precision` (fp32|bf16|fp16); None where it does."""
    on_cuda = torch.device(device).type == "cuda"
    if precision == "fp16" and not on_cuda:
        return "fp16 needs a CUDA device, its loss scaling has kernels there only; take bf16 or fp32 on a processor"
    if precision == "bf16" and on_cuda and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "this CUDA device has no native bf16; take fp16 or fp32"
    if precision == "bf16" and not on_cuda and not bf16_on_cpu().native:
        return f"{bf16_on_cpu().sentence}; take fp32"
    return None


def autocast(precision: str, device: str) -> AbstractContextManager[object]:
    """The context in which a forward pass runs in `precision`; for fp32 one that changes nothing."""
    dtype = PRECISIONS[precision]
    return nullcontext() if dtype is None else torch.autocast(torch.device(device).type, dtype)
