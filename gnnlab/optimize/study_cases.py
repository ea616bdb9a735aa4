"""What notebook 02 races: each form of the lab beside what a user has today, on equal weights.

sage(1000, 10_000).forms["fast"]()     # a FastSAGEConv with the weights of `baseline`, PyG's SAGEConv
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, SAGEConv

from gnnlab.kernels.aggregation import FORMS, Neighbours
from gnnlab.kernels.encoder_packages import ahead_of_time, compiled
from gnnlab.kernels.errors import OptimizeError
from gnnlab.kernels.hoisting import HoistedSymptomEncoder
from gnnlab.kernels.layers import FastGATConv, FastSAGEConv
from gnnlab.kernels.swap import SwapReport, swap
from gnnlab.kernels.symptom_encoder import FastSymptomEncoder
from gnnlab.kernels.transformer import FastGraphTransformer
from gnnlab.optimize.study import Case, Form
from gnnlab.workloads import graphs, models
from gnnlab.workloads.graph_transformer import GraphTransformer
from gnnlab.workloads.models import Workload
from gnnlab.workloads.symptom_gat import SymptomGAT

FAST, BF16, HOISTED = "fast", "fast, bf16", "hoisted"
BF16_TOLERANCE = 2e-2
EDGES_PER_NODE = 13  # of the symptom graph
SYMPTOMS = "58/776"


def sizes(texts: Sequence[str]) -> list[tuple[int, int]]:
    """["1000/10000"] -> [(1000, 10000)]: nodes and edges. Raises `OptimizeError`, in one line, for anything else."""
    found = []
    for text in texts:
        parts = str(text).split("/")
        if len(parts) != 2 or not all(p.isascii() and p.isdigit() and int(p) > 0 for p in parts):
            raise OptimizeError(f"size {text!r} is not understood; write nodes/edges, as in 1000/10000")
        found.append((int(parts[0]), int(parts[1])))
    return found


def graph(nodes: int, edges: int, features: int) -> Data:
    """The symptom graph at its own size, else a random one; features standard normal (N, features)."""
    if f"{nodes}/{edges}" == SYMPTOMS:
        found = graphs.load("symptoms")
    else:
        found = graphs.load(f"random:nodes={nodes},edges={edges},features=1,seed=42")
    random = torch.Generator().manual_seed(0)
    return Data(x=torch.randn(nodes, features, generator=random), edge_index=found.edge_index, num_nodes=nodes)


def aggregation(nodes: int, edges: int, features: int = 500, device: str = "cpu") -> Case:
    """Every form of a weighted sum over neighbours; the baseline is gather, multiply, scatter."""
    given = graph(nodes, edges, features).to(device)
    neighbours = Neighbours.prepare(given.edge_index, nodes)
    weight = torch.rand(edges, generator=torch.Generator().manual_seed(1)).to(device)
    forms = {name: partial(form, given.x, neighbours, weight) for name, form in FORMS.items()}
    baseline = forms.pop(next(iter(FORMS)))
    sources = int(given.edge_index[0].unique().numel())
    label = {"size": f"{nodes}/{edges}", "nodes": nodes, "edges": edges, "features": features, "sources": sources}
    return Case(label, baseline, forms)


def gat(nodes: int, edges: int, device: str = "cpu", forms: Sequence[str] = ("auto",)) -> Case:
    """PyG's GATConv(64, 128, heads=4), the study's first layer, and its fast forms."""
    given, conv = graph(nodes, edges, 64).to(device), _made(GATConv, 64, 128, heads=4).to(device)
    arguments = (given.x, given.edge_index)
    named = {form: FAST if form == "auto" else form for form in forms}
    fast = {name: partial(FastGATConv.from_pyg(conv, form), *arguments) for form, name in named.items()}
    return Case({"size": f"{nodes}/{edges}", "nodes": nodes, "edges": edges}, partial(conv, *arguments), fast)


def crossover(nodes: Sequence[int], device: str = "cpu") -> list[Case]:
    """The GAT layer by a dense masked softmax and by bags, on graphs as dense as the symptom graph."""
    return [gat(n, min(EDGES_PER_NODE * n, n * (n - 1)), device, ("bag", "dense")) for n in nodes]


def sage(nodes: int, edges: int, features: int = 500, device: str = "cpu", *, bf16: bool = True) -> Case:
    """PyG's SAGEConv(features, features) and its fast forms, in float32 and bfloat16."""
    given, conv = graph(nodes, edges, features).to(device), _made(SAGEConv, features, features).to(device)
    arguments = (given.x, given.edge_index)
    forms = {FAST: partial(FastSAGEConv.from_pyg(conv), *arguments)}
    if bf16:
        forms[BF16] = partial(FastSAGEConv.from_pyg(conv, precision="bfloat16"), *arguments)
    label = {"size": f"{nodes}/{edges}", "nodes": nodes, "edges": edges, "features": features}
    return Case(label, partial(conv, *arguments), forms, {BF16: BF16_TOLERANCE})


