"""Curves of copies on synthetic machines, and which copies are measured."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from synthetic_latencies import BLOCKS, FEATURES, SIZES, SMALL, Truth, configs, copies

from gnnlab.bandwidth import copies as measured_copies
from gnnlab.bandwidth.copies import LEAST_BYTES, PLAIN_COPY, CopyCurve, Transfers
from gnnlab.stages import devices, measure

BYTES = [4096 * 4**step for step in range(7)]


def curve(launch_ms=0.05, gb_s=10.0, **options):
    return CopyCurve.fit(copies(BYTES, Truth(launch_ms, gb_s), **options))


def test_the_bandwidth_of_a_synthetic_machine_is_recovered_and_its_interval_holds_it():
    inside = []
    for seed in range(40):
        fitted = curve(noise=0.02, seed=seed)
        rates = [rate for rate in map(fitted.gb_s, BYTES) if np.isfinite(rate[0])]
        inside += [low <= 10 <= high for _, low, high in rates]
        assert all(abs(value / 10 - 1) < 0.35 for value, _, _ in rates)
        assert abs(fitted.gb_s(BYTES[-1])[0] / 10 - 1) < 0.05
    assert len(inside) > 80 and np.mean(inside) > 0.9


def test_what_the_launch_or_a_wide_interval_hides_is_not_told():
    assert np.isnan(curve(noise=0.02).gb_s(BYTES[0])).all()
    assert np.isnan(curve(launch_ms=50, noise=0.02).gb_s(BYTES[-2])).all()
    table = copies(BYTES)
    table.loc[1, "ms_high"] *= 50
    fitted = CopyCurve.fit(table)
    assert np.isnan(fitted.gb_s(BYTES[1])).all() and np.isfinite(fitted.gb_s(BYTES[3])).all()


def test_a_curve_passes_through_its_sizes_and_goes_on_at_the_last_bandwidth():
    fitted = curve()
    assert fitted.ms(1) == fitted.launch_ms == pytest.approx(0.05, rel=0.02)
    for size in (BYTES[3], 3 * BYTES[3], 4 * BYTES[-1]):
        assert fitted.ms(size) == pytest.approx(0.05 + 2 * size / 10e9 * 1e3, rel=1e-3)
    assert all(fitted.gb_s(size)[0] == pytest.approx(10) for size in BYTES[3:])
    assert fitted.moving_ms(2 * BYTES[-1]) == pytest.approx(2 * BYTES[-1] / 10e9 * 1e3, rel=0.01)


@given(st.lists(st.floats(0.01, 100), min_size=7, max_size=7), st.floats(0, 1e9), st.floats(0, 1e9))
def test_more_bytes_never_take_less_time(times, one, other):
    table = pd.DataFrame({"size_bytes": BYTES, "ms": times, "ms_low": times, "ms_high": times, "n": 9})
    fitted, (less, more) = CopyCurve.fit(table), sorted((one, other))
    assert fitted.ms(less) <= fitted.ms(more) * (1 + 1e-9) and fitted.moving_ms(less) >= 0


@pytest.mark.parametrize(("size", "ms"), [((1, 2), (1, 0)), ((1, 2), (1, -1)), ((1, 2), (1, np.nan)), ((1,), (1,))])
def test_a_sweep_of_one_size_or_with_a_time_that_is_none_is_refused(size, ms):
    with refused("two above 0 are needed"):
        CopyCurve.fit(pd.DataFrame({"size_bytes": size, "ms": ms, "ms_low": 1, "ms_high": 1, "n": 9}))


def test_a_device_without_copies_of_its_own_takes_plain_ones_which_have_to_be_there():
    through = copies(BYTES, Truth(gb_s=5), device="openvino:CPU")
    transfers = Transfers.fit(pd.concat([copies(BYTES), through]))
    assert transfers.of("torch:CPU") is transfers.plain
    assert transfers.of("openvino:CPU").gb_s(1e7)[0] == pytest.approx(5, rel=0.02)
    with refused("no sweep of plain copies"):
        Transfers.fit(through)


# ---- measured -------------------------------------------------------------------------------------------------------


def test_a_plain_copy_is_a_device_that_has_the_identity_and_copies_what_it_is_given():
    config = measure.Config("sage", FEATURES, 2, 50, 2, 2, PLAIN_COPY)
    assert measure.measure_one(config, measure.Settings(budget_s=0.01))["status"] == "measured"
    loaded = devices.find(PLAIN_COPY).load(SMALL, 2, 2, None, nodes=2, edges=3, threads=1, precision="float32")
    (source,) = SMALL.block(2, 2).reads
    call, outputs = loaded.bound({source: np.full((3, FEATURES), 7, np.float32)})
    (result,) = outputs(call()).values()
    assert (result == 7).all() and loaded.version.startswith("numpy")


def test_copies_go_up_to_the_most_that_a_measurement_moves_plain_and_where_the_identity_copies(monkeypatch, tmp_path):
    """Not through torch on the CPU, which hands its input on, nor where there are sums alone."""
    exported = []
    monkeypatch.setattr(
        measured_copies, "export", lambda *block, exporter, folder, size: exported.append((exporter, size))
    )
    copying = ["onnxruntime:CPU", "openvino:NPU", "torch:CUDA"]
    refusing = ["torch:CPU", "fast:CPU", "openvino-handbuilt:CPU"]
    asked = measured_copies.copy_configs(configs(devices=[*refusing, *copying]), 8, tmp_path)
    sweep = list(dict.fromkeys(each.edges for each in asked))
    assert len(sweep) == 8 and sweep[0] * 4 * FEATURES == LEAST_BYTES and sweep == sorted(sweep)
    most = max(SMALL.block(*block).bytes_moved(*size) for block in BLOCKS for size in SIZES)
    assert sweep[-1] * 4 * FEATURES == pytest.approx(most / 2, rel=0.01)
    assert [(each.edges, each.device) for each in asked] == [(e, n) for e in sweep for n in (PLAIN_COPY, *copying)]
    assert {(each.first, each.last, each.nodes) for each in asked} == {(2, 2, 2)}
    assert exported == [("onnx", None), *(("openvino", (2, edges)) for edges in sweep)]  # each size where it is fixed
