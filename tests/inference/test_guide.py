"""The guide's script answers what its own benchmark asks."""

import numpy as np
import pytest
import torch
from edge_states import S2_STATE, random_state

from gnnlab.inference.predictor import Predictor, guide_decide
from gnnlab.workloads.edge_allocator import MODEL_TYPES, load

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
    states, model = [*STATES, S2_STATE], load(model_type)
    expected = Predictor(model_type, "cpu").predict_batch(states, return_scores=True)
    for state, other in zip(states, expected, strict=True):
        own = guide_decide(model, state, return_scores=True)
        np.testing.assert_allclose(own.scores, other.scores, rtol=1e-5, atol=1e-5)
        assert own.score == own.scores[own.node] == own.scores.max()
        assert own.confidence == pytest.approx(other.confidence, rel=1e-4)
