"""A user's own graph file is read as it is, or refused in one line that names the file."""

import gzip
import json
import tracemalloc
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refusal
from scipy.sparse import csr_array, save_npz
from torch_geometric import transforms as T
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset

from gnnlab.workloads import edge_lists, graphs

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


def write(path, content):
    """Text, also packed, a graph of networkx as GraphML, or what torch saves."""
    if isinstance(content, str):
        (gzip.open if path.suffix == ".gz" else open)(path, "wb").write(content.encode())
    elif isinstance(content, nx.Graph):
        nx.write_graphml(content, path)
    elif isinstance(content, dict) and path.suffix == ".npz":
        np.savez(path, **content)
    elif content is not None:
        torch.save(content, path)
    return path


ROWS = "0,1\n" * 250  # more than decide how a file is read
TRIANGLE = [[0, 1, 2], [1, 2, 0]]
GRAPHML = """<graphml><key attr.name="vip" attr.type="int" for="node" id="w"><default>2</default></key>
<key attr.name="weight" attr.type="double" for="edge" id="e"><default>2.5</default></key>
<graph edgedefault="directed"><node id="a"><data key="w">1</data></node><node id="b"/>
<edge source="a" target="b"/><edge source="b" target="a"><data key="e">1</data></edge></graph></graphml>"""


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "0,1\n1,2\n2,0\n", "no header; 3 edges, 3 nodes"),
        ("a.csv", "To,From\r\n1,0\r\n2,1\r\n0,2", "header To,From; 3"),
        ("a.csv", "\ufeffsrc, dst\n0, 1\n\n1, 2\n2, 0\n", "header src,dst"),
        ("a.csv", "a,b\nb,c\nc,a\n", "no header; 3 edges, 3 named nodes"),
        ("a.csv", "u,v\nv,w\nw,u\n", "no header"),
        ("a.csv", "n1,n2\nn2,n3\nn3,n1\n", "no header"),
        ("a.csv", "10,200\n200,3000\n3000,10\n", "ids 10..3000 numbered 0..2"),
        ("a.csv", "u,v\n1.0,2.0\n2.0,3\n3.0,1\n", "header u,v; ids 1..3"),
        ("a.csv", "source,target\n007,7\n7,0007\n0007,007\n", "3 named nodes"),
        ("a.csv", "x1,x2\n0,1\n1,2\n2,0\n", "header x1,x2"),
        ("a.csv", "gene_A,gene_B\nf,g\ng,hh\nhh,f\n", "header gene_A,gene_B"),
        ("a.tsv", "Quelle ID\tZiel ID\nf\tg\ng\thh\nhh\tf\n", "header Quelle ID,Ziel ID"),
        ("a.csv", ",source,target\n0,f,g\n1,g,h\n2,h,f\n", "not used: row numbers"),
        ("a.csv", "Source,Target,Type,Id,Label\nf,g,Directed,5,\ng,h,Directed,6,\nh,f,Directed,7,\n", "text of Type"),
        ("a.csv", '"source" "target"\n"1" "f" "g"\n"2" "g" "h"\n"3" "h" "f"\n', "blanks between cells"),
        ("a.csv", "sep=;\nA;B\nB;C\nC;A\n", "semicolons between cells"),
        ("a.csv", "0,1,\n1,2,\n2,0,\n,,\n", "no header; 3 edges"),
        ("a.tsv", "f\tlikes\tg\ng\tlikes\th\nh\tlikes\tf\n", "text in column 2"),
        ("a.tsv", "head\trelation\ttail\nf\tlikes\tg\ng\tlikes\th\nh\tlikes\tf\n", "text of relation"),
        (
            "a.txt",
            "# Nodes: 3\n# From\tTo\n0\t1\n# middle\n1\t2\n2\t0\n",
            "header From,To; 3 comments",
        ),
        ("a.txt", "#source,target\nf,g\ng,h\nh,f\n", "header source,target; 1 comment"),
        ("a.txt.gz", "% asym\n0 1\n1 2 \n 2  0\n", "a.txt.gz: no header; 1 comment left"),
        ("a.edges", "0 1\n1 2\n2 0\n", "no header"),
        ("a.csv", "g;1,g;2\ng;2,g;3\ng;3,g;1\n", "no header; 3 edges"),
        ("a.txt", "0,0 0,1\n0,1 1,1\n1,1 0,0\n", "no header; 3 edges"),
        ("a.txt", "1, 2\n2, 3\n3, 1\n", "no header; ids 1..3"),
        ("a.txt", "u\tv\nf f\tg g\ng g\th h\nh h\tf f\n", "header u,v; 3 edges"),
        ("a.tsv", "f f\tg g\ng g\th h\nh h\tf f\n", "no header; 3 edges, 3 named nodes"),
        ("a.tsv", "#node1\tnode2\nf\tg\ng\thh\nhh\tf\n", "header node1,node2; 1 comment"),
        ("a.csv", ":START_ID(P),:END_ID(P),:TYPE\n1,2,K\n2,3,K\n3,1,K\n", "header :START_ID(P)"),
        ("a.csv", '"from","to"\n"1","f","g"\n"2","g","h"\n"3","h","f"\n', "not used: row numbers"),
        ("a.csv", "Unnamed: 0.1,Unnamed: 0,u,v\n0,3,f,g\n1,5,g,h\n2,6,h,f\n", "numbers Unnamed: 0.1, row numbers Unn"),
        ("a.csv", "72057594037927937.0,72057594037927938\n72057594037927938,72057594037927939\n72057594037927939,"
         "72057594037927937\n", "ids 72057594037927937..72057594037927939"),
        ("a.tsv", "0\t1\t1\t1082040961\n1\t2\t1\t1082040962\n2\t0\t1\t1082040963", "column 3, 1 everywhere, column 4"),
        (
            "a.mtx",
            "%%MatrixMarket matrix coordinate pattern general\n3 3 3\n1 2\n2 3\n3 1\n",
            "a.mtx: 3 edges, 3 nodes",
        ),
        ("a.mtx.gz", "%%MatrixMarket matrix coordinate pattern general\n3 3 3\n1 2\n2 3\n3 1\n", "a.mtx.gz: 3 edges"),
        ("a.csv", ",0,1\n0,5,6\n1,6,7\n2,7,5\n", "not used: row numbers"),
        ("a.txt", "1 -> 2\n2 -> 3\n3 -> 1\n", "text in column 2"),
        ("a.csv", "1,--,2\n2,--,3\n3,--,1\n", "text in column 2"),
        ("a.csv", ",id,start,end\n0,1,f,g\n1,2,g,h\n2,3,h,f\n", "row numbers, row numbers id"),
        ("a.csv", "id,from,to\n5,1,2\n6,2,3\n7,3,1\n", "header id,from,to; ids 1..3"),
        ("a.csv", "source,target,\nf,g,0\ng,h,1\nh,f,2\n", "not used: row numbers"),
        ("a.tsv", "0\t1\t1\t20240131\n1\t2\t1\t20240201\n2\t0\t1\t20240202", "column 4, times"),
        ("a.csv", "(f),(g)\n(g),(h)\n(h),(f)\n", "no header; 3 edges, 3 named"),
    ],
)  # fmt: skip
def test_edge_lists_of_every_manner_give_the_same_graph_and_say_how_they_were_read(name, text, said, tmp_path):
    data = graphs.load(write(tmp_path / name, text))
    assert data.edge_index.tolist() == TRIANGLE and data.num_nodes == 3 and data.name == "a"
    assert data.get("edge_weight") is None and data.get("edge_attr") is None and data.x.shape == (3, 5)
    line = graphs.read_as(data)
    assert said in line and "no weights; x: 5 degree columns made here; no y" in line and "\n" not in line


