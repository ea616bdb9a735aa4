"""Compile every Triton kernel for GPUs that need not be here: python compile_triton.py [sm ...] [--dtype NAME]

Each kernel of kernels.py runs on a graph with a hub, its launches noted instead of run; each launch is then compiled
with its types and constants. Prints a line of JSON for each: kernel, sm, registers, bytes of stack (registers spilled),
widths of loads.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

import torch
import triton
import triton.language as tl
from kernels import CASES, ONE_PASS, case
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gnnswap import backends
from gnnswap import triton_passes as passes

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TYPES = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.float16: "*fp16", torch.bfloat16: "*bf16",
    torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip
ON_GPU = [name for name in CASES if "all pairs" not in name and "additive" not in name] + list(ONE_PASS)
# 40 edges a node, so that tiles are as large as they get, and a hub at both ends
DENSE = torch.cat([torch.stack([torch.arange(4000) % 97, torch.arange(4000) % 100]), torch.zeros(2, 300).long()], 1)
SPARSE = torch.stack([torch.arange(700) % 97, torch.arange(700) % 100])  # 7 edges a node, no hub
SIZES = [(DENSE, 16, 8), (DENSE, 128, 4), (DENSE, 512, 1), (SPARSE, 64, 8)]  # edges, width, heads


def run_all(dtype: torch.dtype) -> None:
    """Every kernel forward and backward, for gradients of all inputs, and of the first alone."""
    for name in ON_GPU:
        for edges, width, heads in SIZES:
            kernel, _, inputs = case(name, edges, 100, 100, width=width, heads=heads)
            inputs = [one.detach().to(dtype).requires_grad_() for one in inputs]
            for given in (inputs, [inputs[0], *(one.detach() for one in inputs[1:])]):
                out, wanted = kernel(*given), [one for one in given if one.requires_grad]
                torch.autograd.grad(out, wanted, torch.zeros_like(out), allow_unused=True)


def launches(dtypes: list[torch.dtype]) -> list[tuple]:
    """(kernel, types of arguments, constants, warps, type of sums) of all launches, each once."""
    noted = {}

    def note(kernel, grid, tensors, constants, *, numbers=(), warps=1):
        types = *(None if one is None else TYPES[one.dtype] for one in tensors), *("i32" for _ in numbers)
        precise = "*fp64" in types
        noted[kernel.fn.__name__, types, tuple(constants), warps] = kernel, types, tuple(constants), warps, precise

    passes.launch, backends.on_gpu, backends.ON_CPU = note, lambda x: True, backends.ON_CUDA
    for dtype in dtypes:
        run_all(dtype)
    return list(noted.values())


def compiled(kernel, types, constants, warps, precise, sm: int) -> dict:
    """What ptxas says of one launch."""
    names = kernel.arg_names
    values = {names[at]: None for at, one in enumerate(types) if one is None}
    values |= dict(zip(names[len(types) :], (tl.float64 if precise else tl.float32, *constants), strict=True))
    signature = {name: "constexpr" if name in values else types[at] for at, name in enumerate(names)}
    aligned = {(at,): [["tt.divisibility", 16]] for at, one in enumerate(types) if one is not None and one[0] == "*"}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in values.items()}, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", sm, 32), options={"num_warps": warps, **passes.OPTIONS})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        use = subprocess.run([TOOLS / "cuobjdump", "--dump-resource-usage", file.name], capture_output=True, text=True)
    registers, stack, shared = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", use.stdout).groups()
    widths = re.findall(r"ld\.global\S*?(?:\.(v\d))?\.(b\d+)", made.asm["ptx"])
    loads = {one: sum("".join(w) == one for w in widths) for one in sorted({"".join(w) for w in widths})}
    return {
        "kernel": kernel.fn.__name__,
        "sm": sm,
        "constants": [str(one) for one in constants],
        "types": types,
        "warps": warps,
        "registers": int(registers),
        "stack": int(stack),
        "shared": int(shared),
        "loads": loads,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sm", type=int, nargs="*", default=[80, 90])
    parser.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--only", default="", help="part of a kernel's name")
    given = parser.parse_args()
    for launch in launches([getattr(torch, name) for name in given.dtype]):
        for sm in given.sm:
            if given.only in launch[0].fn.__name__:
                print(json.dumps(compiled(*launch, sm)), flush=True)


if __name__ == "__main__":
    main()
