"""Compile every Triton kernel for GPUs that need not be here: python compile_triton.py [sm ...] [--dtype NAME]

Each pass runs on a small graph with a hub, its launches noted instead of run; each is then compiled with its types and
constants. Prints a line of JSON for each: kernel, sm, registers, bytes of stack (registers spilled), widths of loads.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)
sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gnnswap import triton_passes as passes
from gnnswap.neighbours import Neighbours

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TYPES = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.float16: "*fp16", torch.bfloat16: "*bf16",
    torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip
Rows = namedtuple("Rows", "graph order")


def dense_graph() -> Neighbours:
    """40 edges a node, so that tiles are as large as they get, and a hub at both ends."""
    edges = torch.stack([torch.arange(4000) % 97, torch.arange(4000) % 100])
    return Neighbours.prepare(torch.cat([edges, torch.zeros(2, 300, dtype=torch.int64)], 1), 100)


def sparse_graph() -> Neighbours:
    """7 edges a node, no hub."""
    return Neighbours.prepare(torch.stack([torch.arange(700) % 97, torch.arange(700) % 100]), 100)


def run_all(dtype: torch.dtype, graph: Neighbours, widths: Sequence[int], heads: Sequence[tuple[int, int]]) -> None:
    """Each pass, with and without what it may leave out, for rows of these widths and these heads x channels."""
    nodes, edges, back = graph.num_nodes, graph.num_edges, graph.transposed
    rows, by_source = Rows(graph, graph.order), Rows(back, back.order)

    def new(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    for width in widths:
        x = new(nodes, width)
        passes.weighted_sum(x, graph)
        passes.weighted_sum(x, graph, new(edges))
        passes.weighted_sum_by_head(x.view(nodes, 2, -1), graph, new(edges, 2))
        passes.edge_products(x.view(nodes, 2, -1), x.view(nodes, 2, -1), graph)
        passes.edge_products(x.view(nodes, 1, -1), x.view(nodes, 1, -1), graph)
    passes.weighted_sum_by_head(new(nodes, 1, 64), graph, new(edges, 8))
    passes.edge_products(new(nodes, 8, 64), new(nodes, 1, 64), graph)
    passes.log_sum_exp(new(edges, 8), graph)
    for count, width in heads:
        narrow, wide, vector = new(nodes, count), new(nodes, count, width), new(count, width)
        of_heads, of_entries = new(edges, count), new(edges, count, width)
        attention("gat", graph, narrow, narrow, wide)
        attention("gat", graph, narrow, narrow, wide, edge=of_heads, keep=of_heads)
        attention("gatv2", graph, wide, None, wide, vector=vector)
        attention("gatv2", graph, wide, None, wide, vector=vector, edge=of_entries, keep=of_heads)
        attention("transformer", graph, wide, wide, wide, scale=width**-0.5)
        attention("transformer", graph, wide, wide, wide, scale=width**-0.5, edge=of_heads, keep=of_heads)
    attention("gat", graph, new(nodes, 8), new(nodes, 8), new(nodes, 1, 128))
    attention("transformer", graph, new(nodes, 8, 16), new(nodes, 8, 16), new(nodes, 1, 16))
    for width in widths:
        fused(rows, by_source, width, new)


def attention(kind, graph, query, key, values, **options) -> None:
    out, saved = passes.attend(kind, query, key, values, graph, **options)
    passes.attend_back(kind, torch.empty_like(out), saved, query, key, values, graph, **options)


def fused(rows, by_source, width, new) -> None:
    nodes, edges = rows.graph.num_nodes, rows.graph.num_edges
    x, e, both = new(nodes, width), new(edges, width), new(nodes, 2 * width)
    of_both = new(edges, 2 * width)
    for edge, relu in ((None, None), (e, None), (e, 1)):
        passes.multi_aggregate(rows, x, edge, relu, x, x, x, x)
        passes.ties(rows, x, edge, relu, x, x)
        passes.multi_aggregate_back(by_source, x, edge, relu, x, x, x, x, x, x, x)
        passes.softmax_aggregate(rows, x, edge, relu, 1.0, x, x, x)
        passes.softmax_aggregate_back(by_source, x, edge, relu, 1.0, 1.0, x, x, x, x)
    passes.multi_aggregate_back_to_edges(rows, x, e, 1, x, x, x, x, x, x, e)
    passes.softmax_aggregate_back_to_edges(rows, x, e, 1, 1.0, 1.0, x, x, x, e)
    for softplus in (None, 1):
        passes.gated_sum(rows, both, both, of_both, 1, softplus, x, both)
        passes.gated_sum_back(rows, both, both, of_both, 1, 1, softplus, True, x, both, of_both)
        passes.gated_sum_back(by_source, both, both, of_both, 1, 1, softplus, False, x, both, None)
    passes.gated_sum(rows, both, x, None, None, None, x, x)
    passes.gated_sum_back(rows, x, both, None, None, 1, None, True, x, x, None)
    passes.gated_sum_back(by_source, both, x, None, 1, None, None, False, x, both, None)
    passes.film_sum(rows, x, both, x, both)
    passes.film_sum_back(by_source, x, both, x, x)
    passes.edge_rows(rows, x, x, 1, e)
    passes.edge_rows_back(rows, e, e, 1, x)
    passes.edge_weighted_sum(rows, x, e, x)
    passes.edge_weighted_sum_back(rows, x, x, e)


def launches(dtypes: list[torch.dtype]) -> list[tuple]:
    """(kernel, types of arguments, constants, warps, type of sums) of all launches, each once."""
    noted = {}

    def note(kernel, grid, tensors, constants, *, numbers=(), warps=1):
        types = *(None if one is None else TYPES[one.dtype] for one in tensors), *("i32" for _ in numbers)
        precise = "*fp64" in types
        noted[kernel.fn.__name__, types, tuple(constants), warps] = kernel, types, tuple(constants), warps, precise

    real, passes.launch = passes.launch, note
    try:
        for dtype in dtypes:
            run_all(dtype, dense_graph(), (16, 100, 128), ((8, 16), (4, 128), (1, 256), (1, 512)))
            run_all(dtype, sparse_graph(), (64,), ((8, 8),))
    finally:
        passes.launch = real
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
