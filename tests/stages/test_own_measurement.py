"""An own measurement gives the same stages and values as the journal; how fast they are, nobody asks here."""

from pathlib import Path

import numpy as np
import own_measurement

from gnnlab.stages import measure, sizes
from gnnlab.stages.export import export
from gnnlab.stages.sizes import Size, inputs_of, layer_of

SIZE, FEATURES = Size(40, 120), 16


def test_an_own_measurement_has_the_stages_and_the_values_of_the_journal(tmp_path):
    layer = layer_of("sage", FEATURES)
    assert export(layer, 3, 3, exporter="openvino", folder=tmp_path / "models").ready
    options = {"models": tmp_path / "models", "sizes": [SIZE], "features": FEATURES, "budget_s": 0.01}
    options |= {"blocks": ["3", "6"], "devices": ["torch:CPU", "openvino:CPU"]}
    frame = measure.measure(tmp_path / "stages", **options).frame
    timed = frame[frame["status"] == "measured"]
    own = own_measurement.measured(FEATURES, SIZE[:2], tmp_path / "models", rounds=3)
    assert set(own) > set(zip(timed["device"], timed["first"], strict=True)) and (len(own), len(timed)) == (8, 3)
    values = layer.trace(**inputs_of(SIZE, FEATURES))
    for (_, number), (ms, result) in own.items():
        assert ms > 0 and np.allclose(result, values[layer.stages[number - 1].writes], rtol=0, atol=1e-5)


def test_it_is_independent_of_what_it_checks():
    text = Path(own_measurement.__file__).read_text(encoding="utf-8")
    assert "stages.measure" not in text.split('"""')[2] and "gnnlab.measure" not in text
    assert all(size in {s[:2] for s in sizes.read(["study"])} for size in own_measurement.SIZES)
