"""A race checks before it times; variants see the inputs that they name."""

import itertools
import time

import numpy as np
import pytest
import torch
from torch import nn

from gnnlab.errors import GnnlabError, ParityError
from gnnlab.measure.conditions import Conditions, under
from gnnlab.measure.estimates import CONTROL, LEAST_SAMPLES
from gnnlab.measure.race import ITEMS, LEAST_ROUNDS, race_variants, require_equal

X = torch.arange(12.0).reshape(4, 3)


def race(variants, inputs=None, **options):
    return race_variants(variants, {"x": X, "scale": 2.0} if inputs is None else inputs, budget_s=0.01, **options)


def test_every_variant_that_agrees_is_timed_in_the_same_rounds():
    found = race({"base": lambda x, scale: x * scale, "mine": lambda x: x + x})
    assert list(found) == ["base", CONTROL, "mine"]
    (rounds,) = {len(raced.times_ms) for raced in found.values()}
    assert rounds >= LEAST_SAMPLES and found["base"].ratio is None and found["mine"].parity_error == 0
    assert found["mine"].ratio.value == pytest.approx(np.median(found["base"].times_ms / found["mine"].times_ms))


def test_of_two_variants_the_fewest_rounds_make_an_interval_and_of_more_half_of_them_do():
    same = {"base": lambda x: x + x, "mine": lambda x: 2 * x}
    for variants, least in ((same, LEAST_SAMPLES), ({**same, "other": lambda x: x * 2}, LEAST_ROUNDS)):
        raced = race_variants(variants, {"x": X}, budget_s=0.0)["mine"]
        assert len(raced.times_ms) == least and raced.ratio.interval


def test_a_baseline_that_takes_items_one_by_one_is_checked_on_all_and_timed_on_some_in_turns():
    calls, numbers = [], [*range(600)]

    def doubled(items):
        calls.append(items)
        time.sleep(2e-5 * len(items))
        return [2 * item for item in items]

    variants = {"base": doubled, "mine": lambda items: [item + item for item in items]}
    variants["wrong"] = lambda items: [min(2 * item, 1197) for item in items]
    found = race(variants, {"items": numbers}, one_by_one="items")
    assert found["mine"].parity_error == 0 and found["wrong"].times_ms is None  # of the last alone
    timed = [item for items in calls if len(items) == ITEMS for item in items]
    assert {len(items) for items in calls} == {len(numbers), ITEMS} and timed[:1200] == [*numbers, *numbers]
    assert min(*found["base"].times_ms, *found[CONTROL].times_ms) >= 2e-2 * len(numbers)
    assert found["mine"].ratio.value == pytest.approx(np.median(found["base"].times_ms / found["mine"].times_ms))
    assert [name for name in found if f"timed on {ITEMS} items" in str(found[name].notes)] == ["base", CONTROL]
    assert "items" not in str(race(variants, {"items": numbers[:ITEMS]}, one_by_one="items")["base"].notes)


def test_a_variant_that_computes_something_else_is_not_timed_and_says_why():
    wrong = {
        "differs from that of base by 5.0e-02 relative": lambda x: x * 2.1,
        "shape": lambda x: x[:2],
        "does not run here: ZeroDivisionError": lambda x: 1 / 0,
        "cannot be compared": lambda x: {"y": x},
    }
    raced = race({"base": lambda x: x * 2, **wrong, "right": lambda x: x + x})
    assert all(raced[reason].times_ms is None and reason in raced[reason].reason for reason in wrong)
    assert raced["right"].times_ms is not None
    with pytest.raises(GnnlabError, match="the baseline 'base' fails: ZeroDivisionError"):
        race({"base": lambda: 1 / 0})
    with pytest.raises(GnnlabError, match="mode of inference, training"):
        race({"base": lambda x: x}, mode="testing")


def test_a_compiled_module_gets_the_inputs_that_its_own_arguments_name():
    layer = nn.Linear(3, 2)
    compiled = torch.compile(layer, backend="eager")
    any_names = lambda **given: layer(given["input"])  # noqa: E731
    variants = {"base": layer, "compiled": compiled, "under": under(compiled, threads=1)}
    found = race(variants, {"input": X, "scale": 2.0}) | race({"base": layer, "any": any_names}, {"input": X})
    trained = race(variants, {"input": X}, mode="training")
    assert [each.reason for each in (*found.values(), trained["compiled"])] == [None] * 6


def test_a_variant_may_have_a_tolerance_of_its_own_a_tuple_is_spread_and_anything_else_is_one_argument():
    variants = {"base": lambda x: x * 2, "rough": lambda x: x * 2.001}
    assert race(variants)["rough"].times_ms is None
    assert race(variants, tolerance={"rough": 1e-2})["rough"].times_ms is not None
    assert race({"a": lambda x, y: x + y, "b": lambda p, q: q + p}, (X, X))["b"].parity_error == 0
    assert race({"a": lambda x: x, "b": lambda y: y + 0}, X)["b"].parity_error == 0


class Rounded(nn.Module):
    """`x`, which in float32 loses digits on the way."""

    def forward(self, x):
        return (x + 1e4) - 1e4


def test_where_the_baseline_itself_rounds_float64_decides():
    variants = {"rounded": Rounded(), "exact": lambda x: x * 1, "off": lambda x: x + 0.1}
    x = torch.linspace(0, 1, 50)
    raced = race(variants, {"x": x})
    assert raced["exact"].ratio is not None and raced["exact"].parity_error < 1e-7
    assert raced["off"].ratio is None and "differs" in raced["off"].reason
    own = {"tolerance": {"exact": 1e-7}}  # stands, whatever the baseline rounds
    assert race(variants, {"x": x}, **own)["exact"].ratio is None
    no_module = {"function": lambda x: (x + 1e4) - 1e4, **variants}  # it has no float64
    assert race(no_module, {"x": x})["exact"].ratio is None


