"""The bound is arithmetic on counts and ceilings, checked by hand; the ceilings themselves only for what must hold."""

from __future__ import annotations

import pytest
import torch

from gnnlab.errors import GnnlabError
from gnnlab.profiling.roofline import WORKING_SETS, Ceilings, bound_ms, ceilings, count

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


def test_work_of_unknown_flops_has_a_bound_by_its_bytes():
    assert bound_ms(count(torch.linalg.eigh, (x,)), LIMITS) > 0


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


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"budget_s": 0}, "budget_s must be a positive number"),
        ({"threads": 0}, "threads must be an integer"),
        ({"threads": 1.5}, "threads must be an integer"),
        ({"device": "tpu7"}, "no device is called 'tpu7'"),
        ({"device": "meta"}, "not on meta"),
    ],
)
def test_conditions_that_cannot_be_are_refused(wrong, said):
    with pytest.raises(GnnlabError, match=said):
        ceilings(**wrong)
