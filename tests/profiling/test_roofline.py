"""The bound is arithmetic on counts and ceilings, checked by hand; the ceilings themselves only for what must hold."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from gnnlab.profiling.counting import count
from gnnlab.profiling.roofline import (
    WORKING_SETS,
    Ceilings,
    RooflineError,
    bound_ms,
    bounds,
    ceilings,
    point,
    share_reached,
)

LIMITS = Ceilings(
    copy_gb_s=[(1024, 100.0), (4096, 50.0)], gemm_gflop_s=10.0, precision="float32", threads=2, device="cpu"
)
x = torch.ones(16, 16)  # 1 KiB


def test_bandwidth_lies_between_the_measured_working_sets():
    assert LIMITS.bandwidth_gb_s(1024) == 100
    assert LIMITS.bandwidth_gb_s(2048) == pytest.approx(75)  # half way on a logarithmic scale
    assert LIMITS.bandwidth_gb_s(4096) == LIMITS.bandwidth_gb_s(1e12) == 50
    assert LIMITS.bandwidth_gb_s(1) == LIMITS.bandwidth_gb_s(0) == 100


def test_work_limited_by_memory_takes_its_bytes_over_the_bandwidth_of_its_working_set():
    counted = count(torch.clone, (x,))  # 2 KiB touched
    assert bound_ms(counted, LIMITS) == pytest.approx(2048 / 75e9 * 1e3)


def test_work_limited_by_compute_takes_its_flops_over_the_peak():
    counted = count(torch.mm, (x, x))
    assert bound_ms(counted, LIMITS) == pytest.approx(2 * 16**3 / 10e9 * 1e3)


def test_operators_follow_one_another():
    both = count(lambda: (x.mm(x), x.clone(), x.clone()))
    alone = bound_ms(count(torch.mm, (x, x)), LIMITS) + 2 * bound_ms(count(torch.clone, (x,)), LIMITS)
    assert bound_ms(both, LIMITS) == pytest.approx(alone)
    assert share_reached(both, LIMITS, 2 * alone) == pytest.approx(0.5)


def test_views_are_free_and_nothing_takes_no_time():
    assert bound_ms(count(lambda: x.view(-1)), LIMITS) == 0
    assert bound_ms(count(lambda: None), LIMITS) == 0
    assert bounds(count(lambda: None), LIMITS).empty


def test_the_table_of_bounds_adds_up_and_names_the_limit():
    counted = count(lambda: (x.mm(x), x.clone(), x.view(-1), torch.linalg.eigh(x)))
    table = bounds(counted, LIMITS)
    assert table.bound_ms.sum() == pytest.approx(bound_ms(counted, LIMITS))
    assert table.bound_ms.is_monotonic_decreasing
    rows = table.set_index("operator")
    assert rows.limit["aten::mm"] == "compute"
    assert rows.limit["aten::clone"] == "memory"
    assert rows.flops_per_byte["aten::mm"] == pytest.approx(2 * 16**3 / 2048)  # x, once, and the result
    assert rows.flops_per_byte["aten::clone"] == 0
    assert np.isnan(rows.flops_per_byte["aten::view"])
    assert rows.bound_ms["aten::_linalg_eigh"] > 0  # FLOPs unknown, bytes not


def test_a_point_of_the_picture():
    assert point("clone", count(torch.mm, (x, x)), 0.5) == {
        "label": "clone",
        "flops_per_byte": 2 * 16**3 / 2048,
        "gflop_s": pytest.approx(2 * 16**3 / 0.5e-3 / 1e9),
    }
    with pytest.raises(RooflineError, match="nothing: a point needs a positive time and bytes"):
        point("nothing", count(lambda: None), 1.0)


@pytest.mark.parametrize("ms", [0, -1, float("nan")])
def test_a_time_that_is_none_is_refused(ms):
    with pytest.raises(RooflineError, match="measured_ms must be a positive number"):
        share_reached(count(torch.clone, (x,)), LIMITS, ms)


def test_ceilings_are_measured_and_every_setting_is_put_back():
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        measured = ceilings(threads=1, budget_s=0.05)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(precision)
    assert torch.get_num_threads() == threads
    assert (measured.threads, measured.precision, measured.device) == (1, "float32", "cpu")
    assert tuple(size for size, _ in measured.copy_gb_s) == WORKING_SETS
    speeds = [speed for _, speed in measured.copy_gb_s]
    assert speeds == sorted(speeds, reverse=True)
    assert min(*speeds, measured.gemm_gflop_s) > 0
    assert measured.samples >= 1
    assert Ceilings.from_dict(json.loads(json.dumps(measured.to_dict()))) == measured


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"budget_s": 0}, "budget_s must be a positive number"),
        ({"threads": 0}, "threads must be a whole number"),
        ({"threads": 1.5}, "threads must be a whole number"),
        ({"device": "tpu7"}, "no device is called 'tpu7'"),
        ({"device": "meta"}, "not on meta"),
    ],
)
def test_conditions_that_cannot_be_are_refused(wrong, said):
    with pytest.raises(RooflineError, match=said):
        ceilings(**wrong)
