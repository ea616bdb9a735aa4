import gc
import threading

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gnnswap.sparse import ANY_SIZE, SparseInputs, sparse_linear

CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def bag_of_words(rows=200, words=120, share=0.05, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, words, generator=generator, dtype=dtype)
    return x * (torch.rand(rows, words, generator=generator) < share)


def known(x, limits=None):
    """Inputs among which x comes for the third time."""
    inputs = SparseInputs() if limits is None else SparseInputs(limits)
    assert inputs.get(x) is None and inputs.get(x) is not None
    return inputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeros_are_left_out_of_an_input_that_comes_a_second_time(dtype):
    x, weight = bag_of_words(dtype=dtype), torch.randn(7, 120, dtype=dtype, requires_grad=True)
    out, expected = sparse_linear(x, weight, known(x).get(x)), F.linear(x, weight)
    torch.testing.assert_close(out, expected, **CLOSE)
    ours, wanted = (torch.autograd.grad(one.sin().sum(), weight)[0] for one in (out, expected))
    torch.testing.assert_close(ours, wanted, **CLOSE)
    torch.testing.assert_close(sparse_linear(x, weight), expected, rtol=0, atol=0)


def test_derivatives_of_any_order_are_right():
    x, weight = bag_of_words(8, 5, 0.4), torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    inputs = known(x, ANY_SIZE)
    assert torch.autograd.gradcheck(lambda w: sparse_linear(x, w, inputs.get(x)), weight)
    assert torch.autograd.gradgradcheck(lambda w: sparse_linear(x, w, inputs.get(x)).sin(), weight)
    jacobian = torch.func.jacrev(lambda w: sparse_linear(x, w, inputs.get(x)).sin())(weight)
    torch.testing.assert_close(jacobian, torch.func.jacrev(lambda w: F.linear(x, w).sin())(weight))


def test_an_input_is_examined_again_when_it_is_written_to_and_forgotten_when_it_dies():
    x, weight = bag_of_words(), torch.randn(7, 120, dtype=torch.float64)
    inputs = known(x)
    x.add_(1)
    torch.testing.assert_close(sparse_linear(x, weight, inputs.get(x)), F.linear(x, weight), **CLOSE)
    assert inputs.get(x) is None  # it is full of numbers
    x.data.copy_(bag_of_words(seed=1))  # behind torch's back
    assert inputs.get(x) is not None
    torch.testing.assert_close(sparse_linear(x, weight, inputs.get(x)), F.linear(x, weight), **CLOSE)
    del x
    gc.collect()
    assert len(inputs) == 0


@pytest.mark.parametrize(
    "x",
    [
        bag_of_words(share=0.5),
        bag_of_words(dtype=torch.float16),
        bag_of_words(20),
        bag_of_words(400, 60),
        bag_of_words().requires_grad_(),
        bag_of_words().to_sparse(),
        bag_of_words()[0],
    ],
    ids=["many nonzeros", "half precision", "few numbers", "few columns", "wants a gradient", "sparse", "a vector"],
)
def test_inputs_that_gain_nothing_are_multiplied_as_they_are(x):
    inputs = SparseInputs()
    assert [inputs.get(x) for _ in range(3)] == [None] * 3


def test_an_input_is_multiplied_as_it_is_under_autocast_and_in_inference_mode():
    x, weight = bag_of_words(dtype=torch.float32), torch.randn(7, 120)
    inputs = known(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert sparse_linear(x, weight, inputs.get(x)).dtype is torch.bfloat16
    with torch.inference_mode():
        inside = x.clone()
        assert [inputs.get(inside) for _ in range(3)] == [None] * 3
        torch.testing.assert_close(sparse_linear(x, weight, inputs.get(x)), F.linear(x, weight), **CLOSE)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["weight", "x", "gradient", "a word that nobody has"])
def test_nan_and_infinity_reach_what_they_reach_in_the_plain_product(value, where):
    x, weight, grad = bag_of_words(), torch.randn(7, 120, dtype=torch.float64), torch.randn(200, 7, dtype=torch.float64)
    x[:, 3] = 0
    {"weight": weight[2], "x": x[5], "gradient": grad[9], "a word that nobody has": weight[1, 3:4]}[where][0] = value
    weight.requires_grad_()
    out, expected = sparse_linear(x, weight, known(x).get(x)), F.linear(x, weight)
    torch.testing.assert_close(out, expected, equal_nan=True, **CLOSE)
    ours, wanted = (torch.autograd.grad(one, weight, grad)[0] for one in (out, expected))
    torch.testing.assert_close(ours, wanted, equal_nan=True, **CLOSE)


def test_a_checkpoint_computes_the_same_again():
    x, weight = bag_of_words(), torch.randn(7, 120, dtype=torch.float64, requires_grad=True)
    inputs = SparseInputs()

    def run(weight):
        return sparse_linear(x, weight, inputs.get(x)).sin().sum()

    for _ in range(3):
        ours = torch.autograd.grad(checkpoint(run, weight, use_reentrant=False), weight)[0]
        torch.testing.assert_close(ours, torch.autograd.grad(F.linear(x, weight).sin().sum(), weight)[0])
        run(weight)  # outside of it the zeros are found meanwhile


def test_shapes_and_types_that_do_not_fit_raise_what_torch_raises():
    x = bag_of_words()
    inputs = known(x)
    for weight in (torch.randn(7, 119, dtype=torch.float64), torch.randn(7, 120)):
        with pytest.raises(RuntimeError) as torchs:
            F.linear(x, weight)
        with pytest.raises(RuntimeError) as ours:
            sparse_linear(x, weight, inputs.get(x))
        assert str(ours.value) == str(torchs.value)


def test_small_inputs_of_any_kind_are_known_without_limits():
    for x in (torch.zeros(3, 2), torch.ones(3, 2), torch.zeros(0, 2), torch.zeros(3, 1)):
        weight = torch.randn(4, x.shape[1])
        torch.testing.assert_close(sparse_linear(x, weight, known(x, ANY_SIZE).get(x)), F.linear(x, weight))


def test_threads_share_the_inputs():
    inputs, xs = SparseInputs(), [bag_of_words(seed=seed) for seed in range(4)]
    weight, wrong = torch.randn(7, 120, dtype=torch.float64), []

    def work():
        for _ in range(20):
            for x in xs:
                if not torch.allclose(sparse_linear(x, weight, inputs.get(x)), F.linear(x, weight)):
                    wrong.append(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
