"""The guide's script answers what its own benchmark asks."""

import numpy as np
import pytest
import torch
from edge_states import S2_STATE, random_state

from gnnlab.errors import GnnlabError
from gnnlab.inference.prediction_cache import PredictionCache
from gnnlab.inference.predictor import GuidePredictor, Predictor, guide_decide
from gnnlab.workloads.edge_allocator import MODEL_TYPES

STATES = [random_state(nodes, nodes) for nodes in (1, 4, 7)]


def test_it_has_gradients_on_and_chooses_the_best():
    seen = []

    def model(x, edge_index):
        seen.append(torch.is_grad_enabled())
        assert edge_index.shape[1] == 2 * len(STATES[2]["links"])
        return x[:, 0]

    decision = guide_decide(model, STATES[2])
    assert seen == [True] and decision.score == max(np.float32(node["cpu_util"]) for node in STATES[2]["nodes"])


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_it_decides_as_the_predictor_does_links_or_none(model_type):
    states = [*STATES, S2_STATE]
    expected = Predictor(model_type, "cpu").predict_batch(states, return_scores=True)
    for own, other in zip(GuidePredictor(model_type).predict_batch(states, return_scores=True), expected, strict=True):
        np.testing.assert_allclose(own.scores, other.scores, rtol=1e-5, atol=1e-5)
        assert own.score == own.scores[own.node] == own.scores.max()


def test_what_is_no_state_has_an_error_in_its_place():
    first, error = GuidePredictor("dqn").predict_batch([STATES[0], {"nodes": []}])
    assert first.node_id == "node_0" and isinstance(error, GnnlabError)


def test_with_a_cache_what_is_known_by_its_numbers_is_not_computed_again():
    cache = PredictionCache(10, 60)
    predictor, plain = GuidePredictor("hybrid", cache), GuidePredictor("hybrid")
    renamed = {**STATES[1], "nodes": [{**node, "node_id": f"new {node['node_id']}"} for node in STATES[1]["nodes"]]}
    renamed["links"] = [[f"new {a}", f"new {b}"] for a, b in STATES[1]["links"]]
    other = {**STATES[1], "nodes": [{**node, "cpu_util": 0.123} for node in STATES[1]["nodes"]]}
    for state in (STATES[1], STATES[1], renamed, other):
        own, right = (which.predict(state, return_scores=True) for which in (predictor, plain))
        assert own[:3] == right[:3]
        np.testing.assert_array_equal(own.scores, right.scores)
    assert (cache.hits, cache.misses) == (2, 2)
