import sys

import numpy as np
import onnxruntime
import pytest
import torch
from edge_states import node, random_state, states, usual_states
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from torch import nn

from gnnlab.errors import Unavailable
from gnnlab.inference import engines
from gnnlab.inference.flat_allocator import DenseAllocator, FlatAllocator
from gnnlab.inference.states import NetworkArrays
from gnnlab.lab import claims, table
from gnnlab.workloads.edge_allocator import MODEL_TYPES, load, weights

pytestmark = pytest.mark.usefixtures("one_registry")
EXACT = ["fast", "onnx", "openvino"]
MODEL, WEIGHTS = load("hybrid"), weights("hybrid")
ALONE = {"nodes": [node()], "links": []}
LAST_IS_ISOLATED = {"nodes": [node("a"), node("b"), node("c")], "links": [["a", "b"]]}


def reference(networks, model=MODEL):
    with torch.no_grad():
        return model(torch.from_numpy(networks.x), torch.from_numpy(networks.edge_index)).numpy()


def close(scores, expected):
    assert np.abs(scores - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max())


@pytest.fixture(scope="session")
def exact():
    return {name: engines.make(name, WEIGHTS) for name in EXACT}


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=25)
@given(many=st.lists(states(), min_size=1, max_size=3))
def test_an_exact_engine_gives_the_scores_of_the_model(exact, name, many):
    networks = NetworkArrays.of(many)
    close(exact[name](networks), reference(networks))


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(
    "many",
    [
        *([ALONE], [LAST_IS_ISOLATED], [LAST_IS_ISOLATED, ALONE]),
        *([random_state(nodes, 0)] for nodes in (64, 65)),  # as dense and as flat
    ],
)
def test_networks_without_links_of_one_node_and_of_many_are_scored(exact, name, many):
    networks = NetworkArrays.of(many)
    close(exact[name](networks), reference(networks))


@pytest.mark.parametrize("name", EXACT)
def test_an_engine_takes_the_place_of_the_layers_of_a_model(exact, name):
    networks = NetworkArrays.of([random_state(9, 3)])
    x, edge_index = torch.from_numpy(networks.x), torch.from_numpy(networks.edge_index).flip(1)  # in any order
    close(exact[name].layers(x, edge_index).numpy(), reference(networks))
    row, runtime = exact[name].row, {"fast": "numpy", "onnx": "onnxruntime"}.get(name, name)
    assert row["runtime"].startswith(runtime) and row["precision"] == "float32"
    assert row.get("threads") == (1 if name == "onnx" else None)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_flat_variants_compute_what_the_model_does(model_type):
    model, networks = load(model_type), NetworkArrays.of([*usual_states(3), ALONE])
    flat, expected = FlatAllocator(weights(model_type)), reference(networks, model)
    with torch.inference_mode():
        close(flat(*networks.tensors).numpy(), expected)
        close(flat(*networks.tensors[:3]).numpy(), expected)
    close(DenseAllocator(flat)(networks.x, networks.topology.adjacency), expected)


def test_a_model_without_a_graph_goes_through_openvino_too():
    model, networks = load("dqn"), NetworkArrays.of([*usual_states(2), ALONE])
    close(engines.make("openvino", weights("dqn"))(networks), reference(networks, model))


def test_onnx_runtime_has_one_thread_however_many_torch_has(monkeypatch):
    """On two its ScatterND loses sums now and then, which no test could wait for."""
    session, given = onnxruntime.InferenceSession, []

    def recorded(model, options, **others):
        given.append(options)
        return session(model, options, **others)

    monkeypatch.setattr(onnxruntime, "InferenceSession", recorded)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    engines.make("onnx", WEIGHTS)
    assert [options.intra_op_num_threads for options in given] == [1]


def test_a_change_of_the_model_afterwards_does_not_reach_an_engine():
    own = weights("hybrid")
    engine, networks = engines.make("fast", own), NetworkArrays.of(usual_states(1))
    before = engine(networks)
    own["value.bias"].add_(1)
    assert np.array_equal(engine(networks), before)


def test_int8_reaches_the_layers_of_pyg_stays_near_and_mostly_decides_alike():
    assert sum(isinstance(layer, nn.Linear) for layer in engines.with_torch_linears(MODEL).modules()) == 8
    networks = NetworkArrays.of(usual_states(40))
    scores, expected = engines.make("int8", WEIGHTS)(networks), reference(networks)
    assert 1e-6 < np.abs(scores - expected).max() / np.abs(expected).max() < 0.5
    assert np.equal(networks.decide(scores), networks.decide(expected)).mean() > 0.7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "tensorrt"}, "one of fast, onnx, openvino, int8 is needed"),
        ({"name": "onnx", "device": "cuda"}, "runs on the CPU alone"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(arguments, message):
    with refused(message):
        engines.make(weights=WEIGHTS, **arguments)


def test_an_engine_that_does_not_work_here_says_why(monkeypatch):
    def broken(*_):
        raise RuntimeError("no compiler\nlong trace")

    monkeypatch.setitem(engines.BUILDERS, "fast", broken)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for name, why in (("fast", "RuntimeError: no compiler$"), ("onnx", "ModuleNotFoundError: import of onnxruntime")):
        with pytest.raises(Unavailable, match=f"'{name}' does not work here: {why}"):
            engines.make(name, WEIGHTS)


def test_a_variant_on_a_gpu_is_judged_over_the_original_on_the_cpu():
    shared = {"study": "replaced_model", "keys": {"nodes": 10}, "unit": "ms", "better": "lower", "origin": "measured",
              "statistic": "median", "interval": "95 % confidence", "n": 12, "runtime": "torch", "precision": "float32",
              "threads": 1}  # fmt: skip
    rng, rows = np.random.default_rng(0), table.Table()
    for variant, device, ms in (("original", "CPU x", 10.0), ("A/A", "CPU x", 10.0), ("cuda", "CUDA y", 2.0)):
        over = {} if variant == "original" else {"baseline": "original", "ratio": 10.0 / ms}
        samples = ms * rng.uniform(0.99, 1.01, 12)
        row = table.row(**shared, **over, variant=variant, device=device, value=ms, low=0.9 * ms, high=1.1 * ms)
        rows.put(row, samples)
    found = claims.evaluate(claims.catalogue()["infer.gpu"], rows)
    assert found.estimate.value == pytest.approx(5, rel=0.02) and found.rows[0].device == "CUDA y"
