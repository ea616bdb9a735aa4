"""What the tables of notebook 04 say: titles and sentences, all computed from the numbers."""

from __future__ import annotations

from typing import Any

import pandas as pd

from gnnlab.optimize.study import BASELINE, CONTROL
from gnnlab.profiling.parity import RTOL_FLOAT32
from gnnlab.stages.export.artefacts import FAILED, WRONG
from gnnlab.stages.export.study import RIGHT
from gnnlab.workloads.staged import StagedLayer


def stages(layer: StagedLayer, nodes: int, edges: int) -> str:
    """Where a cut is cheapest and dearest, and what goes along there."""
    cuts = {n: layer.cut_bytes(n, nodes, edges) for n in layer.numbers[:-1]}
    least, most = min(cuts, key=cuts.get), max(cuts, key=cuts.get)
    said = (f"stage {n} ({cuts[n] / 2**20:.1f} MiB: {_listed(layer.crossing(n))})" for n in (least, most))
    return "At {}/{} the cheapest cut is behind {}, the dearest behind {}.".format(nodes, edges, *said)


def matrix_title(table: pd.DataFrame) -> str:
    """Who is wrong in silence, the worst that an exporter can be."""
    wrong = table[table["status"] == WRONG]
    if wrong.empty:
        return f"No exported model computes something else than torch; {_failed(table)}"
    names = _listed(f"{e} with {f}" for e, f in wrong[["exporter", "form"]].drop_duplicates().to_numpy())
    return f"{names} is wrong in silence, {len(wrong)} times of {len(table)}; {_failed(table)}"


def matrix(table: pd.DataFrame) -> str:
    """How far off the wrong ones are, why others failed, and which combinations are right throughout."""
    parts = []
    for row in table[table["status"] == WRONG].drop_duplicates(["exporter", "form", "stage"]).itertuples():
        parts.append(f"{row.exporter} with {row.form} is wrong in {row.stage}: {row.reason}.")
    for row in table[table["status"] == FAILED].drop_duplicates(["combination", "reason"]).itertuples():
        parts.append(f"{row.combination} fails in {row.stage}: {row.reason}.")
    whole = table.groupby("combination", sort=False)["status"].agg(lambda found: (found == RIGHT).all())
    right = table[table["status"] == RIGHT]["error"].max()
    parts.append(
        f"Right wherever it is offered: {_listed(whole.index[whole])}; the largest error among all that are right is "
        f"{right:.1e} of the largest magnitude, allowed is {RTOL_FLOAT32:.0e}."
    )
    return "\n".join(f"- {part}" for part in parts)


def matrix_alt(table: pd.DataFrame) -> str:
    """The figure in words."""
    counts = table["status"].value_counts()
    said = ", ".join(f"{counts.get(status, 0)} {status}" for status in (RIGHT, WRONG, FAILED))
    return f"A matrix of marks, exporters and runtimes by stages: {said} of {len(table)}."


def statuses(table: pd.DataFrame) -> pd.DataFrame:
    """How often each combination is right, wrong and failed."""
    counts = table.groupby(["combination", "status"], sort=False).size().unstack(fill_value=0)
    return counts.reindex(columns=[RIGHT, WRONG, FAILED], fill_value=0).reset_index()


def models(table: pd.DataFrame) -> str:
    total, files = int(table["models"].sum()), int(table["files"].sum())
    shared = f", which share {files} files: where only nodes or only edges count, sizes have models in common"
    bad = total - int(table["ready"].sum())
    fit = f"{bad} of them are not fit to be measured" if bad else "all are right and fit to be measured"
    made = f"{table['made'].sum()} of them exported and checked by this run in {table['seconds'].sum():.1f} s"
    return f"{total} models{shared if files < total else ''}; {table['mib'].sum():.1f} MiB, {made}; {fit}."


def times_title(times: pd.DataFrame) -> str:
    """`times` has the columns form and value, seconds a model, None where this run made none."""
    values = times["value"].astype(float)
    if values.isna().all():
        return "No model was exported by this run, so none was timed"
    slow, fast = times.loc[values.idxmax()], times.loc[values.idxmin()]
    return f"A model takes {fast['value']:.2g} s ({fast['form']}) to {slow['value']:.2g} s ({slow['form']})"


def waste(table: pd.DataFrame) -> str:
    worst = table.loc[table.groupby("policy", sort=False)["waste"].idxmax()]
    means = table.groupby("policy", sort=False)["waste"].mean()
    said = (
        f"{r.policy} {means[r.policy]:.0f} % on average, {r.waste:.0f} % at worst ({r.size} in {r.bucket})"
        for r in worst.itertuples()
    )
    return f"Share of the moved bytes that is padding: {'; '.join(said)}."


def waste_title(table: pd.DataFrame) -> str:
    means = table[table["policy"] != "exact"].groupby("policy", sort=False)["waste"].mean()
    said = _listed(f"{value:.0f} % in {policy}" for policy, value in means.items())
    return f"Of the bytes moved, padding is {said}, on average over the sizes"


def padded_forms(table: pd.DataFrame) -> pd.DataFrame:
    """The rows to draw: every form that ran, without the control."""
    kept = table[~table["form"].isin([BASELINE, CONTROL]) & table["ratio"].notna()]
    return kept.assign(label=kept["form"] + "\n" + kept["bucket"])


def padding(table: pd.DataFrame) -> str:
    rows = padded_forms(table)
    base = table[table["form"] == BASELINE].iloc[0]
    said = "; ".join(f"{r.form} ({r.bucket}) {_change(r)}" for r in rows.itertuples())
    noise = table[table["form"] == CONTROL]
    floor = "" if noise.empty else f" The model against itself: {noise.iloc[0]['ratio']:.3f}."
    return (
        f"On {base['graph']} ({base['size']}) the dynamic model takes {base['ms']:.3g} ms; {said}. Padded results "
        f"{_equal(rows['parity_error'].max())}.{floor}"
    )


def _equal(error: float) -> str:
    return f"equal the others within {error:.0e}" if error else "equal the others in every bit"


def padding_title(table: pd.DataFrame) -> str:
    """What fixed shapes do by themselves, and what padding adds to that."""
    rows = padded_forms(table).set_index("form")
    row = rows.loc["static, powers"]
    said = f"{row['ratio']:.2f} times as fast ({row['ci_low']:.2f} to {row['ci_high']:.2f}) as with dynamic shapes"
    if "static, exact" not in rows.index:
        return f"Padded to powers of two the layer is {said}"
    alone = rows.loc["static, exact", "ratio"]
    return f"Fixed shapes alone: {alone:.2f} times as fast; padded to powers of two: {said}"


def preparation(table: pd.DataFrame) -> str:
    last = table[table["size"] == table["size"].iloc[-1]]
    said = _listed(f"{r.input} {r.ms:.2g} ms ({r.ms_low:.2g} to {r.ms_high:.2g})" for r in last.itertuples())
    return f"Once for a graph, before the first sum: at {last['size'].iloc[0]} {said}."


def _change(row: Any) -> str:
    if row.ci_low <= 1 <= row.ci_high:
        return "shows no difference"
    return f"is {row.ratio:.3g} times as fast ({row.ci_low:.3g} to {row.ci_high:.3g})"


def _failed(table: pd.DataFrame) -> str:
    failed = int((table["status"] == FAILED).sum())
    return f"{failed} others fail openly" if failed else "none fails"


def _listed(words: Any) -> str:
    words = list(words)
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
