"""`graphs.load` gives a sound graph or one clear line."""

from __future__ import annotations

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


def refused(spec, **options) -> str:
    return refusal(graphs.load, spec, **options)


def assert_sound(data: Data) -> None:
    assert data.x.dtype == torch.float32 and data.x.shape[0] == data.num_nodes and data.x.isfinite().all()
    assert data.edge_index.dtype == torch.int64 and data.edge_index.is_contiguous()
    assert int(data.edge_index.min()) >= 0 and int(data.edge_index.max()) < data.num_nodes
    if data.get("edge_weight") is not None:
        assert data.edge_weight.dtype == torch.float32 and data.edge_weight.shape == (data.num_edges,)
    assert isinstance(data.name, str) and data.name


def described(data: Data) -> dict[str, float]:
    """Sizes of a graph; the degree of a node is the number of edges that end in it."""
    degree = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
    return {
        "nodes": data.num_nodes,
        "edges": data.num_edges,
        "features": data.num_features,
        "degree_min": int(degree.min()),
        "degree_mean": float(degree.double().mean()),
        "degree_max": int(degree.max()),
        "loops": data.has_self_loops(),
        "repeated": data.num_edges - data.edge_index.unique(dim=1).shape[1],
        "directed": data.is_directed(),
    }


# --- bundled ---------------------------------------------------------------------------------------------------------


def test_symptoms_is_the_graph_of_the_study():
    data = graphs.load("symptoms")
    told = described(data)
    assert_sound(data)
    assert (told["nodes"], told["edges"], told["degree_min"], told["degree_max"]) == (58, 776, 8, 43)
    assert told["degree_mean"] == pytest.approx(13.38, abs=0.005)
    assert not (told["directed"] or told["loops"] or told["repeated"])
    assert data.edge_weight is not None and data.x.shape == (58, 5)


def test_symptom_weights_are_co_occurrences_over_their_maximum():
    data = graphs.load("symptoms")
    cliques = [set(clique) for clique in json.loads(symptom_gat.FACTS.read_text(encoding="utf-8"))["cliques"]]
    counts = [sum({a, b} <= clique for clique in cliques) for a, b in data.edge_index.t().tolist()]
    assert torch.equal(data.edge_weight, torch.tensor(counts) / max(counts))


def test_digits_join_each_digit_with_its_ten_nearest_both_ways():
    data = graphs.load("digits")
    told = described(data)
    assert_sound(data)
    assert (told["nodes"], told["edges"], told["features"], told["degree_min"]) == (1797, 24678, 64, 10)
    assert not (told["directed"] or told["loops"] or told["repeated"])
    assert data.x.min() == 0 and data.x.max() == 1 and sorted(set(data.y.tolist())) == list(range(10))
    distance = torch.cdist(data.x[:1].double(), data.x.double())[0]
    neighbours = data.edge_index[1][data.edge_index[0] == 0]
    assert set(distance.topk(11, largest=False).indices.tolist()[1:]) <= set(neighbours.tolist())


def test_karate_is_zacharys_club():
    data = graphs.load("karate")
    assert_sound(data)
    assert (data.num_nodes, data.num_edges, data.num_features) == (34, 156, 34)


@pytest.mark.parametrize("name", ["symptoms", "digits", "karate"])
def test_who_writes_into_a_bundled_graph_does_not_change_the_next_one(name):
    before = graphs.load(name)
    kept = before.x.clone()
    before.x.fill_(7)
    before.edge_index.fill_(0)
    after = graphs.load(name)
    assert torch.equal(after.x, kept) and after.edge_index.any()


# --- random ----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 40), st.data(), st.sampled_from(DEGREES), st.integers(0, 2**63 - 1), st.integers(1, 20))
def test_random_graphs_have_exactly_the_edges_asked_for(nodes, draw, degrees, seed, features):
    edges = draw.draw(st.integers(1, nodes * (nodes - 1)))
    spec = f"random:nodes={nodes},edges={edges},degrees={degrees},seed={seed},features={features}"
    data = graphs.load(spec)
    told = described(data)
    assert_sound(data)
    assert (told["nodes"], told["edges"], told["features"]) == (nodes, edges, features)
    assert not (told["loops"] or told["repeated"])
    again = graphs.load(spec)
    assert torch.equal(data.edge_index, again.edge_index) and torch.equal(data.x, again.x)


@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize(("nodes", "edges"), [(300, 3000), (300, 60_000)])  # drawn, and ranked
def test_random_edges_are_exact_at_both_densities(degrees, nodes, edges):
    told = described(graphs.load(f"random:nodes={nodes},edges={edges},degrees={degrees}"))
    assert (told["edges"], told["loops"], told["repeated"]) == (edges, False, 0)


def test_degrees_tell_the_distributions_apart():
    told = {kind: described(graphs.load(f"random:nodes=2000,edges=20000,degrees={kind}")) for kind in DEGREES}
    assert told["powerlaw"]["degree_max"] > 10 * told["powerlaw"]["degree_mean"]
    assert told["uniform"]["degree_max"] < 4 * told["uniform"]["degree_mean"]


def test_bags_of_words_have_so_many_ones_and_else_zeros():
    x = graphs.load("random:nodes=2000,edges=20,features=100,density=0.02").x
    assert set(x.unique().tolist()) == {0, 1} and x.mean() == pytest.approx(0.02, rel=0.1)


