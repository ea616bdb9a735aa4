"""The model of the training study: its size by formula, its branches and losses by plain arithmetic, its errors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from refusals import refused
from torch.nn import functional as F

from gnnlab.training.interactions import DeepFM
from gnnlab.workloads.tables import Target

TARGETS = (Target("outcome", "classes", 4), Target("phenotypes", "labels", 3))
SIZES = (7, 5, 3, 9)


def small(**options) -> DeepFM:
    torch.manual_seed(0)
    return DeepFM(SIZES, TARGETS, **({"embedding_dim": 8, "hidden": 16} | options))


def some_fields(rows: int) -> torch.Tensor:
    return torch.stack([torch.randint(size, (rows,)) for size in SIZES], dim=1)


@example((600, 1200, 120, 800), (4,), 64, 256)  # 281,092 of the study's fields
@given(
    st.lists(st.integers(1, 50), min_size=2, max_size=6),
    st.lists(st.integers(2, 9), min_size=1, max_size=3),
    st.integers(1, 9),
    st.integers(1, 9).map(lambda n: 4 * n),
)
def test_the_number_of_parameters_follows_the_formula(sizes, classes, d, h):
    targets = [Target(f"t{i}", "classes", size) for i, size in enumerate(classes)]
    model = DeepFM(sizes, targets, embedding_dim=d, hidden=h)
    m = len(sizes)
    deep = (m * d * h + h) + (h * h // 2 + h // 2) + (h // 2 * h // 4 + h // 4)
    heads = sum(classes) * (h // 4 + m * (m - 1) // 2 + 1)
    assert sum(p.numel() for p in model.parameters()) == sum(sizes) * d + deep + heads + len(classes)


def test_the_output_is_a_head_over_the_deep_branch_and_the_pairs():
    model, fields = small().eval(), some_fields(6)
    e = torch.stack([model.embeddings[m].weight[fields[:, m]] for m in range(4)], dim=1)  # (B, M, D)
    deep = e.flatten(1)
    for place in (0, 3, 6):
        deep = F.gelu(F.linear(deep, model.deep[place].weight, model.deep[place].bias))
    products = torch.einsum("bmd,bnd->bmn", e, e)[:, *torch.triu_indices(4, 4, offset=1)]
    for target, head in zip(TARGETS, model.heads, strict=True):
        expected = F.linear(torch.cat([deep, products], dim=1), head.weight, head.bias)
        torch.testing.assert_close(model(fields)[target.name], expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cardinalities": (7,)}, "1 fields, hidden 16; two fields or more"),
        ({"cardinalities": (7, 0)}, "cardinality of field 1 must be an integer of 1 or more, got 0"),
        ({"embedding_dim": 2.5}, "embedding_dim must be an integer of 1 or more, got 2.5"),
        ({"hidden": 30}, "hidden 30; .* a multiple of 4"),
        ({"hidden": True}, "hidden must be an integer"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_one_line(changes, message):
    arguments = {"cardinalities": SIZES, "targets": TARGETS, "hidden": 16} | changes
    with refused(message):
        DeepFM(**arguments)
    for shape in ((5,), (5, 3), (5, 4, 1)):
        with refused(r"fields must be \(B, 4\), got"):
            small()(torch.zeros(shape, dtype=torch.int64))
