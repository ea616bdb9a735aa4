"""How whole models grow with the edges of a graph: time, peak memory and first call, of PyG's layers and of fast ones.

    lab.record("growth", growth.measure(["GCN", "GAT"], ["2000/10000", "20000/100000"]), keys=growth.KEYS)

Two layers of 64 channels on 100 features; graphs with uniform random ends. Cells are measured in another process, which
allocates as a user's does; one that needs more memory than there is ends that process alone and is a row with this
reason.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GraphSAGE

from gnnlab.errors import GnnlabError
from gnnlab.measure.timing import sample, stopwatch
from gnnlab.profile.memory import MIB, storages
from gnnlab.profile.scaling import generate_scaling_graphs
from gnnlab.progress import progress
from gnnlab.worker import Answer, Worker
from gnnswap.cost import peak_memory
from gnnswap.errors import quoted
from gnnswap.replace import swap

FEATURES, HIDDEN = 100, 64
MODELS: dict[str, Callable[..., nn.Module]] = {"GCN": GCN, "SAGE": GraphSAGE, "GAT": partial(GAT, heads=8)}
FORMS = ("PyG", "gnnlab")
PHASES = ("forward", "training step")
KEYS = ("nodes", "edges", "phase", "quantity")
SMALL_NODES = 100
FEWEST, MOST = 3, 20  # timed calls of a cell
EQUAL = 1e-4  # relative, of the norm of an output or of a loss: sums of millions of float32


def measure(
    models: Sequence[str],
    sizes: Sequence[str],
    *,
    seconds: float = 1.0,
    limit_s: float = 600.0,
    device: str = "cpu",
) -> pd.DataFrame:
    """Three rows for each model, size "nodes/edges", phase and form: time, peak memory, first call over a later one.

    All of it on `device`. `seconds` is the sampling time of a cell beyond its three first samples; a cell that takes
    longer than `limit_s` in all is a time-out. The first call of a graph prepares it; peak memory is that of all
    tensors at once: graph, model, what was prepared, and what the calls hold.

    Raises:
        GnnlabError: a model that is not known, or a size that is none.
    """
    if unknown := set(models) - MODELS.keys():
        raise GnnlabError(f"{', '.join(sorted(unknown))}: no such model; there are {', '.join(MODELS)}")
    cells = list(product(map(_nodes_and_edges, sizes), models, PHASES))
    fixed = {"threads": torch.get_num_threads(), "seconds": seconds, "device": device}
    rows: list[dict[str, Any]] = []
    with Worker(keep_memory=False) as worker, progress("cells of growth", len(cells)) as step:
        for (nodes, edges), model, phase in cells:
            key = {"nodes": nodes, "edges": edges, "phase": phase}
            expected = None  # the norm of what PyG gives
            for form in FORMS:
                of_cell = {"model": model, **key, "form": form, **fixed}
                answer = worker.call(f"{__name__}:cell", of_cell, timeout_s=limit_s)
                rows += _rows({**key, "form": f"{model}, {form}"}, answer, expected)
                expected = answer.value["norm"] if answer.status == "done" else None
            step(f"{model}, {nodes}/{edges}, {phase}")
    return pd.DataFrame(rows).assign(device=device)


def cell(
    model: str, nodes: int, edges: int, phase: str, form: str, threads: int, seconds: float, device: str = "cpu"
) -> dict[str, Any]:
    """One cell, in this process: `samples` ms, `first` call ms, `peak` MiB, and `norm` of what the second call gave."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    net = MODELS[model](FEATURES, HIDDEN, num_layers=2).to(device)
    net = swap(net).model if form == "gnnlab" else net
    forward = torch.no_grad()(lambda data: net.eval()(data.x, data.edge_index))
    call = forward if phase == "forward" else _training_step(net)
    graphs = generate_scaling_graphs([min(nodes, SMALL_NODES), nodes], edges / nodes, FEATURES)
    small, data = (graph.to(device) for graph in graphs)
    call(small)  # not counted: layers are tried at their first call, whatever the graph

    def first_calls() -> tuple[float, float]:
        with stopwatch() as first:
            call(data)
        return first.ms, float(call(data).norm())  # some of it is prepared when a graph comes a second time

    before = sum(storages(net, data.x, data.edge_index).values())
    held = peak_memory(first_calls, torch.device(device))
    with stopwatch() as later:
        call(data)
    more = sample(lambda: call(data), runs=min(MOST, max(FEWEST, int(seconds / later.s))) - 1)
    first, norm = held.result
    return {"samples": [later.ms, *more], "first": first, "peak": (before + held.peak) / MIB, "norm": norm}


def _training_step(net: nn.Module) -> Callable[[Data], Tensor]:
    optimizer = torch.optim.Adam(net.parameters())

    def step(data: Data) -> Tensor:
        labels = torch.arange(data.num_nodes, device=data.x.device) % HIDDEN
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(data.x, data.edge_index), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _nodes_and_edges(size: str) -> tuple[int, int]:
    nodes, _, edges = size.partition("/")
    if not (nodes.isdecimal() and edges.isdecimal() and int(nodes) and int(edges)):
        raise GnnlabError(f"size {quoted(size)}: write nodes/edges, as in 20000/100000")
    return int(nodes), int(edges)


def _rows(key: dict[str, Any], answer: Answer, expected: float | None) -> list[dict[str, Any]]:
    """The rows of one form; of one that failed, or gives something else than `expected`, only that it does."""
    row = {**key, "better": "lower", "origin": "measured"}
    time = {**row, "quantity": "time", "unit": "ms", "statistic": "median"}
    if answer.status != "done":
        return [{**time, "status": "timeout" if answer.status == "timeout" else "failed", "reason": answer.reason}]
    value, off = answer.value, None
    if expected is not None:
        off = abs(value["norm"] - expected) / max(expected, 1e-30)
        if not off <= EQUAL:
            return [{**time, "status": "failed", "reason": f"differs from PyG by {off:.1e}, relative"}]
    single = {"statistic": "single", "interval": "none", "n": 1}
    counted = {"origin": "counted", "statistic": "count", "interval": "exact", "n": 1}
    first = value["first"] / statistics.median(value["samples"])
    return [
        {**time, "samples": value["samples"], "parity_error": off},
        {**row, **counted, "quantity": "peak memory", "unit": "MiB", "value": value["peak"]},
        {**row, **single, "quantity": "first call over a later one", "unit": "x", "value": first},
    ]
