"""The planted table is what it says: its frequencies, the size and share of its effects, its noise, its best score."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnlab.workloads.tables import TARGETS, planted

SMALL = (12, 9, 8, 7)


def small(rows: int, **options):
    return planted(rows, **({"cardinalities": SMALL} | options))


def test_the_default_is_sized_as_the_pharmacogenomic_study_and_follows_its_seed():
    table, same, other = planted(500), planted(500), planted(500, seed=4)
    assert table.field_names == ("drug", "genotype", "gene", "allele") and table.cardinalities == (600, 1200, 120, 800)
    assert len(table) == 500 and table.specs == TARGETS and table.notes == ()
    assert torch.equal(table.fields, same.fields) and not torch.equal(table.fields, other.fields)
    for spec in TARGETS:
        assert torch.equal(table.targets[spec.name], same.targets[spec.name])


def test_tables_of_different_length_share_one_truth():
    tables = small(4000, seed=1), small(1000, seed=1)
    rows = [dict(zip(map(tuple, t.fields.tolist()), t.truth["outcome"].numpy(), strict=True)) for t in tables]
    both = rows[0].keys() & rows[1].keys()
    assert len(both) > 100
    np.testing.assert_allclose([rows[0][key] for key in both], [rows[1][key] for key in both], rtol=1e-5)


def test_frequencies_are_those_of_zipf():
    counts = torch.bincount(small(50_000).fields[:, 0], minlength=12).double()
    expected = 1 / torch.arange(1.0, 13.0, dtype=torch.float64)
    shares = counts.sort(descending=True).values / 50_000
    torch.testing.assert_close(shares, expected / expected.sum(), atol=0.01, rtol=0)
    assert not torch.equal(counts, counts.sort(descending=True).values)  # frequent ones do not lie side by side


def test_answers_are_drawn_from_the_stated_probabilities():
    table = small(40_000, noise=0.5)
    for spec in TARGETS:
        p, answer = table.truth[spec.name].double(), table.targets[spec.name]
        drawn = torch.nn.functional.one_hot(answer, spec.size) if spec.kind == "classes" else answer
        deviation = (drawn - p).sum(0) / (p * (1 - p)).sum(0).sqrt()  # standard normal if they are
        assert deviation.abs().max() < 4
        sure = p > 0.9
        assert (drawn[sure].double().mean() - p[sure].mean()).abs() < 0.01


def test_scores_have_variance_one_half_of_it_by_fields_and_half_by_pairs():
    table = small(40_000, noise=1.0)
    p = table.truth["phenotypes"].double()
    scores = (p / (1 - p)).log().numpy()
    one_hot = np.concatenate([np.eye(size)[table.fields[:, m]] for m, size in enumerate(SMALL)], axis=1)
    by_fields = one_hot @ np.linalg.lstsq(one_hot, scores, rcond=None)[0]
    np.testing.assert_allclose(scores.var(axis=0).mean(), 1, atol=0.05)
    np.testing.assert_allclose(by_fields.var(axis=0).mean(), 0.5, atol=0.05)


def test_the_best_score_falls_with_the_noise_from_one_to_chance():
    best = [small(3000, noise=noise).best_score for noise in (0.001, 0.3, 1000)]
    for spec in TARGETS:
        scores = [score[spec.name] for score in best]
        assert scores == sorted(scores, reverse=True) and scores[0] > 0.99
        chance = 1 / spec.size if spec.kind == "classes" else 0.5
        assert scores[2] == pytest.approx(chance, abs=0.06)
