"""Sizes are read or refused in one line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnlab.campaign.sizes import GraphSize, read
from gnnlab.errors import GnnlabError


def test_the_study_has_its_fifteen_sizes():
    sizes = read(["study"])
    assert len(sizes) == 15 and sizes[0] == GraphSize(1000, 1000) and sizes[-1] == GraphSize(10000, 10000)
    assert all(size.edges >= size.nodes for size in sizes) and len({size.nodes for size in sizes}) == 5


def test_sizes_and_files_of_the_reader_add_up_each_size_once(tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps({"test_cases": [{"nodes": 7, "edges": 3, "note": "mine"}]}))
    assert read(["10/20", "mine.json", "10/20", "7/3"], tmp_path) == [GraphSize(10, 20), GraphSize(7, 3)]


def test_a_graph_has_the_size_that_it_has(tmp_path):
    (tmp_path / "mine.csv").write_text("0,1\n1,2\n2,0\n")
    named, own = read(["graph:karate", "graph:mine.csv"], tmp_path)
    assert named == GraphSize(34, 156, "karate") and str(named) == "34/156"
    assert own == GraphSize(3, 3, str(tmp_path / "mine.csv"))
    with pytest.raises(ValueError, match="nonsense"):
        read(["graph:nonsense"])


@pytest.mark.parametrize(
    "text", [None, "", "1000", "a/b", "1/2/3", "-1/5", "0/5", "5/0", "1e3/5", "99999999999/1", "²/1"]
)
def test_other_texts_are_refused_with_what_to_write(text):
    with pytest.raises(GnnlabError, match=r"size.* (write nodes/edges|are needed)"):
        read([] if text is None else [text])


OTHER = [
    "",
    "[]",
    "{}",
    '{"test_cases": 3}',
    '{"test_cases": [1]}',
    '{"test_cases": [{"nodes": 1}]}',
    "\xff",
    "[" * 9999,
]


@pytest.mark.parametrize(
    ("content", "words"),
    [*((c, "write it as") for c in OTHER), ('{"test_cases": []}', "holds no sizes"), (None, "could not read")],
)
def test_a_file_that_holds_no_sizes_is_refused_with_its_form(tmp_path, content, words):
    if content is not None:
        (tmp_path / "sizes.json").write_text(content, encoding="latin-1")
    with pytest.raises(GnnlabError, match=words):
        read(["sizes.json"], tmp_path)


@given(st.one_of(st.integers(max_value=0), st.floats(), st.booleans(), st.none(), st.text(), st.just(10**9)))
def test_a_file_with_a_value_that_is_no_size_names_the_case(tmp_path_factory, value):
    folder = tmp_path_factory.mktemp("sizes")
    (folder / "sizes.json").write_text(
        json.dumps({"test_cases": [{"nodes": 5, "edges": 5}, {"nodes": 5, "edges": value}]})
    )
    with pytest.raises(GnnlabError, match="test case 2"):
        read(["sizes.json"], folder)
