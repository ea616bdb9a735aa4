"""How far two results are apart: of any structure, with NaN and infinity, beside an exact one."""

import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from gnnswap.parity import EPSILON, GRADIENT_FLOOR, NOTHING_FINITE, RTOL_FLOAT32, error, largest

NAN, INF = math.nan, math.inf


def test_it_loads_no_pyg_and_the_first_exp_of_a_process_is_one_threads():
    watch = "import sys, torch; seen = []; torch.Tensor.exp = lambda x: seen.append(len(x))"
    code = f"{watch}; import gnnswap.parity; print(seen, 'torch_geometric' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[8] False\n"


@pytest.mark.parametrize(
    ("expected", "got", "off"),
    [
        (torch.tensor([1.0, 100.0]), torch.tensor([1.0, 101.0]), 0.01),  # relative to the largest magnitude
        (torch.zeros(3), torch.zeros(3), 0.0),
        (torch.zeros(3), torch.tensor([0.0, 1e-30, 0.0]), INF),
        (np.ones(2), [1.0, 1.0], 0.0),
        ({"a": torch.ones(2), "b": (torch.ones(1),)}, {"b": [torch.ones(1) * 1.5], "a": torch.ones(2)}, 0.5),
        ((None, 3), (None, 3), 0.0),
        ((), (), 0.0),
        (torch.empty(0, 4), torch.empty(0, 4), 0.0),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, requires_grad=True), 0.0),
        (torch.tensor([3, 4]), torch.tensor([3, 5]), 0.25),
        (torch.tensor([True, False]), torch.tensor([True, True]), 1.0),
    ],
)
def test_the_error_of_a_structure_is_the_largest_of_its_tensors(expected, got, off):
    assert error(got, expected) == pytest.approx(off)


@pytest.mark.parametrize(
    ("expected", "got", "off"),
    [
        ([NAN, 1.0], [NAN, 1.0], 0.0),
        ([INF, 1.0], [INF, 1.5], 0.5),
        ([NAN, 1.0], [0.0, 1.0], INF),
        ([0.0, 1.0], [NAN, 1.0], INF),
        ([INF, 1.0], [NAN, 1.0], INF),
        ([INF, 1.0], [-INF, 1.0], INF),
        ([0.0, 1.0], [INF, 1.0], INF),
    ],
)
def test_nan_and_infinity_are_equal_where_both_have_them(expected, got, off):
    assert error(torch.tensor(got), torch.tensor(expected)) == off
    assert error(torch.tensor(got), torch.tensor(expected), torch.tensor(expected).double()) == off


def test_a_structure_without_one_finite_number_proves_nothing():
    nothing = torch.full((3,), NAN)
    for blank in (nothing, (nothing, None), [nothing, torch.ones(0)]):
        found = error(blank, blank)
        assert found == INF and found.why == NOTHING_FINITE
    assert error((nothing, torch.ones(1)), (nothing, torch.ones(1))) == 0


@pytest.mark.parametrize(
    ("expected", "got", "of", "why"),
    [
        (torch.ones(3), torch.ones(4), "the output", "output has shape (4,), the baseline's has (3,)"),
        ({"y": torch.ones(3)}, {"y": torch.ones(3, 1)}, "y", "output has shape (3, 1)"),
        ((1.0,), (1.0, 1.0), "the output", "2 outputs, the baseline has 1"),
        (
            {"y": {"a": 1.0, "b": 1.0}},
            {"y": {"a": 1.0, "c": 1.0}},
            "y",
            "only one of it and the baseline has the keys b, c",
        ),
        ([1.0, "text"], [1.0, "text"], "output 1", "an output of type str cannot be compared"),
        (1.0, None, "the output", "an output of type NoneType cannot be compared"),
    ],
)
def test_what_cannot_be_compared_is_infinitely_off_and_says_why(expected, got, of, why):
    found = error(got, expected)
    assert found == INF and found.of == of and found.why.startswith(why)


def test_a_deviation_names_the_tensor_that_is_off_most_also_after_pickle():
    expected = {"y": torch.ones(2), "z": (torch.ones(2), torch.ones(2))}
    got = {"y": torch.ones(2) * 1.1, "z": (torch.ones(2), torch.ones(2) * 1.2)}
    found = pickle.loads(pickle.dumps(error(got, expected)))
    assert found == pytest.approx(0.2) and found.of == "z[1]" and not found.why
    assert error(got, expected, name="fast").of == "fast['z'][1]"
    assert error(got, got).of == ""


def test_a_gradient_that_is_zero_but_for_rounding_is_compared_at_a_floor():
    expected = {"weight": torch.tensor([1.0, NAN]), "bias": torch.tensor([2e-9])}
    floor = GRADIENT_FLOOR * largest(expected)
    assert floor == GRADIENT_FLOOR and largest({}) == 0
    assert error(expected | {"bias": torch.tensor([-3e-9])}, expected, floor=floor) == pytest.approx(5e-6)
    assert error(expected | {"weight": torch.tensor([1.1, NAN])}, expected, floor=floor) > 0.09
    assert error(expected | {"bias": torch.tensor([0.01])}, expected, floor=floor) > 1
    assert error({}, {}, floor=floor) == 0


def test_beside_the_exact_result_a_tensor_may_be_off_by_8_times_what_the_original_is():
    truth, own = {"g": torch.tensor([1.0, 0.0]).double()}, {"g": torch.tensor([1.0, 1e-3])}
    for off, equal in ((-7.9e-3, True), (-8.1e-3, False), (1e-3, True), (0.0, True)):
        got = {"g": torch.tensor([1.0, off])}
        assert (error(got, own, truth) <= RTOL_FLOAT32) is equal
        assert (error(got, own, truth, rtol=1e-4) <= 1e-4) is equal
    exact = {"g": truth["g"].float()}  # with no error of its own the tolerance is that of the magnitude
    assert error({"g": torch.tensor([1.0, 9e-6])}, exact, truth) <= RTOL_FLOAT32
    assert error({"g": torch.tensor([1.0, 11e-6])}, exact, truth) > RTOL_FLOAT32


def test_what_is_zero_beside_the_exact_result_is_compared_with_the_rounding_of_the_largest():
    truth, own = {"g": np.zeros(2)}, {"g": np.array([1e-8, -1e-8], np.float32)}
    assert error({"g": np.array([3e-8, 0.0])}, own, truth) <= RTOL_FLOAT32
    assert error({"g": np.array([3e-7, 0.0])}, own, truth) > RTOL_FLOAT32
    assert error({"g": truth["g"] + 1e-30}, truth, truth) == INF
    beside = truth | {"h": np.array([2.0])}
    assert error(beside | {"g": truth["g"] + 2 * 7.9 * EPSILON}, beside, beside) <= RTOL_FLOAT32
    assert error(beside | {"g": truth["g"] + 2 * 8.1 * EPSILON}, beside, beside) > RTOL_FLOAT32


def test_a_truth_of_another_structure_is_an_error_of_its_own():
    assert error(torch.ones(2), torch.ones(2), torch.ones(3)).why
