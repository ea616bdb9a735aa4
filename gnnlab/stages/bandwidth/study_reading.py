"""What notebook 06 says: titles, sentences, tables for a reader, `bandwidth_report.txt`; computed from the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from gnnlab.stages.bandwidth.bandwidth import AGAIN, NEW, WITHIN, Study
from gnnlab.stages.bandwidth.prediction import INTERPOLATED, Predictor
from gnnlab.stages.bandwidth.seed_regression import TELLS_APART
from gnnlab.stages.bandwidth.study_frames import COPY, STUDY
from gnnlab.stages.bandwidth.transfer import PLAIN_COPY, Transfers, lent

PERFECT = f"predicted = measured, ±{WITHIN:.0%}"


def collinearity(found: Mapping[str, float], sizes: int) -> str:
    """How far the sizes of the campaign tell nodes and edges apart."""
    apart = "can" if found["condition"] <= TELLS_APART else "cannot"
    return (
        f"Over {sizes} sizes, nodes and edges are correlated by {found['correlation']:.2f} (variance inflation "
        f"{found['inflation']:.3g}); the columns [1, N, E] have the condition number {found['condition']:.3g}, so that "
        f"the two {apart} be told apart. {found['fewer_edges']:.0%} of the sizes have fewer edges than nodes."
    )


def identifiable(found: pd.DataFrame) -> str:
    """Of which stages the latencies tell a bandwidth, and why not of the others."""
    told = found.loc[found["bandwidth"], "stage"]
    lines = [f"- {row['stage']}: no bandwidth, {row['why']}" for row in found[~found["bandwidth"]].to_dict("records")]
    known = f"Latencies can tell a bandwidth for {', '.join(told)}." if len(told) else "No stage tells a bandwidth."
    return "\n".join([known, *([""] if lines else []), *lines])


def diagnosis_table(found: pd.DataFrame) -> pd.DataFrame:
    """For a reader."""
    shown = found.assign(
        condition=[_number(value, "no arithmetic") for value in found["condition"]],
        counted=[f"{value:.3g}" if np.isfinite(value) else "not counted" for value in found["counted"]],
        bandwidth=np.where(found["bandwidth"], "yes", "no"),
    )
    names = {
        "distinct": "byte counts",
        "condition": "condition number",
        "counted": "study's bytes / moved",
        "bandwidth": "tells a bandwidth",
    }
    return shown.rename(columns=names).set_index("stage")[list(names.values())]


def regression_table(regressed: pd.DataFrame, rates: pd.DataFrame) -> pd.DataFrame:
    """For a reader: by unit and stage the study's GB/s, R2 and intercept, and GB/s of a measured copy."""
    wide = rates.pivot(index=["unit", "stage"], columns="method", values="gb_s")
    wide = wide.reindex(list(dict.fromkeys(zip(rates["unit"], rates["stage"], strict=True))))
    keys = [(unit, int(stage.split()[0])) for unit, stage in wide.index]
    found = regressed.set_index(["unit", "stage"]).reindex(keys)
    return pd.DataFrame(
        {
            "study 5 (GB/s)": [_number(v, "slope not above 0") for v in wide[STUDY]],
            "a copy (GB/s)": [_number(v, "not told") for v in wide[COPY]],
            "R2": [_number(v, "") for v in found["r2"]],
            "intercept (ms)": [
                f"{r.intercept_ms:.3g} ({r.intercept_low:.3g} to {r.intercept_high:.3g})" for r in found.itertuples()
            ],
        },
        index=wide.index,
    )


def regression_title(rates: pd.DataFrame) -> str:
    """How far apart the two figures are, over the stages that have both."""
    ratios = _ratios(rates)
    if ratios.empty:
        return "Bandwidth by latency over bytes, and of a measured copy"
    low, high = ratios.min(), ratios.max()
    return f"Latency over bytes gives {low:.2g} to {high:.2g} times the bandwidth of a measured copy"


def regression(regressed: pd.DataFrame, rates: pd.DataFrame) -> str:
    """What the study's method says beside what was measured."""
    if regressed.empty:
        return "Study 5's method has no estimate of bytes for this layer, or too few sizes for a line."
    ratios = _ratios(rates)
    negative = int((regressed["intercept_ms"] < 0).sum())
    parts = [f"{negative} of {len(regressed)} intercepts are negative, which no compute time is."]
    if len(ratios):
        where = np.log(ratios).abs().idxmax()
        far = f"Farthest off is {where[1]} on {where[0]}: {ratios[where]:.3g} times the bandwidth of a copy."
        parts.insert(0, far)
        r2 = regressed["r2"]
        parts.append(f"R2 is {r2.min():.3f} to {r2.max():.3f} over all of them, and says nothing of that.")
    return " ".join(parts)


