import json

import pytest

from gnnlab import cli
from gnnlab.stages.units import registry as units
from gnnlab.stages.units.unit import Availability

FOUND = {
    "openvino:CPU": Availability(True, device="a processor", version="OpenVINO 1"),
    "openvino:GPU": Availability(False, "no [libOpenCL]", "install it", version="OpenVINO 1"),
    "simulated:NPU": Availability(True, device="an NPU (simulated)", version="constants"),
}


@pytest.fixture(autouse=True)
def probed(monkeypatch):
    asked = []

    def probe(names):
        asked.extend(names)
        return {name: FOUND.get(name, Availability(False, "not tried here")) for name in names}

    monkeypatch.setattr(units, "probe", probe)
    monkeypatch.setenv("COLUMNS", "200")
    return asked


def test_every_unit_is_listed_with_what_became_of_it(capsys, probed):
    assert cli.main(["units"]) == 0
    printed = capsys.readouterr().out
    assert probed == list(units.all_units())
    lines = {line.split()[0]: line for line in printed.splitlines() if ":" in line}
    assert "yes" in lines["openvino:CPU"] and "a processor" in lines["openvino:CPU"]
    assert (
        " no " in lines["openvino:GPU"]
        and "no [libOpenCL]" in lines["openvino:GPU"]
        and "install it" in lines["openvino:GPU"]
    )
    assert "simulated" in lines["simulated:NPU"].split()[1]


def test_json_holds_what_a_program_needs(capsys):
    assert cli.main(["units", "openvino:GPU", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["unit"] == "openvino:GPU" and row["processor"] == "GPU" and row["usable"] is False
    assert row["remedy"] == "install it" and row["precisions"] == ["float32", "float16"]


def test_an_unknown_unit_is_one_line_and_exit_code_2(capsys):
    assert cli.main(["units", "openvino:TPU"]) == 2
    assert capsys.readouterr().err.startswith("gnnlab: unit 'openvino:TPU' is not known; one of openvino:CPU")
