"""`graphs.load` gives a sound graph or one clear line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refusal
from torch_geometric import datasets
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.io import read_npz as pyg_read_npz

from gnnlab.errors import GnnlabError
from gnnlab.workloads import graphs, symptom_gat

DEGREES = ("uniform", "powerlaw", "clique")
CORA = Path(__file__).parents[3] / "shared" / "data" / "cora.npz"
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


# --- bundled ---------------------------------------------------------------------------------------------------------


def test_symptoms_is_the_graph_of_the_study():
    data = graphs.load("symptoms")
    told = graphs.describe(data)
    assert_sound(data)
    assert (told["nodes"], told["edges"], told["degree_min"], told["degree_max"]) == (58, 776, 8, 43)
    assert told["degree_mean"] == pytest.approx(13.38, abs=0.005)
    assert not told["directed"] and told["weighted"] and told["self_loops"] == told["duplicate_edges"] == 0
    assert data.x.shape == (58, 5)


def test_symptom_weights_are_co_occurrences_over_their_maximum():
    data = graphs.load("symptoms")
    cliques = [set(clique) for clique in json.loads(symptom_gat.FACTS.read_text(encoding="utf-8"))["cliques"]]
    counts = [sum({a, b} <= clique for clique in cliques) for a, b in data.edge_index.t().tolist()]
    assert torch.equal(data.edge_weight, torch.tensor(counts) / max(counts))


def test_digits_join_each_digit_with_its_ten_nearest_both_ways():
    data = graphs.load("digits")
    told = graphs.describe(data)
    assert_sound(data)
    assert (told["nodes"], told["edges"], told["features"], told["degree_min"]) == (1797, 24678, 64, 10)
    assert not told["directed"] and told["self_loops"] == told["duplicate_edges"] == told["isolated_nodes"] == 0
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
    told = graphs.describe(data)
    assert_sound(data)
    assert (told["nodes"], told["edges"], told["features"]) == (nodes, edges, features)
    assert told["self_loops"] == told["duplicate_edges"] == 0
    again = graphs.load(spec)
    assert torch.equal(data.edge_index, again.edge_index) and torch.equal(data.x, again.x)


@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize(("nodes", "edges"), [(300, 3000), (300, 60_000)])  # drawn, and ranked
def test_random_edges_are_exact_at_both_densities(degrees, nodes, edges):
    told = graphs.describe(graphs.load(f"random:nodes={nodes},edges={edges},degrees={degrees}"))
    assert (told["edges"], told["self_loops"], told["duplicate_edges"]) == (edges, 0, 0)


def test_degrees_tell_the_distributions_apart():
    told = {kind: graphs.describe(graphs.load(f"random:nodes=2000,edges=20000,degrees={kind}")) for kind in DEGREES}
    assert told["powerlaw"]["degree_max"] > 10 * told["powerlaw"]["degree_mean"]
    assert told["uniform"]["degree_max"] < 4 * told["uniform"]["degree_mean"]
    assert told["clique"]["degree_max"] <= told["clique"]["degree_mean"] + 2


def test_clique_graphs_are_cliques_where_the_number_of_edges_allows():
    data = graphs.load("random:nodes=12,edges=36,degrees=clique")  # three groups of four
    groups = {frozenset([a, *data.edge_index[1][data.edge_index[0] == a].tolist()]) for a in range(12)}
    assert sorted(len(group) for group in groups) == [4, 4, 4]


def test_another_seed_gives_another_random_graph():
    first, second = (graphs.load(f"random:nodes=50,edges=200,seed={seed}") for seed in (0, 1))
    assert not torch.equal(first.edge_index, second.edge_index)


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ("", "is not understood"),
        ("nodes=10", "edges='': Field required"),
        ("nodes=3,edges=7", "at most 6"),
        ("nodes=1,edges=1", "greater than or equal to 2"),
        ("nodes=10,edges=0", "greater than or equal to 1"),
        ("nodes=10,edges=-5", "greater than or equal to 1"),
        ("nodes=1e3,edges=5", "integer"),
        ("nodes=99999999999,edges=5", "10000000"),
        ("nodes=10000000,edges=5,features=1000", "exceed"),
        ("nodes=10,edges=5,degree=uniform", "did you mean degrees?"),
        ("nodes=10,edges=5,degrees=star", "'uniform', 'powerlaw' or 'clique'"),
        ("nodes=10,edges=5,edges=6", "twice"),
        ("nodes=10,edges=5,", "is not understood"),
        ("nodes=１０,edges=5", "integer"),
    ],
)
def test_impossible_random_graphs_are_refused(rest, told):
    assert told in refused(f"random:{rest}")


# --- rubbish ---------------------------------------------------------------------------------------------------------

# fmt: off
WORDS = ["random:", "nodes=", "edges=", "degrees=", "uniform", "clique", "seed=", ",", ":", "[", "]", "0", "7", "-1",
         "1e9", "planetoid:", "lrgb:", "pyg:", "TUDataset", "Cora", "../", "/", ".npz", ".csv", ".graphml",
         "\n", "\0", " ", "é"]
# fmt: on


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    spec=st.text(max_size=60) | st.lists(st.sampled_from(WORDS), max_size=12).map("".join) | st.integers() | st.none()
)
def test_rubbish_gives_a_graph_or_one_line(spec, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "Planetoid", Offline)
    monkeypatch.setattr(datasets, "LRGBDataset", Offline)
    monkeypatch.setattr(datasets, "TUDataset", Offline)
    try:
        assert_sound(graphs.load(spec, cache=tmp_path))
    except GnnlabError as error:
        assert str(error) and "\n" not in str(error) and len(str(error)) < 600


@pytest.mark.parametrize("spec", ["digitz", "", ".", "x" * 5000, "a\nb", None, 5, HeteroData(), Path("nowhere.npz")])
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


def test_a_batch_without_features_gets_a_profile_in_each_graph():
    triangle = Data(edge_index=torch.tensor(EDGES), num_nodes=3)
    batch = graphs.load(Batch.from_data_list([triangle, triangle]))
    assert batch.x.shape == (6, 5)
    assert [graph.x.shape for graph in batch.to_data_list()] == [(3, 5), (3, 5)]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"edge_index": [[0, 1], [1, 3]]}, "edge 1 (1 -> 3): index out of range; the graph has 3 nodes, 0..2"),
        ({"edge_index": [[0, -1], [1, 0]]}, "edge 1 (-1 -> 0): index negative"),
        ({"edge_index": [[], []]}, "no edges"),
        ({"edge_index": [[0.0], [1.0]]}, "integers"),
        ({"edge_index": [0, 1]}, "shape (2, E)"),
        ({"x": [[1.0], [float("nan")], [1.0]]}, "feature 0 of node 1 is nan"),
        ({"x": [[1.0, 2.0], [1.0, float("inf")], [1.0, 1.0]]}, "feature 1 of node 1 is inf"),
        ({"edge_weight": [1.0, 2.0, float("-inf")]}, "weight of edge 2 is -inf"),
        ({"edge_weight": [1.0]}, "one number an edge"),
    ],
)
def test_a_broken_data_object_is_refused_naming_the_place(fields, told):
    fields = {"x": [[1.0]] * 3, "edge_index": EDGES} | fields
    assert told in refused(Data(**{key: torch.tensor(value) for key, value in fields.items()}))


def test_a_graph_without_edges_or_nodes_is_refused():
    assert "no edges" in refused(Data(x=torch.ones(3, 1)))
    assert "no nodes" in refused(Data())
    assert "no nodes" in refused(Data(x=torch.ones(0, 1), edge_index=torch.zeros(2, 0, dtype=torch.int64)))


# --- describe --------------------------------------------------------------------------------------------------------


def test_describe_counts_loops_duplicates_and_isolated_nodes():
    edge_index = torch.tensor([[0, 0, 1, 2, 2], [1, 1, 0, 2, 1]])
    told = graphs.describe(Data(x=torch.ones(5, 3), edge_index=edge_index))
    assert told == {
        "name": "graph",
        "nodes": 5,
        "edges": 5,
        "features": 3,
        "weighted": False,
        "degree_min": 0,
        "degree_mean": 1.0,
        "degree_max": 3,
        "isolated_nodes": 2,
        "self_loops": 1,
        "duplicate_edges": 1,
        "directed": True,
    }
    json.dumps(told)


# --- data sets of PyG ------------------------------------------------------------------------------------------------


class Offline:
    """A data set whose download begins, and breaks off."""

    def __init__(self, root: str, name: str = ""):
        (Path(root) / "raw").mkdir(parents=True)
        raise OSError("Name or service not known")


class Molecules:
    """A data set of four small graphs with categorical features, as LRGB has them."""

    def __init__(self, root: str, name: str):
        self.graphs = [
            Data(x=torch.full((3 + i, 2), i), edge_index=torch.tensor(EDGES), y=torch.tensor([i])) for i in range(4)
        ]

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, i: int) -> Data:
        return self.graphs[i]


@pytest.mark.parametrize("spec", ["planetoid:Cora", "lrgb:Peptides-func[0:32]", "pyg:TUDataset:MUTAG"])
def test_without_a_network_one_line_says_so_and_nothing_half_done_stays(spec, monkeypatch, tmp_path):
    for name in ("Planetoid", "LRGBDataset", "TUDataset"):
        monkeypatch.setattr(datasets, name, Offline)
    line = refused(spec, cache=tmp_path)
    assert "network" in line and "Name or service not known" in line and "digits" in line
    assert not list(tmp_path.iterdir())


def test_a_folder_that_was_there_before_survives_a_failed_download(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "Planetoid", Offline)
    (tmp_path / "Planetoid-Cora").mkdir()
    refused("planetoid:Cora", cache=tmp_path)
    assert (tmp_path / "Planetoid-Cora").is_dir()


def test_a_data_set_of_many_graphs_gives_its_first_another_or_a_batch(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "LRGBDataset", Molecules)
    nodes = {
        rest: graphs.load(f"lrgb:Peptides-func{rest}", cache=tmp_path).num_nodes
        for rest in ("", "[2]", "[0:3]", "[3:4]")
    }
    assert nodes == {"": 3, "[2]": 5, "[0:3]": 3 + 4 + 5, "[3:4]": 6}
    batch = graphs.load("lrgb:peptides-FUNC[1:3]", cache=tmp_path)
    assert_sound(batch)
    assert isinstance(batch, Batch) and batch.num_graphs == 2 and batch.batch.bincount().tolist() == [4, 5]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("lrgb:Peptides-func[4]", "holds 4 graphs"),
        ("lrgb:Peptides-func[2:2]", "holds 4 graphs"),
        ("lrgb:Peptides-func[-1]", "or lrgb:NAME[0:32]"),
        ("lrgb:Peptide", "Peptides-func"),
        ("planetoid:Coro", "Cora, CiteSeer, PubMed"),
        ("pyg:Planetoyd", "Planetoid"),
        ("pyg:TUDataset", "pyg:TUDataset:NAME"),
        ("pyg:KarateClub:x", "write pyg:KarateClub or"),
        ("pyg:TUDataset:../../x", "no name of a data set"),
        ("pyg:LRGBDataset:a/b", "no data set"),
    ],
)
def test_unknown_data_sets_are_refused(spec, told, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "LRGBDataset", Molecules)
    assert told.lower() in refused(spec, cache=tmp_path).lower()


def test_an_error_inside_pyg_becomes_one_line(monkeypatch, tmp_path):
    class Broken:
        def __init__(self, root: str, name: str):
            raise AssertionError("first\nsecond")

    monkeypatch.setattr(datasets, "TUDataset", Broken)
    assert "AssertionError: first" in refused("pyg:TUDataset:MUTAG", cache=tmp_path)


# --- Cora, when it is there ------------------------------------------------------------------------------------------


@pytest.mark.skipif(not CORA.exists(), reason="cora.npz is not beside the repository")
def test_cora_is_read_as_pyg_reads_it():
    ours, theirs = graphs.load(CORA), pyg_read_npz(str(CORA))
    assert (ours.num_nodes, ours.num_edges, ours.num_features) == (2708, 10556, 1433)
    assert torch.equal(ours.edge_index, theirs.edge_index) and torch.equal(ours.y, theirs.y)
    assert torch.equal(ours.x, theirs.x) and ours.get("edge_weight") is None and ours.name == "cora"
    assert np.isclose(graphs.describe(ours)["degree_mean"], 10556 / 2708)
