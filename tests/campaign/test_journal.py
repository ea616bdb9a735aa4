"""No record is lost or trusted wrongly: cut, flipped, full disk, two campaigns at once."""

import errno
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnlab.campaign import journal
from gnnlab.campaign.journal import Journal, lines, read
from gnnlab.errors import GnnlabError

RECORDS = [
    {"kind": "reference", "ms": {"here": 1.25}, "campaign": "c"},
    {"kind": "cell", "key": "1000,1000,openvino:CPU,1", "outcome": {"samples_ms": [0.1, 1e-7, 3.0]}, "campaign": "c"},
    {"kind": "cell", "key": "é\u2028\n", "outcome": None, "campaign": "c"},
]
LINES = list(lines(RECORDS))
CONTENT = b"".join(LINES)


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
    assert all(len(json.loads(line)["sha256"]) == 32 for line in LINES)


@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_a_changed_byte_costs_the_line_that_it_is_in_and_those_behind_it(place, change):
    content = bytearray(CONTENT)
    content[place] ^= change
    records, _, bad = read(bytes(content))
    assert bad >= 1
    assert records == RECORDS[: CONTENT[:place].count(b"\n")]


@given(st.lists(st.integers(0, len(LINES) - 1), max_size=6))
def test_lines_that_were_doubled_dropped_or_moved_are_not_believed(places):
    records, last, bad = read(b"".join(LINES[place] for place in places))
    good = next((i for i, place in enumerate(places) if i != place), len(places))
    assert records == RECORDS[:good] and bad == len(places) - good
    assert last == (json.loads(LINES[good - 1])["sha256"] if good else "")


def test_a_number_that_is_only_written_another_way_is_damage_too():
    assert CONTENT.count(b"1e-07") == 1
    records, _, bad = read(CONTENT.replace(b"1e-07", b"1E-07"))
    assert records == RECORDS[:1] and bad == 2


@given(st.integers(0, len(CONTENT)))
def test_a_cut_costs_only_the_line_that_it_went_through(end):
    records, _, bad = read(CONTENT[:end])
    whole = CONTENT[:end].count(b"\n")
    assert records == RECORDS[:whole]
    assert bool(bad) == (not (CONTENT[:end].endswith(b"\n") or end == 0))


@given(st.binary(max_size=200))
def test_rubbish_holds_no_record(content):
    assert read(content)[0] == []


@pytest.mark.parametrize("line", [b"[]", b"1", b'"a"', b"null", b"{}", b'{"sha256": 1}', b"[" * 100_000])
def test_json_of_another_kind_is_damage_and_not_an_error(line):
    assert read(line + b"\n") == ([], "", 1)


@pytest.mark.parametrize(
    ("change", "good"),
    [
        (lambda c: c[:-3], 2),
        (lambda c: c.replace(b"openvino", b"Other"), 1),
        (lambda c: c + b"\n", 3),
        (lambda c: c + LINES[2], 3),
    ],
)
def test_a_damaged_journal_is_kept_beside_and_goes_on_from_the_last_good_line(tmp_path, change, good):
    path, content = tmp_path / "journal.jsonl", change(CONTENT)
    path.write_bytes(content)
    good = RECORDS[:good]
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
        with pytest.raises(GnnlabError, match="No space left on device; its 1 records are kept") as stop:
            written.append(RECORDS[1])
        assert len(str(stop.value).splitlines()) == 1
    assert path.read_bytes() == LINES[0]


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
