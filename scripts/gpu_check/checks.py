"""Checks: outputs and gradients of swap's model against PyG in float64, for as many nodes as fit into memory."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from .cases import Case, free_memory, one_line
from .rows import finite

ALLOWED = {"float32": 1e-5, "bfloat16": 1e-2}  # error relative to the largest number of a tensor
SLACK = 8  # times the error of PyG's own code in the same type, where that is more
GRADIENT_FLOOR = {"float32": 1e-3, "bfloat16": 5e-2}  # of the largest gradient: a smaller one is compared at this scale
KINKS = 2  # rows of the gradient of x, of 1,000 to 50,000, that may be off by more
SHARES = (1.0, 1 / 8, 1 / 64, 1 / 512)  # of the nodes whose float64 reference is computed: the first that fits
FLOAT64_COPIES = 16  # arrays of edges by channels that a training step of PyG holds, at most


def sample_rows(edges: Tensor, nodes: int, share: float) -> Tensor:
    """(N,) bool: `share` of the nodes, among them the ten with the most edges."""
    if share == 1:
        return torch.ones(nodes, dtype=torch.bool, device=edges.device)
    draw = torch.Generator(edges.device).manual_seed(3)
    rows = torch.rand(nodes, generator=draw, device=edges.device) < share
    rows[torch.bincount(edges[1], minlength=nodes).topk(min(10, nodes)).indices] = True
    return rows


def reference(case: Case, dtype: torch.dtype, rows: Tensor, direction: Tensor) -> list:
    """[output, gradients] of PyG's layer in `dtype`, right for the outputs of `rows` (N,) bool.

    Only edges to these rows are computed.
    """
    layer = copy.deepcopy(case.layer).to(dtype)
    edges, extra = case.edges, case.extra
    if not bool(rows.all()):
        if case.name == "GCN":  # its norms need the degrees of all nodes
            layer.normalize = False
            edges, norm = gcn_norm(edges, None, case.x.shape[0], dtype=torch.float64)
            extra = (norm,)
        some = rows[edges[1]]
        edges, extra = edges[:, some], tuple(one[some] for one in extra)
    x = case.x.detach().to(dtype).requires_grad_()
    out = layer(x, edges, *(one.to(dtype) for one in extra))
    wanted = [x, *layer.parameters()]
    return [out.detach(), *torch.autograd.grad(out, wanted, direction.to(dtype), allow_unused=True)]


def deviation(got: list, exact: list, own: list, names: list[str], dtype: str) -> dict:
    """The tensor that is furthest off, measured by what it may be off: error, allowed, pyg_error, of, wrong, rows_off.

    An error is max |got - exact| / max |exact|. Gradients that are nearly zero, as that of a bias of attention keys,
    are compared at the scale of the largest gradient. Allowed is ALLOWED, or SLACK times the error of `own`. In the
    gradient of x a few rows may be off by more: where the argument of a LeakyReLU or ReLU is zero but for rounding, the
    two ends of that edge get another slope, in PyG's float32 as in any other (`rows_off`, at most KINKS of them).
    """
    largest = [0.0 if one is None else float(one.abs().max()) for one in exact]
    floor = GRADIENT_FLOOR[dtype] * max(largest[1:], default=0.0)
    worst, excess = {}, -1.0
    for name, mine, true, theirs, size in zip(names, got, exact, own, largest, strict=True):
        if true is None and mine is None:
            continue
        if true is None or mine is None or mine.shape != true.shape:
            return {"error": None, "allowed": None, "pyg_error": None, "of": name, "wrong": True}
        scale = max(size, floor if name != "output" else 0.0, 1e-30)
        error = float((mine.double() - true).abs().max()) / scale
        pyg_error = float((theirs.double() - true).abs().max()) / scale
        allowed = max(ALLOWED[dtype], SLACK * pyg_error)
        rows_off = 0
        if name == "x" and error > allowed:
            rows_off = int(((mine.double() - true).abs().amax(1) > allowed * scale).sum())
        most = KINKS * max(1, len(mine) // 50_000) if len(mine) >= 1000 else 0
        wrong = not error <= allowed and not 0 < rows_off <= most
        this = error / allowed if math.isfinite(error) else math.inf
        if this > excess:
            excess = this
            worst = {"error": finite(error), "allowed": finite(allowed), "pyg_error": finite(pyg_error)}
            worst |= {"of": name, "wrong": wrong, "rows_off": rows_off}
    return worst


def compare(case: Case, share: float = 1.0) -> dict:
    """Outputs and all gradients of swap's model against PyG in float64, for a share of the nodes; twice, bit by bit."""
    rows = sample_rows(case.edges, case.x.shape[0], share)
    whole, case.direction = case.direction, case.direction * rows[:, None]
    try:
        step = case.call(case.faster, "training")
        got, again = step(), step()
        exact = reference(case, torch.float64, rows, case.direction)
        own = reference(case, getattr(torch, case.dtype), rows, case.direction)
    finally:
        case.direction = whole
    same = all(one is other or torch.equal(one, other) for one, other in zip(got, again, strict=True))
    for each in (got, exact, own):
        each[0] = each[0][rows]
    names = ["output", "x", *(name for name, _ in case.layer.named_parameters())]
    found = deviation(got, exact, own, names, case.dtype)
    output = deviation(got[:1], exact[:1], own[:1], names[:1], case.dtype)
    found |= {"output_error": output["error"], "pyg_output_error": output["pyg_error"]}
    return found | {"bit_equal": same, "nodes_compared": int(rows.sum()), "share": share}


def check(case: Case) -> dict:
    """A row of `compare` for the largest share of nodes whose float64 reference fits into memory."""
    row, device = case.key() | case.swapped, case.x.device.type
    channels = max(case.direction.shape[1], case.x.shape[1])
    needed = FLOAT64_COPIES * 8 * (case.edges.shape[1] + case.x.shape[0]) * channels
    free_memory(device)
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else math.inf
    for share in SHARES:
        if share * needed > free and share != SHARES[-1]:
            continue
        row.pop("why", None)
        try:
            return row | compare(case, share)
        except torch.OutOfMemoryError as problem:
            row["why"] = one_line(problem)
        free_memory(device)
    return row
