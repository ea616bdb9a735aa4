"""The time of moving bytes, by measured copies over a sweep of sizes: plain ones, and through devices.

    curve = CopyCurve.fit(table)                  # size_bytes, ms, ms_low, ms_high, n of copies
    curve.ms(3e6); curve.gb_s(3e6)                # between measured sizes; NaN where launch or noise hide it
    Transfers.fit(copies).plain.ms(2e7)

A copy of so many bytes reads them and writes them, so it moves twice as many. Through a device it is stage 2 of
GraphSAGE, the identity; a plain copy is numpy's, by which devices hand on results. All are measurements of a sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gnnlab import machine
from gnnlab.errors import GnnlabError
from gnnlab.stages import devices
from gnnlab.stages.devices import Availability, Device, Loaded, Values
from gnnlab.stages.export import HANDBUILT, export
from gnnlab.stages.measure import Config
from gnnlab.stages.sizes import layer_of
from gnnswap.errors import quoted

IDENTITY, STAGE = "sage", 2
NODES = 2  # of the graph of a copy, which the identity does not look at
LEAST_BYTES = 4096
PLAIN_COPY = f"{__name__}:plain_copy"  # as a device's name
WIDEST = 0.2  # a bandwidth is known where the half-width of its interval is less than this share of it
_DRIFT = 0.015  # by which two medians differ from one minute to the next, in addition to their intervals


@dataclass(frozen=True, eq=False)
class CopyCurve:
    """ms of a copy by bytes, never less for more of them, as arrays (sizes,). `n`: the fewest samples of a size."""

    size_bytes: np.ndarray
    at_ms: np.ndarray
    low_ms: np.ndarray
    high_ms: np.ndarray
    n: int

    @classmethod
    def fit(cls, table: pd.DataFrame) -> CopyCurve:
        """Of copies of two or more sizes: size_bytes, ms, ms_low, ms_high, n. `GnnlabError`: fewer, or a time of 0."""
        from scipy.optimize import isotonic_regression

        sweep = table.sort_values("size_bytes")[["size_bytes", "ms", "ms_low", "ms_high"]].to_numpy(float)
        size, ms, low, high = sweep.T
        if len(sweep) < 2 or not (sweep > 0).all():
            raise GnnlabError(f"copies of {len(sweep)} sizes took {quoted(ms.tolist())} ms; two above 0 are needed")
        rising = isotonic_regression(ms, weights=1 / ms**2).x
        return cls(size, rising, rising * low / ms, rising * high / ms, int(table["n"].min()))  # as wide as measured

    @property
    def launch_ms(self) -> float:
        """The time of the smallest copy, which hardly moves anything."""
        return float(self.at_ms[0])

    def ms(self, size_bytes: float, times: np.ndarray | None = None) -> float:
        """Straight between measured sizes; below them the launch, beyond them at the mean bandwidth of the largest.
        `times`: the low or high ends instead."""
        times = self.at_ms if times is None else times
        beyond = max(0.0, size_bytes / self.size_bytes[-1] - 1) * max(0.0, times[-1] - times[0])
        return float(np.interp(size_bytes, self.size_bytes, times) + beyond)

    def moving_ms(self, moved_bytes: float) -> float:
        """ms for reading and writing so many bytes in all, without the launch."""
        return max(0.0, self.ms(moved_bytes / 2) - self.launch_ms)

    def gb_s(self, size_bytes: float) -> tuple[float, float, float]:
        """GB/s that a copy of that size reads and writes, low and high (95 %): by what it moves and takes beyond the
        smallest one. NaN where launch and noise leave it open."""
        ms, low, high = (self.ms(size_bytes, times) for times in (self.at_ms, self.low_ms, self.high_ms))
        moved, beyond = 2 * (size_bytes - self.size_bytes[0]), ms - self.launch_ms
        below = np.linalg.norm([ms - low, self.high_ms[0] - self.launch_ms, _DRIFT * ms])
        above = np.linalg.norm([high - ms, self.launch_ms - self.low_ms[0], _DRIFT * ms])
        if moved <= 0 or beyond <= 0 or max(below, above) > WIDEST * beyond:
            return (np.nan,) * 3
        return tuple(float(moved / time_ms / 1e6) for time_ms in (beyond, beyond + above, beyond - below))


@dataclass(frozen=True)
class Transfers:
    """Plain copies, and copies through those devices that copy (`through`)."""

    plain: CopyCurve
    through: Mapping[str, CopyCurve]

    @classmethod
    def fit(cls, copies: pd.DataFrame) -> Transfers:
        """Of copies by device (`PLAIN_COPY` is one): the columns of `CopyCurve.fit`, and device.
        Raises `GnnlabError`: there are no plain copies of two sizes, or a time is not above 0.
        """
        through = {name: CopyCurve.fit(part) for name, part in copies.groupby("device", sort=False) if len(part) > 1}
        if PLAIN_COPY not in through:
            raise GnnlabError("no sweep of plain copies; notebook 06 and gnnlab stages --analyze measure one")
        return cls(through.pop(PLAIN_COPY), through)

    def of(self, device: str) -> CopyCurve:
        """Copies through a device; plain ones where it has none of its own."""
        return self.through.get(device, self.plain)


# ---- measured -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlainCopy(Device):
    """numpy's copy from one array to another, as a device that has the identity alone."""

    def probe(self) -> Availability:
        return Availability(True, chip=machine.processor(), version=f"numpy {np.__version__}")

    def load(self, layer: Any, first: int, last: int, model: Any, *, edges: int, **conditions: Any) -> Loaded:
        block, about = layer.block(first, last), self.probe()
        (source,), (result,) = block.reads, block.writes
        target = np.empty((edges, layer.features), np.float32)

        def run(values: Values) -> dict[str, np.ndarray]:
            np.copyto(target, values[source])
            return {result: target}

        return Loaded(run, about.chip, about.version)


plain_copy = partial(PlainCopy, PLAIN_COPY, "CPU", "numpy")  # the factory that `PLAIN_COPY` names


def copy_configs(timed: Sequence[Config], points: int, models: Path) -> list[Config]:
    """Copies at up to `points` sizes, plain and through the devices of `timed`; exports their models of the identity.

    Sizes go from 4 KiB to the most that one of `timed` reads and writes, evenly in logarithms. A plain copy counts also
    for torch on the CPU, whose stage 2 hands its input on, and for models built by hand, which only sum.
    """
    like, row_bytes = timed[0], 4 * timed[0].features
    measured, identity = layer_of(like.layer, like.features), layer_of(IDENTITY, like.features)
    most = max(measured.block(each.first, each.last).bytes_moved(each.nodes, each.edges) for each in timed) / 2
    least = max(LEAST_BYTES, row_bytes)
    sizes = np.geomspace(least, max(most, 4 * least), points)
    sweep, through = np.unique(np.rint(sizes / row_bytes).astype(int)).tolist(), [PLAIN_COPY]
    for name in dict.fromkeys(each.device for each in timed):
        device = devices.find(name)
        if device.exporter == HANDBUILT or (device.runtime, device.processor) == ("torch", "CPU"):
            continue
        through.append(name)
        for size in [(NODES, edges) for edges in sweep] if device.static_shapes else [None]:
            if device.exporter:
                export(identity, STAGE, STAGE, exporter=device.exporter, folder=models, size=size)
    copy = replace(like, layer=IDENTITY, first=STAGE, last=STAGE, nodes=NODES)
    return [replace(copy, edges=edges, device=name) for edges in sweep for name in through]
