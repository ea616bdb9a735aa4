"""A user's own graph file is read as it is, or refused in one line that names the file."""

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
NO_FEATURES = dict.fromkeys(("attr_data", "attr_indices", "attr_indptr", "attr_shape"))


def write_npz(path, adjacency=ADJACENCY, x=((1, 0.5), (0, 2), (0, 0)), labels=(0, 1, 1), **changes):
    """A graph in the layout of `torch_geometric.io.read_npz`; `changes` replace arrays, None leaves one out."""
    arrays = {}
    for name, matrix in (("adj", csr_array(np.array(adjacency, float))), ("attr", csr_array(np.array(x, float)))):
        arrays |= {f"{name}_data": matrix.data, f"{name}_indices": matrix.indices, f"{name}_indptr": matrix.indptr}
        arrays |= {f"{name}_shape": np.array(matrix.shape)}
    arrays |= {"labels": np.array(labels)} | changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


def test_npz_is_read_as_it_is(tmp_path):
    attr = np.arange(8.0).reshape(4, 2)
    data = graphs.load(write_npz(tmp_path / "mine.npz", edge_attr=attr))
    assert data.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert data.edge_weight.tolist() == [1, 1, 2, 2] and np.array_equal(data.edge_attr, attr)
    assert data.x.tolist() == [[1, 0.5], [0, 2], [0, 0]] and data.y.tolist() == [0, 1, 1] and data.name == "mine"
    data = graphs.load(write_npz(tmp_path / "directed.npz", adjacency=[[1, 1, 0], [0, 0, 1], [0, 0, 0]]))
    assert data.edge_index.tolist() == [[0, 0, 1], [0, 1, 2]] and data.get("edge_weight") is None
    data = graphs.load(str(write_npz(tmp_path / "bare.npz", **NO_FEATURES)))  # degrees in place of features
    assert data.x.shape == (3, 5) and data.x[:, 0].tolist() == [1, 2, 1]


def test_npz_with_the_fields_of_a_pyg_graph_is_read_as_one(tmp_path):
    path, edges = tmp_path / "mine.npz", np.array([[0, 1, 1], [1, 2, 0]], dtype=np.int32)
    np.savez(
        path, edge_index=edges, x=np.ones((3, 4)), y=np.array([0, 1, 1], dtype=np.int8), train_mask=np.ones(3, bool)
    )
    data = graphs.load(path)
    assert data.edge_index.tolist() == edges.tolist() and data.x.dtype == torch.float32 and data.x.shape == (3, 4)
    assert data.y.tolist() == [0, 1, 1] and data.y.dtype == torch.int64 and data.train_mask.dtype == torch.bool
    np.savez(path, edge_index=edges + 5, x=np.ones((3, 4)))
    assert "mine.npz" in refusal(graphs.load, path)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"adj_indices": np.array([1, 0, 3, 1])}, "indices must be < 3"),
        ({"adj_shape": np.array([3, 4])}, "3 x 4"),
        ({"attr_data": np.array([1, np.nan, 1])}, "x holds nan"),
        ({"labels": np.array([0, 1])}, "labels of shape (2,)"),
        ({"edge_attr": np.ones((3, 2))}, "edge_attr must have 4 rows, one for each edge, got 3"),
        ({"adj_indptr": None}, "adj_indptr"),
    ],
)
def test_an_npz_that_is_no_graph_is_refused(changes, part, tmp_path):
    line = refusal(graphs.load, path := write_npz(tmp_path / "broken.npz", **changes))
    assert line.startswith(str(path)) and part in line


