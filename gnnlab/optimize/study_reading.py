"""What the tables of `study` say: titles and sentences, all of them computed from the numbers."""

from __future__ import annotations

import pandas as pd

from gnnlab.optimize.study import BASELINE, CONTROL, SAME, Gain, geometric_mean, rounds_of


def fastest(table: pd.DataFrame, what: str) -> str:
    """A title: what form is fastest over all sizes, and by how much."""
    names = [f for f in dict.fromkeys(table["form"]) if f not in (BASELINE, CONTROL, SAME) and rounds_of(table, f)]
    gains = {name: geometric_mean(rounds_of(table, name)) for name in names}
    name = max(gains, key=lambda n: gains[n].value)
    over = f"over {gains[name].sizes} sizes" if gains[name].sizes > 1 else "here"
    return f"{what}: {name} is {gains[name].value:.3g} times as fast {over}"


def forms(table: pd.DataFrame) -> str:
    """Each form over all its sizes with its largest error, and those that do not run here."""
    parts = []
    for name in dict.fromkeys(table["form"]):
        part = table[table["form"] == name]
        if name == BASELINE:
            continue
        if not rounds_of(table, name):
            parts.append(f"- {name} {part['notes'].iloc[0]}")
            continue
        gain, error = geometric_mean(rounds_of(table, name)), part["parity_error"].max()
        accuracy = "" if pd.isna(error) else f", largest relative error {error:.1e}"
        parts.append(f"- {name}: {gain_text(gain)}{accuracy}")
    return "\n".join(parts)


def gain_text(gain: Gain) -> str:
    return f"{gain.value:.3g} times as fast ({gain.ci[0]:.3g} to {gain.ci[1]:.3g})"
