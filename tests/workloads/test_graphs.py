"""`graphs.load` gives a sound graph or one clear line."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal
from torch_geometric import datasets
from torch_geometric.data import Data, HeteroData

from gnnlab.workloads import graphs, symptom_gat

DEGREES = ("uniform", "powerlaw")
EDGES = [[0, 1, 2], [1, 2, 0]]


def sound(data):
    assert data.x.dtype == torch.float32 and data.x.shape[0] == data.num_nodes and data.x.isfinite().all()
    assert data.edge_index.dtype == torch.int64 and data.edge_index.is_contiguous()
    assert int(data.edge_index.min()) >= 0 and int(data.edge_index.max()) < data.num_nodes
    if data.get("edge_weight") is not None:
        assert data.edge_weight.dtype == torch.float32 and data.edge_weight.shape == (data.num_edges,)
    assert isinstance(data.name, str) and data.name
    return data


def sizes(data):
    return data.num_nodes, data.num_edges, data.num_features


def degree(data):
    return torch.bincount(data.edge_index[1], minlength=data.num_nodes)


def is_simple(data):
    """Without self-loops and repeated edges."""
    return not data.has_self_loops() and data.edge_index.unique(dim=1).shape[1] == data.num_edges


# --- bundled ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"), [("symptoms", (58, 776, 5)), ("digits", (1797, 24678, 64)), ("karate", (34, 156, 34))]
)
def test_bundled_graphs_are_those_of_their_study_and_are_not_changed_by_who_writes_into_one(name, expected):
    data = sound(graphs.load(name))
    assert sizes(data) == expected and is_simple(data) and data.is_undirected()
    data.edge_index.fill_(0)
    assert graphs.load(name).edge_index.any()


def test_symptom_weights_are_co_occurrences_over_their_maximum():
    data = graphs.load("symptoms")
    assert (int(degree(data).min()), int(degree(data).max())) == (8, 43)
    cliques = [set(clique) for clique in json.loads(symptom_gat.FACTS.read_text(encoding="utf-8"))["cliques"]]
    counts = [sum({a, b} <= clique for clique in cliques) for a, b in data.edge_index.t().tolist()]
    assert torch.equal(data.edge_weight, torch.tensor(counts) / max(counts))


def test_digits_join_each_digit_with_its_ten_nearest_both_ways():
    data = graphs.load("digits")
    assert degree(data).min() == 10 and sorted(set(data.y.tolist())) == list(range(10))
    assert data.x.min() == 0 and data.x.max() == 1
    distance = torch.cdist(data.x[:1].double(), data.x.double())[0]
    neighbours = data.edge_index[1][data.edge_index[0] == 0]
    assert set(distance.topk(11, largest=False).indices.tolist()[1:]) <= set(neighbours.tolist())


# --- random ----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 40), st.data(), st.sampled_from(DEGREES), st.integers(0, 2**63 - 1), st.integers(1, 20))
def test_random_graphs_have_exactly_the_edges_asked_for(nodes, draw, degrees, seed, features):
    edges = draw.draw(st.integers(1, nodes * (nodes - 1)))
    spec = f"random:nodes={nodes},edges={edges},degrees={degrees},seed={seed},features={features}"
    data, again = sound(graphs.load(spec)), graphs.load(spec)
    assert sizes(data) == (nodes, edges, features) and is_simple(data)
    assert torch.equal(data.edge_index, again.edge_index) and torch.equal(data.x, again.x)


@pytest.mark.parametrize("edges", [3000, 60_000])  # drawn, and ranked
def test_degrees_tell_the_distributions_apart_at_both_densities(edges):
    uniform, power = (graphs.load(f"random:nodes=300,edges={edges},degrees={degrees}") for degrees in DEGREES)
    for data in (uniform, power):
        assert data.num_edges == edges and is_simple(data)
    assert degree(uniform).double().std() * 2 < degree(power).double().std()
    assert not torch.equal(graphs.load(f"random:nodes=300,edges={edges},seed=1").edge_index, uniform.edge_index)
    words = graphs.load(f"random:nodes=300,edges={edges},features=100,density=0.02").x
    assert set(words.unique().tolist()) == {0, 1} and words.mean() == pytest.approx(0.02, rel=0.2)


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("random:", "allowed are nodes=, edges="),
        ("random:nodes=10", "edges= is needed"),
        ("random:nodes=3,edges=7", "at most 6"),
        ("random:nodes=10000000,edges=5,features=1000", "exceed"),
        ("random:nodes=10,edges=5,degree=uniform", "degrees="),
        ("digitz", "did you mean digits?"),
        *((spec, "is no graph") for spec in ("", "x" * 5000, "a\nb.csv", "graph.docx")),
        (".", "a folder; name a file in it"),
        *((spec, "a name, a path or a torch_geometric Data") for spec in (None, 5, HeteroData())),
        (Path("nowhere.npz"), "no such file"),
        ("~/nowhere.npz", f"{Path.home()}/nowhere.npz: there is no such file"),
        ("https://example.org/a.csv", "download the file first"),
    ],
)
def test_what_is_no_graph_is_refused(spec, part):
    assert part in refusal(graphs.load, spec)


def test_a_data_object_is_checked_and_left_as_it_was():
    given_data = Data(x=torch.ones(3, 2, dtype=torch.int64), edge_index=torch.tensor(EDGES, dtype=torch.int32))
    sound(graphs.load(given_data))
    assert given_data.x.dtype == torch.int64 and given_data.edge_index.dtype == torch.int32 and "name" not in given_data


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("karate", "karate: 156 edges, 34 nodes, no weights; x (34, 34); y: 4 classes"),
        (
            Data(edge_index=torch.tensor(EDGES), edge_attr=torch.ones(3, 2), y=torch.ones(1, 9)),
            "graph: 3 edges, 3 nodes, no weights; edge_attr (3, 2); x: 5 degree columns made here; y (1, 9)",
        ),
    ],
)
def test_one_line_says_what_was_read(given, line):
    data = graphs.load(given)
    assert graphs.read_as(data) == graphs.read_as(graphs.load(data)) == line


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"edge_index": [[0, 1], [1, 3]]}, "edge_index holds node 3, and x has 3 rows; number the nodes 0..2"),
        ({"edge_index": [[0.0], [1.0]]}, "integers"),
        ({"edge_index": None}, "no edges"),
        ({"edge_index": None, "x": None}, "no nodes"),
        ({"x": [[1.0], [float("nan")], [1.0]]}, "x holds nan"),
        ({"edge_weight": [1.0]}, "edge_weight must hold 3 numbers"),
        ({"x": [[[1.0]] * 4] * 3}, "x has shape (3, 4, 1), and (N, F) is needed: x.flatten(1)"),
        ({"x": [[1j]] * 3}, "torch.view_as_real(x).flatten(1)"),
        ({"edge_weight": [1j, 1, 1]}, "edge_weight is torch.complex64, and real numbers are needed"),
        ({"edge_attr": [1j, 1, 1]}, "edge_attr.abs()"),
        ({"edge_index": None, "adj": EDGES}, "torch_geometric.utils.dense_to_sparse(adj)"),
        ({"edge_index": [[0, 1], [1, 2 * 10**7]], "x": None}, "number the nodes of the edges 0..N-1"),
    ],
)
def test_a_broken_data_object_is_refused(fields, part):
    fields = {"x": [[1.0]] * 3, "edge_index": EDGES} | fields
    assert part in refusal(
        graphs.load, Data(**{key: torch.tensor(value) for key, value in fields.items() if value is not None})
    )


# --- data sets of PyG ------------------------------------------------------------------------------------------------


class Molecules:
    """A data set of four small graphs with categorical features, as LRGB has them."""

    def __init__(self, root, name):
        assert name == "Peptides-func"

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return Data(x=torch.full((3 + i, 2), i), edge_index=torch.tensor(EDGES), y=torch.tensor([i]))


@pytest.mark.parametrize("spec", ["planetoid:Cora", "cora", "pyg:TUDataset:MUTAG"])
def test_without_a_network_one_line_says_so(spec, monkeypatch, tmp_path):
    def offline(root, name):
        raise OSError("Name or service not known")

    for name in ("Planetoid", "TUDataset"):
        monkeypatch.setattr(datasets, name, offline)
    line = refusal(graphs.load, spec, cache=tmp_path)
    assert "network" in line and "Name or service not known" in line


@pytest.mark.parametrize(
    ("spec", "nodes"), [("lrgb:Peptides-func", 3), ("peptides_func[2]", 5), ("lrgb:peptides-FUNC[3]", 6)]
)
def test_a_data_set_of_many_graphs_gives_its_first_or_another(spec, nodes, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "LRGBDataset", Molecules)
    data = sound(graphs.load(spec, cache=tmp_path))
    assert data.num_nodes == nodes and data.name.startswith("lrgb:Peptides-func") and " of 4; " in graphs.read_as(data)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("lrgb:Peptides-func[4]", "it has 4 graphs; write [0] to [3]"),
        ("lrgb:Peptide", "Peptides-func"),
        ("lrgb:Cora", "LRGBDataset has no data set 'Cora'"),
        ("planetoid:Coro", "Cora, CiteSeer, PubMed"),
        ("pyg:Planetoyd", "did you mean Planetoid?"),
        ("pyg:TUDataset", "missing 1 required positional argument: 'name'"),
    ],
)
def test_unknown_data_sets_are_refused(spec, part, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "LRGBDataset", Molecules)
    assert part in refusal(graphs.load, spec, cache=tmp_path)
