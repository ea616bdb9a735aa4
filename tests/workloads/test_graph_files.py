"""A user's own graph file is read as it is, or refused in one line that names the file."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from refusals import refusal
from scipy.sparse import csr_array
from torch_geometric.data import Data, HeteroData

from gnnlab.workloads import graphs

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


def refused(path: Path, content: str | bytes | None = None) -> str:
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    line = refusal(graphs.load, path)
    assert line.startswith(str(path))
    return line


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
    ("changes", "part"),
    [
        ({"adj_indices": np.array([1, 0, 3, 1])}, "indices must be < 3"),
        ({"adj_indptr": np.array([0, 3, 1, 4])}, "non-decreasing"),
        ({"adj_shape": np.array([3, 4])}, "3 x 4"),
        ({"attr_data": np.array([1, np.nan, 1])}, "x holds nan"),
        ({"adj_data": np.array([1, 1, np.inf, 1])}, "edge_weight holds nan, infinity"),
        ({"attr_shape": np.array([2, 2]), "attr_indptr": np.array([0, 2, 3])}, "x must have shape (3, F)"),
        ({"labels": np.array([0, 1])}, "labels of shape (2,)"),
        ({"edge_attr": np.ones((3, 2))}, "edge_attr must have 4 rows, one for each edge, got 3"),
        ({"edge_attr": np.array([1, np.nan, 1, 1])}, "edge_attr holds nan"),
        ({"edge_attr": np.array(["a", "b", "c", "d"])}, "numpy.str_"),
        ({"adj_indptr": None}, "adj_indptr"),
        ({"adj_data": np.zeros(0), "adj_indices": np.zeros(0, int), "adj_indptr": np.zeros(4, int)}, "no edges"),
    ],
)
def test_an_npz_that_is_no_graph_is_refused(changes, part, tmp_path):
    assert part in refused(write_npz(tmp_path / "broken.npz", **changes))


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
    (tmp_path / "edges.tsv").write_text("u\tv\t0.5\nu\tv\t-2\n")
    data = graphs.load(tmp_path / "edges.tsv")
    assert data.edge_index.tolist() == [[0, 0], [1, 1]] and data.edge_weight.tolist() == [0.5, -2]
    (tmp_path / "named.csv").write_text("weight,source,target\n3,a,b\n")
    data = graphs.load(tmp_path / "named.csv")
    assert data.num_edges == 1 and data.edge_weight.tolist() == [3]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0,1\n1,-2\n",
        "0,1,2\n1,0,nan\n",
        "source,target,weight\n0,1,1\n1,0,\n",
        "0,1,2,3\n",
        "source,target,time\n0,1,noon\n",
        "source,target,time\n0,1,\n",
        "source,target,time,time\n0,1,2,3\n",
        "from_node,to_node\n0,1\n1,2\n",
    ],
)
def test_an_edge_list_that_is_none_is_refused(text, tmp_path):
    refused(tmp_path / "broken.csv", text)


def test_edges_have_features_in_csv_npz_and_pt(tmp_path):
    (tmp_path / "edges.csv").write_text("length,source,target,weight,time\n0.5,0,1,2,7\n1.5,1,0,3,8\n")
    data = graphs.load(tmp_path / "edges.csv")
    assert data.edge_attr.tolist() == [[0.5, 7], [1.5, 8]] and data.edge_attr.dtype == torch.float32
    assert data.edge_weight.tolist() == [2, 3]
    torch.save(data, tmp_path / "saved.pt")
    again = graphs.load(tmp_path / "saved.pt")
    assert again.name == "saved" and torch.equal(again.edge_attr, data.edge_attr) and torch.equal(again.x, data.x)
    attr = np.arange(8.0).reshape(4, 2)
    assert np.array_equal(graphs.load(write_npz(tmp_path / "mine.npz", edge_attr=attr)).edge_attr, attr)


def test_a_pt_file_keeps_all_fields_and_holds_nothing_but_a_graph(tmp_path):
    made = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), edge_attr=torch.tensor([3, 4]), pos=torch.rand(2, 3))
    torch.save(made, path := tmp_path / "mine.pt")
    data = graphs.load(path)
    assert torch.equal(data.pos, made.pos) and data.edge_attr.tolist() == [3, 4] and data.x.shape == (2, 5)
    torch.save(HeteroData(), path)
    assert "it holds HeteroData" in refused(path)
    torch.save({"x": torch.ones(2, 1)}, path)
    assert "it holds {'x'" in refused(path) and "torch.save(data, path)" in refused(path)
    made.own = Path("a class that torch does not load")
    torch.save(made, path)
    assert "it holds pathlib" in refused(path)
    assert "needed: one torch_geometric Data" in refused(path, "no pickle at all")


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


def test_graphml_that_is_no_graph_is_refused(tmp_path):
    path = tmp_path / "g.graphml"
    assert "no edges" in refused(write_graphml(path, nx.empty_graph(3)))
    assert "no nodes" in refused(write_graphml(path, nx.Graph()))
    graph = nx.Graph([("a", "b")])
    graph.nodes["a"]["size"] = 1.0
    assert "lack a number" in refused(write_graphml(path, graph))
    graph = nx.Graph([("a", "b"), ("b", "c")])
    graph.edges["a", "b"]["weight"] = 1.0
    assert "a weight at each edge" in refused(write_graphml(path, graph))
    for text in ("", "<a/>", "not xml"):
        assert "needed: GraphML" in refused(path, text)


def test_missing_files_and_folders_are_refused(tmp_path):
    assert "no such file" in refused(tmp_path / "missing.npz")
    (tmp_path / "folder.csv").mkdir()
    assert "no such file" in refused(tmp_path / "folder.csv")
