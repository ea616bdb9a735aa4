"""Python 3.11 to 3.13: the pins resolve for each, and make takes no other."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
PINS = ROOT / "constraints.txt"


def run(*command, timeout=600, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)


def pins_for(version):
    """The lines of constraints.txt that are for the first release of this Python on this system, markers aside."""
    lines = [Requirement(line) for line in PINS.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    meant = {"python_version": version, "python_full_version": f"{version}.0"}
    return [f"{pin.name}{pin.specifier}" for pin in lines if pin.marker is None or pin.marker.evaluate(meant)]


def resolved(version, requirements, folder):
    """pip's answer: does an index have wheels of all of these for the first release of that Python?"""
    target = ("--python-version", f"{version}.0", "--implementation", "cp", "--target", str(folder))
    options = ("--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet")
    return run(sys.executable, "-m", "pip", "install", *options, *target, *requirements, timeout=550)


def test_the_versions_are_those_that_the_project_allows():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    allowed = SpecifierSet(project["requires-python"])
    assert [v for v in (f"3.{minor}" for minor in range(8, 20)) if v in allowed] == list(VERSIONS)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_pin_has_a_wheel_for(version, tmp_path):
    pins = pins_for(version)
    if (asked := resolved(version, [pin for pin in pins if pin.startswith("packaging==")], tmp_path)).returncode:
        pytest.skip(f"no package index can be reached: {asked.stderr.strip().splitlines()[-1]}")
    found = resolved(version, pins, tmp_path)
    errors = [line for line in found.stderr.splitlines() if line.startswith("ERROR")]
    assert found.returncode == 0, errors


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_takes_no_other_python_and_says_how_to_get_one(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "bin").mkdir()
    for tool in ("make", "sh", "printf"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    made = run("make", "setup", cwd=tmp_path, env={"PATH": str(tmp_path / "bin")})
    assert made.returncode == 2 and "uv python install 3.12" in made.stderr and "conda create" in made.stderr
    old = tmp_path / "bin" / "old"
    old.write_text("#!/bin/sh\ntest $1 = --version && echo Python 3.9.1\n")
    old.chmod(0o755)
    made = run("make", "setup", "PYTHON=old", cwd=tmp_path, env={"PATH": str(tmp_path / "bin")})
    assert (
        made.returncode == 2 and "needs Python 3.11, 3.12 or 3.13 with venv; old is none: Python 3.9.1" in made.stderr
    )


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(("user", "root"), [("0", "--allow-root "), ("1000", "")])
def test_make_keeps_settings_of_the_user_s_from_pip_and_opens_jupyterlab_as_root(tmp_path, user, root):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    script(tmp_path / "pip", 'echo "$PIP_USER,$PYTHONPATH" > pip_was_given')
    script(tmp_path / "bin/python", "test $1 = -c || { mkdir -p .venv/bin; cp pip .venv/bin; }")
    script(tmp_path / "bin/id", f"echo {user}")
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    given = {**os.environ, "PATH": path, "PIP_USER": "1", "PYTHONPATH": "/elsewhere"}
    assert run("make", "setup", "PYTHON=python", cwd=tmp_path, env=given).returncode == 0
    assert (tmp_path / "pip_was_given").read_text() == "0,\n"
    script(tmp_path / ".venv/bin/jupyter", "echo $@")
    assert f"\nlab {root}--notebook-dir=. notebooks/start.ipynb\n" in run("make", "lab", cwd=tmp_path, env=given).stdout
