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
    script.every_pin = script.pins
    monkeypatch.setattr(script, "pins", lambda: ["a==1.0", "b==2.0", "c==3.0"])
    script.answer = lambda *found: monkeypatch.setenv("ANSWER", json.dumps({"dependencies": found}) if found else "")
    return script


def test_a_known_vulnerability_fails_and_where_nobody_can_be_asked_it_is_said(audit, capsys):
    nobody = "audit: skipped, 3 pins were not looked up"
    for answers, code, *parts in (
        (
            (CLEAN, FLAWED, UNKNOWN),
            1,
            "b 2.0: PYSEC-1, mended in 2.1",
            "not know them: c",
            "2 of 3 pins looked up, 1 known",
        ),
        ((), 0, nobody, "no route to pypi"),
        ((UNKNOWN,), 0, nobody, "not found on PyPI"),
    ):
        audit.answer(*answers)
        assert audit.main() == code
        out = capsys.readouterr().out
        assert [part for part in parts if part not in out] == [] and len(out.splitlines()) == (3 if code else 1)


def test_every_pin_is_asked_for_those_of_other_systems_too(audit):
    pins = audit.every_pin()
    assert any(pin.startswith("torch==") for pin in pins) and any(pin.startswith("pywinpty==") for pin in pins)
    assert all(pin.count("==") == 1 and " " not in pin for pin in pins)
