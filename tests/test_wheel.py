"""A built wheel holds every file of both packages, data included: what code opens is there after an installation."""

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
PACKAGES = ("gnnlab", "gnnswap")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def test_a_wheel_holds_every_file_of_both_packages(tmp_path):
    tree, out = tmp_path / "tree", tmp_path / "out"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(out)], cwd=tree, capture_output=True, text=True, timeout=120
    )
    assert built.returncode == 0, built.stderr
    files = {
        path.relative_to(tree).as_posix() for name in PACKAGES for path in (tree / name).rglob("*") if path.is_file()
    }
    (wheel,) = out.glob("gnnlab-*.whl")
    with ZipFile(wheel) as archive:
        assert files - set(archive.namelist()) == set()
    assert {"gnnlab/lab/claims.yaml", "gnnswap/replace.py"} <= files
