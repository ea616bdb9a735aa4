"""The rows of one study, as a notebook shows them: a figure, a table, a sentence, all from the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from IPython.display import display

from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import Estimate

from . import plots
from .claims import format_range, format_value
from .table import CONTROL, Row, Table

if TYPE_CHECKING:
    from .ledger import Judged
    from .session import Lab

LABELS = {"x": "times as fast", "ms": "time"}


class Study:
    """The rows recorded under one name. `frame` has a column for each key and field, for a reader's own figures."""

    def __init__(self, name: str, table: Table, lab: Lab) -> None:
        self.name, self._table, self._lab = name, table, lab

    @property
    def rows(self) -> list[Row]:
        return self._table.select(self.name)

    @property
    def frame(self) -> pd.DataFrame:
        return self._table.frame(self.name)

    @property
    def failed(self) -> dict[str, str]:
        """Why forms have no number, by name: they differ from the baseline, or do not run here."""
        return {row.form: row.reason for row in self.rows if row.status == "failed"}

    @property
    def keys(self) -> list[str]:
        """The keys that differ between rows."""
        names = dict.fromkeys(key for row in self.rows for key in row.keys)
        return [key for key in names if len({row.keys.get(key) for row in self.rows}) > 1]

    def over_baseline(self) -> dict[str, Estimate]:
        """Each form over the baseline, the geometric mean over the cells in which it ran."""
        found: dict[str, list[Estimate]] = {}
        for row in self.rows:
            if row.ratio is not None:
                found.setdefault(row.form, []).append(Estimate(row.ratio, row.ratio_low, row.ratio_high, row.n))
        return {form: estimates.geometric_mean(cells) for form, cells in found.items()}

    def finding(self) -> str:
        """What the rows say, in one sentence."""
        gains = {form: gain for form, gain in self.over_baseline().items() if form != CONTROL}
        title = self.name.replace("_", " ").capitalize()
        if not gains:
            return self._range(title)
        base = next(row.baseline for row in self.rows if row.baseline)
        cells = {form: sum(row.form == form and row.ratio is not None for row in self.rows) for form in gains}
        everywhere = {form: gain for form, gain in gains.items() if cells[form] == max(cells.values())}
        seen = {form: gain for form, gain in everywhere.items() if gain.low is not None and gain.low > 1}
        where = f", geometric mean of {max(cells.values())} cells" if max(cells.values()) > 1 else ""
        if not seen:
            return f"{title}: no form is seen to be faster than {base}{where}"
        best = max(seen, key=lambda form: seen[form].value)
        return f"{title}: {best} is {seen[best].value:.3g} times as fast as {base}{where}"

    def _range(self, title: str) -> str:
        """The least and the largest value, for rows that are no race."""
        rows = sorted((row for row in self.rows if row.value is not None), key=lambda row: row.value)
        if not rows:
            return f"{title}: nothing was measured"
        factor, unit = _shown_as(rows[0].unit)
        named = [(row, ", ".join([*map(str, row.keys.values()), row.form])) for row in (rows[0], rows[-1])]
        ends = [f"{format_value(float(f'{row.value * factor:.3g}'))} {unit} ({name})" for row, name in named]
        return f"{title}: {ends[0]}" if len(rows) == 1 else f"{title}: from {ends[0]} to {ends[1]}"

    def plot(self, y: str = "ratio", *, x: str | None = None, key: bool = False, log: bool | None = None) -> None:
        """Draw the rows, keep the figure under the study's name and say which forms have no number.

        Bars of the `ratio` over the baseline, or of the `value`; with `x`, a key that is a number, lines over it.
        `key` marks the figure that the front page shows. What was not measured is hatched.
        """
        if not any(row.status == "ok" for row in self.rows):
            self._lab.say(f"{self.name.replace('_', ' ').capitalize()}: nothing was measured.")
            return
        if y == "samples":
            self._plot_samples(key)
            return
        frame = self._drawn(y)
        unit = "x" if y == "ratio" else _shown_as(self.rows[0].unit)[1]
        low, high = ("ratio_low", "ratio_high") if y == "ratio" else ("low", "high")
        label = self._axis(y)
        if log is None:
            values = frame[y].dropna()
            values = values[values > 0]
            log = bool(len(values) and (values.max() / values.min() > 5 or y == "ratio"))
        if log:
            frame = frame[frame[y] > 0]
        shared = {"title": self.finding(), "ci_low": low, "ci_high": high, "origin": "origin"}
        if x is not None:
            axes = {"x": x, "y": y, "hue": "form", "x_label": x.replace("_", " "), "y_label": f"{label} ({unit})"}
            fig = plots.lines(frame, **axes, **shared, logx=True, logy=log)
        elif self.keys:
            frame = frame.assign(cell=[_cell(row, self.keys) for row in frame[self.keys].to_dict("records")])
            fig = plots.bars(frame, x=y, y="cell", hue="form", unit=unit, x_label=label, log=log, **shared)
        else:
            fig = plots.bars(frame, x=y, y="form", unit=unit, x_label=label, log=log, **shared)
        self._lab.figure(fig, self.name, alt=self._alt(y, x), key=key)
        self._lab.say(*self._remarks())

    def _plot_samples(self, key: bool) -> None:
        """Every sample of each form as a dot."""
        samples = {row.form: self._table.samples_of(row) for row in self.rows if row.status == "ok"}
        label = self.name.replace("_", " ")
        fig = plots.samples(samples, unit=self.rows[0].unit, x_label=label, title=self.finding())
        self._lab.figure(fig, self.name, alt=f"Dots: every sample of {', '.join(samples)}, {label}.", key=key)

    def _drawn(self, y: str) -> pd.DataFrame:
        frame = self.frame
        frame = frame[(frame["form"] != CONTROL) & (frame["status"] == "ok")]
        if y == "ratio":
            return frame[frame["ratio"].notna()].astype({y: float})
        factor, _ = _shown_as(self.rows[0].unit)
        return frame.assign(**{end: frame[end].astype(float) * factor for end in ("value", "low", "high")})

    def _axis(self, y: str) -> str:
        if y == "ratio":
            base = next((row.baseline for row in self.rows if row.baseline), "the baseline")
            return f"times as fast as {base}"
        return LABELS.get(self.rows[0].unit, self.name.replace("_", " "))

    def _alt(self, y: str, x: str | None) -> str:
        shape = f"Lines over {x}" if x else "Bars"
        forms = list(dict.fromkeys(row.form for row in self.rows if row.form != CONTROL))
        by = f", by {' and '.join(self.keys)}" if self.keys else ""
        return f"{shape}: {self._axis(y)}{by}, of {', '.join(forms)}, with 95 % intervals."

    def _remarks(self) -> list[str]:
        """Each form over all cells, what the A/A control shows, and what has no number."""
        gains = self.over_baseline()
        worst = {f: max((r.parity_error or 0.0) for r in self.rows if r.form == f) for f in gains}
        lines = [
            f"- {form}: {gain_text(gain)}, largest relative error {worst[form]:.1e}"
            for form, gain in gains.items()
            if form != CONTROL
        ]
        lines += [
            f"- {form}: not timed in {self._lacking(form)} cells, {reason}" for form, reason in self.failed.items()
        ]
        if CONTROL in gains:
            lines.append(f"- the baseline against itself (A/A): {gain_text(gains[CONTROL])}")
        return ["\n".join(lines)] if lines else []

    def _lacking(self, form: str) -> str:
        rows = [row for row in self.rows if row.form == form]
        return f"{sum(row.status != 'ok' for row in rows)} of {len(rows)}"

    def table(self, *columns: str) -> None:
        """Show the rows: keys, form, value with its interval, ratio, error; `columns` are further fields."""
        display(self.shown(*columns))

    def shown(self, *columns: str) -> pd.DataFrame:
        """The frame that `table` shows."""
        if not self.rows:
            return pd.DataFrame({self.name: ["nothing was measured"]})
        rows = []
        for row in self.rows:
            ratio = None if row.ratio is None else Estimate(row.ratio, row.ratio_low, row.ratio_high, row.n)
            factor, unit = _shown_as(row.unit)
            value = row.reason if row.value is None else estimate_text(row.estimate, factor)
            line = {**row.keys, "form": row.form, f"{row.statistic} ({unit})": value, "n": row.n}
            line["over baseline"] = "" if ratio is None else estimate_text(ratio)
            line["relative error"] = "" if row.parity_error is None else f"{row.parity_error:.1e}"
            rows.append({**line, "origin": row.origin.value, **{c: getattr(row, c) for c in columns}})
        frame = pd.DataFrame(rows).fillna("").map(lambda cell: cell if isinstance(cell, str) else str(cell))
        plain = [c for c in ("over baseline", "relative error") if (frame[c] == "").all()]
        plain += ["origin"] if frame["origin"].nunique() == 1 else []
        first = (self.keys or ["form"])[0]
        return headed(
            frame.drop(columns=plain)[[*self.keys, "form", *_rest(frame, [*self.keys, "form", *plain])]], first
        )


