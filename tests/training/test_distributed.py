"""Two processes, started by torchrun on this machine, against one."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import two_processes
from training_cases import tables

from gnnlab.errors import GnnlabError
from gnnlab.files import locked
from gnnlab.training import distributed, process_group
from gnnlab.training.checkpoints import load
from gnnlab.training.process_group import processes

HERE = Path(__file__).parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
needs_gloo = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs torch with gloo")


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)]), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    command = [*TORCHRUN, two_processes.__file__, str(folder)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@needs_gloo
@pytest.mark.parametrize("name", [*two_processes.RECIPES, "plain, resumed", "sharded, resumed"])
def test_two_processes_train_as_one_on_the_same_batches(found, name):
    got = json.loads((found / "found.json").read_text())[name]
    recipe = two_processes.RECIPES[name.removesuffix(", resumed")]
    expected = two_processes.outcome(replace(recipe, sharded=False))
    np.testing.assert_allclose(got["losses"], expected["losses"], rtol=1e-5)
    for row, wanted in zip(got["rows"], expected["rows"], strict=True):
        assert row == pytest.approx(wanted, rel=1e-5)
    assert got["weights"].keys() == expected["weights"].keys()
    for parameter, values in expected["weights"].items():
        np.testing.assert_allclose(got["weights"][parameter], values, atol=2e-5, err_msg=parameter)


@needs_gloo
@pytest.mark.parametrize("name", ["plain", "sharded"])
def test_resumed_processes_give_the_bits_of_an_uninterrupted_run(found, name):
    got = json.loads((found / "found.json").read_text())
    assert got[f"{name}, resumed"] == got[name]


@needs_gloo
@pytest.mark.parametrize("rank", [0, 1])
def test_what_goes_wrong_in_one_process_is_said_by_both(found, rank):
    errors = json.loads((found / f"errors-{rank}.json").read_text())
    assert errors["folders"].startswith("GnnlabError: the processes see different checkpoints")
    assert errors["disk"] == "GnnlabError: no space left" if rank == 0 else "process 0 could not" in errors["disk"]
    assert errors["nan"].startswith("GnnlabError: the loss is nan in epoch 1, step 3, batch 3")


@needs_gloo
def test_only_the_first_process_writes(found):
    assert (found / "of process 0").exists() and not (found / "of process 1").exists()


def run_alone(tmp_path, recipe, *options):
    path = tmp_path / "recipe.json"
    path.write_text(recipe if isinstance(recipe, str) else json.dumps(recipe))
    common = ["--recipe", str(path), "--folder", str(tmp_path / "run"), "--hidden", "8"]
    return distributed.main([*common, *options])


def test_the_entry_trains_alone_as_well_and_goes_on(tmp_path, capsys):
    assert run_alone(tmp_path, {"epochs": 1, "batch_size": 100}, "--rows", "500") == 0
    assert run_alone(tmp_path, {"epochs": 2, "batch_size": 100}, "--rows", "500", "--resume") == 0
    printed = capsys.readouterr().out
    assert printed.count("epoch 1:") == printed.count("epoch 2:") == 1 and "all 2 epochs done" in printed
    history = json.loads((tmp_path / "run" / "history.json").read_text())
    assert [row["epoch"] for row in history["epochs"]] == [1, 2]


def test_the_entry_trains_on_a_table_of_the_readers(tmp_path):
    rows = "\n".join(f"{'abc'[i % 3]},{'xyzw'[i % 4]},{'no' if i % 12 < 7 else 'yes'}" for i in range(240))
    (tmp_path / "table.csv").write_text("drug,gene,outcome\n" + rows + "\n")
    columns = ["--table", str(tmp_path / "table.csv"), "--fields", "drug", "gene", "--targets", "outcome"]
    assert run_alone(tmp_path, {"epochs": 1, "batch_size": 32}, *columns) == 0


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("{", "is no JSON (line 1"),
        ([1], "got list"),
        ({"lr": 1}, "no lr; it has batch_size"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 9999}, "the training table has 400"),
        ({"sharded": True, "batch_size": 10}, "start several by torchrun"),
    ],
    ids=str,
)
def test_a_bad_recipe_ends_in_one_line_and_status_1(tmp_path, capsys, recipe, words):
    assert run_alone(tmp_path, recipe, "--rows", "500") == 1
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and words in printed and printed.count("\n") == 1


def test_a_missing_recipe_is_named(tmp_path, capsys):
    assert distributed.main(["--recipe", str(tmp_path / "none.json"), "--folder", str(tmp_path)]) == 1
    assert "none.json cannot be read" in capsys.readouterr().err


def test_outside_torchrun_a_process_is_alone():
    with processes("cpu") as device:
        assert device == "cpu" and process_group.share().world == 1
        assert process_group.all_agree(3) and process_group.summed(torch.ones(1)).item() == 1


def test_more_processes_than_devices_are_told(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(GnnlabError, match="there are 2; start torchrun with --nproc-per-node 2"), processes("cuda"):
        pass


def test_the_uneven_batches_that_the_processes_get_are_uneven():
    rows = len(tables()[0])
    assert rows % two_processes.PLAIN.batch_size == 1  # one of two processes has no row of the last batch


@needs_gloo
def test_processes_end_when_torchrun_was_killed_and_the_folder_is_held_till_then(tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"epochs": 10_000, "batch_size": 50}))
    folder = tmp_path / "run"
    options = ["--recipe", str(recipe), "--folder", str(folder), "--rows", "500", "--hidden", "8"]
    command = [*TORCHRUN, "-m", "gnnlab.training.distributed", *options]
    started = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until((folder / "checkpoint.json").exists)
        ranks = psutil.Process(started.pid).children()
        assert len(ranks) == 2
        with pytest.raises(GnnlabError, match="trains into"), locked(folder, "trains into"):
            pass
    finally:
        started.kill()
        started.wait()
    _, alive = psutil.wait_procs(ranks, timeout=30)
    assert not alive
    with locked(folder, "trains into"):
        assert load(folder) is not None


def until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
