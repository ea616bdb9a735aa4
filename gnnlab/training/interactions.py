"""The pair terms of a factorization machine: fast forms of them, and the one that is fastest here.

    pairs(stack)                    # (B, M, D) -> (B, P), P = M(M-1)/2, by the form that was measured fastest
    pairs(drug, gene, allele)       # the same from M tensors (B, D) side by side
    choose(4, 4096, 256, "cpu")     # its name in `FORMS`
    DeepFM(..., interactions=pairs)

The dot product of each pair of fields, in the order of `itertools.combinations`: (0, 1), (0, 2), ..., (1, 2), ... No
form wins everywhere: matrix products win with many fields, compiled kernels with large batches, and with few rows what
counts is the number of calls.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnnlab.errors import GnnlabError, whole_numbers
from gnnlab.profiling import estimates
from gnnlab.profiling.races import Raced, race_forms

MOST_UNROLLED = 8  # fields; beyond, a loop over pairs makes too many calls, and its kernel takes too long to compile
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
LOOP = "pairwise loop"
BUDGET_S = 0.5  # of a race that chooses, of which there are one or two
_BATCH = 64  # the batch that is traced; the kernels take any from 2 on

# ---- forms that run at once -----------------------------------------------------------------------------------------


def pairwise_loop(*embeddings: Tensor) -> Tensor:
    """A product and a sum for each pair: one stack (B, M, D), or M tensors (B, D), to (B, P)."""
    parts = embeddings if len(embeddings) > 1 else embeddings[0].unbind(1)
    return torch.cat([torch.sum(a * b, dim=-1, keepdim=True) for a, b in itertools.combinations(parts, 2)], dim=-1)


def symmetric_gram(*embeddings: Tensor) -> Tensor:
    """All M x M products in one batched matrix product, and the backward pass that its symmetry allows.

    With S the symmetric (M, M) matrix of the gradients of the pairs, zero on the diagonal, dE = S E: one gather and one
    product. Autograd, which does not know of the symmetry, scatters into zeros and multiplies twice.
    """
    stack = _stacked(embeddings)
    if torch.is_grad_enabled() and stack.requires_grad and not torch.compiler.is_compiling():
        return _SymmetricGram.apply(stack)
    return _upper_triangle(stack)


class _SymmetricGram(torch.autograd.Function):
    @staticmethod
    def forward(ctx, stack: Tensor) -> Tensor:
        ctx.save_for_backward(stack)
        return _upper_triangle(stack)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return _gradient(grad, *ctx.saved_tensors)


def _gradient(grad: Tensor, stack: Tensor) -> Tensor:
    """dE = S E from the gradient (B, P) of the pairs; can be differentiated again."""
    batch, num_fields, _ = stack.shape
    padded = torch.constant_pad_nd(grad.to(stack.dtype), (1, 0))  # column 0 is the diagonal
    symmetric = padded.index_select(1, _symmetric_slots(num_fields, stack.device)).view(batch, num_fields, num_fields)
    return _product(symmetric, stack)


def _upper_triangle(stack: Tensor) -> Tensor:
    first, second = _pair_places(stack.shape[1], stack.device)
    return _product(stack, stack.mT).flatten(1).index_select(1, first * stack.shape[1] + second)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Batched, in the precision of the embeddings also under autocast: so the forms agree there, too."""
    kind = a.device.type
    if not torch.is_autocast_enabled(kind):
        return torch.bmm(a, b)
    with torch.autocast(kind, enabled=False):
        return torch.bmm(a, b)


def _stacked(embeddings: Sequence[Tensor]) -> Tensor:
    """(B, M, D)."""
    return embeddings[0] if len(embeddings) == 1 else torch.stack(list(embeddings), dim=1)


