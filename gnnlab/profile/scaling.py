"""How time and memory of a model grow: with nodes, edges, layers, encodings, degree distribution.

    result = run_node_scaling(model_factory, num_nodes_list=[100, 500, 1000, 2000])
    print(result)                # each time, the fitted curve with the interval of its exponent, and what it said of
                                 # the largest size beside what was measured there
    print(run_memory_scaling(model_factory).sentence(edges_per_node=5, gib=24))  # up to how many nodes fit

Every sweep of sizes keeps its largest one out of the fit, predicts it, then measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from scipy.optimize import nnls
from scipy.special import fdtri, stdtrit
from torch import nn
from torch_geometric.data import Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE

from gnnlab.errors import GnnlabError
from gnnlab.measure.restore import ProfilingContext
from gnnlab.measure.tensors import device_of
from gnnswap.inputs import call

from .memory import MIB, storages, training_pass, warm_peak
from .runtime import RuntimeStats, profile_forward

Build = Callable[[Any], tuple[nn.Module, Any]]  # value of the parameter -> model, batch
ModelFactory = Callable[..., nn.Module]

_EXPONENTS = np.arange(0, 6.005, 0.01)
AVERAGE_DEGREE = 5
GIB = 2**30
MEMORY_SIZES = ((1000, 2000), (1000, 10000), (1500, 3000), (1500, 15000), (2000, 4000), (2000, 20000), (4000, 20000))
_SQUARE_SHARE, _SQUARE_GAIN = 0.05, 2.0  # of the largest size, and in squared errors: from there a term N^2 is real
_ROUNDING = 1e-6  # of the largest size: a term below it is none
_MOST_OFF = 0.1  # at the size that was held out: beyond it nothing is said of larger ones
PE_CONFIGS = ({"name": "lap", "dim": 16}, {"name": "rwse", "dim": 16}, {"name": "none", "dim": 0})
_PE_TRANSFORMS = {
    "lap": lambda dim: AddLaplacianEigenvectorPE(dim, is_undirected=True),
    "rwse": AddRandomWalkPE,
    "none": lambda dim: Data.clone,
}


@dataclass(frozen=True)
class PowerFit:
    """t(n) = offset_ms + scale_ms * n^exponent, fitted to the relative error; `exponent_ci` is its 95 % interval."""

    offset_ms: float
    scale_ms: float
    exponent: float
    exponent_ci: tuple[float, float]
    scatter: float  # half-width of the 95 % interval of a size around the curve, relative
    plausible: np.ndarray = field(repr=False)  # (k, 3) offset, scale, exponent of every curve within the interval

    @property
    def identified(self) -> bool:
        """Do the sizes tell the exponent? Not where its interval reaches the end of what was tried, or spans 2."""
        low, high = self.exponent_ci
        return high < _EXPONENTS[-1] and high - low < 2

    def predict(self, n: float) -> tuple[float, tuple[float, float]]:
        """Time at size n in ms, and its 95 % prediction interval: all plausible curves, widened by the scatter."""
        offset, scale, exponent = self.plausible.T
        curves = offset + scale * n**exponent
        reach = 1 + self.scatter
        best = self.offset_ms + self.scale_ms * n**self.exponent
        return best, (float(curves.min() / reach), float(curves.max() * reach))

    def __str__(self) -> str:
        low, high = self.exponent_ci
        if not self.identified:
            return "the sizes do not tell an exponent: noise, or too narrow a range"
        curve = f"t = {self.offset_ms:.3g} ms + {self.scale_ms:.3g} ms x n^{self.exponent:.2f}"
        return f"{curve} (exponent {low:.2f} to {high:.2f})"


@dataclass(frozen=True)
class ScalingResult:
    """Times over the values of one parameter; `prediction` is what the fit of the smaller sizes gives for the largest.

    `fit` and `prediction` are None for named values (encodings, degrees).
    """

    parameter: str
    parameter_values: tuple[Any, ...]
    runtime_stats: tuple[RuntimeStats, ...]
    fit: PowerFit | None = None
    prediction: tuple[float, tuple[float, float]] | None = None  # ms, its 95 % interval
    notes: tuple[str, ...] = ()

    @property
    def inside(self) -> bool:
        """Does the measured time of the largest size lie in its prediction interval?"""
        low, high = self.prediction[1]
        return low <= self.runtime_stats[-1].median <= high

    @property
    def sentences(self) -> list[str]:
        """The fit, the largest size as predicted and as measured, and the notes, as far as there are any."""
        lines = [str(self.fit)] if self.fit else []
        if self.prediction:
            ms, (low, high) = self.prediction
            measured = f"{self.runtime_stats[-1].median:.3g} ms, {'in' if self.inside else 'out'}side the interval"
            predicted = f"predicted {ms:.3g} ms ({low:.3g} to {high:.3g})"
            lines.append(f"at {self.parameter_values[-1]:g}: {predicted}, measured {measured}")
        return [*lines, *self.notes]

    def __str__(self) -> str:
        points = zip(self.parameter_values, self.runtime_stats, strict=True)
        lines = [f"{value!s:>8}  {stats}" for value, stats in points] + self.sentences
        return "\n  ".join([f"{self.parameter}:", *lines])


def sweep(
    parameter: str,
    values: Sequence[Any],
    build: Build,
    *,
    budget_s: float = 1.0,
    in_time: Callable[[], bool] = lambda: True,
) -> ScalingResult:
    """Time the forward pass (inference mode) of `build(value)` at each value.

    Numbers are fitted with a power law, the largest held out and predicted first; with fewer than four sizes there is
    no fit and the notes say so. `budget_s` bounds each size; once `in_time()` is false no further one is begun, and
    the notes name what was left out.
    """
    numeric = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    if not values or len(set(values)) < len(values) or (numeric and min(values) <= 0):
        raise GnnlabError(f"scaling over {parameter}: {list(values)}; wanted values, each once, sizes above 0")
    values = tuple(sorted(values) if numeric else values)
    holding = numeric and len(values) > 4
    fitted, stats = values[:-1] if holding else values, []
    for value in fitted:
        if stats and not in_time():
            break
        stats.append(_time(build, value, budget_s))
    fit = fit_power_law(fitted[: len(stats)], [s.median for s in stats]) if numeric and len(stats) > 3 else None
    prediction = None
    if holding and len(stats) == len(fitted) and in_time():
        prediction = fit.predict(values[-1])
        stats.append(_time(build, values[-1], budget_s))
    left = ", ".join(map(str, values[len(stats) :]))
    notes = (f"left out, the time was over: {left}",) if left else ()
    notes += ("no exponent: it takes at least four sizes",) if numeric and fit is None else ()
    return ScalingResult(parameter, values[: len(stats)], tuple(stats), fit, prediction, notes)


def fit_power_law(sizes: Sequence[float], times_ms: Sequence[float]) -> PowerFit:
    """Fit offset + scale * n^exponent, neither negative, so that every size weighs the same (relative errors).

    For each exponent from 0 to 6 the two others follow by non-negative least squares. The interval holds every exponent
    whose sum of squares the F test does not tell from the best (a profile likelihood). From four sizes on.
    """
    n, t = np.asarray(sizes, float), np.asarray(times_ms, float)
    if len(n) < 4:
        raise GnnlabError(f"{len(n)} sizes: a power law with an offset needs at least four")
    freedom = max(1, len(n) - 3)
    centre = float(np.exp(np.log(n).mean()))  # keeps the columns of the same magnitude
    curves, squares = [], []
    for exponent in _EXPONENTS:
        columns = np.stack([1 / t, (n / centre) ** exponent / t], axis=1)
        (offset, scale), distance = nnls(columns, np.ones_like(t))
        curves.append((offset, scale / centre**exponent, exponent))
        squares.append(distance**2)
    table, squares = np.asarray(curves), np.asarray(squares)
    least = squares.min()
    plausible = table[squares <= least * (1 + fdtri(1, freedom, 0.95) / freedom) + 1e-12]
    interval = float(plausible[:, 2].min()), float(plausible[:, 2].max())
    scatter = float(stdtrit(freedom, 0.975) * np.sqrt(least / freedom))
    return PowerFit(*map(float, table[squares.argmin()]), interval, scatter, plausible)


def _time(build: Build, value: Any, budget_s: float) -> RuntimeStats:
    model, batch = build(value)
    with ProfilingContext(model, seed=None):
        return profile_forward(model, batch, num_runs=None, budget_s=budget_s)


def generate_scaling_graphs(
    num_nodes_list: Sequence[int], avg_degree: float = AVERAGE_DEGREE, feature_dim: int = 16, seed: int = 42
) -> list[Data]:
    """Undirected-looking random graphs, one a size: N nodes, N * avg_degree directed edges with uniform ends.

    Returns Data with x (N, feature_dim) float32 and edge_index (2, E) int64.
    """
    generator = torch.Generator().manual_seed(seed)
    graphs = []
    for n in num_nodes_list:
        pairs = torch.randint(0, n, (2, round(n * avg_degree / 2)), generator=generator)
        x = torch.randn(n, feature_dim, generator=generator)
        graphs.append(Data(x=x, edge_index=torch.cat([pairs, pairs.flip(0)], dim=1)))
    return graphs


def run_node_scaling(
    model_factory: ModelFactory,
    num_nodes_list: Sequence[int] = (100, 500, 1000, 2000, 5000),
    avg_degree: float = AVERAGE_DEGREE,
    device: Any = "cpu",
    **options: Any,
) -> ScalingResult:
    """`model_factory()` on random graphs of growing size at the same average degree, 16 features a node.

    Options of this and the next two go to `sweep`.
    """
    model = model_factory().to(device)
    build = lambda n: (model, generate_scaling_graphs([n], avg_degree)[0].to(device))  # noqa: E731
    return sweep("nodes", num_nodes_list, build, **options)


def run_layer_scaling(
    model_factory: ModelFactory,
    num_layers_list: Sequence[int] = (2, 4, 6, 8, 12, 16),
    num_nodes: int = 500,
    device: Any = "cpu",
    **options: Any,
) -> ScalingResult:
    """`model_factory(num_layers=...)` on one graph."""
    graph = generate_scaling_graphs([num_nodes])[0].to(device)
    return sweep("layers", num_layers_list, lambda n: (model_factory(num_layers=n).to(device), graph), **options)


def run_pe_scaling(
    model_factory: ModelFactory,
    pe_configs: Sequence[Mapping[str, Any]] = PE_CONFIGS,
    num_nodes: int = 500,
    device: Any = "cpu",
    **options: Any,
) -> ScalingResult:
    """`model_factory(pe_type=..., pe_dim=...)` with each encoding, which is computed before anything is timed.

    A value is a name and a dimension, as "lap 16". A model with a method `prepare(data)` adds its encoding
    itself; for others it is PyG's transform, stored under PyG's names (`laplacian_eigenvector_pe`, `random_walk_pe`).
    """
    graph = generate_scaling_graphs([num_nodes])[0]
    if unknown := {config["name"] for config in pe_configs} - _PE_TRANSFORMS.keys():
        raise GnnlabError(f"positional encoding {sorted(unknown)}: known are {sorted(_PE_TRANSFORMS)}")

    def build(encoding: str) -> tuple[nn.Module, Data]:
        name, dim = encoding.split()
        model = model_factory(pe_type=name, pe_dim=max(int(dim), 1)).to(device)
        encode = getattr(model, "prepare", None) or _PE_TRANSFORMS[name](int(dim))
        return model, encode(graph.clone()).to(device)

    return sweep("encoding", [f"{config['name']} {config.get('dim', 0)}" for config in pe_configs], build, **options)


@dataclass(frozen=True)
class MemoryFit:
    """Bytes at the peak of a pass on N nodes and E edges: offset + node N + edge E + square N^2, none negative.

    Model, input and all that the pass holds are in it, the interpreter and its libraries are not. The last of `sizes`,
    (nodes, edges), was held out: the others predict it. `measured`: bytes at each size. `notes`: what torch's
    allocator did not see.
    """

    offset: float
    node: float
    edge: float
    square: float
    sizes: tuple[tuple[int, int], ...]
    measured: tuple[float, ...]
    what: str = "forward pass"
    notes: tuple[str, ...] = ()

    def predict(self, nodes: float, edges: float) -> float:
        """MiB at the peak on a graph of this size."""
        return (self.offset + self.node * nodes + self.edge * edges + self.square * nodes**2) / MIB

    def largest(self, edges_per_node: float, gib: float) -> int | None:
        """Nodes of the largest graph that fits into so many GiB; None where the size of the graph does not matter."""
        left, slope = gib * GIB - self.offset, self.node + self.edge * edges_per_node
        if left <= 0:
            return 0
        if self.square:
            return int((np.sqrt(slope**2 + 4 * self.square * left) - slope) / (2 * self.square))
        return int(left / slope) if slope else None

    @property
    def off(self) -> float:
        """Predicted over measured at the size that was held out, minus 1."""
        return self.predict(*self.sizes[-1]) * MIB / self.measured[-1] - 1

    @property
    def told(self) -> bool:
        """Was the size that was held out predicted within 10 %?"""
        return abs(self.off) < _MOST_OFF

    def sentence(self, edges_per_node: float, gib: float) -> str:
        """The largest graph that fits, what a node and an edge take, and how far off the fit was."""
        nodes = self.largest(edges_per_node, gib)
        many = f"{nodes / 1e6:,.2g} million" if (nodes or 0) >= 1e6 else f"{float(f'{nodes or 0:.2g}'):,.0f}"
        fits = f"at {edges_per_node:.1f} edges a node " + ("any number of" if nodes is None else f"up to {many}")
        fits = f"{fits} nodes fit into" if self.told else "these sizes do not tell what fits into"
        terms = ((self.node, "a node"), (self.edge, "an edge"), (self.square, "a pair of nodes"))
        parts = " + ".join(f"{size / 1e3:.2g} kB {of}" for size, of in terms if size) or "the same at each size"
        sure = f"held-out {self.sizes[-1][0]:,} nodes off by {100 * abs(self.off):.0f} %"
        return f"{self.what}: {fits} {gib:.4g} GiB ({parts}; {sure})"

    def __str__(self) -> str:
        lines = [
            f"{nodes:>8,} nodes {edges:>9,} edges  {self.predict(nodes, edges):.4g} MiB, measured {size / MIB:.4g}"
            for (nodes, edges), size in zip(self.sizes, self.measured, strict=True)
        ]
        return "\n  ".join([f"{self.what}, fitted but for the last:", *lines, *self.notes])


def fit_memory(
    sizes: Sequence[tuple[int, int]], measured: Sequence[float], what: str = "forward pass", notes: Sequence[str] = ()
) -> MemoryFit:
    """Fit bytes `measured` at `sizes` (nodes, edges), relative errors, all but the last.

    A term in N^2 is kept where it makes 5 % of the largest size and halves the squared errors.

    Raises:
        GnnlabError: fewer than five sizes, or nodes and edges grow together only.
    """
    n, e = np.asarray(sizes[:-1], float).reshape(-1, 2).T
    if len(n) < 4 or np.linalg.matrix_rank(np.stack([np.ones_like(n), n, e])) < 3:
        raise GnnlabError(f"memory over {list(sizes)}: at least five sizes are needed, nodes and edges varied apart")
    y, columns = np.asarray(measured[:-1], float), np.stack([np.ones_like(n), n, e, n**2], axis=1)
    scaled = columns / columns.max(axis=0)  # of one magnitude
    plain, short = nnls(scaled[:, :3] / y[:, None], np.ones_like(y))
    full, shorter = nnls(scaled / y[:, None], np.ones_like(y))
    real = full[3] > _SQUARE_SHARE * y.max() and _SQUARE_GAIN * shorter**2 < short**2
    best = full if real else np.append(plain, 0)
    best[best < _ROUNDING * y.max()] = 0
    return MemoryFit(*map(float, best / columns.max(axis=0)), tuple(sizes), tuple(measured), what, tuple(notes))


def memory_sweep(
    build: Callable[[int, int], tuple[nn.Module, Any]],
    sizes: Sequence[tuple[int, int]] = MEMORY_SIZES,
    *,
    training: bool = False,
) -> MemoryFit:
    """Fit the peak of a pass of `build(nodes, edges)` -> model, batch; `training`: forward and backward pass.

    On a CPU the peaks are those of torch's allocator, or of the process where that is known to hold more at the largest
    size.
    """
    peaks, resident, what = [], [], "training pass" if training else "forward pass"
    for nodes, edges in (sizes := sorted(sizes)):
        model, batch = build(nodes, edges)
        with ProfilingContext(model, seed=None):
            forward = torch.inference_mode()(lambda model=model, batch=batch: call(model, batch))
            run = training_pass(model, batch) if training else forward
            peaks.append(warm_peak(run, device_of(model, batch)))
        resident.append(sum(storages(model, batch).values()))
    last = peaks[-1]
    unseen = last.agrees is False and last.process > last.peak
    measured = [size + (peak.process if unseen else peak.peak) for size, peak in zip(resident, peaks, strict=True)]
    notes = [f"{what} on {nodes:,} nodes and {edges:,} edges: {last}"] if last.agrees is False else []
    return fit_memory(sizes, measured, what, notes)


def run_memory_scaling(
    model_factory: ModelFactory, sizes: Sequence[tuple[int, int]] = MEMORY_SIZES, device: Any = "cpu", **options: Any
) -> MemoryFit:
    """`model_factory()` on random graphs of `sizes` (nodes, edges), 16 features a node. Options: `memory_sweep`'s."""
    model = model_factory().to(device)
    return memory_sweep(lambda n, e: (model, generate_scaling_graphs([n], e / n)[0].to(device)), sizes, **options)


