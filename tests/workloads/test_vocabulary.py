"""A vocabulary comes back from its file as it was; a file that is none is refused in one line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnlab.workloads.vocabulary import TableError, TargetValues, Vocabulary

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=5)
VALUES = st.lists(NAMES, unique=True, max_size=4)
HELD = {"fields": {"drug": ["a", "b"]}, "targets": {"t": {"kind": "classes", "values": ["0", "1"]}}, "separator": ";"}


@settings(max_examples=30)
@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3), NAMES, VALUES, st.sampled_from(["classes", "labels"]))
def test_it_comes_back_from_its_file_as_it_was(tmp_path_factory, fields, target, values, kind):
    path = tmp_path_factory.mktemp("vocabularies") / "v.json"
    kept = Vocabulary(fields=fields, targets={target: TargetValues(kind=kind, values=values)}, separator=";")
    kept.save(path)
    assert Vocabulary.load(path) == kept and list(Vocabulary.load(path).fields) == list(fields)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is no vocabulary"),
        ("[1, 2]", "is no vocabulary"),
        ("\ufffe", "is no vocabulary"),
        ("{}", "fields: Field required"),
        (json.dumps(HELD | {"more": 1}), "more: Extra inputs are not permitted, got 1"),
        (json.dumps(HELD | {"fields": {"drug": [1]}}), "fields.drug.0: Input should be a valid string, got 1"),
        (json.dumps(HELD | {"fields": {}}), "fields, targets and a separator are needed"),
        (json.dumps(HELD | {"fields": {"drug": ["a", "a"]}}), "column 'drug' names a value twice"),
        (json.dumps(HELD | {"targets": {"t": {"kind": "text", "values": []}}}), "targets.t.kind: Input should be"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused(tmp_path, content, message):
    path = tmp_path / "v.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TableError) as caught:
        Vocabulary.load(path)
    line = str(caught.value)
    assert line.startswith(str(path)) and message in line and "\n" not in line


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(TableError, match="cannot be read: FileNotFoundError"):
        Vocabulary.load(tmp_path / "none.json")
    (tmp_path / "v.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TableError, match="is no vocabulary"):
        Vocabulary.load(tmp_path / "v.json")
