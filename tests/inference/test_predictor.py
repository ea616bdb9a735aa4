import copy
import sys

import numpy as np
import pytest
import torch
from edge_states import node, random_state, states, usual_states
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from gnnlab.errors import GnnlabError, Unavailable
from gnnlab.inference.engines import InferenceEngine
from gnnlab.inference.prediction_cache import PredictionCache
from gnnlab.inference.predictor import Decision, Predictor, choose, weights_digest
from gnnlab.workloads.edge_allocator import MODEL_TYPES, load
from gnnlab.workloads.edge_networks import edges, features

FAST = Predictor("hybrid", "cpu")


HYBRID = load("hybrid")


def expected_of(state, model=HYBRID):
    """The decision that the model's own layers give."""
    with torch.no_grad():
        scores = model(torch.from_numpy(features(state)), torch.from_numpy(edges(state))).numpy()
    node = int(scores.argmax())
    share = np.exp(scores.astype(float) - scores.max())
    return Decision(state["nodes"][node]["node_id"], node, scores[node].item(), 1 / share.sum(), scores)


def agrees(got, expected):
    """The same scores to rounding, and the same node unless the two tie within that."""
    within = 1e-5 * max(1.0, np.abs(expected.scores).max())
    assert np.abs(got.scores - expected.scores).max() <= within
    if got.node != expected.node:
        assert abs(expected.scores[got.node] - expected.score) <= 2 * within
    assert got.score == got.scores[got.node] and abs(got.confidence - expected.confidence) < 1e-3


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@settings(max_examples=30)
@given(state=states(most_nodes=12))
def test_decisions_are_those_of_the_model(model_type, state):
    got = Predictor(model_type, "cpu").predict(state, return_scores=True)
    agrees(got, expected_of(state, load(model_type)))
    assert got.node_id == state["nodes"][got.node]["node_id"]


def test_a_predictor_is_a_form_of_a_race():
    state = random_state(5, seed=0)
    assert np.array_equal(FAST(state), FAST.predict(state, return_scores=True).scores) and FAST.row == FAST.engine.row


