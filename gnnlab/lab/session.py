"""What a notebook does between its first and its last cell: check, collect, show, write.

    lab = session.begin("01_profile_bottlenecks", globals())
    lab.measurement("forward", timing.samples_ms, unit="ms", ...)
    lab.claim("gat.parameters", 169_856, why="counted")
    lab.figure(fig, "operators", title=finding, alt="...")
    lab.finish()                                       # outputs/quick/01_profile_bottlenecks.json

Everything stays in memory until `finish`; the file is written whole or not at all.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
from IPython import get_ipython
from IPython.display import HTML, Markdown, display

from gnnlab.profiling.intervals import median_interval

from . import claims, discovery, parameters, plots, provenance, report, results
from .results import ClaimRecord, Conditions, FigureRecord, Measurement, Quantity, ResultFile, Status

warnings.filterwarnings("ignore", message="IProgress not found")  # PyG loads tqdm's notebook bars; none are used here


def begin(notebook: str, namespace: Mapping[str, Any]) -> Session:
    """Check the notebook's parameters in `namespace` (its `globals()`) and start to collect.

    Raises `ParameterError`, in one line, before anything was computed.
    """
    root = discovery.root()
    path = root / "notebooks" / f"{notebook}.ipynb"
    pd.set_option("display.max_colwidth", None)  # a reason that is cut off is none
    return Session(notebook, parameters.from_namespace(namespace, parameters.declared(path)), root)


class Session:
    """One run of one notebook. `parameters` holds the checked values as attributes, `folder` is where outputs go."""

    def __init__(self, notebook: str, values: dict[str, Any], root: Path) -> None:
        self.notebook = notebook
        self.folder = root / values["output_dir"]
        self.parameters = SimpleNamespace(**values)
        self.environment = provenance.collect()
        self.started, self._clock = datetime.now(UTC), time.monotonic()
        self.metrics: dict[str, Quantity] = {}
        self.measurements: list[Measurement] = []
        self.claims: list[ClaimRecord] = []
        self.figures: list[FigureRecord] = []

    @property
    def path(self) -> Path:
        return self.folder / f"{self.notebook}.json"

    def show_environment(self) -> None:
        """The card that says on what machine this runs."""
        display(HTML(report.environment_card(self.environment)))

    def conditions(self, device: str = "cpu", precision: str = "float32") -> Conditions:
        """Under what conditions torch computes now on `device`."""
        import torch

        kind = device.split(":")[0].upper()
        named = [d["name"] for d in self.environment["devices"] if d["kind"] == kind]
        return Conditions(
            processing_unit=kind,
            device=named[0] if named else device,
            runtime=f"torch {torch.__version__}",
            precision=precision,
            threads=torch.get_num_threads(),
        )

    def measurement(
        self,
        name: str,
        samples: Sequence[float],
        *,
        unit: str,
        device: str = "cpu",
        precision: str = "float32",
        better: str = "lower",
        notes: Sequence[str] = (),
    ) -> Measurement:
        """Record every sample of something measured; its median and interval become the metric `name`."""
        values = sorted(samples)
        middle = len(values) // 2
        median = values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
        quantity = Quantity(value=median, unit=unit, ci=median_interval(samples), n=len(samples), better=better)
        measured = Measurement(
            name=name,
            quantity=quantity,
            samples=list(samples),
            conditions=self.conditions(device, precision),
            notes=list(notes),
        )
        self.measurements.append(measured)
        self.metrics[name] = quantity
        return measured

    def measurements_of(self, timed: pd.DataFrame, *, device: str = "cpu") -> None:
        """Record each row of a table of times: workload, phase and stats with `samples` (ms) and `notes`."""
        for row in timed.itertuples():
            name = f"{row.workload}: {row.phase}"
            self.measurement(name, row.stats.samples, unit="ms", device=device, notes=row.stats.notes)

    def metrics_of(self, table: pd.DataFrame, *, index: Sequence[str], columns: Mapping[str, str]) -> None:
        """Record the columns named, with their units, of each row that has a value.

        `<column>_low` and `_high`, where there, are its interval; so are `ci_low` and `ci_high`.
        """
        for row in table.to_dict(orient="records"):
            label = ", ".join(str(row[name]) for name in index)
            for column, unit in columns.items():
                if pd.isna(row[column]):
                    continue
                low, high = (row.get(f"{column}_{end}", row.get(f"ci_{end}")) for end in ("low", "high"))
                self.metric(f"{label}: {column}", row[column], unit, ci=None if low is None else (low, high))

    def unavailable(self, name: str, reason: str, *, device: str = "cpu", precision: str = "float32") -> None:
        """Record that something could not be measured here, and what it would need."""
        conditions = Conditions(
            processing_unit=device.upper(), device="none here", runtime="none", precision=precision, threads=1
        )
        self.measurements.append(Measurement(name=name, status="unavailable", reason=reason, conditions=conditions))

    def metric(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        ci: Sequence[float] | None = None,
        n: int = 1,
        better: str = "neither",
        origin: results.Origin = results.Origin.MEASURED,
    ) -> None:
        """Record one number. `ci=None` is for exact values."""
        interval = None if ci is None else (float(ci[0]), float(ci[1]))
        self.metrics[name] = Quantity(value=float(value), unit=unit, ci=interval, n=n, better=better, origin=origin)

    def claim(self, id: str, measured: float | None, *, why: str, **options: Any) -> ClaimRecord:
        """Record a row of the ledger; `claims.record` explains the options."""
        row = claims.record(id, measured, notebook=self.notebook[:2], why=why, **options)
        self.claims = [other for other in self.claims if other.id != id] + [row]
        return row

    def figure(self, fig: Any, name: str, *, alt: str, title: str | None = None, key: bool = False) -> None:
        """Save a figure as PNG and SVG under the output folder, and show it with its alternative text.

        The title is the figure's own unless given; `key` marks the one that the front page shows.
        """
        title = title or _title_of(fig)
        record = plots.save(fig, name, title=title, alt=alt, folder=self.folder, key=key)
        self.figures = [other for other in self.figures if other.name != name] + [record]
        display(fig, metadata={"image/png": {"alt": alt, "name": name}})

    def say(self, *sentences: str) -> None:
        """Show sentences that were computed from the numbers."""
        display(Markdown("\n\n".join(sentences)))

    def bullets(self, rows: pd.DataFrame, *columns: str) -> None:
        """Show rows as a list, one item each, its columns joined by colons."""
        items = [f"- {': '.join(str(row[c]) for c in columns)}" for _, row in rows.iterrows()]
        display(Markdown("\n".join(items) or "Nothing was found."))

    def claims_table(self) -> pd.DataFrame:
        """This notebook's rows of the ledger, for a reader."""
        return pd.DataFrame(
            {
                "claim": row.id,
                "claimed": claims.format_range(row.claimed),
                "measured here": _measured(row),
                "verdict": row.verdict.value,
                "why": row.why,
            }
            for row in self.claims
        )

    def finish(self, status: Status = Status.PASSED, reason: str | None = None) -> Path:
        """Write the result file; returns its path. Raises `FileError` when the disk refuses."""
        result = ResultFile(
            notebook=self.notebook,
            params_set=self.folder.name,
            status=status,
            reason=reason,
            parameters=vars(self.parameters),
            environment=self.environment | {"finished": provenance.state()},
            metrics=self.metrics,
            measurements=self.measurements,
            claims=self.claims,
            figures=self.figures,
            started=self.started.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self._clock, 1),
        )
        results.write(self.path, result)
        return self.path

    def require_device(self, device: str) -> None:
        """Go on if `device` ("cpu" or "cuda") is here; else skip the notebook and say what is missing."""
        import torch

        if device != "cpu" and not torch.cuda.is_available():
            self.skip(f"no {device.upper()} device here: torch {torch.__version__} sees the CPU only")

    def skip(self, reason: str) -> None:
        """Write a result file that says why nothing can be measured here, and turn all later cells into nothing.

        A missing device is a normal result, so the notebook comes to its end without an error (docs/decisions/0005).
        """
        self.say(f"**Skipped:** {reason}")
        self.finish(Status.SKIPPED, reason)
        if shell := get_ipython():
            shell.input_transformers_post.append(lambda lines: ["pass\n"])


def need(folder: Path, notebook: str) -> ResultFile:
    """The result of another notebook; where it is missing, one line says which to run first."""
    found = sorted(Path(folder).glob(f"{notebook}_*.json"))
    if not found:
        raise results.ResultError(f"needs the results of notebook {notebook}: run it first with gnnlab run {notebook}")
    return results.read(found[0])


def _title_of(fig: Any) -> str:
    title = fig.get_suptitle() or (fig.axes[0].get_title(loc="left") or fig.axes[0].get_title() if fig.axes else "")
    return " ".join(title.split())


def _measured(row: ClaimRecord) -> str:
    if row.measured is None:
        return "not here"
    value = f"{claims.format_value(row.measured)} {row.unit}"
    exact = row.ci is None or row.ci[0] == row.ci[1]
    return value if exact else f"{value} ({row.ci[0]:.4g} to {row.ci[1]:.4g}, n = {row.n})"
