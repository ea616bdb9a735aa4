import json
import shutil
import subprocess
import sys
import sysconfig

import pytest

from gnnlab import cli
from gnnlab.units import registry as units
from gnnlab.units.unit import Availability

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


def test_units_are_listed_without_the_runtimes_that_they_would_need():
    without = "import sys; sys.modules |= dict.fromkeys(('openvino', 'onnx', 'onnxruntime')); "
    without += "from gnnlab.units import registry; registry.all_units()"
    subprocess.run([sys.executable, "-c", without], check=True, timeout=120)


def test_every_unit_is_listed_with_what_became_of_it(capsys, probed):
    assert cli.main(["units"]) == 0
    printed = capsys.readouterr().out
    assert probed == list(units.all_units())
    rows = [line.replace("│", " ") for line in printed.splitlines() if ":" in line]
    lines = {row.split()[0]: row for row in rows}
    assert "yes" in lines["openvino:CPU"] and "a processor" in lines["openvino:CPU"]
    assert all(part in lines["openvino:GPU"] for part in (" no ", "no [libOpenCL]", "install it"))
    assert "simulated" in lines["simulated:NPU"].split()[1]


def test_json_holds_what_a_program_needs(capsys):
    assert cli.main(["units", "openvino:GPU", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["unit"] == "openvino:GPU" and row["processor"] == "GPU" and row["usable"] is False
    assert row["remedy"] == "install it" and row["precisions"] == ["float32", "float16"]


def test_the_installed_command_finds_a_unit_in_the_current_folder_and_keeps_the_name_asked_for(tmp_path):
    (tmp_path / "my_helper.py").write_text('NAME = "x:CPU"\n')
    (tmp_path / "my_unit.py").write_text(
        "from gnnlab.units.torch_units import TorchUnit\n\n\n"
        "class Mine(TorchUnit):\n"
        "    def probe(self):\n"
        "        import my_helper  # only now, in the worker\n\n"
        "        assert my_helper.NAME == self.name\n"
        "        return super().probe()\n\n\n"
        "def make():\n"
        '    return Mine("x:CPU", "CPU", "torch")\n'
    )
    command = shutil.which("gnnlab", path=sysconfig.get_path("scripts"))
    asked = [command, "units", "my_unit:make", "--json"]
    ended = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    (row,) = json.loads(ended.stdout)
    assert row["unit"] == "my_unit:make" and row["usable"], row


@pytest.mark.parametrize(
    ("unit", "why"),
    [
        ("openvino:TPU", "unit 'openvino:TPU' is not known; one of openvino:CPU"),
        ("odd_unit:mke", "module odd_unit has no factory 'mke' (did you mean make?)"),
        ("odd_unit:make", "odd_unit:make cannot be called with nothing: missing a required argument: 'size'"),
        ("odd_unti:make", "there is no module odd_unti: neither installed nor as a file in"),
        ("own_models:ends_the_process", "unit own_models:ends_the_process: the process exited with code 0"),
    ],
)
def test_what_is_wrong_with_a_unit_is_one_line(capsys, tmp_path, monkeypatch, unit, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd_unit.py").write_text("def make(size):\n    return size\n")
    assert cli.main(["units", unit]) == 2
    printed = capsys.readouterr().err
    assert len(printed.splitlines()) == 1 and why in printed
