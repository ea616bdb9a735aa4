"""The allocators treat nodes alike, and decide far better than simple rules."""

from functools import partial

import numpy as np
import pytest
import torch
from edge_states import random_state
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnlab.errors import GnnlabError
from gnnlab.workloads.edge_allocator import MODEL_TYPES, EdgeAllocator, load, regret
from gnnlab.workloads.edge_networks import costs, edges, features, random_states

MODELS = {model_type: load(model_type) for model_type in MODEL_TYPES}


def arrays(state):
    return torch.from_numpy(features(state)), torch.from_numpy(edges(state))


@torch.inference_mode()
def scores_of(model_type, x, edge_index):
    return MODELS[model_type](x, edge_index)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_permuting_nodes_permutes_scores(model_type, nodes, seed, random):
    x, edge_index = arrays(random_state(nodes, seed))
    order = list(range(nodes))
    random.shuffle(order)
    place = torch.tensor(order).argsort()
    renumbered, plain = scores_of(model_type, x[order], place[edge_index]), scores_of(model_type, x, edge_index)
    torch.testing.assert_close(renumbered, plain[order], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_odd_networks_have_finite_scores_and_only_the_hybrid_sees_the_links(model_type):
    x, edge_index = arrays(random_state(30, 0))
    alone = scores_of(model_type, x, edge_index[:, :0])
    assert torch.equal(scores_of(model_type, x, edge_index), alone) == (model_type != "hybrid")
    extreme = torch.tensor([[1.0, 1.0, 1e6, 1e6, 1e6, 1e6, 2.0], [0.0] * 7]), torch.tensor([[0, 1], [1, 0]])
    for part in ((x[:1], edge_index[:, :0]), extreme):
        scores = scores_of(model_type, *part)
        assert scores.shape == part[0].shape[:1] and bool(scores.isfinite().all())


def test_every_model_beats_the_simple_rules_and_the_hybrid_also_the_best_without_links():
    held_out = [arrays(state) for state in random_states(200, (5, 200), seed=1_000_003)]

    def regrets_of(rule):  # in ms, of `(x, edge_index) -> scores`
        return np.array([regret(*part, rule(*part).argmax())[0] for part in held_out])

    random = torch.Generator().manual_seed(0)
    drawn = regrets_of(lambda x, edge_index: torch.rand(len(x), generator=random))
    least_busy = regrets_of(lambda x, edge_index: -x[:, 0])
    without_links = regrets_of(lambda x, edge_index: -costs(x, edge_index[:, :0]))
    regrets = {model_type: regrets_of(partial(scores_of, model_type)) for model_type in MODEL_TYPES}
    for own in regrets.values():
        assert own.mean() * 5 < least_busy.mean() < drawn.mean() and own.mean() < without_links.mean()
    assert regrets["hybrid"].mean() * 3 < without_links.mean()
    assert (regrets["hybrid"] == 0).mean() > 0.7 > (without_links == 0).mean()


def test_regret_is_zero_at_the_optimum_and_what_the_others_cost_more():
    state = random_state(20, 1)
    x, edge_index = features(state), edges(state)
    cost = costs(x, edge_index)
    assert regret(x, edge_index, cost.argmin()) == 0
    assert regret(x, edge_index, 7) == pytest.approx(cost[7] - cost.min())


def test_an_unknown_type_is_refused_with_those_there_are():
    for call in (EdgeAllocator, load):
        with pytest.raises(GnnlabError, match="model_type 'a2c': one of dqn, ppo, hybrid is needed"):
            call("a2c")
