"""The rows of one study, as a notebook shows them: a figure, a table, a sentence, all from the same rows.

gat = lab.race("gat_layer", variants, over=cells, key=("size", "features"))
gat.plot()                                             # bars of the ratio over the baseline
gat.only(features=64).plot("value", x="size")          # lines, of a part of the rows
cells.heat(row="stage", column="size", panel="device") # a map for each device
models.marks(row="exporter", column="stage")           # what ran, what failed and why
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd
from IPython.display import display
from matplotlib.figure import Figure

from gnnlab.errors import GnnlabError
from gnnlab.measure.estimates import CONTROL, Estimate

from . import plots, text
from .plot_style import MAX_SERIES, is_wide
from .table import FIELDS, Origin, Row, fits, over_baseline

if TYPE_CHECKING:
    from .session import Lab

STATISTICS = {"p95": "95th percentile"}  # those that a title names
SAME = 1e-4  # largest relative error of a variant that computes the same as its baseline
ANSWER_KNOWN = " is known"  # a note that ends so: the variant was timed on cached answers alone
LONG_TEXT = 24  # characters of a sentence that a table says once
ENDS = ("value", "low", "high")


class Study:
    """The rows recorded under one name, or those of them that `only` selected.

    `frame` has a column for each key and field, for a reader's own figures; `rows` are the same as `Row`s.
    """

    def __init__(
        self,
        name: str,
        rows: Iterable[Row],
        lab: Lab | None = None,
        selected: Mapping[str, Any] | None = None,
        label: str = "",
    ) -> None:
        self.name, self.rows, self._lab = name, list(rows), lab
        self._selected, self.label = dict(selected or {}), label or text.plain(name)
        self._valued = [row for row in self.rows if row.status == "ok"]  # those with a number
        keys = dict.fromkeys(key for row in self.rows for key in row.keys)
        columns = [*keys, *(field for field in FIELDS if field not in ("study", "keys", *keys))]
        self.frame = pd.DataFrame([row.keys | row.model_dump() for row in self.rows], columns=columns)
        self.keys = [key for key in keys if self.frame[key].nunique(dropna=False) > 1]  # those that differ

    def only(self, **fields: Any) -> Study:
        """The rows whose keys or fields have these values, or one of a list of them. Raises `GnnlabError`."""
        self._need(*fields)
        rows = [row for row in self.rows if all(fits(row.get(name), wanted) for name, wanted in fields.items())]
        return Study(self.name, rows, self._lab, self._selected | fields, self.label)

    def named(self, label: str) -> Study:
        """The same rows; titles, axes and columns say `label` for what they are: "error at sizes left out"."""
        return Study(self.name, self.rows, self._lab, self._selected, label)

    def _need(self, *names: str, numbers: bool = False) -> None:
        """Raises `GnnlabError` unless these are keys or fields, all of them `numbers` where an axis is made of them."""
        for name in names:
            if name not in self.frame:
                keys = ", ".join(sorted({*self.frame} - set(FIELDS))) or "none"
                raise GnnlabError(f"{self.name} has no key or field {name!r}; its keys: {keys}")
            words = [value for value in self.frame[name] if isinstance(value, str)]
            if numbers and words:
                raise GnnlabError(f"{self.name}: {name} is no number ({words[0]!r}); an axis needs numbers")

    @property
    def samples(self) -> list[Any]:
        """The samples (n,) of each row, in their order; None where it has none."""
        return [self._lab.table.samples_of(row) for row in self.rows]

    @property
    def failed(self) -> dict[str, str]:
        """Why variants have no number, by name: they differ from the baseline, or do not run here."""
        return {row.variant: row.reason for row in self.rows if row.status == "failed"}

    @property
    def title(self) -> str:
        """The name for a reader, and what `only` selected: "Gat layer, size 58x776"."""
        chosen = {text.plain(name): wanted for name, wanted in self._selected.items() if name != "status"}
        selected = "".join(f", {name} {text.words_of(wanted)}" for name, wanted in chosen.items())
        return f"{self.label[:1].upper()}{self.label[1:]}{selected}"

    # ---- what the rows say ------------------------------------------------------------------------------------------

    def over_baseline(self) -> dict[str, Estimate]:
        """Each variant over the baseline, the geometric mean over the cells in which it ran."""
        return over_baseline(self.rows)

    def fastest(self) -> tuple[str, str, Estimate] | None:
        """The variant that is measurably faster than its baseline by most, that baseline, and the gain (the geometric
        mean over cells). Of several baselines that of most rows counts. None where no variant is faster.

        Only variants count that ran in every cell and compute the same (`SAME`), by more than looking up a known
        answer.
        """
        equal = [row for row in self._raced() if (row.parity_error or 0.0) <= SAME]
        equal = [row for row in equal if not any(note.endswith(ANSWER_KNOWN) for note in row.notes)]
        for base, _ in Counter(row.baseline for row in equal).most_common():
            gains = over_baseline([row for row in equal if row.baseline == base], everywhere=True)
            if faster := [
                (variant, base, gain) for variant, gain in gains.items() if gain.low is not None and gain.low > 1
            ]:
                return max(faster, key=lambda one: one[2].value)
        return None

    def finding(self) -> str:
        """What the rows say, in one sentence: "GAT layer: gnnlab is 4.8× (4.1 to 5.4×) as fast as PyG"."""
        raced = self._raced()
        if not raced:
            return self._range()
        better = "small" if raced[0].unit.endswith("B") else "fast"
        if (best := self.fastest()) is None:
            return f"{self.title}: nothing that computes the same is measurably {better}er than {raced[0].baseline}"
        variant, base, gain = best
        value, interval = text.with_unit(gain, "x")
        cases = sum((row.variant, row.baseline) == (variant, base) for row in raced)
        mean = f", geometric mean of {cases} cases" if cases > 1 else ""
        return f"{self.title}: {variant} is {value} ({interval}) as {better} as {base.removeprefix('as ')}{mean}"

    def _raced(self) -> list[Row]:
        """The rows over a baseline, without the control."""
        return [row for row in self._valued if row.variant != CONTROL and row.ratio is not None]

    def _wins(self) -> str:
        """How often each variant is the best: "Time of a stage, lowest in 15 cases: openvino:CPU 12, torch:CPU 3"; ""
        unless measured variants share cases, and less or more is better in all of them."""
        measured = [row for row in self._valued if row.origin is Origin.MEASURED and row.variant != CONTROL]
        cases: dict[Any, list[Row]] = {}
        for row in measured:
            cases.setdefault(row.id[1], []).append(row)
        shared, better = [rows for rows in cases.values() if len(rows) > 1], {row.better for row in measured}
        if not shared or better not in ({"lower"}, {"higher"}):
            return ""
        best, word = (min, "lowest") if better == {"lower"} else (max, "highest")
        wins = Counter(best(rows, key=lambda row: row.value).variant for rows in shared).most_common()
        counts = ", ".join(f"{variant} {count}" for variant, count in wins)
        return f"{self.title}, {word} in {len(shared)} cases: {counts}"

    def _range(self) -> str:
        """The largest value, of measured rows where there are any: "Time of a stage: up to 50 ms (UPDATE, torch)"."""
        measured = [row for row in self._valued if row.origin is Origin.MEASURED and row.variant != CONTROL]
        rows = sorted(measured or self._valued, key=lambda row: row.value)
        if not rows:
            return f"{self.title}: nothing was measured"
        if len(units := dict.fromkeys(row.unit for row in rows)) > 1:
            return f"{self.title}: {len(rows)} numbers in {' and '.join(units)}"
        row, several = rows[-1], len({row.variant for row in rows}) > 1
        unit = "count" if self.label.endswith(f" {row.unit}") else row.unit  # the title says it
        value = text.size(row.value) if unit == "MiB" else text.with_unit(row.estimate, unit)[0]
        cell = text.cell_name(row.keys, self.keys)
        name = ", ".join(dict.fromkeys(filter(None, [cell, row.variant if several or not cell else ""])))
        statistic = f", {STATISTICS[row.statistic]}" if row.statistic in STATISTICS else ""
        return f"{self.title}{statistic}: {'up to ' * (len(rows) > 1)}{value} ({name})"

    # ---- figures ----------------------------------------------------------------------------------------------------

    def plot(
        self, y: str = "ratio", *, x: str | None = None, by: str = "variant", key: bool = False, log: bool | None = None
    ) -> None:
        """Draw the rows, save the figure under the study's name and list the variants that have no number.

        Bars of the `ratio` over the baseline, or of the `value`. With `x`, a key that is a number, lines over it, one
        for each value of `by`. `key` marks the figure that the front page shows. What was not measured is hatched.
        """
        frame, label, unit = self._numbers(y)
        if frame.empty:
            return self._remark()
        if log is None:
            values = frame["value"][frame["value"] > 0]
            spans_0 = ((frame["low"] <= 0) & (frame["high"] > 0)).any()
            log = not spans_0 and (y == "ratio" or (len(values) > 0 and is_wide(values)))
        if x is None:
            fig = self._bars(frame, by, label=label, unit=unit, log=log)
        else:
            self._need(x, numbers=True)
            frame = frame[frame["value"] > 0] if log else frame
            axes = {"x": x, "y": "value", "x_label": text.plain(x), "y_label": text.axis_label(label, unit)}
            fig = plots.points(frame, **axes, hue=by, joined=True, log=log, title=self.finding())
        kind = "value" if y == "value" and self.frame["ratio"].notna().any() else ""
        by_keys = f", by {' and '.join(map(text.plain, self.keys))}" if self.keys else ""
        shape = f"Lines over {x}" if x else "Bars"
        self._show(fig, kind, f"{shape}: {label}{by_keys}, with 95 % intervals", key)
        self._remark()

    def _bars(self, frame: pd.DataFrame, by: str, **options: Any) -> Figure:
        """A bar for each row: grouped `by` where cells have several and a figure can tell them apart."""
        names = [name for name in [*self.keys, "variant"] if name != by and frame[name].nunique() > 1]
        grouped = bool(names) and frame[by].nunique() <= MAX_SERIES
        names = names if grouped else [*(name for name in names if name != "variant"), by]
        frame = frame.assign(cell=[text.cell_name(row, names) for row in frame[names].to_dict("records")])
        hue = by if grouped and list(frame["cell"]) != list(frame[by]) else None  # a variant named as its cell
        return plots.bars(frame, y="cell", hue=hue, title=self.finding(), **options)

    def heat(self, *, row: str, column: str, panel: str = "variant", key: bool = False) -> None:
        """A map of the value by two keys or fields, a panel for each value of a third, numbers in the fields. Colours
        compare within a row; what was not measured has a star, and a field is grey where there is no number.
        """
        frame, label, unit = self._numbers("value", missing=True)
        if frame.empty:
            return
        axes = {"row": row, "column": column, "panel": panel, "label": text.axis_label(label, unit)}
        by = f"{text.plain(row)} and {text.plain(column)}, one map for each {text.plain(panel)}"
        title = self._wins() or self.finding()
        self._show(plots.heat(frame, **axes, title=title), "heat", f"Heat maps: {label} by {by}", key)

    def marks(self, *, row: str, column: str, key: bool = False) -> None:
        """A matrix of what became of each pair of two keys or fields: ok, or not, with the reasons listed below.

        Where several rows share a field of the matrix, the worst of them counts.
        """
        compared = self.frame[self.frame["variant"] != CONTROL]
        if compared.empty:
            self._lab.say(f"{self.title}: nothing was measured.")
            return
        self._need(row, column)
        ranks = compared["status"].map([*plots.STATUSES].index)
        worst = compared.loc[ranks.groupby([compared[row], compared[column]], sort=False).idxmax()]
        counts = worst["status"].value_counts().reindex([*plots.STATUSES]).dropna()
        said = ", ".join(f"{count:.0f} {status}" for status, count in counts.items())
        title = f"{self.title}: of {len(worst)} pairs of {text.plain(row)} and {text.plain(column)}, {said}"
        fig = plots.marks(worst, row=row, column=column, title=title)
        self._show(fig, "marks", f"A mark for each {text.plain(row)} and {text.plain(column)}: {said}", key)
        lost = compared[ranks > 0].astype({row: str, column: str})
        at = (lost[row] + " × " + lost[column]).groupby(lost["status"] + ": " + lost["reason"], sort=False).unique()
        if len(at):
            self._lab.say("\n".join(f"- {reason} ({text.words_of([*pairs])})" for reason, pairs in at.items()))

    def _show(self, fig: Figure, kind: str, alt: str, key: bool) -> None:
        """Show and save a figure under the study's name, what was selected of it, and the kind of figure."""
        parts = [self.name, *map(text.words_of, self._selected.values()), kind]
        name = "-".join(re.sub(r"[^A-Za-z0-9_]+", "-", part).strip("-") for part in parts if part)
        variants = list(dict.fromkeys(row.variant for row in self.rows if row.variant != CONTROL))
        self._lab.figure(fig, name, alt=f"{alt}, of {', '.join(variants[:MAX_SERIES])}.", key=key)

    def _numbers(self, y: str, missing: bool = False) -> tuple[pd.DataFrame, str, str]:
        """The rows that have a number (or all, `missing` as NaN) in a reader's unit, the name of the axis, the unit;
        none where no row has one, which it says. Raises `GnnlabError` where the rows have several units.
        """
        frame, units = self.frame, list(dict.fromkeys(row.unit for row in self._valued))
        if len(units) > 1:
            several = " and ".join(units)
            raise GnnlabError(f"{self.name} is in {several}: one figure has one unit; .only(unit={units[0]!r})")
        frame = frame[((frame["status"] == "ok") | missing) & (frame["variant"] != CONTROL)]
        columns, label, (factor, unit) = ENDS, self.label, text.shown_as("".join(units))
        if y == "ratio":
            frame, columns, factor, unit = frame[frame["ratio"].notna()], ("ratio", "ratio_low", "ratio_high"), 1.0, "x"
            label = f"times as fast as {next((row.baseline for row in self.rows if row.baseline), 'the baseline')}"
        elif unit == "ms" and label == text.plain(self.name):
            label = "time"
        if frame[columns[0]].isna().all():
            self._lab.say(f"{self.title}: {'there is nothing to compare' if self._valued else 'nothing was measured'}.")
            frame = frame[:0]
        numbers = frame[[*columns]].astype(float).to_numpy() * factor
        return frame.assign(**dict(zip(ENDS, numbers.T, strict=True))), label, unit

    def _remark(self) -> None:
        """Say what each variant is over all cells, the A/A control last, and why variants have no number."""
        lines = []
        for variant, gain in sorted(self.over_baseline().items(), key=lambda pair: pair[0] == CONTROL):
            rows = [row for row in self._valued if row.variant == variant and row.ratio is not None]
            if variant == CONTROL:
                lines.append(f"- {rows[0].baseline} against itself (A/A): {text.gain_text(gain)}")
            else:
                errors = [row.parity_error for row in rows if row.parity_error is not None]
                error = f", {text.error_text(max(errors))}" if errors else ""
                lines.append(f"- {variant}: {text.gain_text(gain)}{error}")
        for variant, reason in self.failed.items():
            statuses = [row.status != "ok" for row in self.rows if row.variant == variant]
            lines.append(f"- {variant}: not timed in {sum(statuses)} of {len(statuses)} cases: {reason}")
        if lines:
            self._lab.say("\n".join(lines))

    # ---- tables -----------------------------------------------------------------------------------------------------

    def table(self, *columns: str) -> None:
        """Show the rows: keys, variant, value with its interval, ratio, error; `columns` are further fields.

        A sentence of several rows stands below the table, once.
        """
        frame, below = self.tabulated(*columns), []
        for name in frame.columns.intersection(["why", "notes"]):
            counts = frame[name].value_counts()
            for sentence in counts[(counts > 2) & (counts.index.str.len() > LONG_TEXT)].index:
                below.append(f"({len(below) + 1}) {sentence}")
                frame[name] = frame[name].replace(sentence, f"({len(below)})")
        display(frame)
        if below:
            self._lab.say(*below)

    def tabulated(self, *columns: str) -> pd.DataFrame:
        """The frame that `table` shows."""
        if not self.rows:
            return pd.DataFrame({self.name: ["nothing was measured"]})
        statistics, units = {row.statistic for row in self._valued}, {row.unit for row in self._valued}
        usual = statistics.pop() if len(statistics) == 1 else "value"
        unit = units.pop() if len(units) == 1 else None  # else each number has its unit beside it
        heading = self.label if usual in ("count", "single", "estimate") else STATISTICS.get(usual, usual)
        heading = text.axis_label(heading, text.shown_as(unit)[1] if unit else "")
        lines = [
            {
                **row.keys,
                "variant": row.variant,
                heading: _value_text(row, unit),
                "n": row.n,
                "over baseline": "" if row.gain is None else text.estimate_text(row.gain),
                "relative error": "" if row.parity_error is None else f"{row.parity_error:.1e}".replace("0.0e+00", "0"),
                "origin": row.origin.value,
                "why": row.reason or "",
                **{name: "; ".join(row.notes) if name == "notes" else getattr(row, name) for name in columns},
            }
            for row in self.rows
        ]
        frame = pd.DataFrame(lines).fillna("").map(lambda cell: cell if isinstance(cell, str) else str(cell))
        empty = [c for c in ("over baseline", "relative error", "why") if (frame[c] == "").all()]
        empty += ["origin"] * (frame["origin"].nunique() == 1) + ["n"] * (usual == "count")
        front = [*self.keys, "variant"]
        frame = frame[[*front, *(c for c in frame.columns if c not in (*front, *empty))]].rename(columns=text.plain)
        baselines = {row.baseline for row in self._valued if row.baseline}
        if len(baselines) == 1:  # else each row has its own
            frame = frame.rename(columns={"over baseline": f"over {baselines.pop()}"})
        return headed(frame, text.plain(front[0]))


def _value_text(row: Row, unit: str | None) -> str:
    """The value of a row with its interval, or its status; with its own unit where the column has none."""
    if row.status != "ok":
        return row.status
    factor, own = text.shown_as(row.unit)
    return text.estimate_text(row.estimate, factor) + ("" if unit else f" {own}")


def headed(frame: pd.DataFrame, first: str) -> pd.DataFrame:
    """The frame with the column `first` as its index, named in the same row as the other columns."""
    frame = frame.set_index(first)
    frame.columns.name, frame.index.name = first, None
    return frame
