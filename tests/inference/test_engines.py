import numpy as np
import onnxruntime
import pytest
import torch
from edge_states import node, random_state, states, usual_states
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from gnnlab.errors import GnnlabError
from gnnlab.inference import engines
from gnnlab.inference.flat_allocator import DenseAllocator, FlatAllocator
from gnnlab.inference.network_arrays import NetworkArrays
from gnnlab.workloads.edge_allocator import MODEL_TYPES, load

pytestmark = pytest.mark.usefixtures("one_registry")
EXACT = ["fast", "onnx", "openvino"]
ALONE = {"nodes": [node()], "links": []}
LAST_IS_ISOLATED = {"nodes": [node("a"), node("b"), node("c")], "links": [["a", "b"]]}


def reference(model, networks):
    with torch.no_grad():
        return model(torch.from_numpy(networks.x), torch.from_numpy(networks.edge_index)).numpy()


def close(got, expected):
    assert np.abs(got - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max())


@pytest.fixture(scope="session")
def made():
    model = load("hybrid")
    return model, {name: engines.make(name, model) for name in EXACT}


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=25)
@given(many=st.lists(states(), min_size=1, max_size=3))
def test_an_exact_engine_gives_the_scores_of_the_model(made, name, many):
    model, found = made
    networks = NetworkArrays.of(many)
    close(found[name](networks), reference(model, networks))


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("many", [[ALONE], [ALONE, ALONE], [LAST_IS_ISOLATED], [LAST_IS_ISOLATED, ALONE]])
def test_networks_without_links_and_of_one_node_are_scored(made, name, many):
    model, found = made
    networks = NetworkArrays.of(many)
    close(found[name](networks), reference(model, networks))


@pytest.mark.parametrize("name", EXACT)
def test_an_engine_takes_the_place_of_the_layers_of_a_model(made, name):
    model, found = made
    networks = NetworkArrays.of([random_state(9, 3)])
    x, edge_index = torch.from_numpy(networks.x), torch.from_numpy(networks.edge_index).flip(1)  # in any order
    close(found[name].layers(x, edge_index).numpy(), reference(model, networks))
    assert found[name].row["runtime"].split()[0] == {"fast": "numpy"}.get(name, found[name].runtime.split()[0])
    assert found[name].row.get("threads") == (1 if name == "onnx" else None)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("sums", ["bag", "index_add"])
def test_the_flat_form_computes_what_the_model_does(model_type, sums):
    model, networks = load(model_type), NetworkArrays.of([*usual_states(3), ALONE])
    with torch.inference_mode():
        close(FlatAllocator(model, sums)(*networks.tensors).numpy(), reference(model, networks))
    close(
        DenseAllocator(FlatAllocator(model, sums))(networks.x, networks.topology.adjacency), reference(model, networks)
    )
    with pytest.raises(GnnlabError, match="bag, index_add"):
        FlatAllocator(model, "scatter")


def test_a_model_without_a_graph_goes_through_openvino_too():
    model, networks = load("dqn"), NetworkArrays.of([*usual_states(2), ALONE])
    close(engines.make("openvino", model)(networks), reference(model, networks))


@pytest.mark.parametrize("nodes", [63, 64, 65, 90])
def test_few_and_many_nodes_have_the_scores_of_the_model(made, nodes):
    model, found = made
    networks = NetworkArrays.of([random_state(nodes, 0)])
    close(found["fast"](networks), reference(model, networks))


def test_onnx_runtime_has_one_thread_however_many_torch_has(monkeypatch):
    """On two its ScatterND loses sums now and then, which no test could wait for."""
    session, given = onnxruntime.InferenceSession, []

    def recorded(model, options, **others):
        given.append(options)
        return session(model, options, **others)

    monkeypatch.setattr(onnxruntime, "InferenceSession", recorded)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    engines.make("onnx", load("hybrid"))
    assert [options.intra_op_num_threads for options in given] == [1]


def test_a_change_of_the_model_afterwards_does_not_reach_an_engine(made):
    model = load("hybrid")
    engine, networks = engines.make("fast", model), NetworkArrays.of(usual_states(1))
    before = engine(networks)
    with torch.no_grad():
        model.value.bias.add_(1)
    assert np.array_equal(engine(networks), before)


def test_int8_stays_near_and_mostly_decides_alike():
    model, networks = load("hybrid"), NetworkArrays.of(usual_states(40))
    got, expected = engines.make("eager", model, precision="int8")(networks), reference(model, networks)
    error = np.abs(got - expected).max() / np.abs(expected).max()
    assert 1e-6 < error < 0.5
    assert np.equal(networks.decide(got), networks.decide(expected)).mean() > 0.7


def test_dynamic_quantization_reaches_the_layers_of_pyg_and_leaves_the_model():
    model = load("hybrid")
    quantized = engines.int8_weights(model)
    in_int8 = [layer for layer in quantized.modules() if type(layer).__module__.startswith("torch.ao.nn.quantized.dyn")]
    assert len(in_int8) == 8 and not list(quantized.parameters())
    assert not any("quantized" in type(layer).__module__ for layer in model.modules())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "tensorrt"}, "one of fast float32, onnx float32, openvino float32, eager int8"),
        ({"name": "fast", "precision": "int8"}, "engine 'fast' in 'int8'"),
        ({"name": "onnx", "device": "cuda"}, "runs on the CPU alone"),
        ({"name": "eager", "precision": "int8", "device": "cuda"}, "runs on the CPU alone"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(arguments, message):
    with refused(message):
        engines.make(model=load("dqn"), **arguments)


def test_an_engine_that_does_not_work_here_says_why(monkeypatch):
    def broken(*_):
        raise RuntimeError("no compiler\nlong trace")

    monkeypatch.setitem(engines.BUILDERS, ("fast", "float32"), broken)
    with pytest.raises(GnnlabError, match=r"does not work here: RuntimeError: no compiler$"):
        engines.make("fast", load("dqn"))