@pytest.mark.parametrize(
    ("name", "text", "weights", "attr"),
    [
        ("a.tsv", "u\tv\t0.5\nu\tv\t-2\n", [0.5, -2], None),
        ("a.csv", "length,source,target,weight,time\n0.5,0,1,2,7\n1.5,0,1,3,8\n", [2, 3], [[0.5, 7], [1.5, 8]]),
        ("a.csv", "Source;Target;Weight\nA;B;0,5\nA;B;1,25\n", [0.5, 1.25], None),
        ("a.csv", "a,b,weight\nn1,n2,3\nn1,n2,4\n", [3, 4], None),
        ("a.csv", "0,1,4,1289241911.75\n0,1,2,1289241941.5\n", [4, 2], None),
        ("a.csv", "src,dst,time\n0,1,1262347230\n0,1,1262347231\n", None, [[1262347230], [1262347231]]),
        ("a.csv", "src,dst,time\n0,1,1262347230.5\n0,1,1262347231\n", None, [[1262347230.5], [1262347231]]),
        ("a.mtx", "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 2 0.5\n1 2 3\n", [0.5, 3], None),
        ("a.txt", "u v 0,5\nu v 1,5\n", [0.5, 1.5], None),
        ("a.csv", "u,v,137438953472\nu,v,68719476736\n", [2**37, 2**36], None),
        ("a.csv", "from,to,2020\nu,v,5\nu,v,6\n", None, [[5], [6]]),
        ("a.csv", "source,target,index\nu,v,0.25\nu,v,0.5\n", None, [[0.25], [0.5]]),
        ("a.csv", "source,target,\nu,v,0.25\nu,v,0.5\n", None, [[0.25], [0.5]]),
        ("a.csv", "u,v,18446744073709551615\nu,v,3\n", [2**64, 3], None),
        ("a.csv", "source,target,w\nu,v,18446744073709551615\nu,v,3\n", None, [[2**64], [3]]),
        (
            "a.mtx",
            "%%MatrixMarket matrix coordinate unsigned-integer general\n2 2 2\n1 2 18446744073709551615\n1 2 3\n",
            [2**64, 3],
            None,
        ),
        ("a.csv", "from,to,x1,x2\nu,v,1,2\nu,v,2,1\n", None, [[1, 2], [2, 1]]),
        ("a.csv", "x1,x2,start,end\n1,2,u,v\n2,1,u,v\n", None, [[1, 2], [2, 1]]),
    ],
)
def test_weights_and_features_of_edges_are_exact(name, text, weights, attr, tmp_path):
    data = graphs.load(write(tmp_path / name, text))
    assert data.edge_index.tolist() == [[0, 0], [1, 1]]
    assert (data.edge_weight.tolist() if "edge_weight" in data else None) == weights
    assert (data.edge_attr.tolist() if "edge_attr" in data else None) == attr
    if attr and attr[0][0] < 1e6:
        assert data.edge_attr.dtype == torch.float32


