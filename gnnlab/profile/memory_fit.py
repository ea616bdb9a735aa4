"""Does it fit? Peak memory of a pass over nodes and edges, fitted, and the largest graph that fits into a device.

    fit = run_memory_scaling(model_factory, training=True)  # or gib=24
    fit.sentence(edges_per_node=5)      # up to how many nodes fit, bytes a node and an edge, how far off the fit was

The largest size is kept out of the fit, predicted, then measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
from scipy.optimize import nnls
from torch import nn

from gnnlab.errors import GnnlabError
from gnnlab.measure.restore import ProfilingContext
from gnnlab.measure.tensors import device_of
from gnnswap.inputs import call

from .memory import MIB, storages, training_pass, warm_peak
from .scaling import AVERAGE_DEGREE, ModelFactory, generate_scaling_graphs

GIB = 2**30
MEMORY_SIZES = ((1000, 2000), (1000, 10000), (1500, 3000), (1500, 15000), (2000, 4000), (2000, 20000), (4000, 20000))
_SQUARE_SHARE, _SQUARE_GAIN = 0.05, 2.0  # of the largest size, and in squared errors: from there a term N^2 is real
_ROUNDING = 1e-6  # of the largest size: a term below it is none
_MOST_OFF = 0.1  # at the size that was held out: beyond it nothing is said of larger ones


@dataclass(frozen=True)
class MemoryFit:
    """Bytes at the peak of a pass on N nodes and E edges: offset + node N + edge E + square N^2, none negative.

    Model, input and all that the pass holds are in it, the interpreter and its libraries are not. The last of `sizes`,
    (nodes, edges), was held out: the others predict it. `measured`: bytes at each size. `gib`: the memory that there
    is. `notes`: what torch's allocator did not see.
    """

    offset: float
    node: float
    edge: float
    square: float
    sizes: tuple[tuple[int, int], ...]
    measured: tuple[float, ...]
    gib: float
    what: str = "forward pass"
    notes: tuple[str, ...] = ()

    def predict(self, nodes: float, edges: float) -> float:
        """MiB at the peak on a graph of this size."""
        return (self.offset + self.node * nodes + self.edge * edges + self.square * nodes**2) / MIB

    def largest(self, edges_per_node: float) -> int | None:
        """Nodes of the largest graph that fits into `gib`; None where the size of the graph does not matter."""
        left, slope = self.gib * GIB - self.offset, self.node + self.edge * edges_per_node
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
    def reliable(self) -> bool:
        """Was the size that was held out predicted within 10 %?"""
        return abs(self.off) < _MOST_OFF

    def sentence(self, edges_per_node: float) -> str:
        """The largest graph that fits, what a node and an edge take, and how far off the fit was."""
        nodes = self.largest(edges_per_node)
        many = f"{nodes / 1e6:,.2g} million" if (nodes or 0) >= 1e6 else f"{float(f'{nodes or 0:.2g}'):,.0f}"
        fits = f"at {edges_per_node:.1f} edges a node " + ("any number of" if nodes is None else f"up to {many}")
        fits = f"{fits} nodes fit into" if self.reliable else "these sizes do not tell what fits into"
        terms = ((self.node, "a node"), (self.edge, "an edge"), (self.square, "a pair of nodes"))
        parts = " + ".join(f"{size / 1e3:.2g} kB {of}" for size, of in terms if size) or "the same at each size"
        sure = f"held-out {self.sizes[-1][0]:,} nodes off by {100 * abs(self.off):.0f} %"
        return f"{self.what}: {fits} {self.gib:.4g} GiB ({parts}; {sure})"

    def curve(self, edges_per_node: float = AVERAGE_DEGREE) -> pd.DataFrame:
        """MiB at sizes up to the largest that fits, as rows of the lab's table; the key is `nodes`.

        Where the fit is not `reliable`, one row says so.
        """
        row = {"unit": "MiB", "better": "lower", "origin": "predicted", "statistic": "estimate", "interval": "none"}
        row["n"] = len(self.sizes) - 1
        if not self.reliable:
            reason = f"the size that was held out is off by {100 * self.off:.0f} %"
            return pd.DataFrame([row | {"nodes": self.sizes[-1][0], "status": "unavailable", "reason": reason}])
        end = self.largest(edges_per_node)
        end = 8 * self.sizes[-1][0] if end is None else max(end, 1)  # any graph fits
        nodes = np.unique(np.geomspace(1000, end, 6).round().astype(int)).tolist()
        return pd.DataFrame([row | {"nodes": n, "value": self.predict(n, edges_per_node * n)} for n in nodes])

    def __str__(self) -> str:
        lines = [
            f"{nodes:>8,} nodes {edges:>9,} edges  {self.predict(nodes, edges):.4g} MiB, measured {size / MIB:.4g}"
            for (nodes, edges), size in zip(self.sizes, self.measured, strict=True)
        ]
        return "\n  ".join([f"{self.what}, fitted but for the last:", *lines, *self.notes])


def fit_memory(
    sizes: Sequence[tuple[int, int]],
    measured: Sequence[float],
    gib: float,
    what: str = "forward pass",
    notes: Sequence[str] = (),
) -> MemoryFit:
    """Fit bytes `measured` at `sizes` (nodes, edges), relative errors, all but the last; `gib` is the memory there is.

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
    return MemoryFit(*map(float, best / columns.max(axis=0)), tuple(sizes), tuple(measured), gib, what, tuple(notes))


def memory_sweep(
    build: Callable[[int, int], tuple[nn.Module, Any]],
    sizes: Sequence[tuple[int, int]] = MEMORY_SIZES,
    *,
    training: bool = False,
    gib: float | None = None,
) -> MemoryFit:
    """Fit the peak of a pass of `build(nodes, edges)` -> model, batch; `training`: forward and backward pass. `gib` is
    the memory of the model's device, unless given.

    On a CPU the peaks are those of torch's allocator, or of the process where that is known to hold more at the largest
    size.
    """
    peaks, resident, what = [], [], "training pass" if training else "forward pass"
    for nodes, edges in (sizes := sorted(sizes)):
        model, batch = build(nodes, edges)
        with ProfilingContext(model, seed=None):
            forward = torch.inference_mode()(lambda model=model, batch=batch: call(model, batch))
            run = training_pass(model, batch) if training else forward
            peaks.append(warm_peak(run, device := device_of(model, batch)))
        resident.append(sum(storages(model, batch).values()))
    last = peaks[-1]
    unseen = last.agrees is False and last.process > last.peak
    measured = [size + (peak.process if unseen else peak.peak) for size, peak in zip(resident, peaks, strict=True)]
    notes = [f"{what} on {nodes:,} nodes and {edges:,} edges: {last}"] if last.agrees is False else []
    return fit_memory(sizes, measured, gib or memory_here(device), what, notes)


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