class Largest(nn.Module):
    """The largest of `x`, found behind `shift`: what is closer than float32 tells apart there shares the gradient."""

    def __init__(self, shift):
        super().__init__()
        self.shift = shift

    def forward(self, x):
        return (x + self.shift).amax() - self.shift


def test_a_gradient_that_luck_decides_is_as_right_in_one_variant_as_in_the_other():
    near = torch.tensor([1.0, 1 + 3 * 2.0**-23], requires_grad=True)  # apart behind 4, not behind 16
    variants = {"lucky": Largest(4), "unlucky": Largest(16), "wrong": lambda x: (9 * x - 8 * x.detach()).amax()}
    raced = race(variants, {"x": near}, mode="training")
    assert raced["unlucky"].ratio is not None
    assert raced["wrong"].ratio is None and "differs" in raced["wrong"].reason
    far = torch.tensor([1.0, 2.0], requires_grad=True)
    halves = {"base": Largest(4), "halves": lambda x: Largest(4)(x) - (x - x.detach()).sum() / 4}
    assert race(halves, {"x": far}, mode="training")["halves"].ratio is None


def test_training_compares_the_gradients_too():
    torch.manual_seed(0)
    layer, same = nn.Linear(3, 2), nn.Linear(3, 2)
    same.load_state_dict(layer.state_dict())
    x = X.clone().requires_grad_()
    cut = lambda input: layer(input.detach()) + 0 * input.sum()  # noqa: E731 - the right output, no gradient
    found = race({"base": layer, "same": same, "cut": cut}, {"input": x}, mode="training")
    halved = race({"base": lambda x: x * 2, "half": lambda x: x + x.detach()}, {"x": x}, mode="training")
    assert halved["half"].times_ms is None and "differs" in halved["half"].reason
    assert found["same"].parity_error < 1e-6 and found["same"].times_ms is not None
    assert found["cut"].times_ms is None and "computes no gradient of bias, weight" in found["cut"].reason
    assert layer.weight.grad is None and x.grad is None


def test_a_gradient_that_is_zero_but_for_rounding_is_compared_with_the_others_of_a_training_step():
    def variant(slope):
        return lambda x, bias: x * 1 + slope * (bias - bias.detach())

    inputs = {"x": X.clone().requires_grad_(), "bias": torch.ones(1, requires_grad=True)}
    raced = race({"base": variant(1e-9), "rounded": variant(-1e-9), "off": variant(1e-6)}, inputs, mode="training")
    assert raced["rounded"].times_ms is not None and raced["off"].times_ms is None
    named = {"base": variant(1), "fewer": lambda bias: X + bias - bias.detach()}  # inputs go by their names
    assert "no gradient of input x" in race(named, inputs, mode="training")["fewer"].reason


def test_a_variant_runs_under_its_own_conditions_and_the_others_under_those_around_also_after_an_error():
    seen, before = {}, Conditions.now()

    def variant(x):
        seen[torch.get_float32_matmul_precision()] = torch.get_num_threads()
        return x

    found = race({"base": lambda x: x, "mine": under(variant, threads=1, precision="medium")})
    assert seen == {"medium": 1} and Conditions.now() == before
    assert found["mine"].conditions == Conditions(1, "medium") and found["base"].conditions == before
    with pytest.raises(ZeroDivisionError), Conditions(before.threads + 1, "medium").applied():
        assert Conditions.now() == Conditions(before.threads + 1, "medium")
        raise ZeroDivisionError
    assert Conditions.now() == before
    with pytest.raises(ValueError, match="one of highest, high, medium"):
        under(lambda x: x, precision="low")


def test_a_plain_race_leaves_gradients_to_its_variants():
    seen = {}

    def watched(name):
        return lambda x: seen.setdefault(name, (torch.is_grad_enabled(), torch.is_inference_mode_enabled())) and x

    race({"base": watched("base"), "off": torch.no_grad()(watched("off"))}, {"x": X}, mode="plain")
    race({"base": watched("inference")}, {"x": X})
    assert seen == {"base": (True, False), "off": (False, False), "inference": (False, True)}


# ---- parity


def off_in(*calls):
    """A variant whose results are off in the calls of these numbers."""
    count = itertools.count(1)
    return lambda x: x + 1e-3 * (next(count) in calls)


def test_a_first_call_is_not_compared_a_miss_is_looked_at_again_and_a_baseline_of_two_results_is_to_blame():
    same = lambda x: x + 0  # noqa: E731
    for base, mine in ((off_in(1), same), (same, off_in(1)), (same, off_in(2))):
        assert race({"base": base, "mine": mine})["mine"].parity_error == 0
    assert race({"base": same, "mine": off_in(2, 3)})["mine"].times_ms is None
    blamed = race({"base": off_in(2), "mine": same})["mine"]
    assert blamed.times_ms is None and blamed.reason.startswith("base itself gave two results for one input")


def test_outputs_that_cannot_be_the_same_are_refused_in_one_line():
    one, nothing = torch.ones(1), torch.full((3,), float("nan"))
    for expected, got, message in (
        (torch.ones(3), torch.ones(4), "shape"),
        ((one,), (one, one), "2 outputs"),
        ({"a": one}, {"b": one}, "keys"),
        ("text", "text", "type str"),
        (one, one * 2, "differ"),
        (nothing, nothing.clone(), "the baseline gives no finite number"),
    ):
        with pytest.raises(ParityError, match=rf"^fast variant.*{message}.*$"):
            require_equal(expected, got, name="fast variant")
    assert require_equal(one, one + 5e-6) == pytest.approx(5e-6, rel=0.05)