def test_columns_whose_type_changes_beyond_the_parts_that_are_read_are_as_in_a_small_file(tmp_path):
    rows = 300_000  # pandas reads some 260,000 rows of three columns at a time
    text = "source,target,w\n" + "1,2,3\n" * rows
    names = graphs.load(write(tmp_path / "a.csv", text + "1.0,3.0,0.5\n"))
    assert names.num_nodes == 3 and names.edge_weight is None and names.edge_attr[-1].item() == 0.5
    assert graphs.load(write(tmp_path / "b.csv", text + "a,b,4\n")).num_nodes == 4
    assert "column w holds text, 'x'" in refusal(graphs.load, write(tmp_path / "c.csv", text + "1,2,x\n"))


def test_reading_takes_less_memory_than_the_file_five_times(tmp_path):
    pairs = np.random.default_rng(0).integers(0, 400_000, (1_000_000, 2))
    pd.DataFrame(pairs).to_csv(path := tmp_path / "a.csv", header=False, index=False)
    tracemalloc.start()
    try:
        edge_lists.read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * path.stat().st_size


@pytest.mark.parametrize(
    ("edges", "nodes", "x", "y"),
    [
        ("0,2\n2,1\n", "id,age,label\n2,5,1\n0,3,0\n1,4,1\n3,6,0\n", [[3], [4], [5], [6]], [0, 1, 1, 0]),
        ("f,h\nh,g\n", "name;age;city\nf;0,5;A\ng;1,5;C\nh;2,5;B\nk;1;D\n", [[0.5], [1.5], [2.5], [1]], None),
        ("1,3\n3,2\n", "1\t0.5\tA\n2\t1.5\tB\n3\t2.5\tB\n4\t1\tA\n", [[0.5], [1.5], [2.5], [1]], [0, 1, 1, 0]),
        ("0,2\n2,1\n", ",name,id,f\n0,Ann,0,True\n1,Bob,1,False\n2,Cid,2,True\n", [[1], [0], [1]], None),
        ("0,2\n2,1\n", ",f\n0,3\n1,4\n2,5\n", [[3], [4], [5]], None),
        ("0,2\n2,1\n", "0,1\n1,2\n2,3\n", [[1], [2], [3]], None),
        ("0,2\n2,1\n", "Id,Label,f\n0,0,3\n1,1,4\n2,2,5\n", [[3], [4], [5]], None),
        ("f,h\nh,g\n", "id,a\nf,18446744073709551615\ng,2\nh,3\n", [[2**64], [2], [3]], None),
    ],
)
def test_a_file_of_nodes_gives_features_labels_and_nodes_without_edges(edges, nodes, x, y, tmp_path):
    data = graphs.load(write(tmp_path / "e.csv", edges), nodes=write(tmp_path / "n.csv", nodes))
    assert data.edge_index.tolist() == [[0, 2], [2, 1]] and data.x.tolist() == x
    assert (data.y.tolist() if "y" in data else None) == y and "nodes of n.csv" in graphs.read_as(data)
    write(tmp_path / "n.csv", "\n".join(nodes.split("\n")[:2]))
    assert "of the edges is not in n.csv; add it there" in refusal(
        graphs.load, tmp_path / "e.csv", nodes=tmp_path / "n.csv"
    )