def memory_here(device: Any = "cpu") -> float:
    """GiB of memory that a CUDA device has, or this machine, or that the control group of this process allows."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / GIB
    limits = [psutil.virtual_memory().total]
    for file in ("memory.max", "memory/memory.limit_in_bytes"):  # versions 2 and 1, as a container sees its own
        with suppress(OSError, ValueError):  # not there, or "max"
            limits.append(int(Path("/sys/fs/cgroup", file).read_text()))
    return min(limits) / GIB


class ScalingExperiment:
    """All sweeps of one model factory; results by parameter in `results`. Options are those of the sweeps."""

    def __init__(self, model_factory: ModelFactory, device: Any = "cpu", **options: Any) -> None:
        self.model_factory, self.options = model_factory, {"device": device, **options}
        self.results: dict[str, ScalingResult] = {}

    def _run(self, scaling: Callable[..., ScalingResult], **options: Any) -> ScalingResult:
        result = scaling(self.model_factory, **self.options | options)
        self.results[result.parameter] = result
        return result

    run_node_scaling = partialmethod(_run, run_node_scaling)
    run_layer_scaling = partialmethod(_run, run_layer_scaling)
    run_pe_scaling = partialmethod(_run, run_pe_scaling)

    def print_summary(self) -> None:
        print(*self.results.values(), sep="\n")
