from dataclasses import replace

import numpy as np
import pytest

from gnnlab.campaign.cells import Cell, Settings, measure
from gnnlab.units import registry as units
from gnnlab.units.simulated import GPU, NPU
from gnnlab.workloads.graphsage import sage

CELL = Cell("sage", 500, 1000, 2000, 6, 6, "simulated:GPU")


def test_every_number_says_simulated_and_no_parity_is_claimed():
    outcome = measure(CELL, Settings())
    assert outcome.status == "simulated" and outcome.parity_error is None
    assert outcome.runtime_version == "simulated" and outcome.device.endswith("(simulated)")
    assert outcome.notes[0].startswith("simulated from published constants")


def test_the_same_cell_has_the_same_samples_and_another_has_others():
    first, same, other = (measure(cell, Settings()) for cell in (CELL, CELL, replace(CELL, nodes=1001)))
    assert first.samples_ms == same.samples_ms != other.samples_ms
    assert np.std(first.samples_ms) / first.median_ms == pytest.approx(0.01, rel=0.6)


@pytest.mark.parametrize(
    ("name", "constants", "precision"), [("simulated:GPU", GPU, "float32"), ("simulated:NPU", NPU, "float16")]
)
def test_the_time_is_the_launch_and_the_larger_of_moving_and_computing(name, constants, precision):
    unit, layer = units.find(name), sage(500)
    for first, last in ((2, 2), (6, 6)):
        moved_ms = layer.block(first, last).bytes_moved(1000, 2000) / constants.bandwidth_gb_s.value / 1e6
        computed_ms = layer.flops(first, last, 1000, 2000) / constants.peak_gflop_s[precision].value / 1e6
        expected = constants.launch_us.value / 1e3 + max(moved_ms, computed_ms)
        assert unit.time_ms(layer, first, last, 1000, 2000, precision) == pytest.approx(expected)


def test_the_npu_leaves_out_the_sums():
    npu = replace(CELL, unit="simulated:NPU")
    cells = [replace(npu, first=number, last=number) for number in range(1, 8)]
    assert [n for n, cell in enumerate(cells, 1) if measure(cell, Settings()).status == "unavailable"] == [3, 4]
    fused = measure(replace(npu, first=1, last=5), Settings())
    assert fused.reason == "simulated:NPU does not run REDUCE_SUM, REDUCE_COUNT"


def test_the_npu_computes_in_float16_and_the_gpu_in_what_is_asked():
    asked = (("simulated:NPU", "float32"), ("simulated:GPU", "float32"), ("simulated:GPU", "float16"))
    npu, single, half = (measure(replace(CELL, unit=unit, precision=p), Settings()) for unit, p in asked)
    assert (npu.precision, single.precision, half.precision) == ("float16", "float32", "float16")
    assert half.median_ms < single.median_ms


def test_what_is_simulated_computes_real_values():
    unit = units.find("simulated:GPU")
    layer = sage(4)
    loaded = unit.load(layer, 7, 7, nodes=2, edges=1, threads=1, precision="float32")
    hidden = np.array([[1, -1, 0, 2]] * 2, np.float32)
    assert np.array_equal(loaded.run({"hidden": hidden})["out"], np.maximum(hidden, 0))
    loaded.close()
