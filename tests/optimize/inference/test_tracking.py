"""Counts and percentiles are those of what was recorded, for a reader and for a monitor."""

import math
import threading

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize.inference import tracking
from gnnlab.optimize.inference.tracking import Tracker


def tracked(count, cached=0, errors=0):
    tracker = Tracker()
    for number in range(count):
        tracker.record(float(number + 1), cached=number < cached)
    for _ in range(errors):
        tracker.record_error()
    return tracker


def values(tracker):
    return tracker.table().set_index("figure")["value"].to_dict()


def samples(tracker):
    families = text_string_to_metric_families(tracker.prometheus())
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_counts_and_the_cache_rate_are_those_of_what_was_recorded():
    tracker = tracked(8, cached=2, errors=3)
    assert (tracker.count, tracker.errors, tracker.cache_rate) == (8, 3, 0.25)
    found = values(tracker)
    assert (found["computed"], found["cached"], found["errors"], found["cache rate"]) == (6, 2, 3, 25)
    assert found["mean latency"] == 4.5


@pytest.mark.parametrize(("q", "floor"), [(90, 64), (95, 130), (99, 662)])
def test_a_percentile_takes_its_samples(q, floor):
    below, enough = tracked(floor - 1), tracked(floor)
    assert below.latency_ms(q) is None and math.isnan(values(below)[f"p{q} latency"])
    notes = below.table().set_index("figure")["note"]
    assert notes[f"p{q} latency"] == f"takes {floor} answers, there are {floor - 1}"
    expected = np.percentile(np.arange(1, floor + 1), q)
    assert enough.latency_ms(q) == values(enough)[f"p{q} latency"] == pytest.approx(expected)


def test_nothing_recorded_is_said_and_not_invented():
    tracker = Tracker()
    assert tracker.cache_rate is None and tracker.latency_ms(50) is None
    found = values(tracker)
    assert found["computed"] == 0 and math.isnan(found["cache rate"]) and math.isnan(found["mean latency"])


def test_percentiles_are_of_the_last_answers_and_counts_of_all(monkeypatch):
    monkeypatch.setattr(tracking, "WINDOW", 5)
    tracker = tracked(20)
    assert tracker.count == 20 and tracker.latency_ms(50) == 18
    assert "of the last 5" in set(tracker.table()["note"])


def test_a_monitor_reads_counters_and_a_histogram():
    tracker = tracked(4, cached=1, errors=2)
    found = samples(tracker)
    assert found["gnnlab_predictions_total", "computed"] == 3
    assert found["gnnlab_predictions_total", "cached"] == 1
    assert found["gnnlab_predictions_total", "error"] == 2
    assert found[("gnnlab_prediction_latency_seconds_count",)] == 4
    assert found[("gnnlab_prediction_latency_seconds_sum",)] == pytest.approx(0.010)
    assert found["gnnlab_prediction_latency_seconds_bucket", "0.0025"] == 2
    assert found["gnnlab_prediction_latency_seconds_bucket", "+Inf"] == 4


def test_a_monitor_sees_zeros_from_the_start_and_trackers_are_apart():
    first, second = Tracker(), Tracker()
    first.record(1.0)
    assert samples(first)["gnnlab_predictions_total", "computed"] == 1
    assert samples(second)["gnnlab_predictions_total", "computed"] == 0
    assert samples(second)["gnnlab_predictions_total", "error"] == 0


@pytest.mark.parametrize("latency", [-1.0, math.nan, math.inf])
def test_a_latency_that_is_none_is_refused_and_not_counted(latency):
    tracker = Tracker()
    with pytest.raises(OptimizeError, match="a finite number of 0 or more is needed"):
        tracker.record(latency)
    assert tracker.count == 0 and samples(tracker)["gnnlab_predictions_total", "computed"] == 0


def test_threads_lose_nothing():
    tracker = Tracker()

    def work():
        for _ in range(500):
            tracker.record(1.0)
            tracker.record_error()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tracker.count == tracker.errors == 3000
    assert samples(tracker)["gnnlab_predictions_total", "computed"] == 3000
