"""Whole models on graphs of more and more edges, PyG's layers and fast ones, as notebook 09 measures them.

    rows = measured("GCN", 20_000, 100_000, "forward")

Two layers of 64 channels on 100 features; graphs with uniform random ends.
"""

from collections.abc import Callable
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn
from torch_geometric.nn import GAT, GCN, GraphSAGE

from gnnlab.measure.estimates import CONFIDENCE
from gnnlab.measure.versus import MIB, Made, versus
from gnnlab.profile.scaling import generate_scaling_graphs
from gnnswap import swap

FEATURES, HIDDEN, SMALL_NODES = 100, 64, 100
MODELS: dict[str, Callable[..., nn.Module]] = {"GCN": GCN, "SAGE": GraphSAGE, "GAT": partial(GAT, heads=8)}
PHASES = ("forward", "training step")
FIRST = "first call over a later one"
KEYS = ("nodes", "edges", "phase", "quantity")


def variants(model: str, nodes: int, edges: int, phase: str, device: str = "cpu") -> list[Made]:
    """PyG's model, the fast one, and the graph that both are called with, to be made in a fresh process."""
    size = {"nodes": nodes, "edges": edges, "device": device}
    made = [Made("examples.growth:call", {"model": model, "phase": phase, "fast": fast, **size}) for fast in (0, 1)]
    return [*made, Made("examples.growth:graph", size)]


def call(model: str, nodes: int, edges: int, phase: str, fast: bool, device: str) -> Callable[..., Tensor]:
    """What takes x (N, F) and edge_index (2, E): a forward pass, or a training step, which gives its loss."""
    torch.manual_seed(0)
    net = MODELS[model](FEATURES, HIDDEN, num_layers=2).to(device)
    net = swap(net).model if fast else net
    run = torch.no_grad()(net.eval()) if phase == "forward" else _training_step(net)
    run(*graph(min(nodes, SMALL_NODES), edges * SMALL_NODES // nodes, device))  # layers are tried at their first call
    return run


def graph(nodes: int, edges: int, device: str) -> tuple[Tensor, Tensor]:
    """x (N, F), edge_index (2, E)."""
    data = generate_scaling_graphs([nodes], edges / nodes, FEATURES)[0].to(device)
    return data.x, data.edge_index


def measured(model: str, nodes: int, edges: int, phase: str, device: str = "cpu", seconds: float = 0.5) -> pd.DataFrame:
    """Time, peak memory with model and graph, and the first call over a later one, of both variants: rows of the lab.

    `seconds` of sampling in one fresh process; two more watch the memory.
    """
    both = variants(model, nodes, edges, phase, device)
    raced = versus(*both, processes=1, seconds=seconds, mode="plain", tolerance=1e-4, memory=True)
    net = MODELS[model](FEATURES, HIDDEN, num_layers=2)
    resident = (sum(p.nbytes for p in net.parameters()) + 4 * FEATURES * nodes + 16 * edges) / MIB
    found = []
    for variant, ms, peak in (
        ("PyG", raced.before_ms, raced.memory.before),
        ("gnnlab", raced.after_ms, raced.memory.after),
    ):
        row = {"variant": f"{model}, {variant}", "nodes": nodes, "edges": edges, "phase": phase, "better": "lower"}
        row |= {"origin": "measured", "parity_error": raced.error if variant == "gnnlab" else None}
        single = {"statistic": "single", "interval": "none", "n": 1}
        interval = CONFIDENCE if ms.interval else "none"
        time = {"value": ms.value, "low": ms.low, "high": ms.high, "n": ms.n, "statistic": "median"}
        found.append({**row, **time, "quantity": "time", "unit": "ms", "interval": interval})
        memory = {**row, **single, "quantity": "peak memory", "unit": "MiB", "value": resident + peak.torch_mib}
        found.append(memory | ({"notes": (str(peak),)} if peak.agrees is False else {}))
        first = {"quantity": FIRST, "unit": "x", "value": peak.first_ms / peak.later_ms}
        found.append({**row, **single, **first})
    return pd.DataFrame(found)


def _training_step(net: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    optimizer = torch.optim.Adam(net.parameters(), lr=0.0)  # each step computes the same

    def step(x: Tensor, edge_index: Tensor) -> Tensor:
        optimizer.zero_grad()
        labels = torch.arange(len(x), device=x.device) % HIDDEN
        loss = nn.functional.cross_entropy(net(x, edge_index), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