def _ratios(rates: pd.DataFrame) -> pd.Series:
    wide = rates.pivot(index=["unit", "stage"], columns="method", values="gb_s")
    return (wide[STUDY] / wide[COPY]).dropna()


def planted(one: pd.DataFrame, machines: pd.DataFrame) -> str:
    """What both methods make of machines whose bandwidth is known."""
    off = one["study 5 says (GB/s)"] / one["planted (GB/s)"]
    worst = np.log(off).abs().idxmax()
    return (
        f"On a planted machine of {one['planted (GB/s)'].iloc[0]:.3g} GB/s the study's method is farthest off at "
        f"{one['stage'][worst]}: {one['study 5 says (GB/s)'][worst]:.3g} GB/s at R2 {one['R2'][worst]:.4f}. Copies "
        f"measured "
        f"by themselves recover the bandwidth of {len(machines)} such machines within {machines['error'].mean():.2g} "
        f"% on "
        f"average and {machines['worst'].max():.2g} % at worst."
    )


def copies_title(rates: pd.DataFrame) -> str:
    """The fastest and the slowest copy that can be told."""
    if rates["gb_s"].isna().all():
        return "No copy can be told from its launch here"
    fast, slow = rates.loc[rates["gb_s"].idxmax()], rates.loc[rates["gb_s"].idxmin()]
    return (
        f"Copies move {slow['gb_s']:.3g} GB/s ({slow['unit']}, {slow['mib']:.2g} MiB) to {fast['gb_s']:.3g} GB/s "
        f"({fast['unit']}, {fast['mib']:.2g} MiB)"
    )


def copies(transfers: Transfers, rates: pd.DataFrame) -> str:
    """What a call costs beside its bytes, and of how many copies a bandwidth is told."""
    own = {unit: curve for unit, curve in transfers.through.items() if not lent(unit)}
    launches = ", ".join(f"{unit} {1e3 * curve.launch_ms:.3g} µs" for unit, curve in own.items())
    without = "".join(f" {unit} has no copies of its own: {lent(unit)}." for unit in transfers.through if lent(unit))
    return (
        f"A call that moves next to nothing takes: {launches}. Of {len(rates)} points of these curves, plain copies "
        f"included, {int(rates['gb_s'].notna().sum())} tell a bandwidth; the others are hidden by their launch or by "
        f"noise.{without}"
    )


def predictions(predictor: Predictor) -> str:
    """Which forms were chosen, and what cannot be predicted."""
    forms = pd.Series([fit.form for fit in predictor.fits.values()]).value_counts()
    chosen = ", ".join(f"*{form}* for {count}" for form, count in forms.items())
    parts = [
        f"Of {len(predictor.fits)} blocks on {len(predictor.errors)} units, chosen was {chosen}: the simplest form "
        "that no other one beats by more than 5 %."
    ]
    few = [u for u, found in predictor.errors.items() if not found[INTERPOLATED].enough]
    if few:
        parts.append(f"Too few sizes were left out for the stated rate of the intervals on {', '.join(few)}.")
    parts += [f"- {unit}, stages {a}-{b}: {why}" for (unit, a, b), why in predictor.lacking.items()]
    return "\n\n".join(parts[:2]) + "".join(f"\n{line}" for line in parts[2:])


def campaign(study: Study) -> str:
    """What was measured for this notebook."""
    done, new = study.done, int((study.compared["kind"] == NEW).sum())
    copies = int((study.copies["unit"] != PLAIN_COPY).sum())
    return (
        f"{len(done.answers)} cells, {done.known} known before; this run made {done.measured} measurements, all of "
        f"them took {done.seconds / 60:.2f} minutes. {copies} are copies, {new} are held against "
        "predictions."
    )


def forms_table(errors: pd.DataFrame) -> pd.DataFrame:
    """For a reader: by unit and stage the form that was chosen, and the mean error of each (%)."""
    kept = {name: name.replace(" (%)", ", mean error (%)") for name in errors if name.endswith(" (%)")}
    names = {"form": "chosen", "n": "left out", **kept}
    return errors.set_index(["unit", "stage"])[list(names)].rename(columns=names).round(2)


def held_out_title(found: pd.DataFrame) -> str:
    middle, worst = found["percent"].median(), found.loc[found["percent"].idxmax()]
    return (
        f"Sizes left out are missed by {middle:.2g} % in the median, {worst['percent']:.2g} % in that of the worst "
        f"block ({worst['stage']} on {worst['unit']})"
    )


