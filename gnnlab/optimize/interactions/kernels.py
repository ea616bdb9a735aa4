"""The pair terms as one kernel forward and one backward, made by torch's compiler for any batch size.

    fused(embeddings)       # (B, M, D), or M tensors (B, D) -> (B, P)

Forward, each embedding is read once and P sums come out; backward, each is read once more and its gradient written
once: no product of a pair is ever in memory. The kernels are called directly, without the guards and wrappers of
`torch.compile`, which for a small batch cost more than the work. A first call of a number of fields and a width
compiles, for seconds; `RuntimeError` where there is no compiler.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from gnnlab.optimize.interactions.forms import (
    Embeddings,
    gradient,
    pair_places,
    pairwise_loop,
    stacked,
    symmetric_gram,
    symmetric_slots,
)

MOST_UNROLLED = 8  # fields; beyond, a kernel that names each pair in its code takes too long to compile
_BATCH = 64  # the batch that is traced; the kernels take any from 2 on

Kernel = Callable[..., Sequence[Tensor]]


def fused(embeddings: Embeddings) -> Tensor:
    """The pair terms by the compiled kernels; gradients of gradients by plain operators."""
    parts = _parts(embeddings)
    if parts[0].shape[0] < 2 or parts[0].shape[-1] == 0 or torch.compiler.is_compiling():
        return symmetric_gram(embeddings)  # the compiler takes sizes 0 and 1 for constants
    if torch.is_grad_enabled() and any(part.requires_grad for part in parts):
        return _Fused.apply(*parts)
    return _kernels(*_kind(parts))[0](*parts)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(*parts)
        forward, ctx.kernel = _kernels(*_kind(parts))
        return forward(*parts)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, ...]:
        parts = ctx.saved_tensors
        if torch.is_grad_enabled():  # this pass is to be differentiated itself
            together = gradient(grad, parts[0] if len(parts) == 1 else stacked(parts))
            return (together,) if len(parts) == 1 else together.unbind(1)
        return tuple(ctx.kernel(grad.contiguous(), *parts))


def _parts(embeddings: Embeddings) -> list[Tensor]:
    """One stack (B, M, D), or M tensors (B, D) if they are few; contiguous, as the kernels were compiled for."""
    if not isinstance(embeddings, Tensor) and len(embeddings) <= MOST_UNROLLED:
        return [part.contiguous() for part in embeddings]
    return [stacked(embeddings).contiguous()]


def _kind(parts: Sequence[Tensor]) -> tuple[Any, ...]:
    """What kernels are made for: everything but the batch."""
    first = parts[0]
    return len(parts), tuple(first.shape[1:]), first.dtype, first.device, torch.get_num_threads()


@cache
def _kernels(count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, threads: int):
    """(forward(*parts) -> (B, P), backward(grad, *parts) -> gradients); compiled once for each kind in a process.

    `threads` are those of torch now: the compiler writes their number into the kernels.
    """
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(device.type, enabled=False):
        num_fields = count if count > 1 else shape[0]
        parts = [torch.zeros(_BATCH, *shape, dtype=dtype, device=device) for _ in range(count)]
        grad = torch.zeros(_BATCH, num_fields * (num_fields - 1) // 2, dtype=dtype, device=device)
        if count > 1:
            forward, backward = _compiled(_pairs_of_list, parts), _compiled(_gradients_of_list, [grad, *parts])
            return lambda *parts: forward(*parts)[0], backward
        places, slots = pair_places(num_fields, device), symmetric_slots(num_fields, device)
        forward = _compiled(_pairs_of_stack, [*parts, *places])
        backward = _compiled(_gradient_of_stack, [grad, *parts, slots])
        return (lambda stack: forward(stack, *places)[0]), (lambda grad, stack: backward(grad, stack, slots))


def _compiled(function: Callable[..., Any], examples: Sequence[Tensor]) -> Kernel:
    """The function for any batch: first sizes of floating arguments are free, all else is as in the examples."""
    batch = torch.export.Dim("batch", min=2)
    free = tuple({0: batch} if example.is_floating_point() else None for example in examples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own deprecations
        program = torch.export.export(_Traced(function), tuple(examples), dynamic_shapes=(free,))
        graph = program.graph_module
        for node in graph.graph.nodes:  # the compiler finds the free size where Dynamo would have noted it
            node.meta["example_value"] = node.meta.get("val")
        inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        return torch._inductor.standalone_compile(graph, inputs, dynamic_shapes="from_graph")


class _Traced(nn.Module):
    """A function as the module that `torch.export` wants."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self._function = function

    def forward(self, *arguments: Tensor) -> Any:
        return self._function(*arguments)


def _pairs_of_list(*parts: Tensor) -> Tensor:
    return pairwise_loop(parts)


def _gradients_of_list(grad: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
    """Of each field the sum over the others, gradient of the pair times the other."""
    number = {pair: k for k, pair in enumerate(itertools.combinations(range(len(parts)), 2))}
    gradients = []
    for i in range(len(parts)):
        terms = [grad[:, number[min(i, j), max(i, j)], None] * other for j, other in enumerate(parts) if i != j]
        gradients.append(sum(terms[1:], terms[0]))
    return tuple(gradients)


def _pairs_of_stack(stack: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """`index_pairs`: fused, what it gathers stays in registers."""
    return (stack[:, first] * stack[:, second]).sum(-1)


def _gradient_of_stack(grad: Tensor, stack: Tensor, slots: Tensor) -> Tensor:
    batch, num_fields, _ = stack.shape
    symmetric = torch.constant_pad_nd(grad, (1, 0))[:, slots].view(batch, num_fields, num_fields, 1)
    return (symmetric * stack[:, None]).sum(2)
