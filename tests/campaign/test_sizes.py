"""Sizes are read or refused in one line."""

import json

import pytest

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


@pytest.mark.parametrize("text", [None, "", "1000", "a/b", "1/2/3", "-1/5", "0/5", "1e3/5", "99999999999/1", "²/1"])
def test_other_texts_are_refused_with_what_to_write(text):
    with pytest.raises(GnnlabError, match=r"size.* (write nodes/edges|are needed)"):
        read([] if text is None else [text])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "write it as"),
        ("[]", "write it as"),
        ('{"test_cases": [{"nodes": 1}]}', "write it as"),
        ('{"test_cases": []}', "holds no sizes"),
        ('{"test_cases": [{"nodes": 5, "edges": 5}, {"nodes": 5, "edges": 1.5}]}', "test case 2"),
        ('{"test_cases": [{"nodes": 5, "edges": true}]}', "test case 1"),
        (None, "could not read"),
    ],
)
def test_a_file_that_holds_no_sizes_is_refused_with_its_form(tmp_path, content, words):
    if content is not None:
        (tmp_path / "sizes.json").write_text(content)
    with pytest.raises(GnnlabError, match=words):
        read(["sizes.json"], tmp_path)
