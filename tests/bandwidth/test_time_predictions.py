"""Times of synthetic machines: predicted at sizes that were not fitted, with intervals that hold."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from synthetic_latencies import DEVICE, STUDY, Truth, copies, latencies

from gnnlab.bandwidth.copies import CopyCurve, Transfers
from gnnlab.bandwidth.predict import RATE, Prediction, TimePredictor, inside_hull, work
from gnnlab.bandwidth.sweep import draw
from gnnlab.stages.sizes import layer_of

LAYER = layer_of("sage", 500)
LINE = [(1000, 1000), (1000, 4000), (1000, 10_000)]


def fit(ms, first=1, last=5, at=STUDY, transfers=None):
    frame = pd.DataFrame(at, columns=["nodes", "edges"]).assign(ms=ms, ms_low=ms, ms_high=ms)
    return TimePredictor.fit(LAYER, frame.assign(device=DEVICE, first=first, last=last), transfers)


@pytest.fixture(scope="module")
def predictor():
    return TimePredictor.fit(LAYER, latencies(LAYER, noise=0.03))


@pytest.mark.parametrize(("stage", "sides"), [(2, ["edges"]), (4, ["nodes", "edges"]), (6, ["nodes"])])
def test_the_work_of_a_block_counts_the_sides_that_its_values_have(stage, sides):
    columns = work(LAYER, stage, stage, STUDY, None)
    assert list(columns) == ["launch", "moved_bytes", "flops", *sides] and len(columns) == len(STUDY)


def test_the_work_of_a_synthetic_machine_is_recovered_and_predicted_at_sizes_that_were_not_fitted():
    exact = TimePredictor.fit(LAYER, latencies(LAYER))
    for row in latencies(LAYER, [(4000, 9000), (700, 30_000)]).itertuples():
        predicted = exact.predict(DEVICE, row.first, row.last, row.nodes, row.edges)
        assert predicted.time_ms == pytest.approx(row.ms, rel=1e-6)


def test_a_cliff_at_a_cache_is_followed_by_the_measured_copy():
    """Bytes are free up to 8 MB and then cost 1 ms each MB; launch 0.1 ms."""
    size = np.geomspace(4096, 64e6, 40)
    curve = CopyCurve(size, *[0.001 + np.maximum(0, 2 * size / 1e6 - 8)] * 3, n=25)

    def true_ms(at):
        return 0.1 + curve.moving_ms(LAYER.block(2, 2).bytes_moved(*at))

    fitted = fit([true_ms(at) for at in STUDY], 2, 2, transfers=Transfers(curve, {}))
    for edges in (1500, 2500, 4000, 7000):
        assert fitted.predict(DEVICE, 2, 2, 1000, edges).time_ms == pytest.approx(true_ms((1000, edges)), rel=0.01)


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.tuples(*[st.integers(100, 50_000)] * 4))
def test_more_work_never_takes_less_time(seed, corners):
    curve = CopyCurve.fit(copies([4096, 2**20, 2**25], Truth(), noise=0.3, seed=seed))
    ms = np.exp(np.random.default_rng(seed).normal(0, 1, len(STUDY)))
    for block in ((1, 5), (6, 6)):
        (coefficients,) = fit(ms, *block, transfers=Transfers(curve, {})).coefficients.values()
        ends = np.column_stack([np.sort(corners[:2]), np.sort(corners[2:])])
        low, high = work(LAYER, *block, ends, curve) @ coefficients
        assert (coefficients >= 0).all() and low <= high * (1 + 1e-9)


def test_a_half_width_is_the_quantile_of_what_is_off_at_sizes_left_out():
    assert fit([1.0 + n / 1000 for n, _ in STUDY], 6, 6).half_widths[DEVICE] < 1e-6
    ms = [1.0, 1.0, 1.0, 4.0]  # nothing of a block 6 explains one time of four, nor its own size left out
    assert fit(ms, 6, 6, at=[(n, 10) for n in (1000, 1100, 1200, 1300)]).half_widths[DEVICE] > np.log(2)
    twice = fit([1.0, 3.0] * 3, 6, 6, at=[(n, e) for n in (1000, 2000, 3000) for e in (5000, 9000)])
    assert twice.half_widths[DEVICE] > np.log(1.5)  # sizes of one N are one size: none of them tells of the other


@pytest.mark.parametrize(
    ("known", "axes", "inside", "outside"),
    [
        (STUDY, [0, 1], [(4000, 9000), (1000, 1000), (10_000, 10_000)], [(999, 1000), (4000, 3000), (5000, 10_001)]),
        ([(10, 20)], [0, 1], [(10, 20)], [(11, 20)]),
        (LINE, [0, 1], [(1000, 2000)], [(1001, 2000), (1000, 999)]),
        ([*LINE, (3000, 3000)], [0], [(2000, 77)], [(1, 5), (3001, 3000)]),
    ],
)
def test_what_lies_between_is_inside_and_what_does_not_is_not(known, axes, inside, outside):
    known, inside, outside = (np.array(sizes)[:, axes] for sizes in (known, inside, outside))
    assert inside_hull(known, inside).all() and not inside_hull(known, outside).any()


@pytest.mark.parametrize("known", [STUDY, LINE])
def test_sizes_are_drawn_inside_and_are_new_and_the_same_for_the_same_seed(known):
    drawn = draw(known, 8, seed=3)
    assert len(drawn) == len(set(drawn)) == 8 and not set(drawn) & set(known)
    assert inside_hull(np.array(known), np.array(drawn)).all()
    assert drawn == draw(known, 8, seed=3) != draw(known, 8, seed=4)
    assert draw(known[:1], 3, seed=0) == []


def test_intervals_hold_nine_of_ten_times_of_synthetic_machines():
    covered = []
    for seed, noise in enumerate((0.02, 0.1, 0.25) * 3):
        fitted = TimePredictor.fit(LAYER, latencies(LAYER, noise=noise, seed=seed))
        for row in latencies(LAYER, draw(STUDY, 8, seed), noise=noise, seed=seed + 1000).itertuples():
            predicted = fitted.predict(DEVICE, row.first, row.last, row.nodes, row.edges)
            covered.append(predicted.low_ms <= row.ms <= predicted.high_ms)
    assert RATE - 0.04 < np.mean(covered) < 0.99


@pytest.mark.parametrize(
    ("stage", "nodes", "edges", "origin"),
    [
        (1, 4000, 9000, "interpolated"),
        (1, 20_000, 20_000, "extrapolated"),
        (6, 4000, 123, "interpolated"),  # it does not look at edges
        (2, 77, 4000, "interpolated"),
    ],
)
def test_a_time_says_where_it_comes_from(predictor, stage, nodes, edges, origin):
    assert predictor.predict(DEVICE, stage, stage, nodes, edges).origin == origin


def test_a_measured_size_gives_its_time(predictor):
    row = latencies(LAYER, noise=0.03).iloc[0]
    known = predictor.predict(DEVICE, 1, 1, int(row["nodes"]), int(row["edges"]))
    assert known == Prediction(row["ms"], row["ms_low"], row["ms_high"], "measured")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((DEVICE, 1, 5, 10, 20), "times of stages 1-5 on torch:CPU at 0 sizes; 3 at least are needed"),
        (("fast:CPU", 1, 1, 10, 20), "devices with times: torch:CPU"),
        ((DEVICE, 1, 1, 0, 20), "at least 1 of each"),
    ],
)
def test_what_is_not_known_is_refused_in_one_line(predictor, asked, message):
    with refused(message):
        predictor.predict(*asked)


def test_two_sizes_are_too_few_and_a_time_of_0_is_none():
    with refused("times at 2 sizes; 3 at least are needed"):
        fit([1.0, 2.0, 0.0], at=LINE)
