"""Every form of the pair terms gives the same, forward and backward, for every number of fields."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnlab.errors import GnnlabError
from gnnlab.training import interactions
from gnnlab.training.interactions import fused, symmetric_gram
from gnnlab.workloads.deepfm import DeepFM, pairwise
from gnnlab.workloads.tables import Target

EAGER = [pairwise, symmetric_gram]
sizes = {"batch": st.integers(0, 5), "fields": st.integers(2, 7), "dim": st.integers(1, 5)}


def embeddings(batch, fields, dim, *, seed=0, layout="contiguous"):
    """(B, M, D) float64 that wants gradients, laid out in memory as said."""
    random = torch.Generator().manual_seed(seed)
    if layout == "transposed":
        stack = torch.randn(batch, dim, fields, generator=random, dtype=torch.float64).transpose(1, 2)
    elif layout == "strided":
        stack = torch.randn(batch, fields, 2 * dim, generator=random, dtype=torch.float64)[..., ::2]
    else:
        stack = torch.randn(batch, fields, dim, generator=random, dtype=torch.float64)
    return stack.requires_grad_()


def expected(stack):
    """The definition: the upper triangle of E E^T, in the order of combinations; and d(sum of weighted pairs)/dE."""
    values = stack.detach().numpy()
    pairs = list(itertools.combinations(range(stack.shape[1]), 2))
    out = np.stack([np.einsum("bd,bd->b", values[:, i], values[:, j]) for i, j in pairs], axis=1)
    weights = np.arange(1.0, len(pairs) + 1)
    gradient = np.zeros_like(values)
    for weight, (i, j) in zip(weights, pairs, strict=True):
        gradient[:, i] += weight * values[:, j]
        gradient[:, j] += weight * values[:, i]
    return torch.from_numpy(out), torch.from_numpy(weights), torch.from_numpy(gradient)


@pytest.mark.parametrize("form", EAGER)
@settings(max_examples=40, deadline=None)
@given(**sizes, seed=st.integers(0, 99), layout=st.sampled_from(["contiguous", "transposed", "strided"]))
def test_a_form_gives_the_pairs_and_their_gradients(form, batch, fields, dim, seed, layout):
    stack = embeddings(batch, fields, dim, seed=seed, layout=layout)
    wanted, weights, gradient = expected(stack)
    got = form(stack)
    torch.testing.assert_close(got.detach(), wanted, rtol=1e-12, atol=1e-12)
    (back,) = torch.autograd.grad((got * weights).sum(), stack)
    torch.testing.assert_close(back, gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", EAGER)
@settings(max_examples=15, deadline=None)
@given(batch=st.integers(1, 4), wants=st.lists(st.booleans(), min_size=2, max_size=6).filter(any))
def test_a_form_takes_a_list_of_which_only_some_want_gradients(form, batch, wants):
    stack = embeddings(batch, len(wants), 3)
    wanted, weights, gradient = expected(stack)
    parts = [part.detach().clone().requires_grad_(want) for part, want in zip(stack.unbind(1), wants, strict=True)]
    got = form(*parts)
    torch.testing.assert_close(got.detach(), wanted)
    (got * weights).sum().backward()
    for part, want, field in zip(parts, wants, gradient.unbind(1), strict=True):
        assert want or part.grad is None
        if want:
            torch.testing.assert_close(part.grad, field)


@pytest.mark.parametrize("form", EAGER)
def test_first_and_second_derivatives_are_those_of_finite_differences(form):
    stack = embeddings(2, 3, 2)
    assert torch.autograd.gradcheck(form, stack) and torch.autograd.gradgradcheck(form, stack)


@pytest.fixture(scope="module", params=["stack", "list"])
def kernels(request):
    """The compiled kernels for 3 fields of width 5, by what they are given."""
    try:
        fused(*_given(embeddings(2, 3, 5), request.param))
    except RuntimeError as error:
        pytest.skip(f"the compiler does not work here: {error}")
    return request.param


def _given(stack, layout):
    return [stack] if layout == "stack" else list(stack.unbind(1))


@pytest.mark.parametrize("batch", [0, 1, 2, 3, 5, 64, 257])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
def test_the_kernels_take_any_batch_and_layout(kernels, batch, layout):
    stack = embeddings(batch, 3, 5, layout=layout)
    wanted, weights, gradient = expected(stack)
    got = fused(*_given(stack, kernels))
    torch.testing.assert_close(got.detach(), wanted)
    (back,) = torch.autograd.grad((got * weights).sum(), stack)
    torch.testing.assert_close(back, gradient)
    (back,) = torch.autograd.grad(fused(*_given(stack, kernels)).sum(), stack)
    torch.testing.assert_close(back, torch.autograd.grad(pairwise(stack).sum(), stack)[0])  # a gradient of stride 0


def test_kernels_compiled_under_autocast_are_those_of_float32(kernels):
    stack = embeddings(6, 3, 5).detach().float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        got = fused(*_given(stack, kernels))
    torch.testing.assert_close(got, pairwise(stack))
    torch.testing.assert_close(torch.autograd.grad(got.sum(), stack), torch.autograd.grad(pairwise(stack).sum(), stack))


def test_the_kernels_compile_once_for_all_batches(kernels):
    before = interactions._kernels.cache_info().currsize
    for batch in (2, 7, 65):
        fused(*_given(embeddings(batch, 3, 5), kernels))
    assert interactions._kernels.cache_info().currsize == before


def test_prepared_in_inference_mode_a_form_can_still_be_trained():
    with torch.inference_mode():
        symmetric_gram(torch.zeros(2, 6, 3))
    stack = embeddings(2, 6, 3)
    for form in EAGER:
        form(stack).sum().backward()
    assert stack.grad is not None


@pytest.mark.parametrize("form", EAGER)
def test_autocast_does_not_change_what_a_form_gives(form):
    """Sums of products stay in float32 under autocast; a matrix product of the same must, too."""
    stack = embeddings(4, 5, 16).detach().float().requires_grad_()
    plain = form(stack)
    (gradient,) = torch.autograd.grad(plain.sum(), stack)
    with torch.autocast("cpu", torch.bfloat16):
        got = form(stack)
    assert got.dtype == torch.float32 and torch.equal(got, plain)
    assert torch.equal(torch.autograd.grad(got.sum(), stack)[0], gradient)


@pytest.mark.parametrize(
    "wrong", [torch.zeros(3, 4), torch.zeros(3, 1, 4), torch.zeros(3, 4, 2, dtype=torch.int64)], ids=str
)
def test_what_is_no_embeddings_is_refused_in_one_line(wrong):
    with pytest.raises(
        GnnlabError, match=r"pairs needs floating embeddings, one stack \(batch, fields, dim\)"
    ) as error:
        interactions.pairs(wrong)
    assert "\n" not in str(error.value)


# ---- the form by the number of fields


@pytest.fixture
def used(monkeypatch):
    """Names of the forms that `pairs` calls."""
    names = []
    for name in ("fused", "symmetric_gram"):
        form = getattr(interactions, name)
        monkeypatch.setattr(interactions, name, lambda *parts, f=form, n=name: names.append(n) or f(*parts))
    return names


@pytest.mark.parametrize("training", [True, False])
def test_a_model_with_the_pairs_is_the_same_model(training, kernels):
    cardinalities, targets = (7, 5, 9), (Target("outcome", "classes", 3),)
    torch.manual_seed(0)
    plain = DeepFM(cardinalities, targets, embedding_dim=5, hidden=8, dropout=0.0)
    ours = DeepFM(cardinalities, targets, embedding_dim=5, hidden=8, dropout=0.0, interactions=interactions.pairs)
    ours.load_state_dict(plain.state_dict())
    fields = torch.randint(0, 4, (9, 3))
    with torch.set_grad_enabled(training):
        first, second = plain(fields)["outcome"], ours(fields)["outcome"]
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)


def test_few_fields_go_to_the_kernels_and_many_to_the_gram_product(kernels, used):
    few, many = embeddings(6, 3, 5), embeddings(6, 9, 5)
    torch.testing.assert_close(interactions.pairs(*_given(few, kernels)), pairwise(few))
    assert used == ["fused"]
    torch.testing.assert_close(interactions.pairs(*_given(many, kernels)), pairwise(many))
    assert used == ["fused", "symmetric_gram"]


def test_without_a_compiler_it_is_the_gram_product(monkeypatch, used):
    def missing(*arguments):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(interactions, "_compiled", missing)
    stack = embeddings(6, 3, 7)
    for _ in range(2):
        torch.testing.assert_close(interactions.pairs(stack), pairwise(stack))
    assert used == ["symmetric_gram"] * 2


def test_no_rows_give_no_pairs():
    stack = torch.zeros(0, 4, 3, requires_grad=True)
    out = interactions.pairs(stack)
    out.sum().backward()
    assert out.shape == (0, 6) and stack.grad.shape == (0, 4, 3)


@pytest.mark.parametrize("fields", [4, 10])
def test_a_compiler_can_follow_the_pairs(fields):
    stack = embeddings(3, fields, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own deprecations
        program = torch.export.export(_Module(), (stack.detach(),))
    torch.testing.assert_close(program.module()(stack.detach()), pairwise(stack).detach())


class _Module(torch.nn.Module):
    def forward(self, stack):
        return interactions.pairs(stack)
