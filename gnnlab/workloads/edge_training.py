"""How the shipped edge allocators were trained, in seconds on one thread; `train` does it again.

    model, record = train("hybrid", seed=0)
    record["results"]["hybrid"]          # mean regret in ms and share of best decisions on networks not trained on

Placing one task is a bandit with a context: the episode ends with the decision, so the target of a value is the reward
itself, without a next state. The reward is minus the logarithm of the cost in units of 100 ms.

- dqn regresses the value of every node on its reward (the cost model can be asked about all of them, so nothing has to
  be explored), with the Huber loss.
- ppo draws nodes from its policy and learns from their rewards alone: clipped ratios (Schulman et al. 2017, equation 7)
  against a critic that sees the network, with an entropy bonus.
- hybrid minimizes a weighted sum of both losses on one encoder, its policy being the softmax of the fused scores.

`python -m gnnlab.workloads.edge_training` writes weights and recipes into the package again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cpuinfo
import numpy as np
import torch
import torch_geometric
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_mean_pool
from torch_geometric.utils import scatter

from gnnlab.files import write_atomically, write_json
from gnnlab.workloads.edge_allocator import DATA, MODEL_TYPES, WIDTH, EdgeAllocator, decide, regret, require_type
from gnnlab.workloads.edge_networks import costs, random_network

REWARD_UNIT_MS = 100.0


@dataclass(frozen=True)
class Recipe:
    """What a training is made of, besides the model type and the seed."""

    steps: int
    learning_rate: float = 1e-2  # the highest, of one cycle (Smith 2018)
    batches: int = 80  # different ones, used in turn
    networks: int = 32  # in a batch
    nodes: tuple[int, int] = (5, 60)  # in a network
    placements: int = 8  # tried in each network and step; ppo and hybrid
    epochs: int = 2  # gradient steps on the same placements; ppo and hybrid
    clip: float = 0.2
    entropy: float = 0.003
    policy_weight: float = 1.0  # of the policy loss; the others have 1


RECIPES = {"dqn": Recipe(steps=600), "ppo": Recipe(steps=800), "hybrid": Recipe(steps=1200, policy_weight=0.2)}
HELD_OUT = {"networks": 1000, "nodes": (5, 200), "seed": 1_000_003}


def train(model_type: str, seed: int = 0, recipe: Recipe | None = None) -> tuple[EdgeAllocator, dict[str, Any]]:
    """The trained allocator in evaluation mode, and the record of how it was made and how well it decides.

    Trains on one thread, and leaves torch's threads and random state as they were. On the same processor with the same
    torch, the same seed gives the same bits.
    Raises `GnnlabError`: an unknown type.
    """
    require_type(model_type)
    recipe = recipe or RECIPES[model_type]
    with _alone(seed):
        seen = batches(recipe.batches, recipe.networks, recipe.nodes, seed)
        trainer = Trainer(model_type, recipe)
        for step in range(recipe.steps):
            trainer.step(seen[step % len(seen)])
        model = trainer.model.eval()
        record = {
            "model_type": model_type,
            "seed": seed,
            "recipe": asdict(recipe),
            "held_out": HELD_OUT,
            "results": results(model),
            "made_with": conditions(),
        }
    return model, record


def results(model: EdgeAllocator) -> dict[str, dict[str, float]]:
    """Mean regret in ms and share of best decisions on the networks held out: of the model, and of simple rules.

    The rules: a node at random, the least busy processor, and the best node as if there were no links.
    """
    parts = _held_out()
    random = torch.Generator().manual_seed(HELD_OUT["seed"])
    no_links = np.empty((2, 0), dtype=np.int64)
    rules = {
        model.model_type: lambda part: model(part.x, part.edge_index),
        "random": lambda part: torch.rand(len(part.x), generator=random),
        "least busy": lambda part: -part.x[:, 0],
        "best without links": lambda part: -torch.from_numpy(costs(part.x.numpy(), no_links)),
    }
    with torch.inference_mode():
        regrets = {name: np.concatenate([_regret(rule(part), part) for part in parts]) for name, rule in rules.items()}
    return {
        name: {"mean_regret_ms": round(float(values.mean()), 3), "best_share": float((values == 0).mean())}
        for name, values in regrets.items()
    }


@cache
def conditions() -> dict[str, str]:
    """What the bits of a training depend on, besides its recipe."""
    processor = cpuinfo.get_cpu_info()
    return {
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "numpy": np.__version__,
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "processor": ", ".join(
            f"{name} {processor.get(name)}" for name in ("brand_raw", "family", "model", "stepping")
        ),
    }


def write(folder: Path = DATA, seed: int = 0) -> None:
    """Train every type and write weights and records into `folder`."""
    for model_type in MODEL_TYPES:
        model, record = train(model_type, seed)
        weights = save(model.state_dict())
        path = folder / f"edge_allocator_{model_type}.safetensors"
        write_atomically(path, lambda file, weights=weights: file.write(weights), mode="wb")
        write_json(path.with_suffix(".json"), record)


@cache
def _held_out() -> list[Batch]:
    return batches(HELD_OUT["networks"] // 100, 100, HELD_OUT["nodes"], HELD_OUT["seed"])


def _regret(scores: Tensor, batch: Batch) -> np.ndarray:
    return regret(batch.x.numpy(), batch.edge_index.numpy(), decide(scores, batch.batch), batch.batch.numpy())


@contextmanager
def _alone(seed: int) -> Iterator[None]:
    """One thread and a random state of one's own."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def batches(count: int, networks: int, nodes: tuple[int, int], seed: int) -> list[Batch]:
    """`count` batches of `networks` random networks each, their sizes uniform between the two of `nodes`: PyG's, with a
    `reward` (N,) of each node."""
    rng = np.random.default_rng(seed)
    return [
        Batch.from_data_list(
            [_rewarded(*random_network(int(n), rng)) for n in rng.integers(nodes[0], nodes[1] + 1, size=networks)]
        )
        for _ in range(count)
    ]


