"""A user's own graph file is read as it is, or refused in one line that names the file and the place."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refusal
from scipy.sparse import csr_array

from gnnlab.errors import GnnlabError
from gnnlab.workloads import graphs, table_files

ADJACENCY = [[0, 1, 0], [1, 0, 2], [0, 2, 0]]  # a path of three nodes, the second step twice as heavy


def write_npz(path: Path, adjacency=ADJACENCY, x=((1, 0.5), (0, 2), (0, 0)), labels=(0, 1, 1), **changes) -> Path:
    """A graph in the layout of `torch_geometric.io.read_npz`; `changes` replace arrays, None leaves one out."""
    arrays = {}
    for name, matrix in (("adj", csr_array(np.array(adjacency, float))), ("attr", csr_array(np.array(x, float)))):
        arrays |= {f"{name}_data": matrix.data, f"{name}_indices": matrix.indices, f"{name}_indptr": matrix.indptr}
        arrays |= {f"{name}_shape": np.array(matrix.shape)}
    arrays |= {"labels": np.array(labels)} | changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


def refused(path: Path) -> str:
    line = refusal(graphs.load, path)
    assert line.startswith(str(path))
    return line


# --- .npz ------------------------------------------------------------------------------------------------------------


def test_npz_keeps_weights_features_and_labels_as_they_are(tmp_path):
    data = graphs.load(write_npz(tmp_path / "mine.npz"))
    assert data.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert data.edge_weight.tolist() == [1, 1, 2, 2]
    assert data.x.tolist() == [[1, 0.5], [0, 2], [0, 0]] and data.y.tolist() == [0, 1, 1] and data.name == "mine"


def test_npz_is_not_made_symmetric_and_keeps_loops(tmp_path):
    data = graphs.load(write_npz(tmp_path / "directed.npz", adjacency=[[1, 1, 0], [0, 0, 1], [0, 0, 0]]))
    assert data.edge_index.tolist() == [[0, 0, 1], [0, 1, 2]] and data.get("edge_weight") is None


def test_npz_without_features_gets_the_degree_profile(tmp_path):
    nothing = {f"attr_{part}": None for part in ("data", "indices", "indptr", "shape")}
    data = graphs.load(str(write_npz(tmp_path / "bare.npz", **nothing)))
    assert data.x.shape == (3, 5) and data.x[:, 0].tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"adj_indices": np.array([1, 0, 3, 1])}, "row 1 of adj_indices holds 3; 0..2"),
        ({"adj_indices": np.array([1, 0, -2, 1])}, "row 1 of adj_indices holds -2"),
        ({"attr_indices": np.array([0, 1, 9])}, "row 1 of attr_indices holds 9"),
        ({"attr_data": np.array([1, np.nan, 1])}, "row 0 of attr_data holds nan"),
        ({"adj_data": np.array([1, 1, np.inf, 1])}, "row 1 of adj_data holds inf"),
        ({"adj_data": np.array([1, 1, 1e300, 1])}, "row 1 of adj_data holds inf"),
        ({"adj_data": np.array([1.0, 1.0])}, "number of entries"),
        ({"adj_indptr": np.array([0, 3, 1, 4])}, "adj_indptr falls after row 1"),
        ({"adj_indptr": np.array([0, 4])}, "4 entries for 3 rows"),
        ({"adj_indptr": np.array([0.0, 1.0, 3.0, 4.0])}, "integers"),
        ({"adj_shape": np.array([3, 4])}, "square"),
        ({"adj_shape": np.array([3])}, "two positive numbers"),
        ({"adj_shape": np.array([0, 0])}, "two positive numbers"),
        ({"attr_shape": np.array([2, 2]), "attr_indptr": np.array([0, 2, 3])}, "2 rows, the adjacency has 3"),
        ({"attr_shape": np.array([3, 2**62])}, "memory"),
        ({"labels": np.array([0, 1])}, "labels must have 3 rows"),
        ({"labels": np.array(["a", "b", "c"])}, "labels must hold numbers"),
        ({"labels": np.array([0, None, 1], dtype=object)}, "never loaded"),
        ({"adj_data": np.array([{}, 1, 1, 1], dtype=object)}, "never loaded"),
        ({"adj_indptr": None}, "holds no adj_indptr"),
        ({"attr_indptr": None}, "holds no attr_indptr"),
    ],
)
def test_a_broken_npz_is_refused_naming_the_place(changes, told, tmp_path):
    assert told in refused(write_npz(tmp_path / "broken.npz", **changes))


def test_an_npz_without_edges_is_refused(tmp_path):
    assert "no edges" in refused(write_npz(tmp_path / "empty.npz", adjacency=np.zeros((3, 3))))


def test_a_truncated_or_foreign_npz_is_refused(tmp_path):
    whole = write_npz(tmp_path / "whole.npz").read_bytes()
    path = tmp_path / "part.npz"
    for content in (whole[: len(whole) // 2], whole[:-1], whole[:4], b"", b"not a zip", b"\x93NUMPY"):
        path.write_bytes(content)
        assert "is no whole .npz" in refused(path)
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    assert "is no whole .npz" in refused(path)


def test_a_damaged_member_of_an_npz_is_refused(tmp_path):
    content = bytearray(write_npz(tmp_path / "damaged.npz").read_bytes())
    content[60:100] = bytes(40)
    (tmp_path / "damaged.npz").write_bytes(content)
    assert "is no whole .npz" in refused(tmp_path / "damaged.npz")


# --- edge lists ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "0,1\n1,2\n2,0\n",
        "source,target\n0,1\n1,2\n2,0\n",
        "Target,Source\n1,0\n2,1\n0,2\n",
        "from,to\r\n0,1\r\n1,2\r\n2,0",
        "\ufeffsrc, dst\n0, 1\n\n1, 2\n2, 0\n",
        "a,b\nb,c\nc,a\n",
        "10,200\n200,3000\n3000,10\n",
    ],
)
def test_edge_lists_of_every_manner_give_the_same_graph(text, tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text(text, encoding="utf-8", newline="")
    data = graphs.load(path)
    assert data.edge_index.tolist() == [[0, 1, 2], [1, 2, 0]] and data.num_nodes == 3
    assert data.get("edge_weight") is None and data.x.shape == (3, 5)


def test_edge_lists_may_have_weights_tabs_and_repeated_edges(tmp_path):
    path = tmp_path / "edges.tsv"
    path.write_text("u\tv\t0.5\nu\tv\t-2\n")
    data = graphs.load(path)
    assert data.edge_index.tolist() == [[0, 0], [1, 1]] and data.edge_weight.tolist() == [0.5, -2]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        ("source,target\n", "no edge"),
        ("0,1\n1,-2\n", "line 2: negative index -2"),
        ("0,1\n-3,2\n", "line 2: negative index -3"),
        ("0,1\n\n1,\n", "line 3: target is empty"),
        ("0,1,2\n1,0,nan\n", "line 2: weight 'nan'"),
        ("0,1,inf\n", "line 1: weight 'inf'"),
        ("0,1,1e39\n", "line 1: weight '1e39'"),
        ("source,target,weight\n0,1,1\n1,0,\n", "line 3: weight ''"),
        ("0\n1\n", "1 columns"),
        ("0,1,2,3\n", "4 columns"),
        ("0,1\n1,2,3\n", "no edge list"),
        ("source,target,time\n0,1,5\n", "'time' is not understood"),
        ("source,target,weight,weight\n", "4 columns"),
    ],
)
def test_a_broken_edge_list_is_refused_naming_the_line(text, told, tmp_path):
    path = tmp_path / "broken.csv"
    path.write_text(text)
    assert told in refused(path)


def test_a_header_names_more_than_it_needs_is_not_taken_for_an_edge(tmp_path):
    path = tmp_path / "named.csv"
    path.write_text("weight,source,target\n3,a,b\n")
    data = graphs.load(path)
    assert data.num_edges == 1 and data.edge_weight.tolist() == [3]


# --- GraphML ---------------------------------------------------------------------------------------------------------


def write_graphml(path: Path, graph: nx.Graph) -> Path:
    nx.write_graphml(graph, path)
    return path


def test_graphml_gives_both_directions_of_undirected_edges_weights_and_features(tmp_path):
    graph = nx.Graph()
    graph.add_node("b", height=1.5, age=3, title="x", y=1)
    graph.add_node("a", height=2.5, age=4, title="y", y=0)
    graph.add_edge("b", "a", weight=0.25)
    graph.add_edge("a", "a", weight=2.0)
    data = graphs.load(write_graphml(tmp_path / "g.graphml", graph))
    pairs = dict(zip(map(tuple, data.edge_index.t().tolist()), data.edge_weight.tolist(), strict=True))
    assert data.num_edges == 3
    assert pairs == {(0, 1): 0.25, (1, 0): 0.25, (1, 1): 2.0}
    assert data.x.tolist() == [[3, 1.5], [4, 2.5]] and data.y.tolist() == [1, 0] and data.y.dtype == torch.int64


def test_directed_graphml_stays_directed(tmp_path):
    data = graphs.load(write_graphml(tmp_path / "g.graphml", nx.DiGraph([("a", "b"), ("b", "c")])))
    assert data.edge_index.tolist() == [[0, 1], [1, 2]] and data.x.shape == (3, 5)


def test_a_broken_graphml_is_refused(tmp_path):
    path = tmp_path / "g.graphml"
    assert "no edges" in refused(write_graphml(path, nx.empty_graph(3)))
    assert "no nodes" in refused(write_graphml(path, nx.Graph()))
    graph = nx.Graph([("a", "b")])
    graph.nodes["a"]["size"] = 1.0
    assert "node 'b' has no number for attribute 'size'" in refused(write_graphml(path, graph))
    graph.nodes["b"]["size"] = float("nan")
    assert "size of a node is nan" in refused(write_graphml(path, graph))
    graph = nx.Graph([("a", "b"), ("b", "c")])
    graph.edges["a", "b"]["weight"] = 1.0
    assert "weight of an edge is None" in refused(write_graphml(path, graph))
    whole = write_graphml(path, nx.Graph([("a", "b")])).read_text()
    path.write_text(whole.replace('<node id="b" />', "").replace('<node id="b"/>', ""))
    assert "names node 'b', which is not declared" in refused(path)
    for text in ("", "<a/>", whole[:-20], "not xml"):
        path.write_text(text)
        assert "no GraphML" in refused(path)


# --- any file --------------------------------------------------------------------------------------------------------


def test_missing_files_folders_and_other_kinds_are_refused(tmp_path):
    assert "no such file" in refused(tmp_path / "missing.npz")
    (tmp_path / "folder.csv").mkdir()
    assert "is a folder" in refused(tmp_path / "folder.csv")
    (tmp_path / "graph.txt").write_text("0 1")
    assert ".npz, .graphml, .csv, .tsv, not in '.txt'" in refused(tmp_path / "graph.txt")


@pytest.mark.parametrize("suffix", [".npz", ".graphml", ".csv", ".tsv"])
def test_no_bytes_make_anything_but_a_graph_or_one_line(suffix, tmp_path):
    path = tmp_path / f"any{suffix}"
    start = write_npz(tmp_path / "start.npz").read_bytes()
    whole = {".npz": start, ".graphml": b"<graphml><graph><node/></graph></graphml>"}.get(suffix, b"0,1,2\n")

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.binary(max_size=80) | st.tuples(st.integers(0, len(whole) - 1), st.binary(max_size=8)))
    def holds(content):
        if isinstance(content, tuple):
            place, other = content
            content = whole[:place] + other + whole[place + len(other) :]
        path.write_bytes(content)
        try:
            assert graphs.load(path).x.isfinite().all()
        except GnnlabError as error:
            assert "\n" not in str(error)

    holds()


# ---- what it would take is judged first


def test_a_line_of_a_million_columns_is_refused_without_parsing_it(tmp_path, monkeypatch):
    path = tmp_path / "wide.csv"
    path.write_text(",".join(["1"] * 1_000_000) + "\n")
    monkeypatch.setattr("pandas.read_csv", None)
    assert "its first line has at least 524,289 columns" in refused(path)


def test_features_that_no_memory_holds_are_refused_by_their_shape(tmp_path):
    path = write_npz(tmp_path / "a.npz", attr_shape=np.array([3, 3 * 10**12]))
    assert "3 x 3000000000000 features would take 36,000.0 GB" in refused(path)


def test_an_array_that_declares_more_than_memory_is_refused_by_its_header(tmp_path):
    path, header = write_npz(tmp_path / "a.npz"), io.BytesIO()
    shape = {"descr": "<f8", "fortran_order": False, "shape": (3 * 10**12,)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(tmp_path / "b.npz", "w") as made:
        for name in whole.namelist():
            made.writestr(name, header.getvalue() + bytes(8) if name == "labels.npy" else whole.read(name))
    assert "its arrays would take 24,000.0 GB" in refused(tmp_path / "b.npz")


@pytest.mark.parametrize("name", ["a.graphml", "a.csv"])
def test_a_text_file_that_would_fill_the_memory_is_refused_unread(tmp_path, monkeypatch, name):
    path = tmp_path / name
    path.write_text("0,1\n" * 1000)
    monkeypatch.setattr(table_files.psutil, "virtual_memory", lambda: SimpleNamespace(available=10_000))
    assert "do not fit into memory" in refused(path)


def test_entities_that_grow_are_refused(tmp_path):
    grown = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))
    text = f'<!DOCTYPE g [<!ENTITY l0 "lol">{grown}]><graphml><graph><node id="&l9;"/></graph></graphml>'
    (tmp_path / "a.graphml").write_text(text)
    assert "amplification" in refused(tmp_path / "a.graphml")


def test_a_header_that_is_not_understood_is_no_edge(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("from_node,to_node\n0,1\n1,2\n", encoding="utf-8")
    with pytest.raises(GnnlabError, match=r"header 'from_node,to_node' is not understood; write source,target or"):
        graphs.load(path)
    path.write_text("ann,bob\nbob,1\n", encoding="utf-8")
    assert graphs.load(path).num_nodes == 3
