import numpy as np
import pandas as pd
import pytest

from gnnlab.campaign import sizes
from gnnlab.errors import GnnlabError
from gnnlab.prediction.measured import draw
from gnnlab.prediction.planted_truth import PLANTED, Truth, latencies
from gnnlab.prediction.predictor import (
    EXTRAPOLATED,
    INTERPOLATED,
    MEASURED,
    RATE,
    SIMULATED,
    TimePredictor,
    over_groups,
)
from gnnlab.units import registry as units
from gnnlab.workloads.graphsage import sage

LAYER = sage(500)
STUDY = [(size.nodes, size.edges) for size in sizes.read(["study"])]


def planted(at=STUDY, noise=0.03, seed=0):
    return latencies(LAYER, at, Truth(), noise=noise, seed=seed)


@pytest.fixture(scope="module")
def predictor():
    return TimePredictor.fit(LAYER, planted())


def test_intervals_hold_at_their_stated_rate_on_planted_truth():
    covered = []
    for seed in range(16):
        noise = (0.02, 0.1, 0.25)[seed % 3]
        found = TimePredictor.fit(LAYER, planted(noise=noise, seed=seed))
        for row in planted(draw(STUDY, 8, seed), noise, seed + 1000).itertuples():
            predicted = found.predict(PLANTED, row.first, row.last, row.nodes, row.edges)
            covered.append(predicted.low_ms <= row.ms <= predicted.high_ms)
    assert abs(np.mean(covered) - RATE) < 0.04


def test_intervals_are_as_wide_as_the_noise_asks():
    def width(noise):
        found = TimePredictor.fit(LAYER, planted(noise=noise)).predict(PLANTED, 3, 3, 4000, 9000)
        return np.log(found.high_ms / found.low_ms)

    assert width(0.01) < 0.5 * width(0.1) < 0.5 * width(0.5)


def test_a_measured_size_gives_its_time_and_others_say_where_they_come_from(predictor):
    row = planted().iloc[0]
    found = predictor.predict(PLANTED, 1, 1, int(row["nodes"]), int(row["edges"]))
    assert (found.time_ms, found.origin) == (row["ms"], MEASURED)
    assert found.low_ms <= row["ms_low"] and row["ms_high"] <= found.high_ms
    assert predictor.predict(PLANTED, 1, 1, 4000, 9000).origin == INTERPOLATED
    assert predictor.predict(PLANTED, 1, 1, 20_000, 20_000).origin == EXTRAPOLATED
    assert predictor.predict(PLANTED, 6, 6, 4000, 123).origin == INTERPOLATED  # it does not look at edges
    assert predictor.predict(PLANTED, 2, 2, 77, 4000).origin == INTERPOLATED


def test_extrapolated_intervals_are_no_narrower(predictor):
    errors = predictor.errors[PLANTED]
    assert errors[EXTRAPOLATED].quantile >= errors[INTERPOLATED].quantile * 0.8
    assert len(errors[EXTRAPOLATED].scores) > len(errors[INTERPOLATED].scores)


def test_simulated_units_go_by_their_constants_and_say_so():
    rows = [
        {"unit": "simulated:GPU", "first": f, "last": f, "nodes": 10, "edges": 20, "ms": 1.0, "ms_low": 1, "ms_high": 1}
        for f in (1, 2)
    ]
    cells = pd.concat([planted().assign(origin=MEASURED), pd.DataFrame(rows).assign(origin=SIMULATED)])
    found = TimePredictor.fit(LAYER, cells)
    assert found.units == (PLANTED, "simulated:GPU") and found.blocks("simulated:GPU") == {(1, 1), (2, 2)}
    predicted = found.predict("simulated:GPU", 1, 1, 4000, 9000)
    truth = units.find("simulated:GPU").time_ms(LAYER, 1, 1, 4000, 9000, "float32")
    assert (predicted.time_ms, predicted.origin) == (truth, SIMULATED) and predicted.low_ms < truth < predicted.high_ms
    with pytest.raises(GnnlabError, match="no times of stages 3-3 on simulated:GPU: it has 1-1, 2-2"):
        found.predict("simulated:GPU", 3, 3, 10, 20)


def test_what_is_not_known_is_refused_in_one_line(predictor):
    with pytest.raises(GnnlabError, match="no times of stages 1-5 on planted: it has 1-1"):
        predictor.predict(PLANTED, 1, 5, 10, 20)
    with pytest.raises(GnnlabError, match="units with times: planted"):
        predictor.predict("torch:CPU", 1, 1, 10, 20)
    with pytest.raises(GnnlabError, match="at least 1 of each"):
        predictor.predict(PLANTED, 1, 1, 0, 20)


def test_a_block_with_too_few_sizes_says_so_and_the_others_go_on():
    cells = planted()
    few = cells[(cells["first"] != 2) | (cells["nodes"] + cells["edges"] <= 3000)]  # 1000/1000 and 1000/2000
    found = TimePredictor.fit(LAYER, few)
    assert found.blocks(PLANTED) == {(n, n) for n in LAYER.numbers} - {(2, 2)}
    with pytest.raises(GnnlabError, match="times at 2 sizes; 3 at least"):
        found.predict(PLANTED, 2, 2, 4000, 9000)
    with pytest.raises(GnnlabError, match=r"nothing to predict from: stages 1-1: times at 1 sizes"):
        TimePredictor.fit(LAYER, cells[(cells["nodes"] == 5000) & (cells["edges"] == 5000)])


def test_missing_times_are_left_out_of_the_fit():
    cells = planted(noise=0.0)
    cells.loc[(cells["first"] == 1) & (cells["nodes"] == 3000), ["ms", "ms_low", "ms_high"]] = np.nan
    found = TimePredictor.fit(LAYER, cells)
    truth = planted([(3000, 5000)], noise=0.0).iloc[0]["ms"]
    predicted = found.predict(PLANTED, 1, 1, 3000, 5000)
    assert predicted.origin == INTERPOLATED and predicted.time_ms == pytest.approx(truth, rel=1e-6)


def test_sizes_left_out_together_are_one_sample_of_the_error():
    """Ten errors of one N are no ten samples, and quartiles no interval."""
    errors = np.array([1.0] * 10 + [30.0] * 10 + [2.0] * 10)
    sizes = [(n, e) for n in (100, 200, 300) for e in range(10)]
    low, high = over_groups(errors, sizes, (0,))
    assert low == 0 and high >= 30 and np.isnan(over_groups(errors[:10], sizes[:10], (0,))).all()


def test_errors_at_sizes_left_out_are_rows_that_say_what_they_rest_on(predictor):
    found = predictor.held_out()
    assert found["stage"].tolist() == [f"{s.number} {s.name}" for s in LAYER.stages] and (found["n"] > 1).all()
    assert (found["low"] <= found["value"]).all() and found["notes"].map(lambda notes: notes[0][:5]).eq("form:").all()