@pytest.mark.parametrize(
    ("nodes", "part"),
    [
        ("id,f,f\n0,1,2\n1,3,4\n", "two columns have the name 'f'"),
        ("id,label,class\n0,a,1\n1,b,0\n2,a,1\n", "label and class may both be y; keep one"),
        ("id,label\n0,a\n1,\n2,a\n", "column label holds nan or nothing in 1 of 3 rows"),
        ("source,target\n0,1\n1,2\n", "source,target are edges"),
        ("id,f\n0,1\n1,2\n1.0,3\n", "node '1' is in n.csv twice"),
        ("id,f\na,1\na ,2\n", "node 'a' is in n.csv twice"),
        ("f,g\n0.1,1\n0.2,2\n", "its id is a fraction"),
        ("0.5,-0.2\n-0.1,3\n1.5,2\n", "n.csv: a node is missing, or its id is a fraction"),
        ("0,1\na,0.5\nb,1\n", "row 1, '0,1', may be a header or a node: write id and other names"),
        ("id\n0\n1\n", "write one node a row: id, and numbers or a label"),
        ("0,1\n1,2,3\n", "rows have 2 to 3 cells; write one node a row: id, and numbers or a label"),
    ],
)
def test_a_file_of_nodes_that_may_mean_two_things_is_refused(nodes, part, tmp_path):
    write(tmp_path / "n.csv", nodes)
    assert part in refusal(graphs.load, write(tmp_path / "e.csv", "0,1\n"), nodes=tmp_path / "n.csv")


