import errno
import json

import pytest
import torch
from refusals import refused
from training_cases import model, tables

from gnnlab import files
from gnnlab.errors import GnnlabError
from gnnlab.training import checkpoints
from gnnlab.training.checkpoints import load, model_facts, require_same, save, table_facts

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(3, dtype=torch.int64)}


def everything(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_saved_is_loaded_bit_by_bit_and_only_the_last_stays(tmp_path):
    assert load(tmp_path / "absent") is None
    save(tmp_path, TENSORS, {"epoch": 1})
    save(tmp_path, {"a": TENSORS["a"] / 3}, {"epoch": 2})
    found = load(tmp_path)
    assert torch.equal(found.tensors["a"], TENSORS["a"] / 3) and list(found.tensors) == ["a"]
    assert found.facts["epoch"] == 2 and len(list(tmp_path.iterdir())) == 2


def test_a_single_number_is_kept(tmp_path):
    save(tmp_path, TENSORS, {})
    assert load(tmp_path).tensors["b"].item() == 3


@pytest.mark.parametrize("writing", ["write_atomically", "write_sealed"])
def test_when_the_disk_is_full_the_checkpoint_before_stands(tmp_path, monkeypatch, writing):
    save(tmp_path, TENSORS, {"epoch": 1})
    before = everything(tmp_path)

    def full(*arguments, **options):
        raise GnnlabError("no space left")

    monkeypatch.setattr(checkpoints, writing, full)
    with pytest.raises(GnnlabError):
        save(tmp_path, {"a": torch.zeros(1)}, {"epoch": 2})
    assert everything(tmp_path) == before


def test_a_write_that_the_system_refuses_half_way_leaves_nothing_behind(tmp_path, monkeypatch):
    save(tmp_path, TENSORS, {"epoch": 1})
    before = everything(tmp_path)

    def refuse(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", refuse)
    with pytest.raises(GnnlabError, match="No space"):
        save(tmp_path, {"a": torch.zeros(1)}, {"epoch": 2})
    assert everything(tmp_path) == before


def test_facts_that_json_has_no_word_for_leave_the_checkpoint_before(tmp_path):
    save(tmp_path, TENSORS, {"epoch": 1})
    before = everything(tmp_path)
    with pytest.raises(ValueError):
        save(tmp_path, TENSORS, {"loss": float("nan")})
    assert everything(tmp_path) == before


def test_leftovers_of_a_killed_write_go_and_other_peoples_files_stay(tmp_path):
    for name in ("tensors-dead.safetensors", ".tensors-x.safetensors.abc.tmp", ".checkpoint.json.abc.tmp"):
        (tmp_path / name).write_text("torn")
    (tmp_path / "notes.txt").write_text("mine")
    save(tmp_path, TENSORS, {})
    names = {path.name for path in tmp_path.iterdir()}
    assert "notes.txt" in names and len(names) == 3


def pointer(folder):
    return folder / "checkpoint.json"


def tensors(folder):
    (path,) = folder.glob("*.safetensors")
    return path


def elsewhere(folder):
    facts = json.loads(pointer(folder).read_text())
    files.write_sealed(pointer(folder), {**files.unsealed(facts), "tensors": "../elsewhere.safetensors"})


def an_edit(folder):
    facts = json.loads(pointer(folder).read_text())
    pointer(folder).write_text(json.dumps({**facts, "epoch": 2}))


def a_bit_flips(folder):
    content = bytearray(tensors(folder).read_bytes())
    content[-3] ^= 1
    tensors(folder).write_bytes(content)


DAMAGE = {
    "torn pointer": lambda folder: pointer(folder).write_text('{"format": "gnnlab training checkp'),
    "encoding": lambda folder: pointer(folder).write_bytes(b"\xff\xfe\x00"),
    "format": lambda folder: pointer(folder).write_text("[1, 2]"),
    "name": elsewhere,
    "edited facts": an_edit,
    "tensors": a_bit_flips,
    "length": lambda folder: tensors(folder).write_bytes(tensors(folder).read_bytes()[:40]),
    "absence": lambda folder: tensors(folder).unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_checkpoint_is_said_to_be_so_and_left_as_it_is(tmp_path, damage):
    save(tmp_path, TENSORS, {"epoch": 1})
    damage(tmp_path)
    before = everything(tmp_path)
    with refused(r"is damaged.*left as it is"):
        load(tmp_path)
    assert everything(tmp_path) == before


def test_the_first_fact_that_differs_is_named_with_both_values(tmp_path):
    require_same({"recipe": {"seed": 1}, "more": 2}, {"recipe": {"seed": 1}}, tmp_path)
    for saved, words in [
        ({"recipe": {"seed": 2}}, "another recipe: seed is 2 there and 1 here"),
        ({"recipe": {}}, "seed is absent there"),
        ({"recipe": None}, "seed is absent there"),
        ({"recipe": {"seed": 1, "momentum": 3}}, "momentum is 3 there and absent here"),
    ]:
        with pytest.raises(GnnlabError, match=words):
            require_same(saved, {"recipe": {"seed": 1}}, tmp_path)


def test_facts_of_models_and_tables_tell_what_matters_apart():
    table, validation = tables()
    assert model_facts(model(table, seed=1)) == model_facts(model(table, seed=2))
    assert model_facts(model(table)) != model_facts(model(table, hidden=20))
    assert model_facts(model(table)) != model_facts(model(table, dropout=0.3))
    assert table_facts(table) == table_facts(table.rows(torch.arange(len(table))))
    assert table_facts(table)["content"] != table_facts(table.rows(torch.arange(len(table)).flip(0)))["content"]
    assert table_facts(table)["rows"] != table_facts(validation)["rows"]
