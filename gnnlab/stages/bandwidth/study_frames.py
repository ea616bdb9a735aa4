"""What notebook 06 shows, as tables: the study's bandwidth beside the measured one, errors of predictions, surfaces.

side_by_side(regressed, rates, layer)      # a row for each stage and method: GB/s
held_out(predictor)                 # error at sizes left out, by unit and block
surface(predictor, 1, 5, units)     # predicted times over N and E, with their origins
recovered(machines=20, ...)         # planted machines: what each method says of their bandwidth
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from gnnlab.profiling import estimates
from gnnlab.stages.bandwidth import planted_truth, seed_regression
from gnnlab.stages.bandwidth.measured_hull import Size
from gnnlab.stages.bandwidth.planted_truth import Truth
from gnnlab.stages.bandwidth.prediction import Predictor
from gnnlab.stages.bandwidth.quantities import Bandwidth
from gnnlab.stages.bandwidth.transfer import PLAIN_COPY, Curve, Transfers, lent
from gnnlab.stages.campaign.cell_inputs import layer_of
from gnnlab.workloads.staged import StagedLayer

STUDY, COPY = "latency over bytes (study 5)", "a measured copy"
NOT_ABOVE_0 = "its slope is not above 0, so that it gives no bandwidth"
PLANTED_GB_S = (5.0, 10.0, 40.0)
PLANTED_NOISE = 0.02
SWEEP_BYTES = tuple(4096 * 4**step for step in range(7))
TRANSFORM = 6


def side_by_side(regressed: pd.DataFrame, rates: pd.DataFrame, layer: StagedLayer) -> pd.DataFrame:
    """Both figures for each stage of the units that stand for processors.

    Columns: unit, stage ("6 TRANSFORM"), label (with the processor where there are several), method, gb_s, ci_low,
    ci_high (NaN where there is no such figure), why (there is none).
    """
    rows, several = [], rates["processor"].nunique() > 1
    for rate in rates.to_dict("records"):
        stage = f"{rate['stage']} {layer.stages[rate['stage'] - 1].name}"
        found = regressed[(regressed["unit"] == rate["unit"]) & (regressed["stage"] == rate["stage"])]
        study = study_figure(found.iloc[0]) if len(found) else (np.nan,) * 3
        none = (
            NOT_ABOVE_0 if len(found) else "no line: the study has no bytes for it, or there are fewer than three sizes"
        )
        measured = tuple(_gb_s(rate[name]) for name in ("mb_s", "mb_s_low", "mb_s_high"))
        for method, (value, low, high), why in ((STUDY, study, none), (COPY, measured, rate["why"])):
            named = f"{rate['processor']} {stage}" if several else stage
            row = {"unit": rate["unit"], "stage": stage, "label": named, "method": method}
            why = why if np.isnan(value) else ""
            rows.append({**row, "gb_s": value, "ci_low": low, "ci_high": high, "why": why})
    return pd.DataFrame(rows)


def study_figure(row: pd.Series) -> tuple[float, float, float]:
    """GB/s that a regression gives, low and high: 1 / slope; without an upper end where the slope may be 0."""
    if not row["slope_ms_per_byte"] > 0:
        return (np.nan,) * 3
    value, low = (Bandwidth.of(1, row[name]).gb_s for name in ("slope_ms_per_byte", "slope_high"))
    high = Bandwidth.of(1, row["slope_low"]).gb_s if row["slope_low"] > 0 else np.nan
    return value, low, high


def _gb_s(mb_s: float) -> float:
    return Bandwidth.from_mb_s(mb_s).gb_s if np.isfinite(mb_s) else np.nan


def copy_rates(transfers: Transfers) -> pd.DataFrame:
    """GB/s of copies through each unit that copies, and of plain ones: unit, size_bytes, mib, gb_s, ci_low, ci_high.

    NaN where launch or noise hide it. A unit that is lent the copies of another one has none here.
    """
    rows = []
    own = {unit: curve for unit, curve in transfers.through.items() if not lent(unit)}
    for unit, curve in {**own, PLAIN_COPY: transfers.plain}.items():
        for size in curve.size_bytes:
            rate, ends = curve.bandwidth(size), curve.bandwidth_interval(size) or ()
            numbers = [np.nan] * 3 if rate is None else [rate.gb_s, *(end.gb_s for end in ends)]
            at = {"unit": unit, "size_bytes": size, "mib": size / 2**20}
            rows.append({**at, **dict(zip(("gb_s", "ci_low", "ci_high"), numbers, strict=True))})
    return pd.DataFrame(rows)


def handed_on(transfers: Transfers, size_bytes: float) -> pd.DataFrame:
    """ms to hand so many bytes from each unit (rows) to each other one and the host (columns)."""
    names = ["host", *transfers.through]
    return pd.DataFrame(
        {target: [transfers.time_ms(source, target, size_bytes) for source in names] for target in names}, index=names
    )


def held_out(predictor: Predictor) -> pd.DataFrame:
    """Errors at sizes that were left out: unit, stage ("1-5" or "6 TRANSFORM"), form, percent (median), ci_low, ci_high
    (95 %), n, sizes, inside (did they lie between the others?), and percent of each form.
    """
    rows = []
    for (unit, first, last), fit in sorted(predictor.fits.items(), key=lambda item: _place(item[0])):
        errors = 100 * np.abs(np.expm1(fit.inside or fit.beyond))
        sizes = fit.inside_at if fit.inside else fit.beyond_at
        low, high = _over_groups(errors, sizes, fit.coordinates)
        row = {"unit": unit, "stage": label(predictor.layer, first, last), "form": fit.form}
        row |= {"percent": float(np.median(errors)), "ci_low": low, "ci_high": high, "n": len(errors)}
        row |= {"sizes": len(set(sizes)), "inside": bool(fit.inside)}
        rows.append(row | {f"{name} (%)": 100 * np.expm1(error) for name, error in fit.errors.items()})
    return pd.DataFrame(rows)


def _over_groups(errors: np.ndarray, sizes: Sequence[Size], along: Sequence[int]) -> tuple[float, float]:
    """Between what the median error lies (95 %): sizes of one N, and of one E, were left out together and are no
    samples of their own, so each kind of group is resampled, and the wider ends count; NaN where there is one group.
    """
    found = [estimates.over_clusters(errors, [size[c] for size in sizes], "median") for c in along]
    if any(each.low is None for each in found):
        return np.nan, np.nan
    return max(0.0, min(each.low for each in found)), max(each.high for each in found)


def _place(key: tuple[str, int, int]) -> tuple[bool, int, int]:
    """Stages before blocks of several."""
    return key[1] != key[2], *key[1:]


def label(layer: StagedLayer, first: int, last: int) -> str:
    return f"{first} {layer.stages[first - 1].name}" if first == last else f"{first}-{last}"


def surface(predictor: Predictor, first: int, last: int, units: Sequence[str], count: int = 6) -> pd.DataFrame:
    """Predicted times on a lattice over the measured sizes.

    Columns: unit, nodes, edges, at_nodes ("N 1,000"), at_edges, ms, low_ms, high_ms, origin.
    """
    known = [key for key in predictor.fits if key[0] in units and key[1:] == (first, last)]
    sizes = np.array([size for key in known for size in predictor.measured[key]], dtype=float)
    if not len(sizes):
        return pd.DataFrame(columns=["unit", "nodes", "edges", "ms", "low_ms", "high_ms", "origin"])
    lattice = [_rounded(np.geomspace(low, high, count)) for low, high in zip(sizes.min(0), sizes.max(0), strict=True)]
    rows = []
    for unit in (key[0] for key in known):
        for nodes in lattice[0]:
            for edges in lattice[1]:
                found = predictor.predict(unit, first, last, nodes, edges)
                ends = {"ms": found.time_ms, "low_ms": found.low_ms, "high_ms": found.high_ms, "origin": found.origin}
                at = {"nodes": nodes, "edges": edges, "at_nodes": f"N {nodes:,}", "at_edges": f"E {edges:,}"}
                rows.append({"unit": unit, **at, **ends})
    return pd.DataFrame(rows)


def _rounded(values: np.ndarray) -> list[int]:
    """To two digits; the ends stay."""
    middle = [int(float(f"{value:.2g}")) for value in values[1:-1]]
    return sorted({round(values[0]), *middle, round(values[-1])})


def planted(features: int, sizes: Sequence[Size], truth: Truth, seed: int = 0) -> pd.DataFrame:
    """One planted machine: stage, truth, what the study's method says (GB/s, R2), intercept, true compute time (ms)."""
    layer = layer_of("sage", features)
    cells = planted_truth.latencies(layer, sizes, truth, noise=PLANTED_NOISE, seed=seed)
    found = seed_regression.regress(cells, layer.features, seed=seed)
    compute = cells.groupby("first")["true_compute_ms"].median()
    return pd.DataFrame(
        {
            "stage": [label(layer, stage, stage) for stage in found["stage"]],
            "planted (GB/s)": truth.bandwidth.gb_s,
            "study 5 says (GB/s)": found["mb_s"].map(_gb_s),
            "R2": found["r2"],
            "intercept (ms)": found["intercept_ms"],
            "planted compute (ms)": found["stage"].map(compute),
        }
    )


