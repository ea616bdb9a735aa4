import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from edge_states import node, random_state, states, usual_states
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from refusals import refused

from gnnlab.errors import GnnlabError
from gnnlab.inference.engines import InferenceEngine
from gnnlab.inference.predictor import Decision, PredictionCache, Predictor, choose, key
from gnnlab.workloads.edge_allocator import MODEL_TYPES, load, weights
from gnnlab.workloads.edge_networks import edges, features

FAST = Predictor("hybrid", "cpu")
HYBRID = load("hybrid")


def expected_of(state, model=HYBRID):
    """The decision that the model's own layers give."""
    with torch.no_grad():
        scores = model(torch.from_numpy(features(state)), torch.from_numpy(edges(state))).numpy()
    row = int(scores.argmax())
    share = np.exp(scores.astype(float) - scores.max())
    return Decision(state["nodes"][row]["node_id"], row, scores[row].item(), 1 / share.sum(), scores)


def agree(decisions, many, expected=expected_of):
    """The same scores to rounding, and the same node unless the two tie within that."""
    for decision, state in zip(decisions, many, strict=True):
        other = expected(state)
        within = 1e-5 * max(1.0, np.abs(other.scores).max())
        assert np.abs(decision.scores - other.scores).max() <= within
        assert decision.node == other.node or abs(other.scores[decision.node] - other.score) <= 2 * within
        assert decision.score == decision.scores[decision.node]
        assert abs(decision.confidence - other.confidence) < 1e-3
        assert decision.node_id == state["nodes"][decision.node]["node_id"]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@settings(max_examples=30)
@given(state=states(most_nodes=12))
def test_decisions_are_those_of_the_model(model_type, state):
    model, predictor = load(model_type), Predictor(model_type, "cpu")
    agree([predictor.predict(state, return_scores=True)], [state], lambda s: expected_of(s, model))
    assert np.array_equal(
        predictor(state), predictor.predict(state, return_scores=True).scores
    )  # as a variant of a race


@settings(max_examples=30)
@given(st.lists(states(), max_size=5), st.integers(1, 3))
def test_a_batch_of_networks_of_any_sizes_is_decided_as_one_by_one(many, times):
    many = many * times  # the same state twice and more, too
    agree(FAST.predict_batch(many, return_scores=True), many)


@settings(max_examples=40)
@given(st.lists(states(most_nodes=4), min_size=1, max_size=6), st.integers(1, 3))
def test_a_cache_changes_no_answer(many, places):
    cached = Predictor("hybrid", "cpu", cache=PredictionCache(places, 3600))
    for asked in (many[:1], many, many[::-1], *([state] for state in many * 2)):
        agree(cached.predict_batch(asked, return_scores=True), asked)


def test_states_that_print_alike_have_answers_of_their_own():
    predictor = Predictor("hybrid", "cpu", cache=PredictionCache(100, 3600))
    state = random_state(5, 0)
    near = copy.deepcopy(state)
    near["nodes"][0]["cpu_util"] = float(np.nextafter(np.float32(state["nodes"][0]["cpu_util"]), np.float32(1)))
    assert f"{near['nodes'][0]['cpu_util']:.6f}" == f"{state['nodes'][0]['cpu_util']:.6f}"
    predictor.predict(state), predictor.predict(near)
    assert (predictor.hits, predictor.misses) == (0, 2)
    renamed = copy.deepcopy(state)
    for place, named in enumerate(renamed["nodes"]):
        named["node_id"] = f"other_{place}"
    renamed["links"] = [[end.replace("node", "other") for end in pair] for pair in state["links"]]
    assert predictor.predict(renamed).node_id.startswith("other_") and predictor.hits == 1


def test_models_weights_and_engines_share_a_cache_without_sharing_answers():
    cache, state, changed = PredictionCache(100, 3600), random_state(5, 0), weights("dqn")
    changed["layers.1.weight"][3, 4] += 1e-3
    given = [("dqn", "fast", None), ("ppo", "fast", None), ("dqn", "int8", None), ("dqn", "fast", changed)]
    others = [Predictor(kind, "cpu", engine, cache=cache, weights=own) for kind, engine, own in given]
    again = Predictor("dqn", "cpu", cache=cache)
    for predictor in (*others, again):
        predictor.predict(state)
    assert [predictor.hits for predictor in others] == [0] * 4 and again.hits == 1


