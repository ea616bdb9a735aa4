"""The example that trains with several processes: what it saves is what it goes on from."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def trained(folder, epochs):
    """The epochs that a run of two processes trained, with their losses."""
    options = ["--accelerator", "cpu", "--processes", "2", "--rows", "600", "--batch-size", "32", "--accumulate", "3"]
    command = [sys.executable, "examples/train_distributed.py", *options, "--epochs", str(epochs), "--folder"]
    done = subprocess.run([*command, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "MEMBER: 2/2" in done.stderr
    return re.findall(r"epoch (\d+): loss (\S+)", done.stdout)


def test_two_processes_resume_from_a_checkpoint_with_the_losses_of_an_uninterrupted_training(tmp_path):
    whole = trained(tmp_path, epochs=2)
    assert [epoch for epoch, _ in whole] == ["1", "2"] and whole[0][1] != whole[1][1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-0001.ckpt", "epoch-0002.ckpt"]
    (tmp_path / "epoch-0002.ckpt").unlink()
    assert trained(tmp_path, epochs=2) == whole[1:]
