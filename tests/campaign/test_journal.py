"""No record is lost or trusted wrongly: cut, flipped, full disk, two campaigns at once."""

import errno
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnlab import files
from gnnlab.campaign import checkpoints
from gnnlab.campaign.checkpoints import LOST, Journal
from gnnlab.errors import GnnlabError
from gnnlab.files import read_lines, sealed_line

RECORDS = [
    {"kind": "reference", "ms": {"here": 1.25}, "campaign": "c"},
    {"kind": "cell", "key": "1000,1000,openvino:CPU,1", "outcome": {"samples_ms": [0.1, 1e-7, 3.0]}, "campaign": "c"},
    {"kind": "cell", "key": "é\u2028\n", "outcome": None, "campaign": "c"},
]
GONE = {"kind": LOST, "campaign": "c"}
LINES = [sealed_line(record, "a", number) for number, record in enumerate(RECORDS)]
CONTENT = b"".join(LINES)


def damaged(folder):
    return sorted(folder.glob("*.damaged-*"))


def test_what_is_appended_is_read_back_in_order(tmp_path):
    path = tmp_path / "new/journal.jsonl"
    with Journal(path, "c") as written:
        for record in RECORDS:
            written.append(record)
    content = path.read_bytes()
    with Journal(path, "d") as again:
        assert again.records == RECORDS and again.message is None
        again.append({"kind": "end"})
        assert again.records[-1] == {"kind": "end", "campaign": "d"}
    assert path.read_bytes().startswith(content)
    lines = [json.loads(line) for line in content.splitlines()]
    assert [line["line"] for line in lines] == [0, 1, 2] and len({line["file"] for line in lines}) == 1


def without(*lost):
    """The records but those in the places of `lost`, and None where some are missing."""
    found = [None if place in lost else record for place, record in enumerate(RECORDS)]
    return [record for place, record in enumerate(found) if record or place == 0 or found[place - 1]]


@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_a_changed_byte_costs_the_line_that_it_is_in_and_no_other(place, change):
    content = bytearray(CONTENT)
    content[place] ^= change
    records, _, as_written = read_lines(bytes(content))
    hit = CONTENT[:place].count(b"\n")
    ends = CONTENT[place : place + 1] == b"\n"  # the next line begins in it
    assert not as_written
    assert records == (without(hit, hit + 1) if ends and hit < 2 else RECORDS[:2] if ends else without(hit))


@given(st.lists(st.integers(0, len(LINES) - 1), max_size=6))
def test_lines_that_were_doubled_dropped_or_moved_are_noticed_and_each_counts_once_in_its_place(places):
    records, _, as_written = read_lines(b"".join(LINES[place] for place in places))
    last = max(places, default=-1)
    assert records == without(*({0, 1, 2} - set(places)))[: len(records)]
    assert [record for record in records if record] == [RECORDS[place] for place in sorted(set(places))]
    assert as_written == (places == list(range(last + 1)))


def test_a_line_of_another_file_or_of_a_number_that_is_taken_is_not_believed():
    foreign, twin = sealed_line({"kind": "end"}, "b", 3), sealed_line({"kind": "end"}, "a", 1)
    assert read_lines(CONTENT + foreign) == ([*RECORDS, None], "a", False)
    assert read_lines(CONTENT + twin) == (without(1), "a", False)


def test_a_number_that_is_only_written_another_way_is_damage_too():
    assert CONTENT.count(b"1e-07") == 1
    assert read_lines(CONTENT.replace(b"1e-07", b"1E-07")) == (without(1), "a", False)


@given(st.integers(0, len(CONTENT)))
def test_a_cut_costs_only_the_line_that_it_went_through(end):
    records, _, as_written = read_lines(CONTENT[:end])
    assert records == RECORDS[: CONTENT[:end].count(b"\n")]
    assert as_written == (CONTENT[:end].endswith(b"\n") or end == 0)


@given(st.binary(max_size=200))
def test_rubbish_holds_no_record(content):
    assert set(read_lines(content).records) <= {None}


@pytest.mark.parametrize("line", [b"[]", b"1", b'"a"', b"null", b"{}", b'{"sha256": 1}', b"[" * 100_000])
def test_json_of_another_kind_is_damage_and_not_an_error(line):
    assert read_lines(line + b"\n") == ([None], "", False)


@pytest.mark.parametrize(
    ("change", "good"),
    [
        (lambda c: c[:-3], RECORDS[:2]),
        (lambda c: c.replace(b"openvino", b"Other"), [RECORDS[0], GONE, RECORDS[2]]),
        (lambda c: c + b"\n", [*RECORDS, GONE]),
        (lambda c: c + LINES[1], RECORDS),
        (lambda c: c + b"{}\n", [*RECORDS, GONE]),
    ],
)
def test_a_damaged_journal_is_kept_beside_and_goes_on_with_every_good_line(tmp_path, change, good):
    path, content = tmp_path / "journal.jsonl", change(CONTENT)
    path.write_bytes(content)
    with Journal(path, "c") as mended:
        assert mended.records == good and "not as written" in mended.message
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

    write = files.write_atomically
    path.write_bytes(CONTENT + b"{")
    monkeypatch.setattr(files, "write_atomically", killed)
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
            monkeypatch.setattr(checkpoints.os, "fsync", lambda handle: (_ for _ in ()).throw(full))
        else:
            written._file = Full(written._file, full if where == "write" else None)
        with pytest.raises(GnnlabError, match="No space left on device; its 1 records are kept") as stop:
            written.append(RECORDS[1])
        assert len(str(stop.value).splitlines()) == 1
    assert read_lines(path.read_bytes())[::2] == (RECORDS[:1], True)


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
    with pytest.raises(GnnlabError, match="could not read"):
        Journal(tmp_path / "journal.jsonl", "c")
