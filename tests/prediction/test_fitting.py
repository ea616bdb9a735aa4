import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnlab.campaign import sizes
from gnnlab.errors import GnnlabError
from gnnlab.prediction import fitting
from gnnlab.prediction.fitting import CACHES, WORK, choose, coordinates
from gnnlab.prediction.planted_truth import Truth, latencies, sweep
from gnnlab.prediction.transfer import CopyCurve
from gnnlab.workloads.graphsage import sage

LAYER = sage(500)
STUDY = [(size.nodes, size.edges) for size in sizes.read(["study"])]


def fit(ms, first=1, last=5, at=STUDY, curve=None):
    return choose(LAYER, first, last, at, ms, curve)


def test_a_block_depends_on_the_sides_that_its_values_have():
    assert coordinates(LAYER, 2, 2) == (1,) and coordinates(LAYER, 6, 7) == (0,)
    assert coordinates(LAYER, 4, 4) == coordinates(LAYER, 1, 5) == (0, 1)


@pytest.mark.parametrize("stage", LAYER.numbers)
def test_planted_work_is_found_and_predicted_at_sizes_that_were_not_fitted(stage):
    cells = latencies(LAYER, STUDY, Truth(), noise=0.0, seed=0)
    ms = cells.loc[cells["first"] == stage, "ms"].tolist()
    found = fit(ms, stage, stage)
    assert found.form == WORK and found.interpolation_errors["error"].abs().max() < 1e-6
    truth = latencies(LAYER, [(4000, 9000), (700, 30_000)], Truth(), noise=0.0, seed=0)
    wanted = truth.loc[truth["first"] == stage, "ms"].tolist()
    assert [found.ms(4000, 9000), found.ms(700, 30_000)] == pytest.approx(wanted, rel=1e-6)


def test_a_cliff_at_a_cache_is_found_by_the_measured_copy():
    """Bytes are free up to 8 MB and then cost 1 ms each MB; launch 0.1 ms."""
    size = np.geomspace(4096, 64e6, 40)
    times = 0.001 + np.maximum(0, 2 * size / 1e6 - 8)
    curve = CopyCurve(tuple(size), *[tuple(times)] * 3, n=25)
    moved = [LAYER.block(2, 2).bytes_moved(n, e) for n, e in STUDY]
    found = fit([0.1 + curve.moving_ms(m) for m in moved], 2, 2, curve=curve)
    assert found.form == CACHES and found.interpolation_errors["error"].abs().max() < 0.01


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.tuples(*[st.integers(100, 50_000)] * 4))
def test_no_form_predicts_less_time_for_more_work(seed, corners):
    random = np.random.default_rng(seed)
    curve = CopyCurve.fit(sweep(Truth(), [4096, 2**20, 2**25], noise=0.3, seed=seed))
    ms = np.exp(random.normal(0, 1, len(STUDY)))
    for first, last in ((1, 5), (6, 6)):
        at = np.array(STUDY, dtype=float)
        few, many = np.sort(corners[:2]), np.sort(corners[2:])
        for columns in fitting.forms(LAYER, first, last, coordinates(LAYER, first, last), curve).values():
            found = fitting._fitted(columns(at), ms)
            assert (found >= 0).all()
            ends = columns(np.array([[few[0], many[0]], [few[1], many[1]]], float))
            low, high = fitting._predicted(ends, found)
            assert low <= high * (1 + 1e-9)


def test_what_is_left_out_beyond_the_others_is_not_mixed_with_what_lies_between_them():
    found = fit([1.0 + n / 1000 for n, _ in STUDY], 6, 6)
    values = [n for n, _ in STUDY]
    assert found.left_out["inside"].sum() == sum(1000 < n < 10_000 for n in values)
    assert (~found.left_out["inside"]).sum() == sum(n in (1000, 10_000) for n in values)
    assert found.interpolation_errors["inside"].all()


def test_two_sizes_are_too_few():
    with pytest.raises(GnnlabError, match="times at 2 sizes; 3 at least"):
        fit([1.0, 2.0], at=STUDY[:2])


def test_bandwidth_of_the_fit_is_not_part_of_its_interface():
    """Bytes and arithmetic of a stage may be proportional: coefficients are not told apart, so none is given a name."""
    assert not any("bandwidth" in name or "_s" in name[-2:] for name in dir(fit([1.0] * len(STUDY))))


def test_the_same_sizes_are_left_out_once():
    """The only size of N = 1200 is the only one of E = 5000, too."""
    at = np.array([(1000, 1000), (1000, 10_000), (1200, 5000), (1500, 10_000)], dtype=float)
    folds = [tuple(out) for _, out in fitting._folds(at, (0, 1))]
    assert len(folds) == len(set(folds)) == 5


def test_an_error_knows_the_size_that_was_left_out():
    found = fit([0.1 + n / 1e4 + e / 1e5 for n, e in STUDY])
    assert set(found.left_out[["nodes", "edges"]].itertuples(index=False, name=None)) <= set(STUDY)
