"""Times of planted machines: predicted at sizes that were not fitted, with intervals that hold."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_latencies import PLANTED, latencies
from sklearn.linear_model import LinearRegression

from gnnlab.campaign import sizes
from gnnlab.errors import GnnlabError
from gnnlab.prediction import predictor as fits
from gnnlab.prediction.bandwidth import draw
from gnnlab.prediction.copies import CopyCurve, MeasuredTransfers
from gnnlab.prediction.planted_truth import Truth, sweep
from gnnlab.prediction.predictor import EXTRAPOLATED, INTERPOLATED, MEASURED, RATE, TimePredictor, inside_hull, work
from gnnlab.workloads.graphsage import sage

LAYER = sage(500)
STUDY = [(size.nodes, size.edges) for size in sizes.read(["study"])]
LINE = [(1000, 1000), (1000, 4000), (1000, 10_000)]


def planted(at=STUDY, noise=0.03, seed=0):
    return latencies(LAYER, at, Truth(), noise=noise, seed=seed)


def fit(ms, first=1, last=5, at=STUDY, transfers=None):
    cells = pd.DataFrame(at, columns=["nodes", "edges"]).assign(ms=ms, ms_low=ms, ms_high=ms)
    return TimePredictor.fit(LAYER, cells.assign(unit=PLANTED, first=first, last=last), transfers)


@pytest.fixture(scope="module")
def predictor():
    return TimePredictor.fit(LAYER, planted())


# ---- the fit ---------------------------------------------------------------------------------------------------------


def test_the_fit_is_made_from_the_work_of_a_block_by_the_sides_that_its_values_have(predictor):
    sides = {block: [*predictor.fitted(PLANTED, block, block)][3:-2] for block in (2, 4, 6)}
    assert sides == {2: ["edges"], 4: ["nodes", "edges"], 6: ["nodes"]}
    columns = predictor.fitted(PLANTED, 4, 4)
    relative = columns.drop(columns=["group", "ms"]).div(columns["ms"], axis=0)
    fit = LinearRegression(positive=True, fit_intercept=False).fit(relative, np.ones(len(columns)))
    assert fit.coef_ == pytest.approx(predictor.coefficients[PLANTED, 4, 4])


def test_planted_work_is_recovered_and_predicted_at_sizes_that_were_not_fitted():
    exact, new = TimePredictor.fit(LAYER, planted(noise=0.0)), [(4000, 9000), (700, 30_000)]
    assert exact.left_out.loc[exact.left_out["inside"], "error"].abs().max() < 1e-6
    for row in planted(new, noise=0.0).itertuples():
        predicted = exact.predict(PLANTED, row.first, row.last, row.nodes, row.edges)
        assert predicted.time_ms == pytest.approx(row.ms, rel=1e-6)


def test_a_cliff_at_a_cache_is_followed_by_the_measured_copy():
    """Bytes are free up to 8 MB and then cost 1 ms each MB; launch 0.1 ms."""
    size = np.geomspace(4096, 64e6, 40)
    times = 0.001 + np.maximum(0, 2 * size / 1e6 - 8)
    curve = CopyCurve(tuple(size), *[tuple(times)] * 3, n=25)
    ms = [0.1 + curve.moving_ms(LAYER.block(2, 2).bytes_moved(*at)) for at in STUDY]
    errors = fit(ms, 2, 2, transfers=MeasuredTransfers(curve, {})).left_out
    assert errors.loc[errors["inside"], "error"].abs().max() < 0.01


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.tuples(*[st.integers(100, 50_000)] * 4))
def test_more_work_never_takes_less_time(seed, corners):
    curve = CopyCurve.fit(sweep(Truth(), [4096, 2**20, 2**25], noise=0.3, seed=seed))
    ms = np.exp(np.random.default_rng(seed).normal(0, 1, len(STUDY)))
    for block in ((1, 5), (6, 6)):
        (coefficients,) = fit(ms, *block, transfers=MeasuredTransfers(curve, {})).coefficients.values()
        ends = np.column_stack([np.sort(corners[:2]), np.sort(corners[2:])]).astype(float)
        low, high = work(LAYER, *block, ends, curve).to_numpy() @ coefficients
        assert (coefficients >= 0).all() and low <= high * (1 + 1e-9)


def test_all_sizes_of_one_n_are_left_out_together_and_those_beyond_the_others_are_marked():
    left_out = fit([1.0 + n / 1000 for n, _ in STUDY], 6, 6).left_out
    assert (left_out["group"] == left_out["nodes"]).all()
    assert (left_out["inside"] == left_out["nodes"].between(1001, 9999)).all()
    assert sorted(left_out[["nodes", "edges"]].itertuples(index=False, name=None)) == sorted(STUDY)
    assert fit([1.0, 2, 3], at=LINE).left_out["group"].is_unique  # of one N: one by one


# ---- what lies between -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "axes", "inside", "outside"),
    [
        (STUDY, (0, 1), [(4000, 9000), (1000, 1000), (10_000, 10_000)], [(999, 1000), (4000, 3000), (5000, 10_001)]),
        ([(10, 20)], (0, 1), [(10, 20)], [(11, 20)]),
        (LINE, (0, 1), [(1000, 2000)], [(1001, 2000), (1000, 999)]),
        ([*LINE, (3000, 3000)], (0,), [(2000, 77)], [(0, 5), (3001, 3000)]),
    ],
)
def test_what_lies_between_is_inside_and_what_does_not_is_not(known, axes, inside, outside):
    assert inside_hull(known, inside, axes).all() and not inside_hull(known, outside, axes).any()


@pytest.mark.parametrize("grid", [STUDY, LINE])
def test_sizes_are_drawn_inside_and_are_new_and_the_same_for_the_same_seed(grid):
    drawn = draw(grid, 8, seed=3)
    assert len(drawn) == len(set(drawn)) == 8 and not set(drawn) & set(grid)
    assert inside_hull(grid, drawn).all()
    assert drawn == draw(grid, 8, seed=3) != draw(grid, 8, seed=4)
    assert draw(grid[:1], 3, seed=0) == []


# ---- predictions -----------------------------------------------------------------------------------------------------


def test_intervals_hold_at_their_stated_rate_on_planted_truth():
    covered = []
    for seed in range(9):
        noise = (0.02, 0.1, 0.25)[seed % 3]
        fitted = TimePredictor.fit(LAYER, planted(noise=noise, seed=seed))
        for row in planted(draw(STUDY, 8, seed), noise, seed + 1000).itertuples():
            predicted = fitted.predict(PLANTED, row.first, row.last, row.nodes, row.edges)
            covered.append(predicted.low_ms <= row.ms <= predicted.high_ms)
    assert abs(np.mean(covered) - RATE) < 0.04


def test_a_measured_size_gives_its_time_and_others_say_where_they_come_from(predictor):
    row = planted().iloc[0]
    known = predictor.predict(PLANTED, 1, 1, int(row["nodes"]), int(row["edges"]))
    assert known == fits.Prediction(row["ms"], row["ms_low"], row["ms_high"], MEASURED)
    assert predictor.predict(PLANTED, 1, 1, 4000, 9000).origin == INTERPOLATED
    assert predictor.predict(PLANTED, 1, 1, 20_000, 20_000).origin == EXTRAPOLATED
    assert predictor.predict(PLANTED, 6, 6, 4000, 123).origin == INTERPOLATED  # it does not look at edges
    assert predictor.predict(PLANTED, 2, 2, 77, 4000).origin == INTERPOLATED


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((PLANTED, 1, 5, 10, 20), "no times of stages 1-5 on planted: none was measured"),
        (("torch:CPU", 1, 1, 10, 20), "units with times: planted"),
        ((PLANTED, 1, 1, 0, 20), "at least 1 of each"),
    ],
)
def test_what_is_not_known_is_refused_in_one_line(predictor, asked, message):
    with pytest.raises(GnnlabError, match=message):
        predictor.predict(*asked)


def test_a_block_with_too_few_sizes_says_so_and_the_others_go_on():
    cells = planted()
    few = cells[(cells["first"] != 2) | (cells["nodes"] + cells["edges"] <= 3000)]  # 1000/1000 and 1000/2000
    fitted = TimePredictor.fit(LAYER, few)
    assert fitted.blocks(PLANTED) == {(n, n) for n in LAYER.numbers} - {(2, 2)}
    with pytest.raises(GnnlabError, match="times at 2 sizes; 3 at least"):
        fitted.predict(PLANTED, 2, 2, 4000, 9000)
    with pytest.raises(GnnlabError, match="nothing to predict from: times at 1 sizes; 3 at least"):
        TimePredictor.fit(LAYER, cells[(cells["nodes"] == 5000) & (cells["edges"] == 5000)])