def _cell(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The name of a cell: "1000/1000, features 64"."""
    return ", ".join(str(row[key]) if isinstance(row[key], str) else f"{key} {row[key]}" for key in keys)


def _rest(frame: pd.DataFrame, taken: Sequence[str]) -> list[str]:
    return [column for column in frame.columns if column not in taken]


def headed(frame: pd.DataFrame, first: str) -> pd.DataFrame:
    """The frame with the column `first` as its index, named in the same row as the other columns."""
    frame = frame.set_index(first)
    frame.columns.name, frame.index.name = first, None
    return frame


def ledger_frame(judged: Sequence[Judged]) -> pd.DataFrame:
    """Judged claims for a reader."""
    frame = pd.DataFrame(
        {
            "claim": row.id,
            "claimed": format_range(row.claimed),
            "measured here": "not here" if row.value is None else f"{_measured(row)} {row.unit}",
            "verdict": row.verdict.value,
            "why": row.why,
        }
        for row in judged
    )
    return headed(frame, "claim") if len(frame) else frame


def _measured(row: Judged) -> str:
    return estimate_text(Estimate(row.value, row.low, row.high, row.n))


def _shown_as(unit: str) -> tuple[float, str]:
    """The factor and the unit in which a reader sees values of a unit: shares as percent."""
    return (100.0, "%") if unit == "share" else (1.0, unit)


def estimate_text(found: Estimate, factor: float = 1.0) -> str:
    """As "1.42 (1.40 to 1.45)", times `factor`; an exact number and one without an interval stand alone."""
    if factor != 1.0:
        ends = (None, None) if found.low is None else (found.low * factor, found.high * factor)
        found = Estimate(found.value * factor, *ends, found.n)
    if found.low is None or found.low == found.high:
        return format_value(found.value)
    return f"{_digits(found.value, found)} ({_digits(found.low, found)} to {_digits(found.high, found)})"


def _digits(value: float, found: Estimate) -> str:
    """As many digits as the interval is worth, three at the least."""
    half = (found.high - found.low) / 2
    digits = max(0, -int(np.floor(np.log10(half))) + 1)
    magnitude = int(np.floor(np.log10(max(abs(found.value), 1e-300))))
    return f"{value:,.{min(digits, max(0, 3 - magnitude) + 3)}f}"


def gain_text(gain: Estimate) -> str:
    """ "2.31 (2.25 to 2.37) times as fast", or that no difference was seen."""
    if gain.low is None:
        return f"{gain.value:.3g} times as fast, of {gain.n} rounds, too few for an interval"
    text = estimate_text(gain)
    return f"no difference seen, {text}" if gain.low <= 1 <= gain.high else f"{text} times as fast"
