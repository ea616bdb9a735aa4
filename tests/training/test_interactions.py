"""Every variant of the pair terms gives the same, forward and backward, for every number of fields."""

import itertools
import warnings

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import refused
from torch.nn import functional as F

from gnnlab.training import interactions
from gnnlab.training.interactions import DeepFM, fused, pairs, pairwise, symmetric_gram
from gnnlab.workloads.tables import Target

EAGER = [pairwise, symmetric_gram]
LAYOUTS = ["contiguous", "transposed", "strided"]


def embeddings(batch, fields, dim, *, seed=0, layout="contiguous"):
    """M tensors (B, D) float64 that want gradients, in the `layout` of memory."""
    random = torch.Generator().manual_seed(seed)
    shape = {"contiguous": (batch, dim), "transposed": (dim, batch), "strided": (batch, 2 * dim)}[layout]
    parts = [torch.randn(shape, generator=random, dtype=torch.float64) for _ in range(fields)]
    view = {"contiguous": lambda x: x, "transposed": torch.t, "strided": lambda x: x[:, ::2]}[layout]
    return [view(part).requires_grad_() for part in parts]


def assert_pairs(variant, parts):
    """The definition: dot products in the order of combinations; and d(sum of weighted pairs) / d(embedding)."""
    number = {pair: place for place, pair in enumerate(itertools.combinations(range(len(parts)), 2))}
    weights = torch.arange(1.0, len(number) + 1, dtype=torch.float64)
    values = [part.detach() for part in parts]
    wanted = torch.stack([torch.linalg.vecdot(values[i], values[j]) for i, j in number], dim=1)
    got = variant(*parts)
    torch.testing.assert_close(got.detach(), wanted, rtol=1e-12, atol=1e-12)
    (got * weights).sum().backward()
    for i, part in enumerate(parts):
        others = ((weights[number[min(i, j), max(i, j)]], values[j]) for j in range(len(parts)) if j != i)
        assert part.requires_grad or part.grad is None
        if part.requires_grad:
            torch.testing.assert_close(part.grad, sum(weight * other for weight, other in others))


@pytest.mark.parametrize("variant", EAGER)
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 5), st.integers(2, 7), st.integers(1, 5), st.sampled_from(LAYOUTS), st.data())
def test_a_variant_gives_the_pairs_and_the_gradients_that_are_wanted(variant, batch, fields, dim, layout, draw):
    parts = embeddings(batch, fields, dim, layout=layout)
    wants = draw.draw(st.lists(st.booleans(), min_size=fields, max_size=fields).filter(any))
    assert_pairs(variant, [part.detach().requires_grad_(want) for part, want in zip(parts, wants, strict=True)])


@pytest.mark.parametrize("variant", EAGER)
def test_first_and_second_derivatives_are_those_of_finite_differences(variant):
    parts = embeddings(2, 3, 2)
    assert torch.autograd.gradcheck(variant, parts) and torch.autograd.gradgradcheck(variant, parts)


@pytest.fixture(scope="module")
def kernels():
    """The compiled kernels for 3 fields of width 5."""
    try:
        fused(*embeddings(2, 3, 5))
    except RuntimeError as error:
        pytest.skip(f"the compiler does not work here: {error}")


@pytest.mark.parametrize("batch", [0, 1, 2, 257])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_kernels_take_any_batch_and_layout_and_compile_once(kernels, batch, layout):
    before = interactions._kernels.cache_info().currsize
    assert_pairs(fused, embeddings(batch, 3, 5, layout=layout))
    parts = embeddings(batch, 3, 5, layout=layout)
    gradients = (torch.autograd.grad(variant(*parts).sum(), parts) for variant in (fused, pairwise))
    torch.testing.assert_close(*gradients)  # of stride 0
    assert interactions._kernels.cache_info().currsize == before


def test_the_kernels_have_the_second_derivatives_of_the_plain_variant(kernels):
    parts = embeddings(7, 3, 5)
    found = []
    for variant in (fused, pairwise):
        first = torch.autograd.grad(variant(*parts).sin().sum(), parts, create_graph=True)
        found.append(torch.autograd.grad(sum(one.square().sum() for one in first), parts))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("variant", [*EAGER, fused])
def test_autocast_does_not_change_what_a_variant_gives(kernels, variant):
    """Sums of products stay in float32 under autocast; a matrix product of the same must, too."""
    parts = [part.detach().float().requires_grad_() for part in embeddings(6, 3, 5)]
    plain, with_autocast = variant(*parts), torch.autocast("cpu", torch.bfloat16)
    with with_autocast:
        got = variant(*parts)
    assert got.dtype == torch.float32 and torch.equal(got, plain)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), parts), torch.autograd.grad(plain.sum(), parts))


# ---- the variant by the number of fields


@pytest.mark.parametrize("shapes", [[(3, 4)], [(3, 1, 4)] * 2, [(3, 4), (2, 4)]], ids=str)
def test_what_is_no_embeddings_is_refused_in_one_line(shapes):
    with refused(r"pairs needs a tensor \(batch, dim\) for each of two fields or more, got"):
        pairs(*map(torch.zeros, shapes))


@pytest.fixture
def used(monkeypatch):
    """Names of the variants that `pairs` calls."""
    names = []
    for name in ("fused", "symmetric_gram"):
        variant = getattr(interactions, name)
        monkeypatch.setattr(interactions, name, lambda *parts, f=variant, n=name: names.append(n) or f(*parts))
    return names


def test_few_fields_go_to_the_kernels_and_many_to_the_gram_product(kernels, used):
    assert_pairs(pairs, embeddings(6, 3, 5))
    assert used == ["fused"]
    assert_pairs(pairs, embeddings(6, 9, 5))
    assert used == ["fused", "symmetric_gram"]
    assert_pairs(pairs, embeddings(0, 3, 5))


def test_without_a_compiler_it_is_the_gram_product(monkeypatch, used):
    def missing(*arguments):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(interactions, "_compiled", missing)
    for _ in range(2):
        assert_pairs(pairs, embeddings(6, 3, 7))
    assert used == ["symmetric_gram"] * 2


@pytest.mark.parametrize("training", [True, False])
def test_a_model_with_the_pairs_is_the_same_model(training, kernels):
    cardinalities, targets = (7, 5, 9), (Target("outcome", "classes", 3),)
    sizes = {"embedding_dim": 5, "hidden": 8, "dropout": 0.0}
    plain, ours = (DeepFM(cardinalities, targets, **sizes, interactions=variant) for variant in (pairwise, pairs))
    ours.load_state_dict(plain.state_dict())
    fields = torch.randint(0, 4, (9, 3))
    with torch.set_grad_enabled(training):
        torch.testing.assert_close(plain(fields)["outcome"], ours(fields)["outcome"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fields", [4, 10])
def test_a_compiler_can_follow_the_pairs(fields):
    parts = [part.detach() for part in embeddings(3, fields, 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own deprecations
        program = torch.export.export(interactions._Traced(pairs), tuple(parts))
    torch.testing.assert_close(program.module()(*parts), pairwise(*parts))


# ---- the model

TARGETS = (Target("outcome", "classes", 4), Target("phenotypes", "labels", 3))
SIZES = (7, 5, 3, 9)


def small(**options):
    torch.manual_seed(0)
    return DeepFM(SIZES, TARGETS, **({"embedding_dim": 8, "hidden": 16} | options))


def some_fields(rows):
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
