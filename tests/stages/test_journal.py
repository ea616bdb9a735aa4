"""No record is lost or trusted wrongly: cut, flipped, full disk, two campaigns at once."""

import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnlab.stages.campaign import folder_lock, journal
from gnnlab.stages.campaign.folder_lock import only_campaign
from gnnlab.stages.campaign.journal import Journal, encode, read
from gnnlab.stages.errors import StageError

RECORDS = [
    {"kind": "canary", "ms": {"here": 1.25}, "campaign": "c"},
    {"kind": "cell", "key": "1000,1000,openvino:CPU,1", "outcome": {"samples_ms": [0.1, 1e-7, 3.0]}, "campaign": "c"},
    {"kind": "cell", "key": "é\u2028\n", "outcome": None, "campaign": "c"},
]
CONTENT = b"".join(map(encode, RECORDS))


def damaged(folder):
    return sorted(folder.glob("*.damaged-*"))


def test_what_is_appended_is_read_back_in_order(tmp_path):
    with Journal(tmp_path / "new/journal.jsonl", "c") as written:
        for record in RECORDS:
            written.append(record)
    with Journal(tmp_path / "new/journal.jsonl", "d") as again:
        assert again.records == RECORDS and again.message is None
        again.append({"kind": "end"})
        assert again.records[-1] == {"kind": "end", "campaign": "d"}
    assert (tmp_path / "new/journal.jsonl").read_bytes().startswith(CONTENT)


def test_each_line_is_json_with_its_checksum():
    for line in CONTENT.splitlines():
        assert len(json.loads(line)["sha256"]) == 32


@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_a_changed_byte_costs_only_the_lines_that_it_touches(place, change):
    content = bytearray(CONTENT)
    content[place] ^= change
    records, bad = read(bytes(content))
    touched = CONTENT[:place].count(b"\n")
    lost = {touched, touched + 1} if CONTENT[place : place + 1] == b"\n" else {touched}
    assert bad >= 1
    assert records == [record for i, record in enumerate(RECORDS) if i not in lost]


def test_a_number_that_is_only_written_another_way_is_damage_too():
    assert CONTENT.count(b"1e-07") == 1
    assert read(CONTENT.replace(b"1e-07", b"1E-07")) == ([RECORDS[0], RECORDS[2]], 1)


@given(st.integers(0, len(CONTENT)))
def test_a_cut_costs_only_the_line_that_it_went_through(end):
    records, bad = read(CONTENT[:end])
    whole = CONTENT[:end].count(b"\n")
    assert records == RECORDS[:whole]
    assert bool(bad) == (not (CONTENT[:end].endswith(b"\n") or end == 0))


@given(st.binary(max_size=200))
def test_rubbish_holds_no_record(content):
    assert read(content)[0] == []


@pytest.mark.parametrize("line", [b"[]", b"1", b'"a"', b"null", b"{}", b'{"sha256": 1}', b"[" * 100_000])
def test_json_of_another_kind_is_damage_and_not_an_error(line):
    assert read(line + b"\n") == ([], 1)


@pytest.mark.parametrize("change", [lambda c: c[:-3], lambda c: c.replace(b"canary", b"Canary"), lambda c: c + b"\n"])
def test_a_damaged_journal_is_kept_beside_and_goes_on_with_the_good_lines(tmp_path, change):
    path, content = tmp_path / "journal.jsonl", change(CONTENT)
    path.write_bytes(content)
    good, _ = read(content)
    with Journal(path, "c") as mended:
        assert mended.records == good and "1 damaged line;" in mended.message
        mended.append({"kind": "end"})
    assert [file.read_bytes() for file in damaged(tmp_path)] == [content]
    with Journal(path, "c") as again:
        assert again.records == [*good, {"kind": "end", "campaign": "c"}] and again.message is None


def test_a_second_damage_does_not_overwrite_the_first(tmp_path):
    path = tmp_path / "journal.jsonl"
    for content in (b"one", b"two"):
        path.write_bytes(content)
        Journal(path, "c").close()
    assert [file.read_bytes() for file in damaged(tmp_path)] == [b"one", b"two"]


def test_a_killed_repair_is_repaired_by_the_next(tmp_path, monkeypatch):
    path, calls = tmp_path / "journal.jsonl", []

    def killed(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write(*arguments, **options)

    write = journal.write_atomically
    path.write_bytes(CONTENT + b"{")
    monkeypatch.setattr(journal, "write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        Journal(path, "c")
    assert path.read_bytes() == CONTENT + b"{"
    with Journal(path, "c") as mended:
        assert mended.records == RECORDS


@pytest.mark.parametrize("where", ["write", "short", "fsync"])
def test_a_full_disk_is_one_line_and_leaves_the_last_good_state(tmp_path, monkeypatch, where):
    path = tmp_path / "journal.jsonl"
    full = OSError(errno.ENOSPC, "No space left on device")
    with Journal(path, "c") as written:
        written.append(RECORDS[0])
        if where == "fsync":
            monkeypatch.setattr(journal.os, "fsync", lambda handle: (_ for _ in ()).throw(full))
        else:
            written._file = Full(written._file, full if where == "write" else None)
        with pytest.raises(StageError, match="No space left on device; its 1 records are kept") as stop:
            written.append(RECORDS[1])
        assert len(str(stop.value).splitlines()) == 1
    assert path.read_bytes() == encode(RECORDS[0])


class Full:
    """A file on a disk with room for ten more bytes."""

    def __init__(self, file, error):
        self.file, self.error = file, error

    def write(self, content):
        self.file.write(content[:10])
        if self.error:
            raise self.error
        return 10

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_number_that_json_does_not_know_is_refused_before_anything_is_written(tmp_path):
    with Journal(tmp_path / "journal.jsonl", "c") as written, pytest.raises(ValueError, match="JSON"):
        written.append({"kind": "cell", "ms": float("nan")})
    assert (tmp_path / "journal.jsonl").read_bytes() == b""


def test_a_folder_in_the_place_of_the_journal_is_one_line(tmp_path):
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(StageError, match="could not read"):
        Journal(tmp_path / "journal.jsonl", "c")


# ---- one campaign at a time


def hold(folder, held, leave):
    with only_campaign(Path(folder)):
        held.set()
        leave.wait(30)


def test_a_second_campaign_is_refused_and_told_of_the_first_until_that_is_dead(tmp_path):
    context = multiprocessing.get_context("spawn")
    held, leave = context.Event(), context.Event()
    first = context.Process(target=hold, args=(str(tmp_path), held, leave))
    first.start()
    try:
        assert held.wait(30)
        with pytest.raises(StageError, match=f"process {first.pid}, started .* measures into"), only_campaign(tmp_path):
            pytest.fail("two at once")
    finally:
        first.kill()
        first.join()
    with only_campaign(tmp_path):
        assert json.loads((tmp_path / folder_lock.LOCK).read_bytes())["pid"] == os.getpid()


def test_the_lock_is_free_after_an_error(tmp_path):
    with pytest.raises(KeyError), only_campaign(tmp_path):
        raise KeyError
    with only_campaign(tmp_path):
        pass


def test_two_in_one_process_are_two_campaigns(tmp_path):
    with only_campaign(tmp_path), pytest.raises(StageError, match=f"process {os.getpid()}"), only_campaign(tmp_path):
        pytest.fail("two at once")


def test_a_file_in_the_place_of_the_folder_is_one_line(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(StageError, match="could not write to"), only_campaign(tmp_path / "out"):
        pytest.fail("it cannot")
