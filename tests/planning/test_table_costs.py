"""Costs from tables: measured calls come before predictions, simulated units say so, a time that is none is refused."""

from types import SimpleNamespace

import pytest
from synthetic_costs import Line, Predicted

from gnnlab.campaign.cell_inputs import layer_of
from gnnlab.campaign.cells import measure
from gnnlab.errors import GnnlabError
from gnnlab.planning import table_costs
from gnnlab.planning.table_costs import GPU, NPU, TableCosts, load_costs
from gnnlab.prediction.predictor import Prediction

CPU, OTHER = UNITS = ("plan_units:cpu", "plan_units:gpu")
LAYER = layer_of("sage", 8)


def costs(units=UNITS):
    return TableCosts(LAYER, Predicted(UNITS, LAYER), Line(), units)


def test_what_was_measured_since_comes_before_predictions():
    key = (CPU, 1, 5, 30, 60)
    before, after = costs(), costs().with_measured([key, ("openvino:CPU", 1, 5, 30, 60)], measure, "", 0.01)
    assert before.predict(*key).origin == "interpolated" and list(after.measured) == [key]
    outcome = after.measured[key]
    assert after.predict(*key) == Prediction(outcome.median_ms, *outcome.ci_ms, "measured")
    assert after.predict(CPU, 1, 6, 30, 60) == before.predict(CPU, 1, 6, 30, 60)


def test_simulated_units_are_known_by_their_constants_and_run_what_they_can():
    with_them = costs((CPU,)).with_simulated()
    assert with_them.units == (CPU, GPU, NPU) and with_them.devices == {GPU, NPU}
    simulated = with_them.predict(GPU, 1, 7, 50, 90)
    assert simulated.origin == "simulated" and 0 < simulated.low_ms < simulated.time_ms < simulated.high_ms
    assert not any(first <= 3 <= last for first, last in with_them.blocks(NPU))
    assert (1, 7) in costs((CPU,)).with_simulated(npu_cannot=()).blocks(NPU)


def test_half_the_bandwidth_takes_twice_as_long_and_a_unit_hands_nothing_to_itself():
    whole, half = costs(), costs().with_bandwidth(0.5)
    assert half.transfer_ms(CPU, OTHER, 1e6) == 2 * whole.transfer_ms(CPU, OTHER, 1e6) > 0
    assert whole.transfer_ms(CPU, CPU, 1e6) == whole.transfer_ms(CPU, OTHER, 0) == 0


def test_the_sizes_are_those_of_the_tables():
    assert costs().sizes == [(20, 40), (80, 80), (80, 300)]


@pytest.mark.parametrize("ms", [-1.0, 0.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused_in_one_line(ms):
    made = costs()
    made.predictor.predict = lambda *key: SimpleNamespace(time_ms=ms, origin="measured")
    with pytest.raises(GnnlabError, match="the tables give") as error:
        made.predict(CPU, 1, 7, 20, 40)
    assert "\n" not in str(error.value)


def test_units_come_in_one_order_however_they_are_named(monkeypatch, tmp_path):
    known = ("openvino:CPU", "fast:CPU", "torch:CPU")
    monkeypatch.setattr(table_costs, "load_tables", lambda folder: (Predicted(known, LAYER), Line()))
    for named in (["torch:CPU", "openvino:CPU"], ["openvino:CPU", "torch:CPU"]):
        found = load_costs(tmp_path, named)
        assert found.units == ("openvino:CPU", "torch:CPU") and found.only("torch:CPU").units == ("torch:CPU",)
    with pytest.raises(GnnlabError, match=r"no times of onnxruntime:CPU .* it has those of openvino:CPU, fast:CPU"):
        load_costs(tmp_path, ["onnxruntime:CPU"])


def test_a_unit_that_the_tables_do_not_know_is_named():
    with pytest.raises(GnnlabError, match="no times of openvino:GPU in the tables; there are those of plan_units:cpu"):
        costs((CPU, "openvino:GPU"))