def test_only_what_the_cache_lacks_is_computed():
    asked = []
    predictor = Predictor("hybrid", "cpu", cache=PredictionCache(100, 3600))
    run = predictor.engine.run
    predictor.engine.run = lambda networks: asked.append(len(networks.starts) - 1) or run(networks)
    many = usual_states(4)
    for some in (many[:2], many, many):
        predictor.predict_batch(some)
    assert asked == [2, 2]


@settings(max_examples=25)
@given(st.lists(states(most_nodes=4), min_size=1, max_size=4), st.data())
def test_a_bad_state_in_a_batch_fails_alone(many, data):
    bad = data.draw(st.integers(0, len(many) - 1))
    spoiled = {"nodes": [node("x", cpu_util=2.0)], "links": []}
    answers = FAST.predict_batch([*many[:bad], spoiled, *many[bad:]])
    error = answers.pop(bad)
    assert isinstance(error, GnnlabError) and "'x': Expected `float` <= 1.0" in str(error)
    assert [decision.node_id for decision in answers] == [decision.node_id for decision in FAST.predict_batch(many)]
    assert all(isinstance(answer, GnnlabError) for answer in FAST.predict_batch([spoiled, 3]))


@pytest.mark.parametrize(("name", "most"), [("NETWORKS_A_PASS", 3), ("NODES_A_PASS", 30)])
def test_more_than_a_pass_holds_keeps_its_order(name, most, monkeypatch):
    monkeypatch.setattr(f"gnnlab.inference.predictor.{name}", most)
    agree(FAST.predict_batch(usual_states(8), return_scores=True), usual_states(8))


def test_scores_that_are_not_numbers_are_no_decision():
    broken = Predictor("dqn", "cpu")
    broken.engine = InferenceEngine(lambda networks: np.full(len(networks.x), np.nan), {})
    with pytest.raises(GnnlabError, match="scores that are not numbers"):
        broken.predict(random_state(3, 0))


def test_the_device_is_chosen_with_a_reason(monkeypatch):
    for seen, chosen in (("", "cpu"), ("mps", "mps"), ("cuda mps", "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda seen=seen: "cuda" in seen)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda seen=seen: "mps" in seen)
        device, why = choose("auto")
        assert device.type == chosen and why.startswith(f"{chosen}: the first that torch")
    assert choose("cpu") == (torch.device("cpu"), "cpu, as asked for")


@pytest.mark.parametrize("device", ["tpu", "cuda", "cuda:99", "mps", "cpu:1"])
def test_a_device_that_is_not_here_is_refused_in_one_line(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda:99")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with refused(r"is needed|is not here"):
        choose(device)


# ---- the cache -------------------------------------------------------------------------------------------------------

EDGES = np.array([[0], [0]])


def small_arrays():
    shapes = hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=3)
    return hnp.arrays(st.sampled_from([np.float32, np.float64, np.int64]), shapes, elements=st.integers(0, 2))


@settings(max_examples=100, deadline=None)
@given(*[small_arrays()] * 4, *[st.sampled_from(["", "a", "ab"])] * 2)
def test_keys_are_equal_only_where_type_shape_values_and_model_are(x, other_x, e, other_e, model, other_model):
    def identity(a):
        return a.dtype, a.shape, a.tolist()

    same = (identity(x), identity(e), model) == (identity(other_x), identity(other_e), other_model)
    assert (key(x, e, model) == key(other_x, other_e, other_model)) == same


def test_the_layout_in_memory_does_not_matter_but_the_order_of_links_does():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert key(np.asfortranarray(x), EDGES, "m") == key(x, EDGES, "m") == key(np.repeat(x, 2, axis=0)[::2], EDGES, "m")
    links = np.array([[0, 1], [1, 0]])
    assert key(x, links, "m") != key(x, links[:, ::-1], "m")


def test_kept_scores_are_copies_that_nobody_can_change():
    cache, scores = PredictionCache(2, 10), np.array([1.0, 2.0])
    cache.put_many({b"a": scores})
    scores[0] = 99
    cached, missing = cache.get_many([b"a", b"b"])
    assert cached.tolist() == [1.0, 2.0] and missing is None
    with pytest.raises(ValueError, match="read-only"):
        cached[0] = 5


def test_many_threads_get_their_own_answers_within_the_size():
    cache, wrong = PredictionCache(50, 10), []

    def work(seed):
        for number in np.random.default_rng(seed).integers(0, 100, size=500).tolist():
            (cached,) = cache.get_many([b"%d" % number])
            if cached is None:
                cache.put_many({b"%d" % number: np.array(number)})
            elif cached != number:
                wrong.append(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert not wrong
    assert sum(scores is not None for scores in cache.get_many([b"%d" % number for number in range(100)])) == 50
