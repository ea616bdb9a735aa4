import pytest

from gnnlab.workloads import sets
from gnnlab.workloads.errors import ModelError

SIZES = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "ffn_dim": 32}


def test_every_model_is_built_on_every_graph():
    built = sets.build_all(["symptom_gat", "graph_transformer"], ["symptoms", "karate"], **SIZES)
    assert [w.label for w in built] == [
        "symptom_gat on symptoms",
        "symptom_gat on karate",
        "graph_transformer on symptoms",
        "graph_transformer on karate",
    ]
    assert built[2].model.hidden_dim == 16


def test_a_plan_builds_what_each_value_asks_for():
    plan = sets.scaling_plan(
        ["graph_transformer"],
        nodes=[20, 40, 60],
        edges=[80, 160],
        layers=[1, 2],
        encodings=["none", "lap"],
        degrees=["uniform", "clique"],
        **SIZES,
    )
    assert list(plan) == [("graph_transformer", p) for p in ("nodes", "edges", "degrees", "layers", "encoding")]
    built = {parameter: [build(v) for v in values] for (_, parameter), (values, build) in plan.items()}
    assert [(data.num_nodes, data.num_edges) for _, data in built["nodes"]] == [(20, 100), (40, 200), (60, 300)]
    assert [(data.num_nodes, data.num_edges) for _, data in built["edges"]] == [(40, 80), (40, 160)]
    assert [len(model.layers) for model, _ in built["layers"]] == [1, 2]
    assert [model.pe_type for model, _ in built["encoding"]] == ["none", "lap"]


def test_layers_and_encodings_are_left_out_for_other_models_and_empty_lists_altogether():
    plan = sets.scaling_plan(["symptom_gat"], nodes=[10], edges=[], layers=[1], encodings=["lap"], degrees=[], **SIZES)
    assert list(plan) == [("symptom_gat", "nodes")]


def test_an_unknown_model_is_refused():
    with pytest.raises(ModelError, match="symptom_gat"):
        sets.build_all(["symptom_gate"], ["karate"])
