"""Every form of the pair terms gives the same, forward and backward, and the one that is chosen is the fastest."""

import itertools
import json
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import Machine

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize import interactions
from gnnlab.optimize.interactions import kernels as interaction_kernels
from gnnlab.optimize.interactions.choice import BEHIND, Choices, Size, fingerprint, form_run, times
from gnnlab.workloads.deepfm import DeepFM, pairwise
from gnnlab.workloads.tables import Target

EAGER = list(interactions.EAGER.items())
NAMES = [name for name, _ in EAGER]
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


@pytest.mark.parametrize(("name", "form"), EAGER, ids=NAMES)
@settings(max_examples=40, deadline=None)
@given(**sizes, seed=st.integers(0, 99), layout=st.sampled_from(["contiguous", "transposed", "strided"]))
def test_a_form_gives_the_pairs_and_their_gradients(name, form, batch, fields, dim, seed, layout):
    stack = embeddings(batch, fields, dim, seed=seed, layout=layout)
    wanted, weights, gradient = expected(stack)
    got = form(stack)
    torch.testing.assert_close(got.detach(), wanted, rtol=1e-12, atol=1e-12)
    (back,) = torch.autograd.grad((got * weights).sum(), stack)
    torch.testing.assert_close(back, gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "form"), EAGER, ids=NAMES)
@settings(max_examples=15, deadline=None)
@given(batch=st.integers(1, 4), wants=st.lists(st.booleans(), min_size=2, max_size=6).filter(any))
def test_a_form_takes_a_list_of_which_only_some_want_gradients(name, form, batch, wants):
    stack = embeddings(batch, len(wants), 3)
    wanted, weights, gradient = expected(stack)
    parts = [part.detach().clone().requires_grad_(want) for part, want in zip(stack.unbind(1), wants, strict=True)]
    got = form(parts)
    torch.testing.assert_close(got.detach(), wanted)
    (got * weights).sum().backward()
    for part, want, field in zip(parts, wants, gradient.unbind(1), strict=True):
        assert want or part.grad is None
        if want:
            torch.testing.assert_close(part.grad, field)


@pytest.mark.parametrize(("name", "form"), EAGER, ids=NAMES)
def test_first_and_second_derivatives_are_those_of_finite_differences(name, form):
    stack = embeddings(2, 3, 2)
    assert torch.autograd.gradcheck(form, stack) and torch.autograd.gradgradcheck(form, stack)


@settings(max_examples=40, deadline=None)
@given(**sizes, seed=st.integers(0, 99))
def test_the_half_square_is_the_sum_of_all_pairs_forward_and_backward(batch, fields, dim, seed):
    stack = embeddings(batch, fields, dim, seed=seed)
    got = interactions.half_square(stack)
    wanted, _, _ = expected(stack)
    torch.testing.assert_close(got.detach(), wanted.sum(1, keepdim=True), rtol=1e-10, atol=1e-10)
    summed, half = (torch.autograd.grad(form(stack).sum(), stack)[0] for form in (pairwise, interactions.half_square))
    torch.testing.assert_close(half, summed, rtol=1e-10, atol=1e-10)


@pytest.fixture(scope="module", params=["stack", "list"])
def kernels(request):
    """The compiled kernels for 3 fields of width 5, by what they are given."""
    try:
        interactions.FORMS["fused kernels"](_given(embeddings(2, 3, 5), request.param))
    except RuntimeError as error:
        pytest.skip(f"the compiler does not work here: {error}")
    return request.param


def _given(stack, layout):
    return stack if layout == "stack" else list(stack.unbind(1))


@pytest.mark.parametrize("batch", [0, 1, 2, 3, 5, 64, 257])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
def test_the_kernels_take_any_batch_and_layout(kernels, batch, layout):
    stack = embeddings(batch, 3, 5, layout=layout)
    wanted, weights, gradient = expected(stack)
    got = interactions.FORMS["fused kernels"](_given(stack, kernels))
    torch.testing.assert_close(got.detach(), wanted)
    (back,) = torch.autograd.grad((got * weights).sum(), stack)
    torch.testing.assert_close(back, gradient)
    (back,) = torch.autograd.grad(interactions.FORMS["fused kernels"](_given(stack, kernels)).sum(), stack)
    torch.testing.assert_close(back, torch.autograd.grad(pairwise(stack).sum(), stack)[0])  # a gradient of stride 0