def recovered(features: int, sizes: Sequence[Size], machines: int = 20) -> pd.DataFrame:
    """Planted machines, and what each method says of their bandwidth.

    Columns: planted_gb_s, error (%; mean over the sweep where a bandwidth is told, of copies measured by themselves),
    told (how many), worst (%), study_times (how many times too low the study's figure for TRANSFORM is), study_sizes
    and r2 (of that). The study's is taken at its best: latencies follow its own model and its own count of bytes.
    """
    layer, rows = layer_of("sage", features), []
    for seed in range(machines):
        truth = Truth(bandwidth=Bandwidth(1e9 * PLANTED_GB_S[seed % len(PLANTED_GB_S)]))
        curve = Curve.fit(planted_truth.sweep(truth, SWEEP_BYTES, noise=PLANTED_NOISE, seed=seed))
        told = [rate for rate in map(curve.bandwidth, SWEEP_BYTES) if rate is not None]
        errors = [100 * abs(rate / truth.bandwidth - 1) for rate in told]
        found = _study_of(layer, sizes, truth, seed)
        times = truth.bandwidth / Bandwidth.from_mb_s(found["mb_s"]) if found["mb_s"] > 0 else np.nan
        row = {"planted_gb_s": truth.bandwidth.gb_s, "error": float(np.mean(errors)), "worst": max(errors)}
        study = {"study_times": times, "study_sizes": found["sizes"], "r2": found["r2"]}
        rows.append({**row, "told": len(errors), **study})
    return pd.DataFrame(rows)


def _study_of(layer: StagedLayer, sizes: Sequence[Size], truth: Truth, seed: int) -> dict[str, Any]:
    cells = planted_truth.latencies(
        layer, sizes, truth, noise=PLANTED_NOISE, seed=seed,
        moved=lambda stage, nodes, edges: seed_regression.data_bytes(stage, nodes, edges, layer.features),
    )  # fmt: skip
    found = seed_regression.regress(cells[cells["first"] == TRANSFORM], layer.features, seed=seed)
    return found.iloc[0].to_dict()
