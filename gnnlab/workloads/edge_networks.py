"""Networks of edge computing nodes, and what it costs to run the next task on each of them.

    state = random_states(1, (20, 20), seed=0)[0]
    costs(features(state), edges(state))     # (20,): ms of delay and of energy worth as much, the least is the best

The cost of node i is a model, stated here whole; its constants are assumptions about a task of image recognition, not
measurements:

    cost     = delay + 10 ms/J * energy + 1000 ms if the node is overloaded
    delay    = latency + transfer + (waiting + 1) * service                                    ms
    transfer = 2 Mbit / bandwidth * (1 + sum over neighbours j of cpu_util[j])                 ms
    waiting  = queue + sum over neighbours j of (queue[j] - queue) / (1 + max(degree, degree[j]))
    service  = 40, 10 or 4 ms by node_type / (1 - cpu_util) * (1 + 4 * excess)                 ms
    excess   = max(0, mem_util - 0.8) / 0.2
    energy   = power * service                                                                 J

- A weighted sum of delay and energy is the usual aim of offloading (Mao et al. 2017, "A survey on mobile edge
  computing", section III).
- A processor shared among tasks serves one in 1 / (1 - utilization) of its time alone (Kleinrock 1976, M/G/1-PS);
  memory beyond 80 % is swapped.
- Neighbours share the medium: each sends with the chance that it is busy, and a sender gets a fair share.
- Neighbours even out their queues by one step of diffusion (Cybenko 1989) with Metropolis weights (Xiao and Boyd 2004).
- A node of more than 95 % processor or memory drops the task, which is sent again after a time-out of one second.

The last but two make a node's cost depend on its links: an allocator that sees the nodes alone cannot be perfect.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import numpy as np

from gnnlab.errors import GnnlabError
from gnnswap.errors import quoted

State = dict[str, Any]  # {"nodes": [{"node_id": str, feature: number, ...}, ...], "links": [[node_id, node_id], ...]}

# cpu_util, mem_util 0..1; energy: W while computing; latency ms; bandwidth Mbit/s; queue_len tasks; node_type 0, 1, 2
FEATURES = ("cpu_util", "mem_util", "energy", "latency", "bandwidth", "queue_len", "node_type")
NODE_TYPES = ("gateway", "edge server", "accelerator")

TASK_MBIT = 2.0
SERVICE_MS = np.array([40.0, 10.0, 4.0])  # of the task on an idle node of each type
MS_PER_JOULE = 10.0
SWAPPED_FROM, SWAPPING = 0.8, 4.0
OVERLOADED, TIME_OUT_MS = 0.95, 1000.0
LEAST_IDLE, LEAST_MBIT_S = 0.05, 0.1  # what a full processor and a dead link are counted as

_values = itemgetter(*FEATURES)


def features(state: Mapping[str, Any]) -> np.ndarray:
    """(N, 7) float32, a row for each node in the order of the state, columns as in `FEATURES`."""
    return np.array([_values(node) for node in state["nodes"]], dtype=np.float32).reshape(-1, len(FEATURES))


def edges(state: Mapping[str, Any]) -> np.ndarray:
    """(2, E) int64, each link of the state in both directions: first all as given, then all reversed.

    Raises `GnnlabError`: a link names a node that the state does not have.
    """
    row = {node["node_id"]: i for i, node in enumerate(state["nodes"])}
    try:
        pairs = [(row[a], row[b]) for a, b in state.get("links", ())]
    except KeyError as error:
        raise GnnlabError(f"a link names {quoted(error.args[0])}, which is no node_id of this network") from None
    back = [(b, a) for a, b in pairs]
    return np.array(pairs + back, dtype=np.int64).reshape(-1, 2).T.copy()


def costs(x: np.ndarray, edge_index: np.ndarray) -> np.ndarray:
    """What placing the next task costs on each node, (N,) float64 in ms; `x` (N, 7), `edge_index` (2, E)."""
    cpu, memory, power, latency, bandwidth, queue, kind = np.asarray(x, dtype=np.float64).T
    source, target = np.asarray(edge_index)
    nodes = len(cpu)
    degree = np.bincount(target, minlength=nodes)
    senders = np.bincount(target, weights=cpu[source], minlength=nodes)
    transfer = 1000 * TASK_MBIT / np.maximum(bandwidth, LEAST_MBIT_S) * (1 + senders)
    moved = (queue[source] - queue[target]) / (1 + np.maximum(degree[source], degree[target]))
    waiting = queue + np.bincount(target, weights=moved, minlength=nodes)
    excess = np.maximum(memory - SWAPPED_FROM, 0) / (1 - SWAPPED_FROM)
    service = SERVICE_MS[kind.astype(np.int64)] / np.maximum(1 - cpu, LEAST_IDLE) * (1 + SWAPPING * excess)
    delay = latency + transfer + (waiting + 1) * service
    energy_j = power * service / 1000
    overloaded = (cpu > OVERLOADED) | (memory > OVERLOADED)
    return delay + MS_PER_JOULE * energy_j + TIME_OUT_MS * overloaded


def random_network(nodes: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(features (N, 7) float32, links (links, 2) int64) of a connected network of about two links a node.

    A tree that grows by preferential attachment (Barabasi and Albert 1999), and as many links again between any two.
    Raises `GnnlabError`: less than one node.
    """
    if nodes < 1:
        raise GnnlabError(f"a network of {nodes} nodes cannot be had; 1 or more are needed")
    kind = rng.choice(3, size=nodes, p=[0.5, 0.35, 0.15])
    cpu = rng.beta(2, 2, size=nodes)
    x = np.column_stack([
        cpu.round(3),
        rng.beta(3, 3, size=nodes).round(3),
        (np.array([8, 90, 250])[kind] * rng.uniform(0.6, 1.4, size=nodes)).round(1),
        rng.lognormal(2.5, 0.7, size=nodes).round(1),
        rng.lognormal(4.6, 0.7, size=nodes).round(1),
        rng.poisson(np.array([2, 6, 10])[kind] * cpu),
        kind,
    ]).astype(np.float32)  # fmt: skip
    ends: list[int] = [0]  # each node as often as it has links, and once more
    links: set[tuple[int, int]] = set()
    for node in range(1, nodes):
        other = ends[rng.integers(len(ends))]
        links.add((other, node))
        ends += [node, node, other]
    for a, b in rng.integers(nodes, size=(nodes, 2)).tolist():
        if a != b:
            links.add((min(a, b), max(a, b)))
    return x, np.array(sorted(links), dtype=np.int64).reshape(-1, 2)


def random_states(count: int, nodes: tuple[int, int] = (5, 200), *, seed: int) -> list[State]:
    """`count` states of different networks, their sizes uniform between the two of `nodes`, both included.

    The same seed gives the same.

    >>> random_states(1, (3, 3), seed=0)[0]["nodes"][0]["node_id"]
    'node_0'
    """
    rng = np.random.default_rng(seed)
    states = []
    for size in rng.integers(nodes[0], nodes[1] + 1, size=count):
        x, links = random_network(int(size), rng)
        listed = []
        for i, row in enumerate(x.astype(np.float64).round(3).tolist()):
            node = dict(zip(FEATURES, row, strict=True)) | {"queue_len": int(row[5]), "node_type": int(row[6])}
            listed.append({"node_id": f"node_{i}", **node})
        states.append({"nodes": listed, "links": [[f"node_{a}", f"node_{b}"] for a, b in links.tolist()]})
    return states