def _rewarded(x: np.ndarray, links: np.ndarray) -> Data:
    edge_index = np.concatenate([links.T, links.T[::-1]], axis=1)
    reward = -np.log(costs(x, edge_index) / REWARD_UNIT_MS)
    return Data(torch.from_numpy(x), torch.from_numpy(edge_index), reward=torch.from_numpy(reward.astype(np.float32)))


class Critic(nn.Module):
    """The reward to expect in each network, (B,), from the means of its nodes; needed while training only."""

    def __init__(self) -> None:
        super().__init__()
        hidden = 64
        self.read = nn.Sequential(nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.out = nn.Linear(hidden, 1)

    def forward(self, scaled: Tensor, batch: Batch) -> Tensor:
        return self.out(global_mean_pool(self.read(scaled), batch.batch)).squeeze(-1)


@dataclass(frozen=True)
class Placements:
    """Nodes drawn from a policy: rows (K, B), their log-probabilities then and the rewards they got, (K, B) each."""

    rows: Tensor
    log_probability: Tensor
    reward: Tensor


def log_policy(scores: Tensor, batch: Batch) -> Tensor:
    """Logarithm of the softmax of `scores` (N,) over the nodes of each network, (N,)."""
    shifted = scores - scatter(scores.detach(), batch.batch, reduce="max")[batch.batch]
    return shifted - scatter(shifted.exp(), batch.batch).log()[batch.batch]


def drawn(log_probability: Tensor, batch: Batch, count: int) -> Placements:
    """`count` nodes of each network, by the Gumbel-max trick."""
    nodes = len(log_probability)
    noise = -torch.empty(count, nodes).exponential_().log()
    network = batch.batch + batch.num_graphs * torch.arange(count).view(-1, 1)  # (K, N): each draw is a network more
    rows = decide((log_probability + noise).flatten(), network.flatten()).view(count, -1) % nodes
    return Placements(rows, log_probability[rows], batch.reward[rows])


def policy_loss(scores: Tensor, batch: Batch, placed: Placements, expected: Tensor, recipe: Recipe) -> Tensor:
    """Clipped policy gradient with an entropy bonus; `expected` (B,) is what the critic thinks of each network."""
    log_probability = log_policy(scores, batch)
    advantage = placed.reward - expected.detach()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    ratio = (log_probability[placed.rows] - placed.log_probability).exp()
    clipped = ratio.clamp(1 - recipe.clip, 1 + recipe.clip)
    entropy = -(log_probability.exp() * log_probability).sum() / batch.num_graphs
    return -torch.minimum(ratio * advantage, clipped * advantage).mean() - recipe.entropy * entropy


def value_loss(values: Tensor, reward: Tensor) -> Tensor:
    """Huber, quadratic within 0.1."""
    return F.smooth_l1_loss(values, reward, beta=0.1)


class Trainer:
    """One allocator in training."""

    def __init__(self, model_type: str, recipe: Recipe) -> None:
        self.recipe, self.model = recipe, EdgeAllocator(model_type)
        self.critic = Critic() if self.model.policy is not None else None
        parameters = [p for module in (self.model, self.critic) if module is not None for p in module.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=recipe.learning_rate)
        steps = recipe.steps * (1 if self.critic is None else recipe.epochs)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, recipe.learning_rate, total_steps=steps)

    def step(self, batch: Batch) -> None:
        if self.critic is None:
            return self._descend(value_loss(self.model(batch.x, batch.edge_index), batch.reward))
        with torch.no_grad():
            before = log_policy(self.model(batch.x, batch.edge_index), batch)
        placed = drawn(before, batch, self.recipe.placements)
        for _ in range(self.recipe.epochs):
            self._descend(self._loss(batch, placed))

    def _loss(self, batch: Batch, placed: Placements) -> Tensor:
        expected = self.critic(self.model.scaled(batch.x), batch)
        hidden = self.model.encode(batch.x, batch.edge_index)
        scores = self.model.policy(hidden).squeeze(-1)
        loss = value_loss(expected.expand_as(placed.reward), placed.reward)
        if self.model.value is not None:
            values = self.model.value(hidden).squeeze(-1)
            scores, loss = scores + values, loss + value_loss(values, batch.reward)
        return loss + self.recipe.policy_weight * policy_loss(scores, batch, placed, expected, self.recipe)

    def _descend(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()


if __name__ == "__main__":
    write()
