"""The site of an output folder: a report for each notebook, and a front page with what matters first.

JSON is the truth, HTML is rendered from it and from the executed notebooks: `NN_name/RUN/result.json` +
`notebook.ipynb` -> `NN_name.html`, and all of them -> `claims.json` + `index.html`. A page
holds its pictures, loads nothing from the network, and its content policy lets no script run but the one that the page
comes with.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from gnnlab import files
from gnnlab.errors import GnnlabError

from . import advice, claims, ledger, provenance, results
from .ledger import Badge, Judged
from .results import FigureRecord, ResultFile, Status
from .table import Table
from .text import claimed_text, duration

if TYPE_CHECKING:
    import nbformat

TEMPLATES = Path(__file__).parent / "templates"
STATUSES = {
    Status.PASSED: Badge("ran", "✓", "good"),  # "passed" would read as a verdict on its claims
    Status.FAILED: Badge("failed", "✕", "bad"),
    Status.TIMEOUT: Badge("timeout", "◷", "bad"),
    Status.SKIPPED: Badge("skipped", "○", "none"),
}
DAMAGED = Badge("unreadable", "!", "bad")


@dataclass
class NotebookEntry:
    """A notebook on the front page: its last good result, the run that failed since, and what could not be read."""

    stem: str  # "01_profile_bottlenecks"
    title: str
    result: ResultFile | None = None
    failure: ResultFile | None = None
    page: str | None = None  # NN_name.html, where there is one
    stopped: str | None = None  # the notebook of the run that failed, below the folder
    problems: list[str] = field(default_factory=list)
    uses: list[advice.Use] = field(default_factory=list)
    own: bool = False  # something of the reader's is in it
    declared: Mapping[str, Any] = field(default_factory=dict)  # its parameters
    thumbnail: tuple[FigureRecord, str] | None = None  # the key figure and its PNG as a data address

    @property
    def number(self) -> str:
        return self.stem[:2]

    @property
    def badge(self) -> Badge:
        latest = self.failure or self.result
        return STATUSES[latest.status] if latest else DAMAGED

    @property
    def drawn(self) -> set[str]:
        """The studies with a figure to link to."""
        return {figure.name for figure in self.result.figures} if self.result else set()


def environment_card(environment: Mapping[str, Any]) -> str:
    """The environment of a run as a small HTML card that also looks right inside JupyterLab, light and dark."""
    return _templates().get_template("environment_card.html.j2").render(rows=provenance.in_rows(environment))


# ---- a report -------------------------------------------------------------------------------------------------------


def _report(place: Path, entry: NotebookEntry, notebook: nbformat.NotebookNode, judged: Sequence[Judged]) -> str:
    """The page of the run in `place`, the folder's path from the page. `judged` are the rows that rest on it."""
    from . import notebook_html

    result = entry.result
    figures = {  # their links lead from the page
        figure.name: figure.model_copy(update={kind: f"{place}/{getattr(figure, kind)}" for kind in ("png", "svg")})
        for figure in result.figures
    }
    return _page(
        "report.html.j2",
        title=entry.title,
        result=result,
        status=STATUSES[result.status],
        cells=notebook_html.render(notebook, figures),
        key=_key_figure(result),
        parts=advice.parts(judged),
        href=lambda row: f"#fig-{row.study}" if row.study in figures else None,
        meanings={name: declared.meaning for name, declared in entry.declared.items()},
        machine=provenance.in_a_phrase(result.environment),
        noise=advice.noise(result),
        uses=entry.uses,
        drawn=entry.drawn,
    )


def _key_figure(result: ResultFile) -> FigureRecord | None:
    """The figure that the notebook marks, else its first."""
    return next((figure for figure in result.figures if figure.key), next(iter(result.figures), None))


def _counts(rows: Sequence[Judged]) -> list[tuple[Badge, int]]:
    """How many rows have each verdict; verdicts without a row are left out."""
    counts = Counter(row.badge for row in rows)
    return [(badge, counts[badge]) for badge in ledger.VERDICTS.values() if badge in counts]


def _usual(rows: Sequence[Judged]) -> tuple[str, int]:
    """The conditions and the number of runs that most rows with a number have: a page says them once."""
    seen = Counter((row.conditions, row.runs) for row in rows if row.value is not None)
    return seen.most_common(1)[0][0] if seen else ("", 0)


# ---- the front page -------------------------------------------------------------------------------------------------