def test_the_kernels_have_first_and_second_derivatives(kernels):
    def form(stack):
        return interactions.FORMS["fused kernels"](_given(stack, kernels))

    stack = embeddings(2, 3, 5)
    assert torch.autograd.gradcheck(form, stack) and torch.autograd.gradgradcheck(form, stack)


def test_kernels_compiled_under_autocast_are_those_of_float32(kernels):
    stack = embeddings(6, 4, 5).detach().float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        got = interactions.FORMS["fused kernels"](_given(stack, kernels))
    torch.testing.assert_close(got, pairwise(stack))
    torch.testing.assert_close(torch.autograd.grad(got.sum(), stack), torch.autograd.grad(pairwise(stack).sum(), stack))


def test_the_kernels_compile_once_for_all_batches(kernels):
    before = interaction_kernels._kernels.cache_info().currsize
    for batch in (2, 7, 65):
        interactions.FORMS["fused kernels"](_given(embeddings(batch, 3, 5), kernels))
    assert interaction_kernels._kernels.cache_info().currsize == before


def test_prepared_in_inference_mode_a_form_can_still_be_trained():
    with torch.inference_mode():
        interactions.FORMS["symmetric Gram"](torch.zeros(2, 6, 3))
    stack = embeddings(2, 6, 3)
    for _, form in EAGER:
        form(stack).sum().backward()
    assert stack.grad is not None


@pytest.mark.parametrize(("name", "form"), EAGER, ids=NAMES)
def test_autocast_does_not_change_what_a_form_gives(name, form):
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
    with pytest.raises(OptimizeError, match=r"pairs needs floating embeddings \(batch, fields, dim\)") as error:
        interactions.pairs(wrong)
    assert "\n" not in str(error.value)


# ---- the choice, on a machine whose clock is ours


def planted(machine, ms):
    """Forms that give the same and take the planted time; the last one does not run, the one before gives nonsense."""

    def made(duration, value=1.0):
        run = machine.form(duration)

        def form(embeddings):
            run()
            return torch.full((embeddings.shape[0], 1), value)

        return form

    def missing(embeddings):
        raise RuntimeError("no compiler")

    return {name: made(duration) for name, duration in ms.items()} | {"wrong": made(0.01, 2.0), "missing": missing}


@settings(max_examples=40, deadline=None)
@given(
    ms=st.lists(st.floats(0.5, 5), min_size=2, max_size=6),
    seed=st.integers(0, 10_000),
    spread=st.sampled_from([0.0, 0.01, 0.03]),
)
def test_the_chosen_form_is_never_more_than_5_percent_behind_the_best(ms, seed, spread):
    machine = Machine(seed, spread=spread)
    times_ms = {f"form {i}": value for i, value in enumerate(ms)}
    chosen = Choices(planted(machine, times_ms), budget_s=0.3, clock=machine.clock).name(4, 8, 2, training=False)
    assert times_ms[chosen] <= (1 + BEHIND) * min(ms)


def test_what_was_measured_is_not_measured_again_nor_is_a_batch_beside_it():
    machine = Machine(0)
    choices = Choices(planted(machine, {"slow": 2.0, "fast": 1.0}), clock=machine.clock)
    assert choices.name(4, 512, 8, training=False) == "fast"
    spent = machine.now
    assert [choices.name(4, batch, 8, training=False) for batch in (512, 500, 400, 700)] == ["fast"] * 4
    assert machine.now == spent and len(choices.table) == 1
    for other in ((4, 1024, 8), (5, 512, 8), (4, 512, 9)):
        choices.name(*other, training=False)
    assert len(choices.table) == 4


def test_a_form_that_is_alone_is_chosen_and_where_none_runs_it_is_said():
    machine = Machine(0)
    alone = {name: form for name, form in planted(machine, {"one": 1.0}).items() if name != "wrong"}
    found = times(alone, Size(4, 8, 2, training=False), clock=machine.clock)
    assert list(found) == ["one"] and found["one"] == pytest.approx(1.0, rel=0.1)
    with pytest.raises(OptimizeError, match="no form of the pair terms runs"):
        times({"missing": alone["missing"]}, Size(4, 8, 2), clock=machine.clock)


