"""Trains an edge allocator on random networks and writes its weights in the format of `workloads.edge_allocator`.

    python examples/train_edge_allocator.py --type hybrid --folder outputs/allocator

Placing one task is a single decision, and the cost model can be asked about all nodes, so nothing has to be explored:
a value head regresses minus the logarithm of each node's cost (in units of 100 ms) with the Huber loss, a policy head
is a classifier of the best node of its network. hybrid has both heads on one encoder, and the sum of their scores.

The weights that gnnlab ships were trained on such networks with such value losses, 80 batches of 32 networks, Adam,
one cycle up to 1e-2, gradient norm at most 1: dqn as here, 600 steps; the policies of ppo (800 steps) and hybrid (1200,
policy loss times 0.2) not on the best node but by PPO, from the rewards of 8 placements drawn in each network, with a
critic, clip 0.2 and an entropy bonus of 0.003.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.utils import softmax

from gnnlab.workloads.edge_allocator import MODEL_TYPES, EdgeAllocator, regret
from gnnlab.workloads.edge_networks import costs, random_network

POLICY_WEIGHT = 0.2  # of the policy's loss beside the value's


def networks(count, nodes, rng):
    """`count` random networks of `nodes` (least, most) nodes as one PyG batch, with a `reward` (N,) of each node."""
    graphs = []
    for size in rng.integers(nodes[0], nodes[1] + 1, size=count):
        x, links = random_network(int(size), rng)
        edge_index = np.concatenate([links.T, links.T[::-1]], axis=1)
        reward = torch.from_numpy(-np.log(costs(x, edge_index) / 100)).float()
        graphs.append(Data(torch.from_numpy(x), torch.from_numpy(edge_index), reward=reward))
    return Batch.from_data_list(graphs)


def best_rows(scores, batch):
    """The row of the highest score in each network."""
    parts = scores.split(batch.ptr.diff().tolist())
    return torch.stack([part.argmax() for part in parts]) + batch.ptr[:-1]


def loss_of(model, batch):
    """Huber loss of the values, and the cross entropy of the best node in each network."""
    loss, hidden = 0.0, model.encode(batch.x, batch.edge_index)
    scores = sum(head(hidden).squeeze(-1) for head in (model.value, model.policy) if head is not None)
    if model.value is not None:
        loss = loss + F.smooth_l1_loss(model.value(hidden).squeeze(-1), batch.reward, beta=0.1)
    if model.policy is not None:
        best = softmax(scores, batch.batch)[best_rows(batch.reward, batch)]
        loss = loss - POLICY_WEIGHT * best.clamp_min(1e-12).log().mean()
    return loss


@torch.inference_mode()
def mean_regret_ms(score, batch):
    """How many ms more than the best node of its network the chosen one costs."""
    chosen = best_rows(score(batch.x, batch.edge_index), batch)
    return float(regret(batch.x.numpy(), batch.edge_index.numpy(), chosen, batch.batch.numpy()).mean())


def train(model_type, steps, seed=0):
    """The trained allocator, in evaluation mode."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    batches = [networks(32, (5, 60), rng) for _ in range(min(steps, 80))]
    model = EdgeAllocator(model_type)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, batches[step % len(batches)]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--type", choices=MODEL_TYPES, default="hybrid")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--folder", type=Path, required=True, help="where edge_allocator_TYPE.safetensors is written")
    given = parser.parse_args(arguments)
    model = train(given.type, given.steps)
    given.folder.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), given.folder / f"edge_allocator_{given.type}.safetensors")
    held_out = networks(300, (5, 200), np.random.default_rng(1_000_003))
    print(f"mean regret on networks that were not trained on: {mean_regret_ms(model, held_out):.1f} ms")
    print(f"of the least busy node: {mean_regret_ms(lambda x, edge_index: -x[:, 0], held_out):.1f} ms")


if __name__ == "__main__":
    main()
