import json
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


def test_the_commit_is_that_of_the_code_and_a_change_makes_it_dirty(monkeypatch):
    answers = {"rev-parse": "abc1234567", "status": " M gnnlab/cli.py"}
    monkeypatch.setattr(provenance, "_git", lambda *words: answers[words[0]])
    assert provenance._repository() == {"commit": "abc1234567", "dirty": True}
    answers["status"] = ""
    assert provenance._repository() == {"commit": "abc1234567", "dirty": False}


def test_outside_a_checkout_there_is_no_commit_and_no_guess(monkeypatch):
    monkeypatch.setattr(provenance, "_git", lambda *_: None)
    assert provenance._repository() == {"commit": None, "dirty": None}


def test_a_machine_without_git_is_no_error(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    assert provenance._git("rev-parse", "HEAD") is None


def test_what_the_system_does_not_tell_is_none(monkeypatch):
    def not_here():
        raise NotImplementedError

    monkeypatch.setattr(provenance.psutil, "cpu_freq", not_here)
    assert provenance.state()["clock_mhz"] is None


def test_collecting_does_not_load_openvino_where_it_is_not_needed():
    """The runner's parent process asks for versions only."""
    code = "import sys; from gnnlab.lab import provenance; provenance.system(); print('openvino' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
