"""The pair terms of a factorization machine: every form, and the one that is fastest here.

    pairs(embeddings)                       # (B, M, D) -> (B, M(M-1)/2), by the form that was measured fastest
    choose(4, 4096, 256, "cpu")             # its name
    FORMS["symmetric Gram"](embeddings)     # a form by name; all give the same, forward and backward
    DeepFM(..., interactions=pairs)

No form wins everywhere: matrix products win with many fields, compiled kernels with large batches, and with few rows
what counts is the number of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize.interactions.choice import Choices
from gnnlab.optimize.interactions.forms import (
    Embeddings,
    each,
    gram,
    half_square,
    index_pairs,
    pairwise_loop,
    stacked_loop,
    symmetric_gram,
)
from gnnlab.optimize.interactions.kernels import MOST_UNROLLED, fused

__all__ = ["CHOICES", "EAGER", "FORMS", "Embeddings", "choose", "compiled_loop", "half_square", "keep", "pairs"]

# what runs at once, and what a compiler makes first, in seconds
EAGER: Mapping[str, Callable[[Embeddings], Tensor]] = {
    "pairwise loop": pairwise_loop,
    "stacked loop": stacked_loop,
    "index pairs": index_pairs,
    "Gram": gram,
    "symmetric Gram": symmetric_gram,
}


def compiled_loop(embeddings: Embeddings) -> Tensor:
    """`pairwise_loop` by `torch.compile`; with more than 8 fields `index_pairs`: its code stays short."""
    return _compiled_few(embeddings) if len(each(embeddings)) <= MOST_UNROLLED else _compiled_many(embeddings)


_FORMS = {"dynamic": True, "fullgraph": True, "recompile_limit": 64}  # beyond 8, torch would run the rest eagerly
_compiled_few = torch.compile(pairwise_loop, **_FORMS)  # compiled at its first call
_compiled_many = torch.compile(index_pairs, **_FORMS)

FORMS: Mapping[str, Callable[[Embeddings], Tensor]] = {
    **EAGER,
    "compiled loop": compiled_loop,
    "fused kernels": fused,
}
_CHOSEN = {name: form for name, form in FORMS.items() if form is not compiled_loop}
CHOICES = Choices(_CHOSEN)  # of this process


def choose(
    fields: int,
    batch: int,
    dim: int,
    device: Any = "cpu",
    *,
    dtype: torch.dtype = torch.float32,
    training: bool = True,
) -> str:
    """The form in `FORMS` that is fastest for (batch, fields, dim), with the backward pass if `training`.

    The compiled loop is not among them: it is for who compiles a whole model. Measured at the first question about a
    size, which takes about a second, and some seconds more where kernels are compiled for it. Raises `OptimizeError`
    for sizes that are none.
    """
    return CHOICES.name(fields, batch, dim, device, dtype=dtype, training=training)


def keep(path: Path | None) -> None:
    """Keep what is measured in a JSON file, and use what it holds if it is of this machine; None: only in memory.

    Raises `OptimizeError`, and leaves the file as it is, where it is no such table.
    """
    global CHOICES
    CHOICES = Choices(_CHOSEN, path, table=dict(CHOICES.table))


def pairs(embeddings: Tensor) -> Tensor:
    """The dot product of each pair of fields: (B, M, D) -> (B, M(M-1)/2), in the order of `itertools.combinations`.

    By the form that `choose` names. Inside a compiler, which fuses by itself, it is the plain loop up to 8 fields.
    Forms round differently, and another process may choose another one: for a training that is to be taken up with
    bit-equal losses name a form, or `keep` the choices.
    Raises `OptimizeError` for another shape.
    """
    if embeddings.dim() != 3 or embeddings.shape[1] < 2 or not embeddings.is_floating_point():
        raise OptimizeError(
            f"pairs needs floating embeddings (batch, fields, dim) of two fields or more, not {embeddings.dtype} "
            f"{tuple(embeddings.shape)}"
        )
    batch, fields, dim = embeddings.shape
    if torch.compiler.is_compiling():
        return pairwise_loop(embeddings) if fields <= MOST_UNROLLED else gram(embeddings)
    if batch == 0 or dim == 0:
        return gram(embeddings)
    training = torch.is_grad_enabled() and embeddings.requires_grad
    return FORMS[choose(fields, batch, dim, embeddings.device, dtype=embeddings.dtype, training=training)](embeddings)