FEATURES, LABELS, PAIRS = np.array([[1, 0.5], [0, 2], [0, 0]]), np.array([0, 1, 1]), np.array(TRIANGLE)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"edge_index": PAIRS, "features": FEATURES, "labels": LABELS}, ""),
        ({"edges": PAIRS.T, "X": FEATURES, "Y": LABELS, "train_idx": LABELS}, "not used: train_idx (3,)"),
        ({"edge_index": PAIRS, "node_feat": FEATURES, "num_nodes": np.array(3), "node_label": LABELS}, ""),
        ({"adj": np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]]), "feat": FEATURES, "y": LABELS}, ""),
        ({"adj_data": np.ones(3), "adj_indices": PAIRS[1], "adj_indptr": np.arange(4), "adj_shape": np.array([3, 3])}
         | {"attr_matrix": FEATURES, "label": LABELS}, ""),
    ],
)  # fmt: skip
def test_arrays_are_read_by_the_names_that_people_give(arrays, said, tmp_path):
    for name, content in (("a.npz", arrays), ("a.pt", {name: torch.tensor(value) for name, value in arrays.items()})):
        data = graphs.load(write(tmp_path / name, content))
        assert (
            data.edge_index.tolist() == TRIANGLE and np.array_equal(data.x, FEATURES) and data.y.tolist() == [0, 1, 1]
        )
        assert said in (line := graphs.read_as(data)) and "x (3, 2); y: 2 classes" in line


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr"])
def test_a_matrix_that_scipy_saved_is_read(kind, tmp_path):
    save_npz(tmp_path / "a.npz", csr_array(np.array(ADJACENCY)).asformat(kind))
    data = graphs.load(tmp_path / "a.npz")
    assert data.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]] and data.edge_weight.tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("a.csv", "", "it holds no rows; write one edge a row"),
        ("a.csv", "0,1\n1,-2\n", "negative"),
        ("a.csv", "0,1,2,3\n", "4 columns without names; write a header"),
        ("a.csv", "0\n1\n", "write one edge a row"),
        ("a.csv", "source,target\n", "a header and no rows"),
        ("a.txt", "4\n2 1\n3 1 2\n", "rows have 1 to 3 cells"),
        ("a.csv", "source,target\r0,1\r", "line feeds"),
        ("a.csv", "0.5,1.5\n2.5,3\n", "fraction"),
        ("a.csv", "0,1\na,b\nb,c\n", "row 1, '0,1', may be a header or an edge: write source,target"),
        ("a.csv", "0,1\n5\n6,7\n", "rows have 1 to 2 cells; write one edge a row: source,target (of neighbours"),
        ("a.csv", "0,1\n5,6\n6,7\n7,5\n", "may be a header or an edge"),
        ("a.tsv", "0\t1\t2\na\tb\t0.5\n", "may be a header or an edge"),
        ("a.csv", ",0,1,2\n0,5,6,0.5\n1,6,7,2\n", "header ',0,1,2' is not understood"),
        ("a.txt", "1 pp 2\n2 pp 3\n", "may be source relation target or source target weight"),
        ("a.txt", "3 pp 1\n4 pp 2\n", "may be source relation target or source target weight"),
        ("a.txt", "e 1 2\ne 2 3\n", "may be relation source target or source target weight"),
        ("a.txt", "knows 1 2\nlikes 2 3\nknows 3 1\n", "may be relation source target or"),
        ("a.csv", "id1,id2,start,end\n1,2,5,6\n2,3,7,9\n", "the two ends may be id1,id2 or start,end"),
        ("a.csv", "person1,person2,start,end\na,b,5,6\nc,d,7,9\n", "may be person1,person2 or start,end"),
        ("a.csv", "id1,id2,w,start,end\n1,2,0.5,5,6\n2,3,1,7,9\n", "the two ends may be id1,id2 or start,end"),
        ("a.csv", "user,friend,from,to\n1,2,5,6\n2,3,7,9\n", "may be user,friend or from,to"),
        ("a.csv", "user,item,start,end\n1,22,1262347230,1262347231\n3,33,1262347232,1262347233\n", "may be user,item"),
        ("a.txt", "5 4 4\n1 2 0.5\n2 3 1\n3 4 1\n4 5 1\n", "row 1, '5 4 4', may be an edge or the numbers"),
        ("a.txt", "34 34 3\n1 2 1\n2 3 1\n1 3 1\n", "write source,target,weight above it"),
        ("a.txt", "4 3\n1 2\n2 1\n2 3\n3 2\n3 4\n4 3\n", "may be an edge or the numbers"),
        ("a.txt", "3 2\na b\nb c\n", "may be an edge or the numbers"),
        ("a.txt", "(1, 2)\n(2, 3)\n(3, 1)\n", "'(3, 1)' is a printed tuple"),
        ("a.txt", "[0 1]\n[1 2]\n", "is a printed tuple"),
        ("a.txt", "1: 2\n2: 3\n", "'2: 3' is a printed tuple, or a node with its neighbours"),
        ("a.txt", "0: 1 2\n1: 0\n2:\n", "a node with its neighbours"),
        ("a.txt", "1 a\n2 b\n#\n1 2\n", "a row of # alone, above which a .tgf has nodes"),
        ("a.lgl", "# a\nb 1\n", 'igraph.Graph.Read_Lgl("a.lgl")'),
        ("a.txt", "0 1 1262347230000\n1 2 1262347231000\n", "source,target,time or source,target,weight"),
        ("a.txt", "0 1 20240131\n1 2 20240201\n", "column 3 may hold times or weights"),
        ("a.csv", "source,target,t,w\n0,1,1500000000000000001,0.5\n", "column t beside fractions is float64, which"),
        ("a.csv", "source,target,time\n0,1,\n0,1,2\n", "column time holds nan or nothing in 1 of 2 rows"),
        ("a.csv", "source,target,time,time\n0,1,2,3\n", "two columns have the name 'time'"),
        ("a.csv", "source,target,w\n0,1,True\n", "column w holds text, 'True'"),
        ("a.csv", "source,target\n0,1,2\n1,2,3\n", "name each column"),
        ("a.csv", "user_id,item_id\n0,1\n1,2\n", "header 'user_id,item_id' is not understood; name the columns"),
        ("a.csv", "User,Friend\nAnna,Bert\nBert,Cleo\n", "may be a header or an edge"),
        ("a.csv", "source;target;n\n1;2;610,086\n", "may be 610086 or 610.086"),
        ("a.csv", ";A;B\nA;1.5;0\nB;1;2\n", "networkx.from_pandas_adjacency"),
        ("a.csv", ",a,b,c\na,0,1,0\nb,0,0,1\nc,1,0,0\n", "networkx.from_pandas_adjacency"),
        ("a.csv", "0,1,0\n0,0,1\n1,0,0\n", 'csr_array(numpy.loadtxt("a.csv", delimiter=","))'),
        ("a.csv", "0,1,2\n1,0,2\n2,0,1\n", "or a node and its neighbours (networkx"),
        ("a.csv", "1,2,3\n2,3,4\n3,1,5\n", "or a node and its neighbours (networkx"),  # 4 and 5 may be leaves
        ("a.csv", "source,target\n#ai,#ml\n#ml,#py\n", "may be a comment or an edge"),
        ("a.txt", "u v\n" * 250 + "#u v\n", "'#u v' may be a comment or an edge"),
        ("a.txt", "1\t2 0.5\n2\t3 1.5\n", "separated by tabs (2 | 3 1.5) or by blanks (2 | 3 | 1.5)"),
        ("a.txt", "g;1,g;2\ng;2,g;3\n", "separated by semicolons"),
        ("a.csv", f"u,v\n{ROWS}u,v\n", "row 252 is the header again"),
        ("a.csv", "source,target\n0,1\nsource,target\n", "row 3 is the header again"),
        ("a.csv", f'u,v\n{ROWS}2,"3\n{ROWS}2,3"\n', "2,\"3': a quotation mark is opened"),
        ("a.csv", 'source,target\n"New\n\nYork",Boston\n', "a name holds no line break"),
        ("a.csv", f"u,v\n{ROWS}0,1,2\n", "row 252 has 3 cells, those above 2"),
        ("a.tsv", "% bip unweighted\n1\t1\n1\t2\n", "KONECT's bip"),
        ("a.txt", "%%MatrixMarket matrix coordinate real general\n2 2 1\n1 2 0.5\n", "call it .mtx"),
        ("a.txt", "10 3\n1 2\n2 3\n3 4\n", "may be an edge or the numbers of nodes and edges"),
        ("a.txt", "0 2\n1 {}\n2 {}\n1 0\n2 0\n", 'networkx.read_multiline_adjlist("a.txt", create_using=networkx.DiG'),
        ("a.txt", "0 1 2\n1 2 3\n2 3 0\n3 0 1\n", "may be source,target,weight (write that above"),
        ("a.txt", "0 1 2\n1 0 2\n2 0 1\n", 'networkx.read_adjlist("a.txt", create_using=networkx.DiGraph)'),
        ("a.txt", "0 1 1082040961\n1 2 1082040962\n", "source,target,time or source,target,weight"),
        ("a.csv", "u;v;w\nA;B;0,5\nB;C;1.234\n", "with commas in w and with points in w, of thousands or decimal"),
        ("a.csv", "u;v;w;z\nA;B;1.234;0,5\nB;C;2.500;1,5\n", "with commas in z and with points in w"),
        ("a.csv", "u;v;w\n" + "1;2;5\n" * 250 + "1.000;2;5\n", "id 1.000 may be 1000 or 1"),
        ("a.csv", "source,target,w\nA,B,50%\n", "'50%'; make all of it numbers or delete the column"),
        ("a.csv", "x1,x2,y\n0,1,1\n1,0,1\n", "header 'x1,x2,y' is not understood"),
        ("a.csv", "x,y\n10,20\n20,30\n", "header 'x,y' is not understood"),
        ("a.csv", "Source,Target,Type\n0,1,Undirected\n", "pandas.concat"),
        ("a.csv", ":START_ID(P),:END_ID(M)\n1,2\n2,3\n", "is not understood"),
        ("a.csv", "version https://git-lfs.github.com/spec/v1\nsize 1\n", "git lfs pull"),
        ("a.csv", "<!DOCTYPE html>\n<html>", "a web page; download the file itself"),
        ("a.csv", "PK\3\4", "a zip archive or an Excel file"),
        ("a.csv", '[{"source": 1, "target": 2}]', "pandas.read_json"),
        ("a.csv", "\ufffe\0s", "save it so (in Excel: CSV UTF-8)"),
        ("a.csv", "1," * 10_001, "a line of more than 10,000 cells"),
        ("a.csv", 'source,target\n"a,b\nc,d\n', "quotation mark"),
        ("a.txt", "f g {'weight': 2.0}\n", "networkx.read_edgelist"),
        ("a.edges", "ann bob 2.0\n", "call one with names .txt"),
        ("a.xls", "", 'pandas.read_excel("a.xls").to_csv("new.csv", index=False)'),
        ("a.graphml.gz", "<a/>", "gunzip a.graphml.gz"),
        ("a.mtx", "%%MatrixMarket matrix coordinate real general\n2 3 1\n1 2 0.5\n", "must be square"),
        ("a.npz", {"edge_index": PAIRS.T[:, :1]}, "write it as (2, E)"),
        ("a.npz", {"edges": np.array(4)}, "write it as (2, E)"),
        ("a.npz", {"edge_index": PAIRS, "adj": np.eye(3)}, "both an adjacency and edges"),
        ("a.npz", {"adj": 2 * np.eye(3), "edge_weight": np.ones(3)}, "adjacency and edge_weight give weights"),
        ("a.npz", {"adj_data": np.array([1j, 1]), "adj_indices": np.array([0, 1]), "adj_indptr": np.arange(3)}
         | {"adj_shape": np.array([2, 2])}, "the matrix holds complex numbers"),
        ("a.pt", Data(x=torch.ones(2, 1), adj_t=2 * torch.eye(2).to_sparse(), edge_weight=torch.ones(2)), "keep one"),
        ("a.pt", torch.nn.Linear(1, 1).state_dict(), "there is no edge_index (2, E) among 'weight, bias'"),
        ("a.pt", [[0, 1], [1, 2]], "it holds [[0, 1], [1, 2]]; save one torch_geometric Data"),
        ("a.npz", {"senders": PAIRS[0], "receivers": PAIRS[1]}, "numpy.stack([senders, receivers])"),
        ("a.npz", "PK\3\4 and no more", "cut off or damaged; download it again"),
        ("a.pt", "PK\3\4 and no more", "cut off or damaged"),
        ("a.pt", Batch.from_data_list([Data(x=torch.ones(1, 1))]), "torch.save(batch.to_data_list(), path)"),
        ("a.pt", Data(edge_index=torch.tensor(TRIANGLE)[:, :2], edge_attr=torch.ones(3, 1)), "must have 2 rows"),
        ("a.npz", {"edge_index": PAIRS, "y": np.array(["a", "b", "c"])}, "numpy.unique"),
        ("a.npz", {"edge_index": PAIRS, "x": FEATURES, "y": LABELS[:2]}, "give each node one"),
        ("a.npz", {"edge_index": PAIRS * 10**7}, "number the nodes of the edges 0..N-1"),
        ("a.npz", {"edge_index": PAIRS, "attr_data": np.ones(1), "attr_indices": np.array([1])}
         | {"attr_indptr": np.array([0, 1, 1, 1]), "attr_shape": np.array([3, 10**9])}, "GB of memory when dense"),
        ("a.npz", {"x": FEATURES}, "there is no edge_index (2, E) among 'x'"),
        (
            "a.npz",
            {"edge_index": PAIRS, "x": FEATURES, "feat": FEATURES},
            "feat and another array are both x; keep one",
        ),
        ("a.pt", "no pickle at all", "it holds no saved object; save"),
        ("a.pt", HeteroData(), "--inputs module:function"),
        ("a.pt", torch.ones(3, 2), "got Tensor"),
        ("a.pt", {"x": torch.ones(2, 1)}, "there is no edge_index"),
        ("a.pt[3]", [Data(), Data()], "[0] to [1]"),
        ("a.pt[0]", Data(), "leave [0] out"),
        ("a.pt", Data(own=Path("a class that torch does not load")), "it holds pathlib"),
        ("a.graphml", "<a/>", "needed: GraphML"),
        ("a.graphml", nx.empty_graph(3), "no edges"),
        ("a.graphml", nx.node_link_graph({"nodes": [{"id": 0, "s": 1.0}, {"id": 1}], "edges": []}), "lack a number"),
        ("a.graphml", nx.Graph([(0, 1, {"weight": 1.0}), (1, 2, {})]), "some edges lack a weight"),
        ("a.graphml", GRAPHML.replace("<default>2</default>", ""), "lack a number that others have, or it is nan: vip"),
        ("missing.npz", None, "no such file"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_graph_is_refused(name, content, part, tmp_path):
    path = write(tmp_path / name.partition("[")[0], content)
    line = refusal(graphs.load, tmp_path / name)
    assert line.startswith(str(path)) and part in line


def test_a_pt_file_keeps_all_fields(tmp_path):
    made = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), edge_attr=torch.tensor([3, 4]), pos=torch.rand(2, 3))
    torch.save(made, path := tmp_path / "mine.pt")
    data = graphs.load(path)
    assert torch.equal(data.pos, made.pos) and data.edge_attr.tolist() == [3, 4] and data.x.shape == (2, 5)
    torch.save(data, tmp_path / "saved.pt")  # as the lab has it
    again = graphs.load(tmp_path / "saved.pt")
    assert again.name == "saved" and torch.equal(again.x, data.x)