def build_site(out_dir: Path) -> Path:
    """Render what is stale in `out_dir`, then `claims.json` and `index.html`; returns the path of the front page.

    What cannot be read is said on the page, in a line for each, and everything else is rendered. Raises `GnnlabError`
    when there is no such folder, or when writing fails.
    """
    out_dir = Path(out_dir)
    if not out_dir.is_dir():
        raise GnnlabError(f"there is no folder {out_dir}; run something first: gnnlab run --params {out_dir.name}")
    judged = ledger.judge(out_dir)
    files.write_json(out_dir / ledger.RECORD, judged.to_dict())
    stems = sorted({path.parent.parent.name for path in results.paths(out_dir)})
    entries = {stem[:2]: _entry(out_dir, stem, judged) for stem in stems}
    passed = [entry.result for entry in entries.values() if entry.result]
    newest = max(passed, key=lambda result: result.started, default=None)

    def href(row: Judged) -> str | None:
        entry = entries.get(row.notebook)
        if entry is None or not entry.page:
            return None
        return f"{entry.page}#fig-{row.study}" if row.study in entry.drawn else entry.page

    html = _page(
        "index.html.j2",
        title="gnnlab",
        folder=out_dir.name,
        parts=advice.parts(judged.rows),
        href=href,
        older=[number for number, entry in entries.items() if entry.failure and entry.result],
        documents=claims.documents(),
        missing=judged.missing,
        entries=list(entries.values()),
        headlines=advice.headlines(judged.rows),
        gains=advice.gains(judged.rows),
        newest=newest,
        machine=provenance.in_a_phrase(newest.environment) if newest else None,
        machines=sorted({provenance.in_a_phrase(result.environment) for result in passed}),
    )
    path = out_dir / "index.html"
    files.write_atomically(path, lambda file: file.write(html))
    return path


def _entry(out_dir: Path, stem: str, judged: ledger.Ledger) -> NotebookEntry:
    """What the front page says of a notebook; its report is rendered where it is older than its newest run."""
    entry, page = NotebookEntry(stem, stem[3:].replace("_", " ").capitalize()), out_dir / f"{stem}.html"
    path, failed = results.newest(out_dir, stem)
    problems = [line for line in judged.problems if stem in line]
    if failed:
        entry.failure = results.read(failed)
        entry.stopped = str(failed.with_name(results.NOTEBOOK).relative_to(out_dir))
    if path is None:
        page.unlink(missing_ok=True)
    else:
        entry.result = results.read(path)
        try:
            _render(entry, path, page, [row for row in judged.rows if row.notebook == entry.number])
        except GnnlabError as error:
            problems.append(str(error))
        figure = _key_figure(entry.result)
        if figure and (png := path.parent / figure.png).is_file():
            entry.thumbnail = figure, "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()
    entry.problems = list(dict.fromkeys(line.replace(f"{out_dir}{os.sep}", "") for line in problems))
    return entry


def _render(entry: NotebookEntry, path: Path, page: Path, judged: Sequence[Judged]) -> None:
    """Fill in what the executed notebook beside the result at `path` says, and write its report where that is stale.

    Raises `GnnlabError` when the notebook cannot be read, or when writing fails.
    """
    from . import notebook_html, parameters

    executed, result = path.with_name(results.NOTEBOOK), entry.result
    notebook = notebook_html.read(executed)
    entry.title = notebook_html.opening(notebook)[0] or entry.title
    entry.declared = parameters.declared(executed)
    entry.own = bool(advice.yours(result.parameters, entry.declared))
    entry.uses = advice.uses(Table(result.rows), result.purposes, entry.own)
    if not page.exists() or page.stat().st_mtime < path.parent.parent.stat().st_mtime:  # when a run was put there
        html = _report(path.parent.relative_to(page.parent), entry, notebook, judged)
        files.write_atomically(page, lambda file: file.write(html))
    entry.page = page.name


# ---- pages ----------------------------------------------------------------------------------------------------------


def _page(template: str, **content: Any) -> str:
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return _templates().get_template(template).render(script=script, script_hash=digest, now=now, **content)


@cache
def _templates() -> jinja2.Environment:
    """Templates with escaping on; `style` and `script` of the page are files beside them."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"moment": _moment, "duration": duration}
    environment.globals |= {"environment_rows": provenance.in_rows, "usual": _usual, "counts": _counts}
    environment.globals |= {"claimed_text": claimed_text, "widened": f"{100 * (claims.TOLERANCE - 1):.0f} %"}
    return environment


def _moment(started: str) -> str:
    """An ISO 8601 moment as a reader writes it."""
    return datetime.fromisoformat(started).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