def test_an_engine_whose_runtime_is_not_installed_is_unavailable(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(Unavailable, match="'onnx' in float32 does not work here"):
        Predictor("hybrid", "cpu", engine="onnx")


def test_the_fingerprint_follows_every_weight():
    model = load("hybrid")
    before = weights_digest(model)
    assert before == weights_digest(load("hybrid")) != weights_digest(load("dqn"))
    with torch.no_grad():
        model.layers[1].lin_l.weight[3, 4] += 1e-3
    assert weights_digest(model) != before


@settings(max_examples=30)
@given(st.lists(states(), max_size=5), st.integers(1, 3))
def test_a_batch_of_networks_of_any_sizes_is_decided_as_one_by_one(many, times):
    many = many * times  # the same state twice and more, too
    for got, state in zip(FAST.predict_batch(many, return_scores=True), many, strict=True):
        agrees(got, expected_of(state))
        assert got.node_id == state["nodes"][got.node]["node_id"]


@settings(max_examples=40)
@given(st.lists(states(most_nodes=4), min_size=1, max_size=6), st.integers(1, 3))
def test_a_cache_changes_no_answer(many, places):
    cached = Predictor("hybrid", "cpu", cache=PredictionCache(places, 3600))
    for asked in (many[:1], many, many[::-1]):
        for got, expected in zip(
            cached.predict_batch(asked, return_scores=True), FAST.predict_batch(asked, return_scores=True), strict=True
        ):
            agrees(got, expected)
    for state in many * 2:
        agrees(cached.predict(state, return_scores=True), FAST.predict(state, return_scores=True))


def test_states_that_print_alike_have_answers_of_their_own():
    cache = PredictionCache(100, 3600)
    predictor = Predictor("hybrid", "cpu", cache=cache)
    state = random_state(5, 0)
    near = copy.deepcopy(state)
    near["nodes"][0]["cpu_util"] = float(np.nextafter(np.float32(state["nodes"][0]["cpu_util"]), np.float32(1)))
    assert f"{near['nodes'][0]['cpu_util']:.6f}" == f"{state['nodes'][0]['cpu_util']:.6f}"
    predictor.predict(state), predictor.predict(near)
    assert (cache.hits, cache.misses) == (0, 2)
    renamed = copy.deepcopy(state)
    for place, named in enumerate(renamed["nodes"]):
        named["node_id"] = f"other_{place}"
    renamed["links"] = [[end.replace("node", "other") for end in pair] for pair in state["links"]]
    assert predictor.predict(renamed).node_id.startswith("other_") and cache.hits == 1


def test_models_and_precisions_share_a_cache_without_sharing_answers():
    cache, state = PredictionCache(100, 3600), random_state(5, 0)
    found = [
        Predictor(model_type, "cpu", precision, engine, cache=cache).predict(state).score
        for model_type, precision, engine in (
            ("dqn", "float32", "fast"),
            ("ppo", "float32", "fast"),
            ("dqn", "int8", "eager"),
        )
    ]
    assert cache.hits == 0 and len(set(found)) == 3


def test_only_what_the_cache_lacks_is_computed():
    asked = []
    predictor = Predictor("hybrid", "cpu", cache=PredictionCache(100, 3600))
    run = predictor.engine.run
    predictor.engine = InferenceEngine("fast", "float32", lambda n: asked.append(len(n)) or run(n))
    many = usual_states(4)
    predictor.predict_batch(many[:2])
    predictor.predict_batch(many)
    predictor.predict_batch(many)
    assert asked == [2, 2]


@settings(max_examples=25)
@given(st.lists(states(most_nodes=4), min_size=1, max_size=4), st.data())
def test_a_bad_state_in_a_batch_fails_alone(many, data):
    bad = data.draw(st.integers(0, len(many) - 1))
    spoiled = {"nodes": [node("x", cpu_util=2.0)], "links": []}
    found = FAST.predict_batch([*many[:bad], spoiled, *many[bad:]])
    assert isinstance(found[bad], GnnlabError) and "'x': Expected `float` <= 1.0" in str(found[bad])
    assert [d.node_id for d in found if isinstance(d, Decision)] == [d.node_id for d in FAST.predict_batch(many)]
    assert all(isinstance(found, GnnlabError) for found in FAST.predict_batch([spoiled, 3]))
    assert FAST.predict_batch([]) == []


@pytest.mark.parametrize(("name", "most"), [("NETWORKS_A_PASS", 3), ("NODES_A_PASS", 30), ("NODES_A_PASS", 5)])
def test_more_than_a_pass_holds_keeps_its_order(name, most, monkeypatch):
    monkeypatch.setattr(f"gnnlab.inference.predictor.{name}", most)
    many = usual_states(8)
    for got, state in zip(FAST.predict_batch(many, return_scores=True), many, strict=True):
        agrees(got, expected_of(state))


def test_scores_that_are_not_numbers_are_no_decision():
    broken = Predictor("dqn", "cpu")
    broken.engine = InferenceEngine("fast", "float32", lambda n: np.full(len(n.x), np.nan))
    with pytest.raises(GnnlabError, match="scores that are not numbers"):
        broken.predict(random_state(3, 0))


def test_the_device_is_chosen_with_a_reason(monkeypatch):
    device, why = choose("auto")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    device, why = choose("auto")
    assert device.type == "cpu" and "sees no CUDA and no MPS" in why
    assert choose("cpu") == (torch.device("cpu"), "cpu, as asked for")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose("auto")[0].type == "mps" and "sees no CUDA" in choose("auto")[1]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose("auto")[1] == "cuda: the first here of CUDA, MPS, CPU"


@pytest.mark.parametrize("device", ["tpu", "cuda", "cuda:99", "cuda:x", "mps", "cpu:1", "", None])
def test_a_device_that_is_not_here_is_refused_in_one_line(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda:99")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with refused(r"is needed|is not here"):
        choose(device)


def test_an_unknown_model_is_named():
    with pytest.raises(GnnlabError, match="one of dqn, ppo, hybrid"):
        Predictor("a2c", "cpu")