def test_what_pyg_saves_after_its_own_methods_and_of_several_graphs_is_read(tmp_path):
    edges = torch.tensor(TRIANGLE)
    made = Data(x=torch.ones(3, 2), edge_index=edges, y=torch.tensor([0, 1, 1]))
    several = [made, Data(x=torch.ones(2, 1), edge_index=edges[:, :1])]
    whole, slices = InMemoryDataset.collate(several[:1] * 2)
    made.node_attrs()
    symmetric = T.ToUndirected()(made)
    train, *_ = T.RandomLinkSplit(num_val=0.3, num_test=0)(made)
    cases = {
        "a.pt": (symmetric, 3, 6),
        "b.pt": (made.sort(), 3, 3),
        "c.pt": (train, 3, train.num_edges),
        "d.pt": (T.Pad(5, 9)(made), 5, 9),
        "e.pt": (Data(x=np.ones((3, 2)), edge_index=edges), 3, 3),
        "f.pt[1]": (several, 2, 1),
        "k.pt[1]": (tuple(several), 2, 1),
        "l.pt": (Data(x=torch.nn.Parameter(torch.ones(3, 2)), edge_index=edges, num_nodes=np.int64(3)), 3, 3),
        "n.pt": ({"edge_index": edges, "x": torch.ones(3, 2), "edge_attr": None}, 3, 3),
        "m.pt": ({"edge_index": edges, "x": torch.ones(3, 2, dtype=torch.bfloat16, requires_grad=True)}, 3, 3),
        "g.pt[1]": ((whole, slices), 3, 3),
        "h.pt": ((made.to_dict(), None, Data), 3, 3),
        "i.pt": ((whole.to_dict(), slices, Data), 3, 3),
        "j.pt[1]": ((whole.to_dict(), slices, {"num_node_labels": 2}, Data), 3, 3),
    }
    for name, (content, nodes, count) in cases.items():
        write(tmp_path / name.partition("[")[0], content)
        data = graphs.load(tmp_path / name)
        assert (data.num_nodes, data.num_edges, data.x.requires_grad) == (nodes, count, False), name
    assert graphs.read_as(graphs.load(tmp_path / "f.pt")).startswith("f.pt: graph 0 of 2; 3 edges, 3 nodes")


