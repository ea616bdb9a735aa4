"""Which precision a device trains in: asked of the device and, on a processor, measured. Nothing is assumed.

why_not("bf16", "cpu")          # None, or why it is refused, in a few words
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache

import torch

from gnnlab.profiling.timing import race

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
_TOLERANCE = 2e-2  # of the largest element of a product; bf16 keeps 8 bits
_SIZE = 512  # rows and columns of the product that is timed
_BUDGET_S = 0.2


@dataclass(frozen=True)
class Bf16Probe:
    """How many times as fast as in float32 this processor multiplies in bf16, with the 95 % interval of `n` pairs."""

    ratio: float
    ci: tuple[float, float]
    n: int
    capability: str  # the vector instructions that torch uses
    instructions: bool  # has the processor any for bf16, as torch reads its flags?

    @property
    def native(self) -> bool:
        """Seen to be faster; or, where the measurement is too disturbed to tell, the instructions are there."""
        return self.ci[0] > 1 or (self.instructions and self.ci[1] > 1)

    @property
    def sentence(self) -> str:
        low, high = self.ci
        verdict = "multiplies in bf16 natively" if self.native else "shows no native bf16"
        size = f"{_SIZE} x {_SIZE}"
        return (
            f"this processor ({self.capability}) {verdict}: a product of {size} runs {self.ratio:.2f} times as fast as "
            f"in float32 (95 % interval {low:.2f} to {high:.2f}, {self.n} pairs)"
        )


@cache
def bf16_on_cpu() -> Bf16Probe:
    """Measured once a process, in a fifth of a second, with the threads that torch has at that time."""
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randn(_SIZE, _SIZE, generator=random) for _ in range(2))
    low_a, low_b = a.bfloat16(), b.bfloat16()
    with torch.no_grad():
        found = race(lambda: a @ b, {"bf16": lambda: low_a @ low_b}, parity=_TOLERANCE, budget_s=_BUDGET_S)["bf16"]
    instructions = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return Bf16Probe(found.ratio, found.ci, found.n, torch.backends.cpu.get_cpu_capability(), instructions)


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
