"""The bound is arithmetic on counts and ceilings, checked by hand; the ceilings themselves only for what must hold."""

import random
from dataclasses import asdict
from functools import partial

import pandas as pd
import pytest
import torch

from gnnlab.errors import GnnlabError
from gnnlab.profile import ceiling_kernels
from gnnlab.profile.costs import Cost
from gnnlab.profile.roofline import WORKING_SETS, Ceilings, Count, bound_ms, ceilings, count

COPIES = Ceilings(
    copy_gb_s=[(1024, 100.0), (4096, 50.0)], gemm_gflop_s=10.0, precision="float32", threads=2, device="cpu"
)
LIMITS = Ceilings(
    **asdict(COPIES)
    | {
        "read_gb_s": [(1024, 200.0), (4096, 80.0)],
        "write_gb_s": [(1024, 160.0), (4096, 40.0)],
        "in_place_gb_s": [(1024, 250.0), (4096, 125.0)],
        "peaks_gflop_s": {"float64": 5.0, "bfloat16": 40.0},
    }
)
x = torch.ones(16, 16)  # 1 KiB


def test_the_bandwidth_of_copies_lies_between_the_measured_working_sets():
    assert COPIES.bandwidth_gb_s(1024) == 100
    assert COPIES.bandwidth_gb_s(2048) == pytest.approx(75)  # half way on a logarithmic scale
    assert COPIES.bandwidth_gb_s(4096) == COPIES.bandwidth_gb_s(1e12) == 50
    assert COPIES.bandwidth_gb_s(1) == COPIES.bandwidth_gb_s(0) == 100


def least_us(*costs, limits=LIMITS):
    """The bound of calls of these costs, in microseconds."""
    rows = [{"operator": "", "calls": 1, **asdict(one), "bytes": one.bytes_read + one.bytes_written} for one in costs]
    return 1e3 * bound_ms(Count(pd.DataFrame(rows)), limits)


def moves(read, written, working_set=None, **more):
    return Cost("", bytes_read=read, bytes_written=written, working_set=working_set or read + written, **more)


BY_HAND = {  # what a call costs, and the microseconds that it takes at least: 1e3 bytes a microsecond are 1 GB/s
    "reads alone": (moves(8000, 4), 8000 / 80e3),
    "writes alone": (moves(0, 8000), 8000 / 40e3),
    "a copy": (moves(2000, 2000), 4000 / 100e3),  # its working set lies between two measured ones: the smaller's rate
    "a copy of more": (moves(4000, 4000), max(8000 / 50e3, 4000 / 80e3, 4000 / 40e3)),
    "in place": (moves(8000, 8000, 8000), max(16000 / 125e3, 8000 / 80e3, 8000 / 40e3)),
    "in place, in a cache": (moves(1024, 1024, 1024), 2048 / 250e3),
    "more read than written": (moves(8000, 1000), 8000 / 80e3),
    "float32": (Cost("matrix", flops=10_000, matrix_flops=10_000, dtype="float32"), 10_000 / 10e3),
    "bfloat16": (Cost("matrix", flops=10_000, matrix_flops=10_000, dtype="bfloat16"), 10_000 / 40e3),
    "float64": (Cost("matrix", flops=10_000, matrix_flops=10_000, dtype="float64"), 10_000 / 5e3),
    "a type that was not measured": (Cost("matrix", flops=10_000, matrix_flops=10_000, dtype="float16"), 0.25),
    "no product": (Cost("elementwise", flops=10_000), 10_000 / 40e3),
    "a product that has to be read first": (
        moves(80_000, 4, flops=9000, matrix_flops=9000, dtype="float32"), 80_000 / 80e3
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_HAND)
def test_the_bound_is_what_the_scarcest_resource_needs(case):
    cost, expected = BY_HAND[case]
    assert least_us(cost) == pytest.approx(expected)
    assert least_us(cost, cost) == pytest.approx(2 * expected)  # one operator after the other


def test_a_slow_type_of_16_bits_can_be_multiplied_as_float32():
    slow = Ceilings(**asdict(COPIES) | {"peaks_gflop_s": {"bfloat16": 1.0}})
    assert least_us(BY_HAND["bfloat16"][0], limits=slow) == pytest.approx(1.0)


def test_the_bound_of_what_was_counted_where_copies_alone_were_measured():
    copied, product, largest = (
        1e3 * bound_ms(count(work), COPIES) for work in (x.clone, lambda: x.double() @ x.double(), x.max)
    )
    assert copied == pytest.approx(2048 / 100e3)
    assert product == pytest.approx(2 * 16**3 / 10e3 + 2 * 2048 / 100e3)
    assert largest == pytest.approx(256 / 10e3)  # its comparisons take longer than its bytes
    assert bound_ms(count(lambda: None), LIMITS) == 0
    assert bound_ms(count(torch.linalg.eigh, (x,)), LIMITS) > 0  # of unknown FLOPs: by its bytes


@pytest.mark.parametrize("seed", range(3))
def test_no_kernel_takes_less_than_its_bound_under_the_ceilings_that_were_measured_with_it(monkeypatch, seed):
    draw, taken, kernels = random.Random(seed), {}, []

    def seconds(run, device, calls=1):
        """A clock on which each call takes as long as it likes, products by their sizes."""
        took = draw.uniform(1, 1.5) * (len(run.args[0]) ** 3 * 1e-10 if run.func is torch.mm else 3e-4)
        taken[id(run)] = min(taken.get(id(run), took), took)
        return took

    def kept(make):
        def made(*given):
            for kernel in make(*given):
                taken.pop(id(kernel.run), None)  # what it took while it was prepared is in no ceiling
                kernels.append(kernel)
                yield kernel

        return made

    monkeypatch.setattr(ceiling_kernels, "_seconds", seconds)
    monkeypatch.setattr(ceiling_kernels, "WORKING_SETS", WORKING_SETS[:8])
    monkeypatch.setattr("gnnlab.profile.roofline.WORKING_SETS", WORKING_SETS[:8])
    for name in ("_moving", "_multiplying"):
        monkeypatch.setattr(ceiling_kernels, name, kept(getattr(ceiling_kernels, name)))
    limits = ceilings(threads=1, budget_s=0.05)
    singles = [kernel for kernel in kernels if kernel.run.func is torch.mm or kernel.amount <= 2 * kernel.at]
    assert {kernel.what for kernel in singles} == {"copy", "read", "write", "in place", "product"}
    for kernel in singles:
        least_ms = bound_ms(count(partial(kernel.run)), limits)
        assert least_ms <= 1e3 * taken[id(kernel.run)] * (1 + 1e-9), (kernel.what, kernel.at)


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
    for rates in (measured.copy_gb_s, measured.read_gb_s, measured.write_gb_s, measured.in_place_gb_s):
        sizes, speeds = zip(*rates, strict=True)
        assert sizes == WORKING_SETS and list(speeds) == sorted(speeds, reverse=True) and speeds[-1] > 0
    assert measured.peaks_gflop_s["float32"] == measured.gemm_gflop_s > 0
    assert set(measured.peaks_gflop_s) == {"float32", "float64", "bfloat16"}
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