def test_an_adjacency_in_place_of_the_edges_is_read(tmp_path):
    adj_t = torch.tensor([[0, 0, 3.0], [1, 0, 0], [0, 1, 0]]).to_sparse()  # [i, j]: from j to i
    data = graphs.load(write(tmp_path / "a.pt", Data(x=torch.ones(3, 1), adj_t=adj_t)))
    edges = dict(zip(map(tuple, data.edge_index.t().tolist()), data.edge_weight.tolist(), strict=True))
    assert edges == {(0, 1): 1, (1, 2): 1, (2, 0): 3}
    twice = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 1.0], (2, 2), check_invariants=True)
    data = graphs.load(write(tmp_path / "b.pt", Data(x=torch.ones(2, 1), adj_t=twice)))
    assert data.edge_index.tolist() == [[1, 1], [0, 0]] and data.get("edge_weight") is None
    stored = torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 0]], [1.0, 2.0, 0.0], (20_000, 20_000), check_invariants=True)
    tracemalloc.start()  # 20,000 x 20,000 take 1.6 GB
    data = graphs.load(write(tmp_path / "c.pt", {"adj": stored, "x": torch.ones(20_000, 1)}))
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()
    assert data.edge_index.tolist() == [[0, 0, 1], [1, 1, 0]] and data.edge_weight.tolist() == [1, 2, 0]