def transformer(
    layers: int = 6,
    hidden: int = 256,
    heads: int = 8,
    ffn: int = 512,
    *,
    nodes: int = 500,
    edges: int = 2500,
    device: str = "cpu",
) -> Case:
    """The graph transformer on PyG's GPSConv, and on the fast kernels."""
    given = graph(nodes, edges, hidden)
    sizes_of = {"hidden_dim": hidden, "num_layers": layers, "num_heads": heads, "ffn_dim": ffn}
    model = _made(GraphTransformer, hidden, **sizes_of).to(device)
    data = model.prepare(given).to(device)
    forms = {FAST: partial(FastGraphTransformer.from_model(model), data)}
    return Case({"size": f"{nodes}/{edges}", "layers": layers}, partial(model, data), forms)


def encoder(forms: Sequence[str], *, batch_size: int = 32, device: str = "cpu") -> Case:
    """The study's symptom encoder and its fast forms (eager, compiled, package), the hoisted one last.

    Raises `EncoderError` where a form cannot be compiled.
    """
    model = _made(SymptomGAT.from_graph, graphs.load("symptoms")).to(device)
    eager = FastSymptomEncoder.from_model(model)
    with torch.inference_mode(), TemporaryDirectory() as folder:  # a package that is loaded needs its file no longer
        eager(1)  # prepares its edges, which a compiler wants to find
        makers = {"eager": lambda: eager, "compiled": lambda: compiled(eager)}
        makers["package"] = lambda: ahead_of_time(eager, folder)
        made = {name: makers[name]() for name in forms} | {HOISTED: HoistedSymptomEncoder(eager)}
    label = {"size": f"batch {batch_size}"}
    return Case(label, partial(model, batch_size), {n: partial(form, batch_size) for n, form in made.items()})


def profiled(
    sizes_: Sequence[tuple[int, int]],
    gat_sizes: Sequence[tuple[int, int]],
    bf16_sizes: Sequence[tuple[int, int]],
    *,
    features: int,
    layers: int,
    device: str,
) -> dict[str, Callable[[], Form]]:
    """For each goal a function that makes the fast form on the largest size, for a profile of it."""
    largest, largest_gat = max(sizes_), max(gat_sizes)
    return {
        "goal.gat_computed": lambda: encoder(["eager"], device=device).forms["eager"],
        "goal.aggregation": lambda: aggregation(*largest, features, device).forms["bag"],
        "goal.gat_layer": lambda: gat(*largest_gat, device).forms[FAST],
        "goal.sage_layer": lambda: sage(*largest, features, device, bf16=False).forms[FAST],
        "goal.sage_layer_bf16": lambda: sage(*max(bf16_sizes), features, device).forms[BF16],
        "goal.transformer": lambda: transformer(layers, device=device).forms[FAST],
    }


class TwoLayers(nn.Module):
    """What a user's model may look like: an attention layer, a mean over neighbours, a linear readout of each node."""

    def __init__(self, in_features: int, hidden: int = 64, out_features: int = 7):
        super().__init__()
        self.attention = GATConv(in_features, hidden, heads=4)
        self.sage = SAGEConv(4 * hidden, hidden)
        self.head = nn.Linear(hidden, out_features)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.elu(self.attention(x, edge_index))  # (N, 4 * hidden)
        return self.head(F.relu(self.sage(x, edge_index)))  # (N, out_features)


def two_layers(data: Data) -> TwoLayers:
    """The factory of `TwoLayers` on a graph."""
    return TwoLayers(data.num_features)


def swapped(model: str, graph_spec: str, device: str = "cpu") -> tuple[SwapReport, Case]:
    """A model `module:factory`, or a small one of ours where none is named, with its PyG layers swapped and verified.

    Raises:
        ModelError, GraphError: it cannot be built.
        OptimizeError: none of its layers has a fast form.
    """
    made: Workload = models.build(model or f"{__name__}:two_layers", graph_spec).to(device)
    report = swap(made.model.eval(), made.batch)
    forms = {FAST: partial(_called, report.model, made.batch)}
    label = {"size": made.graph_name, "model": model or "two_layers"}
    return report, Case(label, partial(_called, made.model, made.batch), forms, {FAST: 1e-4})


def _called(model: nn.Module, batch: Any) -> Any:
    from gnnlab.profiling.context import call

    return call(model, batch)


def _made(kind: Any, *arguments: Any, **options: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(*arguments, **options).eval()
