import subprocess
import sys

import pytest

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize.inference.model_store import ModelStore


def write(text):
    def make(folder):
        (folder / "model.bin").write_text(text)

    return make


def never(folder):
    raise AssertionError("made again")


def test_what_is_there_is_not_made_again_and_keys_tell_apart(tmp_path):
    store = ModelStore(tmp_path)
    first = store.get("onnx", {"weights": "a"}, write("one"))
    assert first.made and first.size_bytes == 3
    again = store.get("onnx", {"weights": "a"}, never)
    assert not again.made and again.folder == first.folder
    assert store.get("onnx", {"weights": "b"}, write("two")).folder != first.folder
    assert store.get("ir", {"weights": "a"}, write("two")).folder != first.folder


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.bin").write_text("onf"),
        lambda folder: (folder / "model.bin").unlink(),
        lambda folder: (folder / "files.json").unlink(),
        lambda folder: (folder / "files.json").write_text("{"),
        lambda folder: (folder / "files.json").write_text("{}"),
        lambda folder: (folder / "more.bin").write_text("x"),
    ],
)
def test_a_package_that_was_changed_is_made_anew(tmp_path, damage):
    store = ModelStore(tmp_path)
    damage(store.get("onnx", {}, write("one")).folder)
    found = store.get("onnx", {}, write("one"))
    assert found.made and (found.folder / "model.bin").read_text() == "one" and found.size_bytes == 3


def test_a_failing_export_leaves_nothing_behind(tmp_path):
    def half(folder):
        (folder / "model.bin").write_text("half")
        raise RuntimeError("no such operator")

    with pytest.raises(RuntimeError, match="no such operator"):
        ModelStore(tmp_path).get("onnx", {}, half)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_is_said_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OptimizeError, match=r"could not store the onnx model in .*choose another folder") as error:
        ModelStore(tmp_path / "file" / "models").get("onnx", {}, write("one"))
    assert "\n" not in str(error.value)


DIES = """
import os, sys
from pathlib import Path
from gnnlab.optimize.inference.model_store import ModelStore

def make(folder):
    (folder / "model.bin").write_text("half")
    os._exit(9)

ModelStore(Path(sys.argv[1])).get("onnx", {}, make)
"""


def test_a_kill_halfway_leaves_no_package(tmp_path):
    assert subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], check=False).returncode == 9
    assert ModelStore(tmp_path).get("onnx", {}, write("one")).made
    assert ModelStore(tmp_path).get("onnx", {}, never).size_bytes == 3
