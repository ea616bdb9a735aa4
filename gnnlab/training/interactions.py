"""DeepFM, the model of S3, and its pair terms: fast variants of them, and which is fastest for a number of fields.

    pairs(drug, gene, allele)       # M tensors (B, D) -> (B, M(M-1)/2): fused kernels up to 8 fields, else Gram
    DeepFM(..., interactions=pairs)

The dot product of each pair of fields, in the order of `itertools.combinations`: (0, 1), (0, 2), ..., (1, 2), ... With
few fields the products of pairs fit into one compiled kernel, which reads each embedding once; with many a matrix
product does all of them. In shapes B are the rows of a batch, M the fields, D the numbers of an embedding, T the
targets. S3 is a document (docs/glossary.md).
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from gnnlab.errors import GnnlabError, whole_numbers
from gnnlab.workloads.tables import Target
from gnnswap.aggregation import Kernel

MOST_FUSED = 8  # fields; beyond, a kernel of all pairs takes too long to compile
_BATCH = 64  # the batch that is traced; the kernels take any from 2 on


def pairwise(*embeddings: Tensor) -> Tensor:
    """Dot products of all pairs of M fields (B, D), one after the other, (B, M(M-1)/2), in the order of
    `itertools.combinations`: (0, 1), (0, 2), ..., (1, 2), ..."""
    pairs = itertools.combinations(embeddings, 2)
    return torch.cat([torch.sum(a * b, dim=-1, keepdim=True) for a, b in pairs], dim=-1)


class DeepFM(nn.Module):
    """`model(fields)`, fields int64 (B, M) -> logits (B, size) by target name.

    Field m holds categories 0 .. cardinalities[m] - 1, each with an embedding e_m of `embedding_dim` numbers. Deep
    branch: all embeddings side by side through `hidden`, `hidden / 2` and `hidden / 4`, each with GELU and dropout. FM
    branch: the dot products of all pairs, by `interactions`. One linear head a target over both branches:

        logits of t = W_t [deep(e_0 .. e_M-1), e_0 . e_1, e_0 . e_2, ...] + b_t

    After Guo et al. 2017, without its linear terms, and with a weight for each pair. `log_variances` s (T,) weigh the
    losses L of the targets, as exp(-s) L + s (Kendall et al. 2018).

    Raises `GnnlabError` for sizes that do not fit together, and in `forward` for fields of another shape.

    >>> model = DeepFM((600, 1200, 120, 800), (Target("outcome", "classes", 4),))
    >>> model(torch.zeros(32, 4, dtype=torch.int64))["outcome"].shape
    torch.Size([32, 4])
    """

    def __init__(
        self,
        cardinalities: Sequence[int],
        targets: Sequence[Target],
        *,
        embedding_dim: int = 64,
        hidden: int = 256,
        dropout: float = 0.1,
        interactions: Callable[..., Tensor] = pairwise,
    ):
        super().__init__()
        self.cardinalities, self.targets = tuple(cardinalities), tuple(targets)
        num_fields = len(self.cardinalities)
        sizes = {f"cardinality of field {m}": size for m, size in enumerate(self.cardinalities)}
        whole_numbers(1, **sizes, embedding_dim=embedding_dim, hidden=hidden)
        if num_fields < 2 or hidden % 4:
            raise GnnlabError(
                f"deepfm: {num_fields} fields, hidden {hidden}; two fields or more are needed, and a hidden that is a "
                "multiple of 4 (the branch halves it twice)"
            )
        self.interactions = interactions
        self.embeddings = nn.ModuleList(nn.Embedding(size, embedding_dim) for size in self.cardinalities)
        for table in self.embeddings:  # so that the product of a pair starts with variance 1, whatever the width
            nn.init.normal_(table.weight, std=embedding_dim**-0.25)
        widths = (num_fields * embedding_dim, hidden, hidden // 2, hidden // 4)
        layers = ((nn.Linear(*pair), nn.GELU(), nn.Dropout(dropout)) for pair in itertools.pairwise(widths))
        self.deep = nn.Sequential(*itertools.chain.from_iterable(layers))
        joined = hidden // 4 + num_fields * (num_fields - 1) // 2
        self.heads = nn.ModuleList(nn.Linear(joined, target.size) for target in self.targets)
        self.log_variances = nn.Parameter(torch.zeros(len(self.targets)))

    def forward(self, fields: Tensor) -> dict[str, Tensor]:
        if fields.dim() != 2 or fields.shape[1] != len(self.cardinalities):
            raise GnnlabError(f"deepfm: fields must be (B, {len(self.cardinalities)}), got {tuple(fields.shape)}")
        embedded = [table(fields[:, m]) for m, table in enumerate(self.embeddings)]  # M of (B, D)
        joined = torch.cat([self.deep(torch.cat(embedded, dim=1)), self.interactions(*embedded)], dim=1)
        return {target.name: head(joined) for target, head in zip(self.targets, self.heads, strict=True)}


# ---- pair terms ------------------------------------------------------------------------------------------------------


def pairs(*embeddings: Tensor) -> Tensor:
    """The dot product of each pair of fields, M tensors (B, D) to (B, M(M-1)/2).

    Inside a compiler, which fuses by itself, it is the plain loop up to 8 fields; without a compiler the Gram product.
    Raises `GnnlabError` for less than two fields or another shape.
    """
    first = embeddings[0]
    if len(embeddings) < 2 or any(e.shape != first.shape or e.dim() != 2 for e in embeddings):
        shapes = ", ".join(str(tuple(e.shape)) for e in embeddings)
        raise GnnlabError(f"pairs needs a tensor (batch, dim) for each of two fields or more, got {shapes}")
    if torch.compiler.is_compiling() and len(embeddings) <= MOST_FUSED:
        return pairwise(*embeddings)
    return fused(*embeddings) if _fits(embeddings) and _compiles(*_kind_of(embeddings)) else symmetric_gram(*embeddings)


# ---- variants that run at once --------------------------------------------------------------------------------------


def symmetric_gram(*embeddings: Tensor) -> Tensor:
    """`pairwise`, M tensors (B, D) to (B, M(M-1)/2), as all M x M products in one batched matrix product.

    Its backward pass uses the symmetry. With S the symmetric (M, M) matrix of the gradients of the pairs, zero on the
    diagonal, and E (M, D) the embeddings, dE = S E: one gather and one product. Autograd, which does not know of the
    symmetry, scatters into zeros and multiplies twice.
    """
    stack = torch.stack(embeddings, dim=1)  # (B, M, D)
    if torch.compiler.is_compiling():  # which differentiates by itself, and cannot follow a cache
        first, second = torch.triu_indices(stack.shape[1], stack.shape[1], offset=1, device=stack.device)
        return _product(stack, stack.mT)[:, first, second]
    return _SymmetricGram.apply(stack)


class _SymmetricGram(torch.autograd.Function):
    @staticmethod
    def forward(ctx, stack: Tensor) -> Tensor:
        ctx.save_for_backward(stack)
        places, _ = _places(stack.shape[1], stack.device)
        return _product(stack, stack.mT).flatten(1).index_select(1, places)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (stack,) = ctx.saved_tensors
        batch, fields, _ = stack.shape
        _, columns = _places(fields, stack.device)
        padded = torch.constant_pad_nd(grad.to(stack.dtype), (1, 0))  # column 0 is the diagonal
        return _product(padded.index_select(1, columns).view(batch, fields, fields), stack)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Batched, in the precision of the embeddings also under autocast: so the variants agree there, too."""
    kind = a.device.type
    if not torch.is_autocast_enabled(kind):
        return torch.bmm(a, b)
    with torch.autocast(kind, enabled=False):
        return torch.bmm(a, b)


