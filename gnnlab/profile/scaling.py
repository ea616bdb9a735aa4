"""How the time of a model grows: with nodes, layers, encodings.

    result = run_node_scaling(model_factory, num_nodes_list=[100, 500, 1000, 2000])
    print(result)                # each time, the fitted curve with the interval of its exponent, and what it said of
                                 # the largest size beside what was measured there

Every sweep of sizes keeps its largest one out of the fit, predicts it, then measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partialmethod
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.optimize import nnls
from scipy.special import fdtri, stdtrit
from torch import nn
from torch_geometric.data import Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE

from gnnlab.errors import GnnlabError
from gnnlab.measure.restore import ProfilingContext

from .runtime import TIME, RuntimeStats, profile_forward

Build = Callable[[Any], tuple[nn.Module, Any]]  # value of the parameter -> model, batch
ModelFactory = Callable[..., nn.Module]

_EXPONENTS = np.arange(0, 6.005, 0.01)
AVERAGE_DEGREE = 5
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

    def rows(self) -> pd.DataFrame:
        """A row of the lab's table for each value; the key is the name of the parameter."""
        points = zip(self.parameter_values, self.runtime_stats, strict=True)
        rows = [{self.parameter: value, "samples": s.samples_ms, "notes": list(s.notes), **TIME} for value, s in points]
        return pd.DataFrame(rows)

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
