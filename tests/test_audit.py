"""The audit of pins: a known vulnerability fails it, and where nobody could be asked it says why."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "audit.py"
CLEAN = {"name": "a", "version": "1.0", "vulns": []}
FLAWED = {"name": "b", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
UNKNOWN = {"name": "c", "skip_reason": "Dependency not found on PyPI"}


@pytest.fixture
def audit(tmp_path, monkeypatch):
    """The script, with a pip-audit that answers what `audit.answer` says, and three pins."""
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    (tmp_path / "pip_audit.py").write_text(
        "import os, sys\n"
        "print(os.environ['ANSWER']) if os.environ['ANSWER'] else sys.exit('ConnectionError: no route to pypi')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(script, "pins", lambda: ["a==1.0", "b==2.0", "c==3.0"])
    script.answer = lambda *found: monkeypatch.setenv("ANSWER", json.dumps({"dependencies": found}) if found else "")
    return script


def test_a_known_vulnerability_fails_and_is_named(audit, capsys):
    audit.answer(CLEAN, FLAWED, UNKNOWN)
    assert audit.main() == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "b 2.0: PYSEC-1, mended in 2.1" and out[1].endswith("do not know them: c".replace("do", "does"))
    assert out[-1] == "audit: 2 of 3 pins looked up, 1 known vulnerabilities"


@pytest.mark.parametrize(("found", "why"), [((), "no route to pypi"), ((UNKNOWN,), "not found on PyPI")])
def test_where_nobody_can_be_asked_the_skip_says_why(audit, capsys, found, why):
    audit.answer(*found)
    assert audit.main() == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1 and out.startswith("audit: skipped, 3 pins were not looked up") and why in out


def test_every_pin_is_asked_for_those_of_other_systems_too(audit):
    spec = importlib.util.spec_from_file_location("again", SCRIPT)
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    found = fresh.pins()
    assert any(pin.startswith("torch==") for pin in found) and any(pin.startswith("pywinpty==") for pin in found)
    assert all(pin.count("==") == 1 and " " not in pin for pin in found)