@cache
def _places(fields: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of an M x M matrix, row by row: the place of each pair (P,); for each place 1 + the number of its pair, 0 on the
    diagonal (M * M,)."""
    with torch.inference_mode(False):  # tensors of inference mode could not be saved for a backward pass later
        first, second = torch.triu_indices(fields, fields, offset=1, device=device)
        columns = torch.zeros(fields, fields, dtype=torch.int64, device=device)
        columns[first, second] = columns[second, first] = torch.arange(1, len(first) + 1, device=device)
        return first * fields + second, columns.flatten()


# ---- one kernel forward and one backward, made by torch's compiler for any batch size -------------------------------


def fused(*embeddings: Tensor) -> Tensor:
    """`pairwise`, M tensors (B, D) to (B, M(M-1)/2), by compiled kernels for up to 8 fields.

    Each embedding is read once, and no product is in memory. The kernels are called directly, without the guards and
    wrappers of `torch.compile`, which for a small batch cost more than the work. A first call of a number of fields and
    a width compiles, for seconds; `RuntimeError` without a compiler.
    More fields, and batches of 0 and 1 (which the compiler takes for constants), are left to the Gram product.
    """
    if not _fits(embeddings):
        return symmetric_gram(*embeddings)
    parts = [part.contiguous() for part in embeddings]
    if torch.is_grad_enabled() and any(part.requires_grad for part in parts):
        return _Fused.run(*parts)
    return _kernels(*_kind_of(parts))[0](*parts)[0]


def _fits(embeddings: Sequence[Tensor]) -> bool:
    return len(embeddings) <= MOST_FUSED and embeddings[0].shape[0] > 1 and embeddings[0].shape[1] > 0


class _Fused(Kernel):
    plain = staticmethod(pairwise)  # what is differentiated where a gradient of the gradient is wanted

    @staticmethod
    def forward(ctx, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(*parts)
        ctx.settings = ()
        forward, ctx.backward_kernel = _kernels(*_kind_of(parts))
        return forward(*parts)[0]

    @staticmethod
    def back(ctx, grad: Tensor) -> tuple[Tensor, ...]:
        return tuple(ctx.backward_kernel(grad.contiguous(), *ctx.saved_tensors))


def _kind_of(parts: Sequence[Tensor]) -> tuple[Any, ...]:
    """All that kernels are made for: everything but the batch. The compiler writes the number of threads into them."""
    first = parts[0]
    return len(parts), first.shape[1], first.dtype, first.device, torch.get_num_threads()


@cache
def _compiles(*kind: Any) -> bool:
    try:
        _kernels(*kind)
    except Exception:  # no compiler, or one that fails
        return False
    return True


@cache
def _kernels(fields: int, dim: int, dtype: torch.dtype, device: torch.device, threads: int):
    """(forward(*parts) -> [(B, P)], backward(grad, *parts) -> gradients), once for each kind in a process."""
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(device.type, enabled=False):
        parts = [torch.zeros(_BATCH, dim, dtype=dtype, device=device) for _ in range(fields)]
        grad = torch.zeros(_BATCH, fields * (fields - 1) // 2, dtype=dtype, device=device)
        return _compiled(pairwise, parts), _compiled(_gradients, [grad, *parts])


def _compiled(function: Callable[..., Any], examples: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """The function for any batch: the first sizes are free, all else is as in the examples."""
    free = tuple({0: torch.export.Dim("batch", min=2)} for _ in examples)
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


def _gradients(grad: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
    """Of each field the sum over the others, gradient of the pair times the other."""
    number = {pair: k for k, pair in enumerate(itertools.combinations(range(len(parts)), 2))}
    gradients = []
    for i in range(len(parts)):
        terms = [grad[:, number[min(i, j), max(i, j)], None] * other for j, other in enumerate(parts) if i != j]
        gradients.append(sum(terms[1:], terms[0]))
    return tuple(gradients)
