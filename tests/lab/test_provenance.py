"""The environment of a run is told whole, without what it does not need."""

import json
import platform
import subprocess
import sys

from gnnlab import machine
from gnnlab.lab import provenance


def test_the_environment_says_what_matters_and_is_json():
    found = provenance.collect()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["cpu"]["logical"] >= 1 and found["memory_gb"] > 0 and found["threads"] >= 1
    assert found["versions"]["torch"].startswith("2.") and len(found["load"]) == 3
    assert found["devices"][0]["kind"] == "CPU" and found["devices"][0]["name"] == machine.processor()


def test_collecting_does_not_load_openvino_where_it_is_not_needed():
    """The runner's parent process asks for versions only."""
    code = "import sys; from gnnlab.lab import provenance; provenance.system(); print('openvino' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_no_environment_names_the_computer():
    assert platform.node() not in json.dumps(provenance.system() | {"os": None}) or not platform.node()
