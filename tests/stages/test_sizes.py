"""Sizes and graphs are read or refused in one line."""

import json

import pytest
import torch
from refusals import refused

from gnnlab.stages.sizes import Size, graph_digest, inputs_of, layer_of, read


def test_the_study_has_its_fifteen_sizes():
    sizes = read(["study"])
    assert len(sizes) == 15 and sizes[0] == Size(1000, 1000) and sizes[-1] == Size(10000, 10000)
    assert all(size.edges >= size.nodes for size in sizes) and len({size.nodes for size in sizes}) == 5


def test_texts_and_files_add_up_each_size_once(tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps({"test_cases": [{"nodes": 7, "edges": 3, "note": "mine"}]}))
    assert read(["10x20", "mine.json", "10x20", "7x3"], tmp_path) == [Size(10, 20), Size(7, 3)]
    assert str(Size(10, 20)) == "10x20"


def test_a_graph_has_the_size_and_the_digest_that_its_file_gives_it(tmp_path):
    (tmp_path / "mine.csv").write_text("0,1\n1,2\n2,0\n")
    named, own = read(["graph:karate", "graph:mine.csv"], tmp_path)
    assert named == Size(34, 156, "karate") and own == Size(3, 3, str(tmp_path / "mine.csv"))
    values, before = inputs_of(own, 5), graph_digest(own, 5)
    assert values["x"].shape == (3, 5) and values["edge_index"].tolist() == [[0, 1, 2], [1, 2, 0]]
    (tmp_path / "mine.csv").write_text("0,1\n1,2\n2,1\n")
    assert graph_digest(own, 5) != before and graph_digest(Size(3, 3), 5) == ""
    (tmp_path / "mine.csv").write_text("0,1\n")
    with refused("has 2x1 nodes and edges, and not 3x3"):
        inputs_of(own, 5)
    with refused("nonsense"):
        read(["graph:nonsense"])


def test_a_random_graph_is_the_same_each_time_and_a_layer_is_found_by_name():
    first, second = (inputs_of(Size(5, 9), 3) for _ in range(2))
    assert torch.equal(first["x"], second["x"]) and torch.equal(first["edge_index"], second["edge_index"])
    assert layer_of("sage", 3) is layer_of("sage", 3)
    with refused("layer 'gcn' is not known; it is sage"):
        layer_of("gcn", 3)


WRITE = r"write 1000x10000 \(nodes x edges\)"
TEXTS = dict.fromkeys(["", "1000", "axb", "1x2x3", "-1x5", "1e3x5", "99999999999x1", "²x1"], f"not understood; {WRITE}")
TEXTS |= {"0x5": "from 1 to 20000000 are needed", "1000/5000": "is a ratio; write 1000x5000"}


@pytest.mark.parametrize(("text", "words"), TEXTS.items())
def test_other_texts_are_refused_with_what_to_write(text, words):
    with refused(f"size '?{text}'?.*{words}"):
        read([text])


def test_no_text_is_refused():
    with refused(f"no sizes; {WRITE}"):
        read([])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "write it as"),
        ("[]", "write it as"),
        ('{"test_cases": [{"nodes": 1}]}', "write it as"),
        ('{"test_cases": []}', "no sizes"),
        ('{"test_cases": [{"nodes": 5, "edges": 5}, {"nodes": 5, "edges": 1.5}]}', "test case 2"),
        ('{"test_cases": [{"nodes": 5, "edges": true}]}', "test case 1"),
        (None, "could not read"),
    ],
)
def test_a_file_that_holds_no_sizes_is_refused_with_its_variant(tmp_path, content, words):
    if content is not None:
        (tmp_path / "sizes.json").write_text(content)
    with refused(words):
        read(["sizes.json"], tmp_path)
