"""The rows of one study, as a notebook shows them: a figure, a table, a sentence, all from the same rows.

gat = lab.race("gat_layer", forms, over=cells, key=("size", "features"))
gat.plot()                                             # bars of the ratio over the baseline
gat.only(features=64).plot("value", x="size")          # lines, of a part of the rows
cells.heat(row="stage", column="size", panel="device") # a map for each device
models.marks(row="exporter", column="stage")           # what ran, what failed and why
times.scatter(x="measured", y="predicted")             # two forms of the same cells, and the line of equality
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd
from IPython.display import display
from matplotlib.figure import Figure

from gnnlab.errors import GnnlabError
from gnnlab.profiling.estimates import CONTROL, Estimate

from . import plots
from . import table as tables
from .plot_style import MAX_SERIES, axis_label
from .table import FIELDS, Origin, Row, Table, fits, over_baseline, shown_as
from .wording import cell_name, grouped_reasons, named_series, plain, words_of

if TYPE_CHECKING:
    from .session import Lab

LABELS = {("x", "higher"): "times as fast", ("x", "lower"): "times as long", ("ms", "lower"): "time"}  # unit, better
STATISTICS = {"p95": "95th percentile"}  # those that a title names


class Study:
    """The rows recorded under one name, or those of them that `only` selected.

    `frame` has a column for each key and field, for a reader's own figures.
    """

    def __init__(
        self, name: str, table: Table, lab: Lab, where: Mapping[str, Any] | None = None, label: str = ""
    ) -> None:
        self.name, self._table, self._lab, self._where, self._label = name, table, lab, dict(where or {}), label

    def only(self, **fields: Any) -> Study:
        """The rows whose keys or fields have these values, or one of a list of them. Raises `GnnlabError`."""
        self._need(*fields)
        return Study(self.name, self._table, self._lab, self._where | fields, self._label)

    def named(self, label: str) -> Study:
        """The same rows; titles, axes and columns say `label` for what they are: "error at sizes left out"."""
        return Study(self.name, self._table, self._lab, self._where, label)

    def _need(self, *names: str) -> None:
        known = {*FIELDS, *(key for row in self.rows for key in row.keys)}
        if unknown := [name for name in names if name not in known]:
            keys = ", ".join(sorted(known - set(FIELDS))) or "none"
            raise GnnlabError(f"{self.name} has no key or field {unknown[0]!r}; its keys: {keys}")

    @property
    def rows(self) -> list[Row]:
        rows = self._table.select(self.name)
        return [row for row in rows if all(fits(row.get(name), wanted) for name, wanted in self._where.items())]

    @property
    def frame(self) -> pd.DataFrame:
        return pd.DataFrame([{**row.keys, **row.model_dump(exclude={"study", "keys"})} for row in self.rows])

    @property
    def samples(self) -> list[Any]:
        """The samples (n,) of each row, in their order; None where it has none."""
        return [self._table.samples_of(row) for row in self.rows]

    @property
    def failed(self) -> dict[str, str]:
        """Why forms have no number, by name: they differ from the baseline, or do not run here."""
        return {row.form: row.reason for row in self.rows if row.status == "failed"}

    @property
    def keys(self) -> list[str]:
        """The keys that differ between rows."""
        names = dict.fromkeys(key for row in self.rows for key in row.keys)
        return [key for key in names if len({row.keys.get(key) for row in self.rows}) > 1]

    @property
    def title(self) -> str:
        """The name for a reader, and what `only` selected: "Gat layer, size 58/776"."""
        selected = [f"{plain(name)} {words_of(wanted)}" for name, wanted in self._where.items() if name != "status"]
        return ", ".join([self.label[:1].upper() + self.label[1:], *selected])

    @property
    def label(self) -> str:
        """What the rows are, on an axis."""
        return self._label or plain(self.name)

    # ---- what the rows say ------------------------------------------------------------------------------------------

    def over_baseline(self) -> dict[str, Estimate]:
        """Each form over the baseline, the geometric mean over the cells in which it ran."""
        return over_baseline(self.rows)

    def finding(self) -> str:
        """What the rows say, in one sentence."""
        rows = [row for row in self.rows if row.form != CONTROL and row.ratio is not None]
        if not rows:
            return self._range()
        base, cells = rows[0].baseline, max(Counter(row.form for row in rows).values())
        everywhere = over_baseline(rows, everywhere=True)
        faster = {form: gain for form, gain in everywhere.items() if gain.low is not None and gain.low > 1}
        where = f", geometric mean of {cells} cells" if cells > 1 else ""
        if not faster:
            return f"{self.title}: no form is measurably faster than {base}{where}"
        best = max(faster, key=lambda form: faster[form].value)
        return f"{self.title}: {best} is {faster[best].value:.3g} times as fast as {base}{where}"

    def _range(self) -> str:
        """The least and the largest value, for rows that are no race; of measured ones where there are any."""
        valued = [row for row in self.rows if row.value is not None]
        measured = [row for row in valued if row.origin is Origin.MEASURED and row.form != CONTROL]
        rows = sorted(measured or valued, key=lambda row: row.value)
        if not rows:
            return f"{self.title}: nothing was measured"
        if len(units := dict.fromkeys(row.unit for row in rows)) > 1:
            return f"{self.title}: {len(rows)} numbers in {' and '.join(units)}"
        factor, unit = shown_as(rows[0].unit)
        title = f"{self.title}, {STATISTICS[rows[0].statistic]}" if rows[0].statistic in STATISTICS else self.title
        unit = "×" if unit == "x" else "" if axis_label(title.lower(), unit) == title.lower() else f" {unit}"
        keys, several = self.keys, len({row.form for row in rows}) > 1
        cells = [(row, cell_name(row.keys, keys)) for row in (rows[0], rows[-1])]
        named = [(row, [cell, row.form] if several or not cell else [cell]) for row, cell in cells]
        names = [(row, ", ".join(dict.fromkeys(filter(None, parts)))) for row, parts in named]
        ends = [f"{tables.format_value(float(f'{row.value * factor:.3g}'))}{unit} ({name})" for row, name in names]
        return f"{title}: {ends[0]}" if len(rows) == 1 else f"{title}: from {ends[0]} to {ends[1]}"

    # ---- figures ----------------------------------------------------------------------------------------------------

    def plot(
        self, y: str = "ratio", *, x: str | None = None, by: str = "form", key: bool = False, log: bool | None = None
    ) -> None:
        """Draw the rows, save the figure under the study's name and list the forms that have no number.

        Bars of the `ratio` over the baseline, or of the `value`; with `x`, a key that is a number, lines over it, one
        for each value of `by`; `y` "samples" draws every sample. `key` marks the figure that the front page shows.
        What was not measured is hatched.
        """
        if self._nothing():
            return
        if y == "samples":
            taken = {row.form: (self._table.samples_of(row), row.estimate) for row in self.rows if row.status == "ok"}
            statistic = next(row.statistic for row in self.rows if row.status == "ok")
            axis = {"label": self.label, "unit": self._unit(), "statistic": STATISTICS.get(statistic, statistic)}
            fig = plots.samples(taken, **axis, title=self.finding())
            self._show(fig, "", f"Dots: every sample of {', '.join(taken)}, {self.label}", key)
            return
        frame, label, unit = self._drawn(y)
        if log is None:
            values = frame["value"][frame["value"] > 0]
            wide = len(values) and (values.max() / values.min() > 5 or y == "ratio")
            log = bool(wide and not ((frame["low"] <= 0) & (frame["high"] > 0)).any())
        frame = frame[frame["value"] > 0] if log and x is not None else frame
        if x is not None:
            self._need(x)
            self._numeric(frame, x)
            axes = {"x": x, "y": "value", "x_label": plain(x), "y_label": axis_label(label, unit)}
            frame = named_series(frame, by)
            fig = plots.points(frame, **axes, hue=by, joined=True, log=log, title=self.finding())
        else:
            names = [name for name in [*self.keys, "form"] if name != by and frame[name].nunique() > 1]
            grouped = bool(names) and frame[by].nunique() <= MAX_SERIES
            names = names if grouped else [*(name for name in names if name != "form"), by]
            frame = frame.assign(cell=[cell_name(row, names) for row in frame[names].to_dict("records")])
            hue = by if grouped and list(frame["cell"]) != list(frame[by]) else None  # a form named as its cell
            frame = named_series(frame, by)
            fig = plots.bars(frame, y="cell", hue=hue, label=label, unit=unit, log=log, title=self.finding())
        shape = f"Lines over {x}" if x else "Bars"
        kind = "value" if y == "value" and any(row.ratio is not None for row in self.rows) else ""
        by = f", by {' and '.join(map(plain, self.keys))}" if self.keys else ""
        self._show(fig, kind, f"{shape}: {label}{by}, with 95 % intervals", key)
        if remarks := self._remarks():
            self._lab.say("\n".join(remarks))

    def heat(self, *, row: str, column: str, panel: str = "form", key: bool = False) -> None:
        """A map of the value by two keys or fields, a panel for each value of a third, numbers in the fields. Colours
        compare within a row; what was not measured has a star, and a field is grey where there is no number.
        """
        if self._nothing():
            return
        frame, label, unit = self._drawn("value", missing=True)
        shape = {"row": row, "column": column, "panel": panel}
        fig = plots.heat(frame, **shape, label=axis_label(label, unit), title=self.finding())
        words = f"Heat maps: {label} by {plain(row)} and {plain(column)}, one map for each {plain(panel)}"
        self._show(fig, "heat", words, key)

    def marks(self, *, row: str, column: str, key: bool = False) -> None:
        """A matrix of what became of each pair of two keys or fields: ok, or not, with the reasons listed below.

        Where several rows share a field of the matrix, the worst of them counts.
        """
        compared = [each for each in self.rows if each.form != CONTROL]
        if not compared:
            self._lab.say(f"{self.title}: nothing was measured.")
            return
        self._need(row, column)
        rows = [{row: each.get(row), column: each.get(column), "status": each.status} for each in compared]
        worst = ("failed", "timeout", "unavailable", "ok")
        frame = pd.DataFrame(rows).sort_values("status", key=lambda s: s.map(worst.index), kind="stable")
        frame = frame.drop_duplicates([row, column]).sort_index()
        counts = ", ".join(f"{(frame['status'] == s).sum()} {s}" for s in worst[::-1] if (frame["status"] == s).any())
        title = f"{self.title}: of {len(frame)} pairs of {plain(row)} and {plain(column)}, {counts}"
        fig = plots.marks(frame, row=row, column=column, title=title)
        self._show(fig, "marks", f"A mark for each {plain(row)} and {plain(column)}: {counts}", key)
        lost = [(r.get(row), r.get(column), f"{r.status}: {r.reason}") for r in compared if r.status != "ok"]
        if lost:
            why = grouped_reasons(lost, plain(column), frame[column].nunique())
            self._lab.say("\n".join(f"- {line}" for line in why))

    def scatter(self, *, x: str, y: str, by: str | None = None, key: bool = False) -> None:
        """Points of two numbers: two forms in the same cells, with the line of equality, or two keys or fields.

        `by` is the key or field that tells points apart, the form unless `x` and `y` are forms.
        """
        if self._nothing():
            return
        frame = self.frame[(self.frame["status"] == "ok") & (self.frame["form"] != CONTROL)]
        forms = set(frame["form"])
        paired = {x, y} <= forms
        if paired:
            frame = self._paired(frame, x, y)
            if frame.empty:
                self._lab.say(f"{self.title}: {x} and {y} have no cell in common.")
                return
        if missing := [name for name in (x, y) if name not in frame]:
            raise GnnlabError(
                f"{self.name} has no form, key or field {missing[0]!r}; forms: {', '.join(sorted(forms))}"
            )
        self._numeric(frame, x, y)
        valued = {name for name in (x, y) if paired or name == "value"}
        words = {name: self.label if name == "value" else plain(name) for name in (x, y)}
        labels = {n: axis_label(w, shown_as(self._unit())[1]) if n in valued else w for n, w in words.items()}
        hue = by or (None if paired else "form")
        axes = {"x": x, "y": y, "x_label": labels[x], "y_label": labels[y]}
        title = self.finding()
        if paired:
            percent = shown_as(self._unit())[1] == "%"
            off = (frame[y] - frame[x]).abs() if percent else 100 * (frame[y] / frame[x] - 1).abs()
            middle, most = (tables.number(float(f"{value:.2g}")) for value in (off.median(), off.max()))
            far_unit = "percentage points" if percent else "%"
            far = f"{middle} {far_unit} in the median of {len(off)} cells, {most} {far_unit} at most"
            title = f"{self.title}: {plain(y)} is off {plain(x)} by {far}"
        fig = plots.points(frame, **axes, hue=hue, equal=paired, title=title)
        self._show(
            fig, "scatter", f"Points: {labels[y]} over {labels[x]}" + ", with the line of equality" * paired, key
        )

    def _paired(self, frame: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
        """A row for each cell in which both forms have a number, their values under their names."""
        keys = list(dict.fromkeys(key for row in self.rows for key in row.keys))
        factor = shown_as(self._unit())[0]
        sides = []
        for name in (x, y):
            side = frame[frame["form"] == name]
            numbers = {
                f"{name}{end}": side[c] * factor for end, c in (("", "value"), ("_low", "low"), ("_high", "high"))
            }
            sides.append(side[[*keys, "origin"]].assign(**numbers))
        return sides[0].drop(columns="origin").merge(sides[1], on=keys)

    def _unit(self) -> str:
        """The one unit of the rows that have a number. Raises `GnnlabError` where there are several."""
        units = list(dict.fromkeys(row.unit for row in self.rows if row.status == "ok"))
        if len(units) > 1:
            raise GnnlabError(
                f"{self.name} is in {' and '.join(units)}: one figure has one unit; .only(unit={units[0]!r})"
            )
        return units[0]

    def _numeric(self, frame: pd.DataFrame, *names: str) -> None:
        for name in names:
            if not pd.api.types.is_numeric_dtype(frame[name].infer_objects()):
                example = next(value for value in frame[name] if not isinstance(value, int | float))
                raise GnnlabError(f"{self.name}: {name} is no number ({example!r}); an axis needs numbers")

    def _nothing(self) -> bool:
        """Say so where no row has a number."""
        empty = not any(row.status == "ok" for row in self.rows)
        if empty:
            self._lab.say(f"{self.title}: nothing was measured.")
        return empty

    def _show(self, fig: Figure, kind: str, alt: str, key: bool) -> None:
        """Show and save a figure under the study's name, what was selected of it, and the kind of figure."""
        parts = [self.name, *(words_of(wanted, distinct=True) for wanted in self._where.values()), kind]
        name = "-".join(re.sub(r"[^A-Za-z0-9_]+", "-", part).strip("-") for part in parts if part)
        forms = list(dict.fromkeys(row.form for row in self.rows if row.form != CONTROL))
        self._lab.figure(fig, name, alt=f"{alt}, of {', '.join(forms[:MAX_SERIES])}.", key=key)

    def _drawn(self, y: str, missing: bool = False) -> tuple[pd.DataFrame, str, str]:
        """The rows that have a number (or all, `missing` as NaN) in a reader's unit, the name of the axis, the unit."""
        frame = self.frame
        frame = frame[(frame["form"] != CONTROL) & ((frame["status"] == "ok") | missing)]
        if y == "ratio":
            base = next((row.baseline for row in self.rows if row.baseline), "the baseline")
            frame = frame[frame["ratio"].notna()]
            ratio = {"value": "ratio", "low": "ratio_low", "high": "ratio_high"}
            frame = frame.assign(**{name: frame[column].astype(float) for name, column in ratio.items()})
            return frame, f"times as fast as {base}", "x"
        unit, better = self._unit(), next(row.better for row in self.rows if row.status == "ok")
        factor, shown = shown_as(unit)
        numbers = {end: frame[end].astype(float) * factor for end in ("value", "low", "high")}
        return frame.assign(**numbers), self._label or LABELS.get((unit, better), self.label), shown

    def _remarks(self) -> list[str]:
        """Each form over all cells, what the A/A control shows, and what has no number."""
        gains = self.over_baseline()
        timed = [row for row in self.rows if row.ratio is not None]
        worst = {f: max((r.parity_error or 0.0) for r in timed if r.form == f) for f in gains}
        lines = []
        for form, gain in gains.items():
            if form != CONTROL:
                lines.append(f"- {form}: {tables.gain_text(gain)}, {tables.error_text(worst[form])}")
        for form, reason in self.failed.items():
            rows = [row for row in self.rows if row.form == form]
            lost = sum(row.status != "ok" for row in rows)
            lines.append(f"- {form}: not timed in {lost} of {len(rows)} cells: {reason}")
        if CONTROL in gains:
            lines.append(f"- the baseline against itself (A/A): {tables.gain_text(gains[CONTROL])}")
        return lines

    # ---- tables -----------------------------------------------------------------------------------------------------

    def table(self, *columns: str) -> None:
        """Show the rows: keys, form, value with its interval, ratio, error; `columns` are further fields."""
        display(self.shown(*columns))

    def shown(self, *columns: str) -> pd.DataFrame:
        """The frame that `table` shows."""
        if not self.rows:
            return pd.DataFrame({self.name: ["nothing was measured"]})
        valued = [row for row in self.rows if row.status == "ok"]
        statistics = {row.statistic for row in valued}
        usual = statistics.pop() if len(statistics) == 1 else "value"
        mixed = len({row.unit for row in valued}) > 1  # then each number has its unit beside it
        rows = []
        for row in self.rows:
            factor, unit = shown_as(row.unit)
            ok = row.status == "ok"
            heading = self._heading(usual, "" if mixed else unit)
            value = (
                f"{tables.estimate_text(row.estimate, factor)} {unit if mixed else ''}".strip() if ok else row.status
            )
            line = {**row.keys, "form": row.form, heading: value}
            line |= {"n": row.n, "over baseline": "" if row.gain is None else tables.estimate_text(row.gain)}
            error = row.parity_error
            line["relative error"] = "" if error is None else f"{error:.1e}" if error else "0"
            line |= {"origin": row.origin.value, "why": row.reason or ""}
            rows.append(line | {c: "; ".join(row.notes) if c == "notes" else getattr(row, c) for c in columns})
        frame = pd.DataFrame(rows).fillna("").map(lambda cell: cell if isinstance(cell, str) else str(cell))
        empty = [c for c in ("over baseline", "relative error", "why") if (frame[c] == "").all()]
        empty += ["origin"] if frame["origin"].nunique() == 1 else []
        empty += ["n"] if usual == "count" else []
        front = [*self.keys, "form"]
        frame = frame[[*front, *(c for c in frame.columns if c not in (*front, *empty))]]
        return headed(frame.rename(columns=plain), plain(front[0]))

    def _heading(self, statistic: str, unit: str) -> str:
        """What a column of values is called: "median (ms)"; what is none of its samples by the name of the study."""
        words = self.label if statistic in ("count", "single", "estimate") else STATISTICS.get(statistic, statistic)
        return axis_label(words, unit)


def headed(frame: pd.DataFrame, first: str) -> pd.DataFrame:
    """The frame with the column `first` as its index, named in the same row as the other columns."""
    frame = frame.set_index(first)
    frame.columns.name, frame.index.name = first, None
    return frame