GML = "graph [ node [ id 0 graphics [ x 1.0 ] ] node [ id 1 ] edge [ source 0 target 1 ] directed 1 ]"
GEXF = """<gexf xmlns="http://www.gexf.net/1.2draft" xmlns:viz="http://www.gexf.net/1.2draft/viz"><graph
defaultedgetype="directed"><nodes><node id="0" label="f"><viz:size value="3"/></node><node id="1" label="g"/></nodes>
<edges><edge id="0" source="0" target="1"/></edges></graph></gexf>"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.gml", GML),
        ("a.gexf", GEXF),
        ("a.net", '*Vertices 2\n1 "a" 0.1 0.2 0.5\n2 "b"\n*Arcs\n1 2 1\n'),
        ("a.json", '{"directed": true, "nodes": [{"id": 0}, {"id": 1}], "links": [{"source": 0, "target": 1}]}'),
        ("a.edgelist", "0 1\n"),
        ("a.adjlist", "0 1\n1\n"),
        ("a.sif", "f pp g\n"),
        ("a.tgf", "f one\ng\n#\nf g\n"),
        ("a.csv", ",f,g\nf,0,2.5\ng,0,0\n"),
        ("a.txt", "0 1 {'weight': 2.0}\n"),
    ],
)
def test_the_line_of_python_in_a_refusal_makes_a_graph_that_is_read(name, text, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    line = refusal(graphs.load, write(tmp_path / name, text))
    start = next(line.index(code) for code in ("graph = networkx", "networkx.", "pandas.", "Path(") if code in line)
    code = line[start:].split(", with edges=")[0].removesuffix(" leaves 0 out").removesuffix(" of pathlib")
    exec(code, {"networkx": nx, "pandas": pd, "json": json, "Path": Path})
    made = next(path for path in tmp_path.iterdir() if path.stem == "new")
    assert graphs.load(made).edge_index.tolist() == [[0], [1]]


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


@pytest.mark.parametrize(
    ("attributes", "x", "y", "said"),
    [
        ({"x": [1.5, 2], "y": [0.5, 3], "size": [1.0, 1]}, None, None, "not used: drawing x, y, size"),
        ({"x": [1.5, 2], "y": [0, 1]}, [[1.5], [2]], [0, 1], "x of x"),
        ({"x": [1.5, 2], "y": [0.5, 1]}, [[1.5], [2]], [0.5, 1], "x of x"),
        ({"Label": [0, 1], "y": [0.5, 3]}, [[0.5], [3]], [0, 1], "x of y"),
        ({"name": ["f", "g"]}, None, None, "not used: text of name"),
    ],
)
def test_attributes_of_graphml_are_told_from_its_drawing(attributes, x, y, said, tmp_path):
    graph = nx.DiGraph([("a", "b")])
    for name, values in attributes.items():
        nx.set_node_attributes(graph, dict(zip("ab", values, strict=True)), name)
    data = graphs.load(write(tmp_path / "a.graphml", graph))
    assert x is None or data.x.tolist() == x
    assert (data.y.tolist() if "y" in data else None) == y and said in graphs.read_as(data)


def test_defaults_of_graphml_stand_where_nothing_else_does(tmp_path):
    data = graphs.load(write(tmp_path / "a.graphml", GRAPHML))
    assert data.x.tolist() == [[1], [2]] and data.edge_weight.tolist() == [2.5, 1]