def test_another_seed_gives_another_random_graph():
    first, second = (graphs.load(f"random:nodes=50,edges=200,seed={seed}") for seed in (0, 1))
    assert not torch.equal(first.edge_index, second.edge_index)


@pytest.mark.parametrize(
    ("rest", "part"),
    [
        ("", "allowed are nodes=, edges="),
        ("nodes=10", "edges='': Field required"),
        ("nodes=3,edges=7", "at most 6"),
        ("nodes=10,edges=0", "greater than or equal to 1"),
        ("nodes=1e3,edges=5", "integer"),
        ("nodes=10000000,edges=5,features=1000", "exceed"),
        ("nodes=10,edges=5,degree=uniform", "degrees="),
        ("nodes=10,edges=5,degrees=star", "'uniform' or 'powerlaw'"),
    ],
)
def test_impossible_random_graphs_are_refused(rest, part):
    assert part in refused(f"random:{rest}")


# --- anything else ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec", ["digitz", "", ".", "x" * 5000, "a\nb.csv", "graph.txt", None, 5, HeteroData(), Path("nowhere.npz")]
)
def test_what_is_no_graph_is_refused(spec):
    refused(spec)


def test_a_near_miss_is_answered_with_the_name_that_was_meant():
    assert "did you mean digits?" in refused("digitz")


# --- Data objects ----------------------------------------------------------------------------------------------------


def test_a_data_object_is_checked_and_left_as_it_was():
    given_data = Data(x=torch.ones(3, 2, dtype=torch.int64), edge_index=torch.tensor(EDGES, dtype=torch.int32))
    data = graphs.load(given_data)
    assert_sound(data)
    assert given_data.x.dtype == torch.int64 and given_data.edge_index.dtype == torch.int32 and "name" not in given_data


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"edge_index": [[0, 1], [1, 3]]}, "larger indices than the number of nodes"),
        ({"edge_index": [[0, -1], [1, 0]]}, "negative indices"),
        ({"edge_index": [[], []]}, "no edges"),
        ({"edge_index": [[0.0], [1.0]]}, "integers"),
        ({"edge_index": [0, 1]}, "shape [2, num_edges]"),
        ({"x": [[1.0], [float("nan")], [1.0]]}, "x holds nan"),
        ({"edge_weight": [1.0, 2.0, float("-inf")]}, "edge_weight holds nan, infinity"),
        ({"edge_weight": [1.0]}, "RuntimeError: shape '[3]'"),
    ],
)
def test_a_broken_data_object_is_refused(fields, part):
    fields = {"x": [[1.0]] * 3, "edge_index": EDGES} | fields
    assert part in refused(Data(**{key: torch.tensor(value) for key, value in fields.items()}))


def test_a_graph_without_edges_or_nodes_is_refused():
    assert "no edges" in refused(Data(x=torch.ones(3, 1)))
    assert "no nodes" in refused(Data())
    assert "no nodes" in refused(Data(x=torch.ones(0, 1), edge_index=torch.zeros(2, 0, dtype=torch.int64)))


# --- data sets of PyG ------------------------------------------------------------------------------------------------


class Offline:
    """A data set whose download breaks off."""

    def __init__(self, root: str, name: str = ""):
        raise OSError("Name or service not known")


class Molecules:
    """A data set of four small graphs with categorical features, as LRGB has them."""

    def __init__(self, root: str, name: str):
        assert name == "Peptides-func"

    def __getitem__(self, i: int) -> Data:
        return [
            Data(x=torch.full((3 + i, 2), i), edge_index=torch.tensor(EDGES), y=torch.tensor([i])) for i in range(4)
        ][i]


@pytest.mark.parametrize("spec", ["planetoid:Cora", "cora", "lrgb:Peptides-func[3]", "pyg:TUDataset:MUTAG"])
def test_without_a_network_one_line_says_so(spec, monkeypatch, tmp_path):
    for name in ("Planetoid", "LRGBDataset", "TUDataset"):
        monkeypatch.setattr(datasets, name, Offline)
    line = refused(spec, cache=tmp_path)
    assert "network" in line and "Name or service not known" in line


@pytest.mark.parametrize(
    ("spec", "nodes"), [("lrgb:Peptides-func", 3), ("peptides_func[2]", 5), ("lrgb:peptides-FUNC[3]", 6)]
)
def test_a_data_set_of_many_graphs_gives_its_first_or_another(spec, nodes, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "LRGBDataset", Molecules)
    data = graphs.load(spec, cache=tmp_path)
    assert_sound(data)
    assert data.num_nodes == nodes and data.name.startswith("lrgb:")


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("lrgb:Peptides-func[4]", "IndexError"),
        ("lrgb:Peptides-func[0:2]", "lrgb:NAME[7]"),
        ("lrgb:Peptide", "Peptides-func"),
        ("planetoid:Coro", "Cora, CiteSeer, PubMed"),
        ("pyg:Planetoyd", "did you mean Planetoid?"),
        ("pyg:TUDataset", "missing 1 required positional argument: 'name'"),
        ("pyg:KarateClub:x", "unexpected keyword argument 'name'"),
    ],
)
def test_unknown_data_sets_are_refused(spec, part, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "LRGBDataset", Molecules)
    assert part in refused(spec, cache=tmp_path)
