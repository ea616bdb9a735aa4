"""A factorization machine and a deep network over the same embeddings, several targets: the training guide (S3).

DeepFM (Guo et al. 2017), as a pharmacogenomic study used it: fields drug, genotype, gene and allele; here the number of
fields is free. The plain form: what is faster and computes the same is for others to show.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from gnnlab.errors import GnnlabError, whole_numbers
from gnnlab.workloads.tables import Target


def pairwise(*embeddings: Tensor) -> Tensor:
    """Dot products of all pairs of M fields (B, D), one after the other, (B, M(M-1)/2), in the order of
    `itertools.combinations`: (0, 1), (0, 2), ..., (1, 2), ..."""
    pairs = itertools.combinations(embeddings, 2)
    return torch.cat([torch.sum(a * b, dim=-1, keepdim=True) for a, b in pairs], dim=-1)


class DeepFM(nn.Module):
    """`model(fields)`, fields int64 (B, M) -> logits (B, size) by target name.

    Each field has an embedding of `embedding_dim`. Deep branch: all embeddings side by side through `hidden`,
    `hidden / 2` and `hidden / 4`, each with GELU and dropout. FM branch: the dot products of all pairs, by
    `interactions`. One linear head a target over both branches. `log_variances` s (T,) weigh the losses L of the
    targets, as exp(-s) L + s (Kendall et al. 2018).

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
