import math

import numpy as np
import pytest
import torch

from gnnlab.errors import ParityError
from gnnlab.profiling.races import gradient_error, relative_error, require_equal


@pytest.mark.parametrize(
    ("expected", "got", "error"),
    [
        (torch.tensor([1.0, 100.0]), torch.tensor([1.0, 101.0]), 0.01),  # relative to the largest magnitude
        (torch.tensor([1.0]), torch.tensor([1.0]), 0.0),
        (torch.zeros(3), torch.zeros(3), 0.0),
        (torch.zeros(3), torch.tensor([0.0, 1e-30, 0.0]), math.inf),
        (torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 1.0]), 0.0),
        (torch.tensor([math.nan, 1.0]), torch.tensor([0.0, 1.0]), math.inf),
        (torch.tensor([math.inf]), torch.tensor([-math.inf]), math.inf),
        (np.ones(2), [1.0, 1.0], None),
        ({"a": torch.ones(2), "b": (torch.ones(1),)}, {"a": torch.ones(2), "b": (torch.ones(1) * 1.5,)}, 0.5),
        (3, 3, 0.0),
        (torch.empty(0, 4), torch.empty(0, 4), 0.0),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2), 0.0),
        (torch.tensor([3, 4]), torch.tensor([3, 5]), 0.25),
    ],
)
def test_relative_error_of(expected, got, error):
    if error is None:
        with pytest.raises(ParityError):
            relative_error(torch.ones(3), torch.ones(4))
    else:
        assert relative_error(expected, got) == pytest.approx(error)


@pytest.mark.parametrize(
    ("expected", "got", "message"),
    [
        (torch.ones(3), torch.ones(4), "shape"),
        ((torch.ones(3),), (torch.ones(3), torch.ones(3)), "2 outputs"),
        ({"a": torch.ones(1)}, {"b": torch.ones(1)}, "keys"),
        ("text", "text", "type str"),
        (torch.ones(2), torch.ones(2) * 2, "differ"),
    ],
)
def test_outputs_that_cannot_be_the_same_are_refused_in_one_line(expected, got, message):
    with pytest.raises(ParityError, match=message) as error:
        require_equal(expected, got, name="fast form")
    assert "fast form" in str(error.value) and "\n" not in str(error.value)


def test_an_error_within_the_tolerance_is_returned():
    assert require_equal(torch.ones(2), torch.ones(2) + 5e-6) == pytest.approx(5e-6, rel=0.05)


def test_a_gradient_that_is_zero_but_for_rounding_is_compared_with_the_others():
    expected = {"weight": torch.ones(3), "bias": torch.tensor([2e-9])}
    assert gradient_error(expected, {"weight": torch.ones(3), "bias": torch.tensor([-3e-9])}) == pytest.approx(5e-6)
    assert gradient_error(expected, {"weight": torch.tensor([1.0, 1, 1.1]), "bias": expected["bias"]}) > 0.09
    assert gradient_error(expected, {"weight": torch.ones(3), "bias": torch.tensor([0.01])}) > 1
    assert gradient_error({}, {}) == 0
