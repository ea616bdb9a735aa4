"""The pair terms of a factorization machine, form by form, as torch computes them.

The dot product of each pair of fields, in the order of `itertools.combinations`: (0, 1), (0, 2), ..., (1, 2), ...
Each form takes (B, M, D), or M tensors (B, D) side by side as the study has them, and gives (B, P), P = M(M-1)/2.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

Embeddings = Tensor | Sequence[Tensor]


def pairwise_loop(embeddings: Embeddings) -> Tensor:
    """The guide's "before" (document 003): a product, a sum and a list entry for each pair."""
    products = []
    for first, second in itertools.combinations(each(embeddings), 2):
        products.append(torch.sum(first * second, dim=-1, keepdim=True))
    return torch.cat(products, dim=-1)


def stacked_loop(embeddings: Embeddings) -> Tensor:
    """The guide's "after": the same loop over slices of a stack, so each slice has a backward pass of its own."""
    stack = stacked(embeddings)
    num_fields = stack.size(1)
    products = []
    for i in range(num_fields):
        for j in range(i + 1, num_fields):
            products.append(torch.sum(stack[:, i] * stack[:, j], dim=-1, keepdim=True))
    return torch.cat(products, dim=-1)


def index_pairs(embeddings: Embeddings) -> Tensor:
    """Both sides of all pairs gathered, multiplied, summed: B P D numbers on each side."""
    stack = stacked(embeddings)
    first, second = pair_places(stack.shape[1], stack.device)
    return (stack.index_select(1, first) * stack.index_select(1, second)).sum(-1)


def gram(embeddings: Embeddings) -> Tensor:
    """All M x M products in one batched matrix product, of which the upper triangle is read."""
    return _upper_triangle(stacked(embeddings))


def symmetric_gram(embeddings: Embeddings) -> Tensor:
    """`gram` with the backward pass that its symmetry allows: one gather and one batched matrix product.

    With S the symmetric (M, M) matrix of the gradients of the pairs, zero on the diagonal, dE = S E. Autograd, which
    does not know of the symmetry, scatters into zeros and multiplies twice.
    """
    stack = stacked(embeddings)
    if torch.is_grad_enabled() and stack.requires_grad and not torch.compiler.is_compiling():
        return _SymmetricGram.apply(stack)
    return _upper_triangle(stack)


def half_square(embeddings: Embeddings) -> Tensor:
    """The SUM of all pairs, (B, 1), and nothing of the single ones: (|sum e|^2 - sum |e|^2) / 2 (Rendle 2010).

    In B M D steps instead of B M^2 D; the difference of two large numbers loses digits.
    """
    stack = stacked(embeddings)
    return (stack.sum(1).square() - stack.square().sum(1)).sum(-1, keepdim=True) / 2


class _SymmetricGram(torch.autograd.Function):
    @staticmethod
    def forward(ctx, stack: Tensor) -> Tensor:
        ctx.save_for_backward(stack)
        return _upper_triangle(stack)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return gradient(grad, *ctx.saved_tensors)


def gradient(grad: Tensor, stack: Tensor) -> Tensor:
    """dE = S E from the gradient (B, P) of the pairs; can be differentiated again."""
    batch, num_fields, _ = stack.shape
    padded = torch.constant_pad_nd(grad.to(stack.dtype), (1, 0))  # column 0 is the diagonal
    symmetric = padded.index_select(1, symmetric_slots(num_fields, stack.device)).view(batch, num_fields, num_fields)
    return _product(symmetric, stack)


def _upper_triangle(stack: Tensor) -> Tensor:
    first, second = pair_places(stack.shape[1], stack.device)
    return _product(stack, stack.mT).flatten(1).index_select(1, first * stack.shape[1] + second)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Batched, in the precision of the embeddings also under autocast: so the forms agree there, too."""
    kind = a.device.type
    if not torch.is_autocast_enabled(kind):
        return torch.bmm(a, b)
    with torch.autocast(kind, enabled=False):
        return torch.bmm(a, b)


def each(embeddings: Embeddings) -> Sequence[Tensor]:
    """M tensors (B, D)."""
    return embeddings.unbind(1) if isinstance(embeddings, Tensor) else embeddings


def stacked(embeddings: Embeddings) -> Tensor:
    """(B, M, D)."""
    return embeddings if isinstance(embeddings, Tensor) else torch.stack(list(embeddings), dim=1)


def pair_places(num_fields: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """First and second field of each pair, (P,) each."""
    if torch.compiler.is_compiling():  # which cannot follow a cache, and needs none
        return torch.triu_indices(num_fields, num_fields, offset=1, device=device).unbind()
    return _pair_places(num_fields, device)


@cache
def _pair_places(num_fields: int, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):  # tensors of inference mode could not be saved for a backward pass later
        return torch.triu_indices(num_fields, num_fields, offset=1, device=device).unbind()


@cache
def symmetric_slots(num_fields: int, device: torch.device) -> Tensor:
    """For each place of an M x M matrix, row by row, 1 + the number of its pair; 0 on the diagonal."""
    with torch.inference_mode(False):
        first, second = pair_places(num_fields, device)
        slots = torch.zeros(num_fields, num_fields, dtype=torch.int64, device=device)
        slots[first, second] = slots[second, first] = torch.arange(1, len(first) + 1, device=device)
        return slots.flatten()
