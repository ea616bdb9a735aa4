"""`gnnlab devices` says of every device whether it can be used, and why not, in one table or as JSON."""

import json
import shutil
import subprocess
import sys
import sysconfig

import pytest

from gnnlab.stages import devices
from gnnlab.stages.devices import Availability

MINE = """
from gnnlab.stages.torch_devices import TorchDevice

class Mine(TorchDevice):
    def probe(self):
        import my_helper  # only now, in the worker
        assert my_helper.NAME == self.name
        return super().probe()

def make():
    return Mine("x:CPU", "CPU", "torch")
"""
FOUND = {
    "openvino:CPU": Availability(True, chip="a processor", version="OpenVINO 1"),
    "openvino:GPU": Availability(False, "no [libOpenCL]", "install it", version="OpenVINO 1"),
}


@pytest.fixture
def probed(monkeypatch):
    """Probes answer as `FOUND`."""
    no = Availability(False, "not tried here")
    monkeypatch.setattr(devices, "probe", lambda names: {name: FOUND.get(name, no) for name in names})
    monkeypatch.setenv("COLUMNS", "200")


def test_devices_are_listed_without_the_runtimes_that_they_would_need_and_without_pyg():
    code = """import sys; sys.modules |= dict.fromkeys(('openvino', 'onnx', 'onnxruntime', 'torch_geometric', 'torch'))
from gnnlab.stages import devices; assert 'onnxruntime:CPU' in devices.all_devices()"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_every_device_is_listed_with_what_became_of_it(command, probed):
    code, printed, _ = command("devices")
    lines = {row.split()[0]: row for row in printed.replace("│", " ").splitlines() if ":" in row}
    assert code == 0 and list(lines) == list(devices.all_devices())
    assert all(part in lines["openvino:CPU"] for part in (" yes ", "a processor", "OpenVINO 1"))
    assert all(part in lines["openvino:GPU"] for part in (" no ", "no [libOpenCL]", "install it"))


def test_json_holds_what_a_program_needs(command, probed):
    code, printed, _ = command("devices", "openvino:GPU", "--json")
    (row,) = json.loads(printed)
    assert code == 0 and row["device"] == "openvino:GPU" and row["processor"] == "GPU" and row["usable"] is False
    assert row["remedy"] == "install it" and row["precisions"] == ["float32", "float16"] and row["chip"] == ""


def test_the_installed_command_finds_a_device_in_the_current_folder_and_keeps_the_name_asked_for(tmp_path):
    (tmp_path / "my_helper.py").write_text('NAME = "x:CPU"\n')
    (tmp_path / "my_device.py").write_text(MINE)
    gnnlab = shutil.which("gnnlab", path=sysconfig.get_path("scripts"))
    asked = [gnnlab, "devices", "my_device:make", "--json"]
    ended = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    (row,) = json.loads(ended.stdout)
    assert row["device"] == "my_device:make" and row["usable"], row


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ("openvino:TPU", "device 'openvino:TPU' is not known (did you mean openvino:NPU?); one of openvino:CPU"),
        ("odd_device:mke", "module odd_device has no function 'mke' (did you mean make?)"),
        ("odd_device:make", "odd_device:make cannot be called with nothing: missing a required argument: 'size'"),
        ("odd_devcie:make", "there is no module odd_devcie: neither installed nor as a file in"),
        ("odd_device:seven", "odd_device:seven gives a int"),
    ],
)
def test_what_is_wrong_with_a_device_is_one_line(command, tmp_path, monkeypatch, device, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd_device.py").write_text("def make(size):\n    return size\n\n\ndef seven():\n    return 7\n")
    code, _, printed = command("devices", device)
    assert code == 2 and len(printed.splitlines()) == 1 and why in printed
