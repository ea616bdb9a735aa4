"""What a notebook uses: its parameters, the calls that measure and record, figures, verdicts, and the file at its end.

    lab = Lab("02_optimize_gnn", globals())
    gat = lab.race("gat_layer", {"PyG": conv, "gnnlab": fast}, over={"58x776": {"x": x, "edge_index": edges}})
    gat.plot()
    lab.verdicts()
    lab.finish()                                  # a folder in 02_optimize_gnn of the outputs folder

Every number becomes a row of one table (`gnnlab.lab.table`). All stays in memory until `finish`, which writes it
whole or not at all.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pandas as pd
from IPython import get_ipython
from IPython.display import HTML, Image, Markdown, display
from tqdm.auto import tqdm

from gnnlab import machine
from gnnlab.errors import GnnlabError, Untestable
from gnnlab.measure import estimates
from gnnlab.measure.estimates import CONTROL
from gnnswap.errors import one_line

from . import claims_report, discovery, plot_style, ratios, report, results
from . import table as tables
from .results import END, PLACE, FigureRecord, ResultFile, Status
from .study import Study, headed
from .table import Interval, Origin, Table
from .text import number

if TYPE_CHECKING:
    from gnnlab.measure.conditions import Conditions  # torch, heavy

warnings.filterwarnings("ignore", message="Sparse (CSR|CSC|invariant)")  # torch says it once a process, to every reader
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler writes to the terminal otherwise

KEY = "case"  # name of the key of a race whose cells have plain names
MEASURED = {"unit": "ms", "better": "lower", "origin": Origin.MEASURED}  # of a row that says nothing else


class Lab:
    """One run of one notebook, whose `globals()` hold its parameters.

    `parameters`: the checked values as attributes. `folder`: where outputs go (`output_dir`, below the repository).
    `table`: the recorded rows. `yours`: the parameters (models, graph, ...) that name something of the reader's own.
    Outputs of earlier notebooks that `outputs/lab`, the default, lacks are read from `outputs/quick`.
    Raises `GnnlabError` before anything is computed: a parameter is unknown, of another type or out of range.
    """

    def __init__(self, notebook: str, namespace: Mapping[str, Any]) -> None:
        base = discovery.root()
        declared = discovery.declared(base / "notebooks" / f"{notebook}.ipynb")
        values = discovery.from_namespace(namespace, declared)
        self.yours = report.own(values, declared)
        pd.set_option("display.max_colwidth", None)  # a reason that is cut off is none
        pd.set_option("display.float_format", number)  # three digits, thousands separated
        self.notebook = notebook
        self.folder = discovery.output_folder(base, values["output_dir"])
        self._earlier = [self.folder, base / discovery.QUICK] if self.folder == base / discovery.LAB else [self.folder]
        results.make_folder(self.folder)
        self.parameters = SimpleNamespace(**values)
        self.environment = machine.environment()
        self._started = ResultFile.start(notebook, self.folder.name, values)
        self.table = Table()
        self.figures: list[FigureRecord] = []
        self._own = None if PLACE in os.environ else tempfile.TemporaryDirectory(prefix="gnnlab-")
        self._place = Path(self._own.name if self._own else os.environ[PLACE])  # the folder that this run fills
        display(HTML(report.environment_card(self.environment)))
        if self._own and (busy := machine.warning(self.environment)):  # the runner says it itself
            self.say(f"**{busy[0].upper()}{busy[1:]}.**")

    def input(self, name: str) -> Path:
        """The folder `name` that earlier notebooks left, as "stages"."""
        return next((f / name for f in self._earlier if (f / name).exists()), self.folder / name)

    # ---- measuring and recording ------------------------------------------------------------------------------------

    def race(
        self,
        study: str,
        variants: Mapping[str, Any],
        over: Mapping[Any, Any],
        *,
        key: str | Sequence[str] = KEY,
        device: str | None = None,
        of_variant: Mapping[str, Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> Study:
        """Check that `variants` compute the same, time them interleaved, and record a row for each variant and cell.

        `variants` maps names to callables, the first of which is the baseline. `over` maps the name of each cell, or a
        tuple of several keys, to its inputs: a mapping by the names of arguments, or a tuple. `key` names the keys.
        `device` is where variants compute: unless it is named, where the tensors are that go in and out. The rows of a
        variant say what the variant says of itself (`conditions.row_of`), and what `of_variant` has for it, as
        `{"onnx": {"runtime": ...}}`. A variant that raises `Unavailable` is one, and no failure. `options` are those of
        `measure.race.race_variants`: budget_s (of one cell), tolerance, mode, per.
        """
        from gnnlab.measure.conditions import row_of
        from gnnlab.measure.race import race_variants  # torch, heavy

        names, baseline = [key] if isinstance(key, str) else list(key), next(iter(variants))
        unseen = PLACE in os.environ or None  # None: shown in a terminal and in JupyterLab
        for label, inputs in tqdm(over.items(), f"cells of {study}", leave=False, disable=unseen):
            keys = dict(zip(names, label if isinstance(label, tuple) else (label,), strict=True))
            for variant, raced in race_variants(variants, inputs, device=device, **options).items():
                name = baseline if variant == CONTROL else variant
                fields = {"device": raced.device, **row_of(variants[name]), **(of_variant or {}).get(name, {})}
                fields |= {**MEASURED, "statistic": "median", "parity_error": raced.parity_error}
                if raced.times_ms is None:
                    fields |= {"status": "unavailable" if raced.missing else "failed", "reason": raced.reason}
                else:
                    fields["notes"] = [*fields.get("notes", []), *raced.notes]
                if ratio := raced.ratio:
                    fields |= {"ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high}
                    fields["baseline"] = baseline
                self._put(raced.times_ms, raced.conditions, study=study, keys=keys, variant=variant, **fields)
        return self.study(study)

    def samples(
        self, study: str, variant: str, samples: Sequence[float], *, unit: str, statistic: str = "median", **fields: Any
    ) -> Study:
        """Record samples of something measured; `statistic` is median, mean, p95, or share (of samples above 0).

        `fields` are those of a row: keys, better, device ("cpu"), precision, notes, ...
        """
        named = {"study": study, "variant": variant, "unit": unit, "statistic": statistic}
        self._put(samples, **MEASURED | fields | named)
        return self.study(study)

    def count(self, study: str, counts: Mapping[str, float], *, unit: str = "count", **fields: Any) -> Study:
        """Record exact numbers, one a variant: what was counted, or computed by a formula."""
        exact = {"unit": unit, "n": 1, "statistic": "count", "interval": Interval.EXACT}
        fields = {"better": "neither", "origin": Origin.COUNTED, **fields, **exact}
        for variant, value in counts.items():
            self._put(study=study, variant=variant, value=float(value), **fields)
        return self.study(study)

    def record(self, study: str, frame: pd.DataFrame, *, keys: Sequence[str] = (), **constant: Any) -> Study:
        """Record a row of the table for each row of `frame`, whose columns are named as a row's fields are.

        `keys` are the columns that say of what a row is. Fields that are alike in all rows are given as `constant`. A
        column `samples` holds the samples; where it stands, value, low, high and n follow from them. Other columns are
        ignored, and so are NaN and None. Conditions are those of torch in this process where neither names them.
        Raises `GnnlabError`: a row lacks a field or contradicts itself.
        """
        known = {*tables.FIELDS, "samples"} - {"study", "keys"}
        for given in frame.to_dict(orient="records"):
            named = {n: v for n, v in given.items() if n in known and not (pd.api.types.is_scalar(v) and pd.isna(v))}
            self._put(**constant | named | {"study": study, "keys": {name: given[name] for name in keys}})
        return self.study(study)

    def summarize(self, study: str, variant: str, **keys: Any) -> None:
        """Record what the cells of a variant come to as a row of `<study>_summary`, with `keys` of `ratios.summarized`,
        as `how` ("worst", "not slower", "median", "mean", "share"), `over`, `within`, `cluster`, `cells`."""
        try:
            self.table.put(ratios.summarized(self.table, study, variant, **keys))
        except Untestable as reason:
            self.unavailable(study + ratios.SUMMARY, variant, str(reason), keys=keys)

    def unavailable(self, study: str, variant: str, reason: str, *, status: str = "unavailable", **fields: Any) -> None:
        """Record that something could not be measured here, and why or what it would need."""
        self._put(**MEASURED | fields, study=study, variant=variant, status=status, reason=reason)

    @contextmanager
    def guarded(self, study: str, variant: str, **fields: Any) -> Iterator[None]:
        """Whatever raises inside is a failed row with the reason, and the notebook goes on."""
        try:
            yield
        except Exception as error:  # of the reader's model, which may raise anything
            self.unavailable(study, variant, one_line(error), status="failed", **fields)

    def study(self, name: str) -> Study:
        """The rows recorded so far under a name: to plot, to show as a table, to compute with."""
        return Study(name, self.table.select(name), self)

    def _put(self, samples: Sequence[float] | None = None, conditions: Conditions | None = None, **fields: Any) -> None:
        """Add a row. Value, interval and n follow from `samples` where it has some; what `fields` leave out is
        as `conditions` say, or as torch is set now. A bare "cpu" or "cuda:0" becomes the device's name.
        """
        import torch

        from gnnlab.measure.conditions import Conditions

        conditions, device = conditions or Conditions.now(), str(fields.get("device", "cpu"))
        if bare := re.fullmatch(r"(cpu|cuda)(?::(\d+))?", device):
            kind, at = bare[1].upper(), int(bare[2] or 0)
            names = [d["name"] for d in self.environment["devices"] if d["kind"] == kind]
            device = f"{kind} {names[at]}" if at < len(names) else kind
        of_torch = {"runtime": f"torch {torch.__version__}", "threads": conditions.threads * device.startswith("CPU")}
        fields = of_torch | {"precision": "float32"} | fields | {"device": device}
        if (
            conditions.precision != "highest"
            and fields["runtime"].startswith("torch")
            and fields["precision"] == "float32"
        ):
            fields["precision"] += f", matmul precision {conditions.precision}{' (TF32)' * device.startswith('CUDA')}"
        if fields.get("status", "ok") != "ok" or samples is None or not len(samples):
            samples = None  # a row without a number rests on none
        else:
            fields |= tables.of_estimate(estimates.summary(samples, fields["statistic"]))
        self.table.put(tables.row(**fields), samples)

    # ---- showing ----------------------------------------------------------------------------------------------------

    def figure(self, fig: Any, name: str, *, alt: str, key: bool = False) -> None:
        """Save a figure as PNG and SVG under the output folder, and show it with its alternative text.

        Its title is what it finds; `key` marks the one that the front page shows.
        """
        titles = [fig.get_suptitle(), *(ax.get_title(loc=loc) for ax in fig.axes[:1] for loc in ("left", "center"))]
        title, prefix = " ".join(next(filter(None, titles), "").split()), f"{self.notebook[:2]}_"
        record = plot_style.save(fig, name, title=title, alt=alt, key=key, folder=self._place, prefix=prefix)
        self.figures = [other for other in self.figures if other.name != name] + [record]
        saved = Image(filename=self._place / record.png)  # the figure itself would be drawn once more
        display(saved, metadata={"image/png": {"alt": alt, "name": name}})

    def say(self, *sentences: str) -> None:
        """Show sentences that were computed from the numbers: Markdown, but a `_` at the end of a name is only that.

        What a cell tagged "conclusion" says first leads the page. Without sentences nothing is shown.
        """
        if not sentences:
            return
        parts = re.split(r"(`[^`]*`)", "\n\n".join(sentences))
        plain = [part if part.startswith("`") else re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", part) for part in parts]
        display(Markdown("".join(plain)))

    def verdicts(self) -> None:
        """Show what this run says of the claims that rest on this notebook; without `gnnlab run` also how to get the
        report."""
        columns = ["claim", "claimed", "measured here", "95 % interval", "verdict", "why"]
        rows = [
            (row.id, row.claimed_text, row.measured or "not here", row.interval, row.badge.word, row.why)
            for row in self.judged()
        ]
        display(headed(pd.DataFrame(rows, columns=columns), "claim"))
        if self._own is not None:
            where = shlex.quote(self.parameters.output_dir)
            self.say(f"After the last cell, in a terminal in the repository, the report: `gnnlab report {where}`")

    def judged(self) -> list[claims_report.ClaimResult]:
        """The claims of this notebook, judged by this run alone."""
        return claims_report.judge_runs([(self._result(Status.PASSED, None), self.table)])

    # ---- the end ----------------------------------------------------------------------------------------------------

    def finish(self, status: Status = Status.PASSED, reason: str | None = None) -> Path:
        """Write what this run measured, and put it in place; returns the result file. Raises `GnnlabError` when the
        disk refuses."""
        path = self._place / results.RESULT
        results.write(path, self._result(status, reason), self.table)
        if self._own is None:  # the runner puts it in place, when all cells have run
            return path
        with results.place(self.folder) as place:
            shutil.copytree(self._place, place, dirs_exist_ok=True)  # later cells may add to what is there
            return results.put(place, self.notebook) / results.RESULT

    def _result(self, status: Status, reason: str | None) -> ResultFile:
        return self._started.finish(
            status,
            reason,
            made_from=self._started.run,  # alike to no other, as cells may have been changed; `gnnlab run` knows better
            environment=self.environment | {"finished": machine.state()},
            figures=self.figures,
        )

    def require_device(self, device: str) -> None:
        """Go on if `device` ("cpu" or "cuda") is here; else skip the notebook and say what is missing."""
        import torch

        if device != "cpu" and not torch.cuda.is_available():
            self.skip(f"no {device.upper()} device here: torch {torch.__version__} sees the CPU only")

    def skip(self, reason: str) -> None:
        """Write a result file that says why nothing can be measured here, and turn all later cells into nothing.

        A missing device is a normal result, so the notebook comes to its end without an error (docs/decisions/0005).
        """
        self._end(f"**Skipped:** {reason}", Status.SKIPPED, reason)

    def end(self, reason: str) -> None:
        """Write the results that there are, all of them good, and turn all later cells into nothing.

        For a reader who asked for a part of the notebook. Claims of which nothing was measured count as not measured.
        """
        self._end(f"{reason[0].upper()}{reason[1:]}.", Status.PASSED, reason)

    def _end(self, sentence: str, status: Status, reason: str) -> None:
        display(Markdown(sentence), metadata={END: True})
        self.finish(status, reason)
        if shell := get_ipython():
            shell.input_transformers_post.append(lambda lines: ["pass\n"])

    def requires(self, notebook: str) -> ResultFile:
        """The result of another notebook; where it is missing, one line says which to run first."""
        for folder in self._earlier:
            if path := results.newest(folder, f"{notebook}_*")[0]:
                return results.read(path)
        raise GnnlabError(f"needs the results of notebook {notebook}: run it first with gnnlab run {notebook}")
