"""The bound is arithmetic on counts and ceilings, checked by hand; the ceilings themselves only for what must hold."""

import pytest
import torch

from gnnlab.errors import GnnlabError
from gnnlab.profile.roofline import WORKING_SETS, Ceilings, bound_ms, ceilings, count

LIMITS = Ceilings(
    copy_gb_s=[(1024, 100.0), (4096, 50.0)], gemm_gflop_s=10.0, precision="float32", threads=2, device="cpu"
)
x = torch.ones(16, 16)  # 1 KiB


def test_bandwidth_lies_between_the_measured_working_sets():
    assert LIMITS.bandwidth_gb_s(1024) == 100
    assert LIMITS.bandwidth_gb_s(2048) == pytest.approx(75)  # half way on a logarithmic scale
    assert LIMITS.bandwidth_gb_s(4096) == LIMITS.bandwidth_gb_s(1e12) == 50
    assert LIMITS.bandwidth_gb_s(1) == LIMITS.bandwidth_gb_s(0) == 100


def test_the_bound_is_bytes_over_bandwidth_or_flops_over_the_peak_one_operator_after_the_other():
    copied, product = (
        bound_ms(count(work, inputs), LIMITS) for work, inputs in ((torch.clone, (x,)), (torch.mm, (x, x)))
    )
    assert copied == pytest.approx(2048 / 75e9 * 1e3)  # 2 KiB touched
    assert product == pytest.approx(2 * 16**3 / 10e9 * 1e3)
    both = count(lambda: (x.mm(x), x.clone(), x.clone()))
    assert bound_ms(both, LIMITS) == pytest.approx(product + 2 * copied)
    assert bound_ms(count(torch.linalg.eigh, (x,)), LIMITS) > 0  # of unknown FLOPs: by its bytes


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


def test_conditions_that_cannot_be_are_refused():
    for wrong, message in (
        ({"budget_s": 0}, "budget_s must be a positive number"),
        ({"threads": 1.5}, "threads must be an integer"),
        ({"device": "tpu7"}, "no device is called 'tpu7'"),
        ({"device": "meta"}, "not on meta"),
    ):
        with pytest.raises(GnnlabError, match=message):
            ceilings(**wrong)
