"""The recipe gives the shipped weights again, and each way of learning learns."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch_geometric.data import Batch, Data

from gnnlab.errors import GnnlabError
from gnnlab.workloads.edge_allocator import MODEL_TYPES, decide, load, recipe
from gnnlab.workloads.edge_networks import costs
from gnnlab.workloads.edge_training import (
    RECIPES,
    Placements,
    Recipe,
    batches,
    conditions,
    drawn,
    log_policy,
    policy_loss,
    train,
    write,
)

SHORT = Recipe(steps=15, batches=3, networks=8, nodes=(1, 12))
DECISIONS, REGRET_MS = 0.9, 1.0  # on another processor or torch: share of equal decisions, change of the mean regret


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("model_type", ["dqn", *(pytest.param(t, marks=pytest.mark.slow) for t in ("ppo", "hybrid"))])
def test_the_recipe_gives_the_shipped_weights_again(model_type):
    written = recipe(model_type)
    assert json.loads(json.dumps(asdict(RECIPES[model_type]))) == written["recipe"]
    model, record = train(model_type, written["seed"])
    shipped = load(model_type)
    if record["made_with"] == written["made_with"]:
        assert same(weights(model), weights(shipped))
    part = batches(1, 200, (5, 60), seed=4)[0]
    with torch.inference_mode():
        chosen = [decide(m(part.x, part.edge_index), part.batch) for m in (model, shipped)]
    assert (chosen[0] == chosen[1]).float().mean() >= DECISIONS
    now, then = (r["results"][model_type]["mean_regret_ms"] for r in (record, written))
    assert now == pytest.approx(then, abs=REGRET_MS)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_same_seed_gives_the_same_bits_and_leaves_torch_as_it_was(model_type):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    first = train(model_type, 3, SHORT)[0]
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    assert same(weights(first), weights(train(model_type, 3, SHORT)[0]))
    assert not same(weights(first), weights(train(model_type, 4, SHORT)[0]))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_short_training_improves_on_chance(model_type):
    recipe = Recipe(steps=60, batches=4, networks=16, nodes=(5, 20))
    found = train(model_type, 0, recipe)[1]["results"]
    assert found[model_type]["mean_regret_ms"] * 2 < found["random"]["mean_regret_ms"]


def of_two_nodes(*reward):
    nodes = Data(torch.zeros(2, 7), torch.empty(2, 0, dtype=torch.int64), reward=torch.tensor(reward))
    return Batch.from_data_list([nodes])


def one_batch():
    return batches(1, 6, (1, 9), seed=0)[0]


def test_a_batch_holds_its_networks_apart():
    part = one_batch()
    assert part.num_graphs == int(part.batch[-1]) + 1 == 6
    assert torch.equal(part.batch[part.edge_index[0]], part.batch[part.edge_index[1]])
    cost = costs(part.x.numpy(), part.edge_index.numpy())
    np.testing.assert_allclose(part.reward.numpy(), -np.log(cost / 100), rtol=1e-5, atol=1e-5)


def test_the_policy_is_a_softmax_within_each_network():
    part = one_batch()
    scores = 50 * torch.randn(len(part.x))
    for network in range(part.num_graphs):
        inside = part.batch == network
        torch.testing.assert_close(log_policy(scores, part)[inside], scores[inside].log_softmax(0))


def test_placements_are_drawn_as_often_as_the_policy_says():
    part = one_batch()
    policy = log_policy(torch.randn(len(part.x)), part)
    placed = drawn(policy, part, 4000)
    assert torch.equal(part.batch[placed.rows], torch.arange(part.num_graphs).expand(4000, -1))
    share = torch.bincount(placed.rows.flatten(), minlength=len(part.x)) / 4000
    torch.testing.assert_close(share, policy.exp(), rtol=0, atol=0.05)
    assert torch.equal(placed.reward, part.reward[placed.rows])


@pytest.mark.parametrize(
    ("good", "bad", "slopes"),
    [(1.0, 1.0, 2.0), (1.5, 1.0, 1.0), (0.5, 1.0, 1.5), (1.0, 0.5, 1.0), (1.0, 1.5, 2.5)],
)
def test_the_policy_gradient_is_clipped_where_a_ratio_has_gone_far_enough_and_only_there(good, bad, slopes):
    two = of_two_nodes(1.0, 0.0)
    scores = torch.zeros(2, requires_grad=True)
    before = torch.tensor([[0.5 / good], [0.5 / bad]]).log()
    placed = Placements(torch.tensor([[0], [1]]), before, two.reward.view(2, 1))
    loss = policy_loss(scores, two, placed, torch.zeros(1), replace(SHORT, entropy=0.0))
    gradient = torch.autograd.grad(loss, scores)[0]
    # advantages are +-0.5 / std = +-0.7071, the slope of a ratio is ratio * 0.5, the loss a mean of two
    slope = 0.7071 * 0.5 / 2 * slopes
    torch.testing.assert_close(gradient, torch.tensor([-slope, slope]), rtol=1e-3, atol=1e-6)


def test_the_entropy_bonus_spreads_the_policy():
    two = of_two_nodes(0.0, 0.0)
    scores = torch.tensor([1.0, 0.0], requires_grad=True)
    placed = Placements(torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 1), torch.zeros(2, 1))
    rewarded, plain = (
        torch.autograd.grad(policy_loss(scores, two, placed, torch.zeros(1), replace(SHORT, entropy=e)), scores)[0]
        for e in (1.0, 0.0)
    )
    assert rewarded[0] - plain[0] > 0 > rewarded[1] - plain[1]


def test_what_is_written_is_whole_and_loads(tmp_path, monkeypatch):
    monkeypatch.setattr("gnnlab.workloads.edge_training.RECIPES", dict.fromkeys(MODEL_TYPES, SHORT))
    write(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2 * len(MODEL_TYPES)
    for model_type in MODEL_TYPES:
        record = json.loads((tmp_path / f"edge_allocator_{model_type}.json").read_text(encoding="utf-8"))
        assert record["made_with"] == conditions() and record["recipe"]["steps"] == SHORT.steps
        read = load_file(tmp_path / f"edge_allocator_{model_type}.safetensors")
        assert same(read, weights(train(model_type, 0, SHORT)[0]))


def test_an_unknown_type_is_refused():
    with pytest.raises(GnnlabError, match="one of dqn, ppo, hybrid is needed"):
        train("a2c")