def off_grid_title(compared: pd.DataFrame) -> str:
    new = compared[compared["kind"] == NEW]
    if new.empty:
        return "No size was measured that had not been fitted"
    return f"{new['within'].mean():.0%} of {len(new)} cells at sizes never fitted are predicted within {WITHIN:.0%}"


def off_grid(compared: pd.DataFrame) -> str:
    """Error and coverage at sizes never fitted, beside what a second measurement does."""
    new, again = (compared[compared["kind"] == kind] for kind in (NEW, AGAIN))
    if new.empty:
        return "There was nothing to compare."
    text = (
        f"The median error is {100 * new['error'].abs().median():.2g} %; {new['covered'].mean():.0%} of the measured "
        f"times "
        f"lie in their 90 % intervals. {new['wide'].mean():.0%} of these cells have an interval of their own that is "
        f"wider "
        f"than {WITHIN:.0%}, so that a miss of that size says little."
    )
    if len(again):
        text += (
            f" What the machine itself repeats: known cells that were measured a second time came within {WITHIN:.0%} "
            f"of the first in {again['within'].mean():.0%} of {len(again)} cases."
        )
    return text


def off_grid_table(compared: pd.DataFrame) -> pd.DataFrame:
    """By stage and unit, the share within 10 % and the median error of sizes never fitted."""
    new = compared[compared["kind"] == NEW]
    shown = new.assign(off=100 * new["error"].abs())
    found = shown.groupby(["stage", "unit"], sort=False).agg(
        cells=("within", "size"), within=("within", "mean"), covered=("covered", "mean"), off=("off", "median")
    )
    names = {"within": "share within 10 %", "covered": "share in interval", "off": "median error (%)"}
    return found.rename(columns=names).round(3)


def perfect(compared: pd.DataFrame) -> pd.DataFrame:
    """The line of predictions that are right, for a figure: ms, predicted_ms, low_ms, high_ms, unit."""
    ends = np.array([compared["ms"].min(), compared["ms"].max()])
    return pd.DataFrame(
        {
            "ms": ends,
            "predicted_ms": ends,
            "low_ms": ends * (1 - WITHIN),
            "high_ms": ends * (1 + WITHIN),
            "unit": PERFECT,
        }
    )


def surface_title(found: pd.DataFrame, block: str) -> str:
    if found.empty:
        return f"No unit has times of stages {block}"
    share = (found["origin"] == "extrapolated").mean()
    least, most = found["ms"].min(), found["ms"].max()
    return f"Stages {block}: predicted from {least:.3g} to {most:.3g} ms, {share:.0%} of the fields extrapolated"


def tables(entries: pd.DataFrame, rates: pd.DataFrame, lacking: Sequence[str]) -> str:
    """What was written, of which units, and what is left out."""
    chosen = entries[["processor", "unit"]].drop_duplicates().to_dict("records")
    units = "; ".join(f"{row['processor']} is {row['unit']}" for row in chosen)
    told = int(rates["mb_s"].notna().sum())
    bare = int((entries["diagnosis"] != "measured copy taken off").sum())
    lines = [f"{len(entries)} times and {told} of {len(rates)} bandwidths were written: {units or 'no unit'}."]
    if bare:
        lines.append(f"In {bare} of the times, compute and transfer cannot be told apart; their companions say why.")
    return " ".join(lines) + "".join(f"\n- {line}" for line in lacking)


def report(entries: pd.DataFrame, rates: pd.DataFrame, compared: pd.DataFrame, parts: Sequence[tuple[str, str]]) -> str:
    """The text of `bandwidth_report.txt`. `parts`: titles and texts that come first."""
    statistics = entries.groupby(["unit", "stage"])[["compute_time_ms", "transfer_time_ms", "total_time_ms"]]
    table = statistics.agg(["mean", "std", "min", "max"]).round(4)
    known = rates.assign(mb_s=rates["mb_s"].round(1)).drop(columns=["processor", "stage"])
    sections = [
        *parts,
        ("Bandwidth of a measured copy, by stage", known.to_string(index=False)),
        ("Times in ms over the sizes, by unit and stage", table.to_string()),
        ("Sizes never fitted", off_grid_title(compared) + ". " + off_grid(compared)),
    ]
    head = ["Bandwidth and compute", "=" * 21]
    return "\n".join([*head, *(f"\n{title}\n{'-' * len(title)}\n{text}" for title, text in sections)]) + "\n"


def _number(value: float, none: str) -> str:
    if np.isinf(value):
        return "unlimited"
    return none if np.isnan(value) else f"{value:.3g}"