def _pair_places(num_fields: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """First and second field of each pair, (P,) each."""
    if torch.compiler.is_compiling():  # which cannot follow a cache, and needs none
        return torch.triu_indices(num_fields, num_fields, offset=1, device=device).unbind()
    return _cached_places(num_fields, device)


@cache
def _cached_places(num_fields: int, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):  # tensors of inference mode could not be saved for a backward pass later
        return torch.triu_indices(num_fields, num_fields, offset=1, device=device).unbind()


@cache
def _symmetric_slots(num_fields: int, device: torch.device) -> Tensor:
    """For each place of an M x M matrix, row by row, 1 + the number of its pair; 0 on the diagonal."""
    with torch.inference_mode(False):
        first, second = _pair_places(num_fields, device)
        slots = torch.zeros(num_fields, num_fields, dtype=torch.int64, device=device)
        slots[first, second] = slots[second, first] = torch.arange(1, len(first) + 1, device=device)
        return slots.flatten()


# ---- one kernel forward and one backward, made by torch's compiler for any batch size -------------------------------


def fused(*embeddings: Tensor) -> Tensor:
    """The pair terms by compiled kernels: each embedding is read once, and no product of a pair is ever in memory.

    They are called directly, without the guards and wrappers of `torch.compile`, which for a small batch cost more than
    the work. A first call of a number of fields and a width compiles, for seconds; `RuntimeError` without a compiler.
    """
    parts = [part.contiguous() for part in embeddings] if 1 < len(embeddings) <= MOST_UNROLLED else None
    parts = parts or [_stacked(embeddings).contiguous()]
    if parts[0].shape[0] < 2 or parts[0].shape[-1] == 0 or torch.compiler.is_compiling():
        return symmetric_gram(*embeddings)  # the compiler takes sizes 0 and 1 for constants
    if torch.is_grad_enabled() and any(part.requires_grad for part in parts):
        return _Fused.apply(*parts)
    return _kernels_for(parts)[0](*parts)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(*parts)
        forward, ctx.kernel = _kernels_for(parts)
        return forward(*parts)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, ...]:
        parts = ctx.saved_tensors
        if torch.is_grad_enabled():  # this pass is to be differentiated itself
            together = _gradient(grad, _stacked(parts))
            return (together,) if len(parts) == 1 else together.unbind(1)
        return tuple(ctx.kernel(grad.contiguous(), *parts))


def _kernels_for(parts: Sequence[Tensor]) -> tuple[Callable[..., Tensor], Callable[..., Sequence[Tensor]]]:
    """By all that kernels are made for: everything but the batch."""
    first = parts[0]
    return _kernels(len(parts), tuple(first.shape[1:]), first.dtype, first.device, torch.get_num_threads())


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
            forward, backward = _compiled(pairwise_loop, parts), _compiled(_gradients_of_list, [grad, *parts])
            return lambda *parts: forward(*parts)[0], backward
        places, slots = _pair_places(num_fields, device), _symmetric_slots(num_fields, device)
        forward = _compiled(_pairs_of_stack, [*parts, *places])
        backward = _compiled(_gradient_of_stack, [grad, *parts, slots])
        return (lambda stack: forward(stack, *places)[0]), (lambda grad, stack: backward(grad, stack, slots))