@pytest.mark.parametrize(
    "text",
    [
        "0,1\n1,2\n2,0\n",
        "To,From\r\n1,0\r\n2,1\r\n0,2",
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


def test_edge_lists_may_have_weights_features_tabs_and_repeated_edges(tmp_path):
    (tmp_path / "edges.tsv").write_text("u\tv\t0.5\nu\tv\t-2\n")
    data = graphs.load(tmp_path / "edges.tsv")
    assert data.edge_index.tolist() == [[0, 0], [1, 1]] and data.edge_weight.tolist() == [0.5, -2]
    (tmp_path / "edges.csv").write_text("length,source,target,weight,time\n0.5,0,1,2,7\n1.5,1,0,3,8\n")
    data = graphs.load(tmp_path / "edges.csv")
    assert data.edge_attr.tolist() == [[0.5, 7], [1.5, 8]] and data.edge_attr.dtype == torch.float32
    assert data.edge_weight.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("a.csv", "", "EmptyDataError"),
        ("a.csv", "0,1\n1,-2\n", "negative"),
        ("a.csv", "0,1,2,3\n", "needed: rows of"),
        ("a.csv", "0\n1\n", "'target'"),
        ("a.csv", "source,target,time\n0,1,\n", "edge_attr holds nan"),
        ("a.csv", "source,target,time,time\n0,1,2,3\n", "time,time"),
        ("a.csv", "from_node,to_node\n0,1\n1,2\n", "header 'from_node,to_node' is not understood"),
        ("a.pt", "no pickle at all", "needed: one torch_geometric Data"),
        ("a.pt", HeteroData(), "it holds HeteroData"),
        ("a.pt", {"x": torch.ones(2, 1)}, "it holds {'x'"),
        ("a.pt", Data(own=Path("a class that torch does not load")), "it holds pathlib"),
        ("a.graphml", "<a/>", "needed: GraphML"),
        ("a.graphml", nx.empty_graph(3), "no edges"),
        ("a.graphml", nx.node_link_graph({"nodes": [{"id": 0, "s": 1.0}, {"id": 1}], "edges": []}), "lack a number"),
        ("a.graphml", nx.Graph([(0, 1, {"weight": 1.0}), (1, 2, {})]), "a weight at each edge"),
        ("missing.npz", None, "no such file"),
    ],
)
def test_a_file_that_is_no_graph_is_refused(name, content, part, tmp_path):
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content)
    elif isinstance(content, nx.Graph):
        nx.write_graphml(content, path)
    elif content is not None:
        torch.save(content, path)
    line = refusal(graphs.load, path)
    assert line.startswith(str(path)) and part in line


def test_a_pt_file_keeps_all_fields(tmp_path):
    made = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), edge_attr=torch.tensor([3, 4]), pos=torch.rand(2, 3))
    torch.save(made, path := tmp_path / "mine.pt")
    data = graphs.load(path)
    assert torch.equal(data.pos, made.pos) and data.edge_attr.tolist() == [3, 4] and data.x.shape == (2, 5)
    torch.save(data, tmp_path / "saved.pt")  # as the lab has it
    again = graphs.load(tmp_path / "saved.pt")
    assert again.name == "saved" and torch.equal(again.x, data.x)


def test_graphml_gives_both_directions_of_undirected_edges_weights_and_features(tmp_path):
    graph = nx.Graph()
    graph.add_node("b", height=1.5, age=3, title="x", y=1)
    graph.add_node("a", height=2.5, age=4, title="y", y=0)
    graph.add_weighted_edges_from([("b", "a", 0.25), ("a", "a", 2.0)])
    nx.write_graphml(graph, tmp_path / "g.graphml")
    data = graphs.load(tmp_path / "g.graphml")
    pairs = dict(zip(map(tuple, data.edge_index.t().tolist()), data.edge_weight.tolist(), strict=True))
    assert data.num_edges == 3 and pairs == {(0, 1): 0.25, (1, 0): 0.25, (1, 1): 2.0}
    assert data.x.tolist() == [[3, 1.5], [4, 2.5]] and data.y.tolist() == [1, 0] and data.y.dtype == torch.int64
    nx.write_graphml(nx.DiGraph([("a", "b"), ("b", "c")]), tmp_path / "directed.graphml")
    data = graphs.load(tmp_path / "directed.graphml")
    assert data.edge_index.tolist() == [[0, 1], [1, 2]] and data.x.shape == (3, 5)