def test_a_kept_table_is_used_again_unless_it_is_of_something_else(tmp_path):
    path, machine = tmp_path / "forms.json", Machine(0)
    forms = planted(machine, {"slow": 2.0, "fast": 1.0})
    Choices(forms, path, clock=machine.clock).name(4, 8, 2, training=False)
    spent = machine.now
    assert Choices(forms, path, clock=machine.clock).name(4, 8, 2, training=False) == "fast" and machine.now == spent
    content = json.loads(path.read_text())
    content["fingerprint"]["torch"] = "1.0"
    path.write_text(json.dumps(content))
    assert Choices(forms, path, clock=machine.clock).name(4, 8, 2, training=False) == "fast" and machine.now > spent
    assert json.loads(path.read_text())["fingerprint"] == fingerprint(forms)


def with_time(whole, value):
    """A kept table with another value for the first form."""
    content = json.loads(whole)
    content["sizes"][0]["ms"]["slow"] = value
    return json.dumps(content)


DAMAGES = {
    "cut": lambda whole: whole[: len(whole) // 2],
    "empty": lambda whole: "",
    "a list": lambda whole: "[]",
    "no time": lambda whole: with_time(whole, float("nan")),
    "a negative time": lambda whole: with_time(whole, -1.0),
    "a text": lambda whole: with_time(whole, "fast"),
    "an unknown form": lambda whole: whole.replace('"slow":', '"unknown":', 1),
    "an unknown size": lambda whole: whole.replace('"dim":', '"width":', 1),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_table_is_refused_in_one_line_and_left_as_it_is(damage, tmp_path):
    path, machine = tmp_path / "forms.json", Machine(0)
    forms = planted(machine, {"slow": 2.0, "fast": 1.0})
    Choices(forms, path, clock=machine.clock).name(4, 8, 2, training=False)
    path.write_text(damage(path.read_text()))
    before = path.read_text()
    with pytest.raises(OptimizeError, match=r"forms\.json is no table of measured forms") as error:
        Choices(forms, path)
    assert "\n" not in str(error.value) and path.read_text() == before


def test_kept_choices_are_those_of_the_process(eager_only, tmp_path):
    interactions.pairs(torch.zeros(8, 4, 3))
    interactions.keep(tmp_path / "forms.json")
    assert len(interactions.CHOICES.table) == 1 and interactions.CHOICES.path == tmp_path / "forms.json"


@pytest.mark.parametrize("wrong", [(1, 8, 2), (4, -1, 2), (4, 8, 0), (4.0, 8, 2), (True, 8, 2)], ids=str)
def test_sizes_that_are_none_are_refused(wrong):
    with pytest.raises(OptimizeError, match="must be a whole number of at least"):
        interactions.choose(*wrong)


@pytest.fixture
def eager_only(monkeypatch):
    monkeypatch.setattr(interactions, "CHOICES", Choices(interactions.EAGER, budget_s=0.02))


@pytest.mark.parametrize("training", [True, False])
def test_a_model_with_the_chosen_form_is_the_same_model(eager_only, training):
    cardinalities, targets = (7, 5, 9, 4), (Target("outcome", "classes", 3),)
    torch.manual_seed(0)
    plain = DeepFM(cardinalities, targets, embedding_dim=6, hidden=8, dropout=0.0)
    ours = DeepFM(cardinalities, targets, embedding_dim=6, hidden=8, dropout=0.0, interactions=interactions.pairs)
    ours.load_state_dict(plain.state_dict())
    fields = torch.randint(0, 4, (9, 4))
    with torch.set_grad_enabled(training):
        first, second = plain(fields)["outcome"], ours(fields)["outcome"]
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)
    (size,) = interactions.CHOICES.table
    assert (size.fields, size.batch, size.dim, size.training) == (4, 8, 6, training)


def test_no_rows_give_no_pairs(eager_only):
    stack = torch.zeros(0, 4, 3, requires_grad=True)
    out = interactions.pairs(stack)
    out.sum().backward()
    assert out.shape == (0, 6) and stack.grad.shape == (0, 4, 3) and not interactions.CHOICES.table


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


def test_a_run_gives_the_gradients_of_the_list_or_of_the_stack():
    size = Size(3, 8, 2)
    out, *gradients = form_run(interactions.EAGER["pairwise loop"], size, as_list=True)()
    other, gradient = form_run(interactions.EAGER["symmetric Gram"], size)()
    torch.testing.assert_close(out, other)
    torch.testing.assert_close(torch.stack(gradients, 1), gradient)
