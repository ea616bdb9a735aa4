"""A table whose truth is known: long-tailed categories, planted effects of fields and of pairs, and noise.

How a row comes about. Each field draws its category on its own, the k-th most frequent with probability ~ 1 / k. Every
category has latent factors; a score is the sum of linear effects of the fields and of products of pairs of fields
(what a factorization machine can learn), both centred and of half its variance, 1 in all, plus an offset. Then the
answer is drawn: with Gumbel noise of scale `noise` on each score the largest one is the class, with logistic noise
of that scale a label holds if its score is above 0. So the true probabilities are softmax(score / noise) and
sigmoid(score / noise), and what they score is the best that any model can do but by luck.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import Generator, SeedSequence, default_rng
from scipy.special import expit, softmax

from gnnlab.errors import whole_numbers
from gnnlab.workloads.tables import FeatureTable, Target

# a pharmacogenomic table in the order of the seed: field -> categories
PHARMACOGENOMIC = {"drug": 600, "genotype": 1200, "gene": 120, "allele": 800}
TARGETS = (
    Target("outcome", "classes", 4),
    Target("direction", "classes", 3),
    Target("effect", "classes", 8),
    Target("phenotypes", "labels", 12),
)
LATENT = 4  # factors of a category
MOST_PAIRS = 12  # pairs with an effect
PAIR_SHARE = 0.5  # of the variance of a score
OFFSET = {"classes": (0.0, 0.5), "labels": (-1.0, 0.5)}  # mean and spread over the scores: labels are rather absent


def planted(
    rows: int, *, cardinalities: Sequence[int] | None = None, noise: float = 0.3, seed: int = 0
) -> FeatureTable:
    """`rows` rows with four targets: 4, 3 and 8 classes, and 12 labels.

    The fields are those of a pharmacogenomic table, or one for each of `cardinalities`. `noise`: scale of the noise
    on scores of standard deviation 1. Tables of the same seed and sizes share one truth, whatever their
    number of rows.
    Raises `GnnlabError`: no row.
    """
    sizes = tuple(PHARMACOGENOMIC.values() if cardinalities is None else cardinalities)
    own = len(sizes) == len(PHARMACOGENOMIC)
    names = tuple(PHARMACOGENOMIC) if own else tuple(f"field_{m}" for m in range(len(sizes)))
    whole_numbers(1, rows=rows)
    for_effects, for_rows, for_noise = (default_rng(child) for child in SeedSequence(seed).spawn(3))
    # Zipf's 1 / rank, in random order: frequent categories do not lie side by side
    ranked = [1 / np.arange(1, size + 1) for size in sizes]
    frequencies = [for_effects.permutation(weights / weights.sum()) for weights in ranked]
    columns = [for_rows.choice(size, size=rows, p=p) for size, p in zip(sizes, frequencies, strict=True)]
    scores = _scores(columns, frequencies, for_effects) / noise
    targets, truth, first = {}, {}, 0
    for spec in TARGETS:
        answers, probabilities = _draw(spec, scores[:, first : first + spec.size], for_noise)
        targets[spec.name], truth[spec.name] = torch.from_numpy(answers), torch.from_numpy(probabilities).float()
        first += spec.size
    return FeatureTable(torch.from_numpy(np.stack(columns, axis=1)), targets, TARGETS, sizes, names, truth)


def _scores(columns: Sequence[np.ndarray], frequencies: Sequence[np.ndarray], rng: Generator) -> np.ndarray:
    """(R, S) scores of all targets side by side; each has variance 1 over the rows, and an offset."""
    width = sum(spec.size for spec in TARGETS)
    factors = [rng.normal(size=(len(p), LATENT)) for p in frequencies]  # (categories, LATENT) by field
    # with mean 0 over the rows, so that effects of fields and of pairs do not overlap
    factors = [z - p @ z for z, p in zip(factors, frequencies, strict=True)]
    pairs = list(itertools.combinations(range(len(columns)), 2))
    chosen = rng.permutation(len(pairs))[:MOST_PAIRS]
    offset = np.concatenate([rng.normal(*OFFSET[spec.kind], size=spec.size) for spec in TARGETS])
    scores = np.broadcast_to(offset, (len(columns[0]), width)).copy()
    for column, z, p in zip(columns, factors, frequencies, strict=True):
        effects = z @ rng.normal(size=(LATENT, width))  # (categories, S)
        effects *= np.sqrt((1 - PAIR_SHARE) / len(columns) / (p @ effects**2))
        scores += effects[column]
    weights = rng.normal(size=(len(chosen), width))
    weights *= np.sqrt(PAIR_SHARE / (weights**2).sum(axis=0))
    for weight, (a, b) in zip(weights, (pairs[i] for i in chosen), strict=True):
        product = np.einsum("rk,rk->r", factors[a][columns[a]], factors[b][columns[b]])
        covariance_a, covariance_b = ((factors[m] * frequencies[m][:, None]).T @ factors[m] for m in (a, b))
        spread = np.sqrt(np.trace(covariance_a @ covariance_b))
        scores += (product / spread)[:, None] * weight
    return scores


def _draw(spec: Target, scores: np.ndarray, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Answers and the true probabilities (R, size) of scores in units of the noise."""
    if spec.kind == "classes":
        return (scores + rng.gumbel(size=scores.shape)).argmax(axis=1), softmax(scores, axis=1)
    return (scores + rng.logistic(size=scores.shape) > 0).astype(np.float32), expit(scores)