def _compiled(function: Callable[..., Any], examples: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
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


def _gradients_of_list(grad: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
    """Of each field the sum over the others, gradient of the pair times the other."""
    number = {pair: k for k, pair in enumerate(itertools.combinations(range(len(parts)), 2))}
    gradients = []
    for i in range(len(parts)):
        terms = [grad[:, number[min(i, j), max(i, j)], None] * other for j, other in enumerate(parts) if i != j]
        gradients.append(sum(terms[1:], terms[0]))
    return tuple(gradients)


def _pairs_of_stack(stack: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Both sides of all pairs gathered: fused, what it gathers stays in registers."""
    return (stack[:, first] * stack[:, second]).sum(-1)


def _gradient_of_stack(grad: Tensor, stack: Tensor, slots: Tensor) -> Tensor:
    batch, num_fields, _ = stack.shape
    symmetric = torch.constant_pad_nd(grad, (1, 0))[:, slots].view(batch, num_fields, num_fields, 1)
    return (symmetric * stack[:, None]).sum(2)


# ---- the fastest of them --------------------------------------------------------------------------------------------

FORMS: Mapping[str, Callable[..., Tensor]] = {"symmetric Gram": symmetric_gram, "fused kernels": fused}


def choose(
    fields: int,
    batch: int,
    dim: int,
    device: Any = "cpu",
    *,
    dtype: torch.dtype = torch.float32,
    training: bool = True,
) -> str:
    """Name of the fastest for (batch, fields, dim), with the backward pass if `training`: of `FORMS` or the plain loop.

    Measured at the first question about a size, for about a second, and some more where kernels are compiled for it;
    then known in this process. A batch near a measured one (the nearest power of two) is not measured again, so the
    ragged last batch of an epoch costs nothing. Raises `GnnlabError` for sizes that are none.
    """
    whole_numbers(2, fields=fields)
    whole_numbers(0, batch=batch)
    whole_numbers(1, dim=dim)
    power = 1 << max(0, round(math.log2(max(batch, 1))))
    return _fastest(fields, power, dim, torch.device(device), dtype, bool(training), torch.get_num_threads())


@cache
def _fastest(
    fields: int, batch: int, dim: int, device: torch.device, dtype: torch.dtype, training: bool, threads: int
) -> str:
    """By a race on random embeddings, and one more among those that it leaves open. `threads`: of torch now."""
    forms = dict(FORMS) if fields > MOST_UNROLLED else {**FORMS, LOOP: pairwise_loop}
    with torch.inference_mode(False), torch.autocast(device.type, enabled=False):
        stack = torch.randn(batch, fields, dim, generator=torch.Generator().manual_seed(0))
        stack = stack.to(device, dtype).requires_grad_(training)
        options = {"tolerance": TOLERANCES.get(dtype, 1e-5), "budget_s": BUDGET_S, "device": str(device)}
        options |= {"mode": "training" if training else "inference", "control": False}
        times = _times(race_forms(forms, (stack,), **options))
        if len(left := _not_slower(times)) > 1:
            more = _times(race_forms({name: forms[name] for name in left}, (stack,), **options))
            times = {name: np.concatenate([times[name], again]) for name, again in more.items()}
    return min(times, key=lambda name: np.median(times[name])) if times else next(iter(forms))


def _times(raced: Mapping[str, Raced]) -> dict[str, np.ndarray]:
    return {name: found.times_ms for name, found in raced.items() if found.times_ms is not None}


def _not_slower(times: Mapping[str, np.ndarray]) -> list[str]:
    """The form with the smallest median, and those whose interval of the median overlaps its own."""
    found = {name: estimates.summary(samples) for name, samples in times.items()}
    fastest = min(found.values(), key=lambda median: median.value, default=None)
    known = fastest is not None and fastest.high is not None
    return [name for name, median in found.items() if not known or median.low is None or median.low <= fastest.high]


def pairs(*embeddings: Tensor) -> Tensor:
    """The dot product of each pair of fields: one stack (B, M, D), or M tensors (B, D), to (B, M(M-1)/2).

    By the form that `choose` names. Inside a compiler, which fuses by itself, it is the plain loop up to 8 fields.
    Forms round differently, and another process may choose another one: for a training that is to be taken up with
    bit-equal losses name a form. Raises `GnnlabError` for another shape.
    """
    first, fields = embeddings[0], len(embeddings) if len(embeddings) > 1 else embeddings[0].shape[1:2].numel()
    if first.dim() != (3 if len(embeddings) == 1 else 2) or fields < 2 or not first.is_floating_point():
        raise GnnlabError(
            "pairs needs floating embeddings, one stack (batch, fields, dim) of two fields or more or a tensor (batch, "
            f"dim) for each, not {first.dtype} {tuple(first.shape)}"
        )
    batch, dim = first.shape[0], first.shape[-1]
    if torch.compiler.is_compiling():
        return pairwise_loop(*embeddings) if fields <= MOST_UNROLLED else symmetric_gram(*embeddings)
    if batch == 0 or dim == 0:
        return symmetric_gram(*embeddings)
    training = torch.is_grad_enabled() and any(part.requires_grad for part in embeddings)
    name = choose(fields, batch, dim, first.device, dtype=first.dtype, training=training)
    return FORMS.get(name, pairwise_loop)(*embeddings)
