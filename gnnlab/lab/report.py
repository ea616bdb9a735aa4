"""The site of an output folder: a report for each notebook, and a front page with the ledger first.

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
from typing import Any

import jinja2

from gnnlab import files
from gnnlab.errors import GnnlabError

from . import advice, claims, ledger, provenance, results
from .ledger import Badge, Judged
from .results import FigureRecord, ResultFile, Status
from .table import Table, duration

TEMPLATES = Path(__file__).parent / "templates"
STATUSES = {
    Status.PASSED: Badge("passed", "✓", "good"),
    Status.FAILED: Badge("failed", "✕", "bad"),
    Status.TIMEOUT: Badge("timeout", "◷", "bad"),
    Status.SKIPPED: Badge("skipped", "○", "none"),
}
DAMAGED = Badge("unreadable", "!", "bad")


@dataclass
class NotebookEntry:
    """A notebook on the front page: its last good result, the run that failed since, and what could not be read."""

    stem: str  # "01_profile_bottlenecks"
    path: Path | None = None  # the result file
    result: ResultFile | None = None
    failure: ResultFile | None = None
    problems: list[str] = field(default_factory=list)
    title: str = ""
    page: str | None = None  # NN_name.html, where there is one
    failure_page: str | None = None
    uses: list[advice.Use] = field(default_factory=list)
    own: bool = False  # something of the reader's is in it
    drawn: set[str] = field(default_factory=set)  # studies with a figure to link to

    @property
    def number(self) -> str:
        return self.stem[:2]

    @property
    def badge(self) -> Badge:
        shown = self.failure or self.result
        return STATUSES[shown.status] if shown else DAMAGED


def environment_card(environment: Mapping[str, Any]) -> str:
    """The environment of a run as a small HTML card that also looks right inside JupyterLab, light and dark."""
    return _templates().get_template("environment_card.html.j2").render(rows=provenance.in_rows(environment))


def render_notebook(result_json: Path, path: Path, judged: Sequence[Judged] = ()) -> None:
    """Write the report of a run to `path`, whole or not at all, from its result file and the notebook beside that.

    `judged` are the rows of the ledger that rest on it.

    Raises `GnnlabError` when one of the two cannot be read, when they are of different runs, or when writing fails.
    """
    from . import notebook_html

    executed_ipynb, result = result_json.with_name(results.NOTEBOOK), results.read(result_json)
    notebook = notebook_html.read(executed_ipynb)
    ended = result.status in (Status.PASSED, Status.SKIPPED)  # else the runner wrote both
    if ended and notebook_html.run_of(notebook) != result.run:
        raise GnnlabError(
            f"{executed_ipynb} is not the notebook of the run that wrote {result_json}: there is no page of the two; "
            f"run it again: gnnlab run {result.notebook[:2]} --force"
        )
    place, figures = result_json.parent.relative_to(path.parent), {}
    for figure in result.figures:  # links lead from the page
        links = {kind: (place / getattr(figure, kind)).as_posix() for kind in ("png", "svg")}
        figures[figure.name] = figure.model_copy(update=links)
    cells = notebook_html.render(notebook, figures)
    rows = [
        ledger.line(row, lambda r: f"#fig-{r.study}" if r.study in figures else None)
        for row in advice.by_surprise(judged)
    ]
    table = Table(result.rows if ended else ())  # a run that failed is no ground for advice
    declared = _declared(executed_ipynb)
    html = _page(
        "report.html.j2",
        title=notebook_html.title(notebook) or _in_words(result.notebook),
        result=result,
        status=STATUSES[result.status],
        cells=cells,
        rows=rows,
        parameters=[(n, v, declared[n].meaning if n in declared else "") for n, v in result.parameters.items()],
        machine=provenance.in_a_phrase(result.environment),
        noise=advice.noise(result, table),
        uses=advice.uses(table, result.purposes, bool(advice.yours(result.parameters, declared))),
        drawn=set(figures),
    )
    files.write_atomically(path, lambda file: file.write(html))


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
    stems = {path.parent.parent.name for path in results.paths(out_dir)}
    entries = [NotebookEntry(stem, title=_in_words(stem)) for stem in sorted(stems)]
    for entry in entries:
        of_notebook = [row for row in judged.rows if row.notebook == entry.number]
        entry.path, failed = results.newest(out_dir, entry.stem)
        entry.result, entry.page = _rendered(entry.path, out_dir / f"{entry.stem}.html", entry, of_notebook)
        entry.failure, entry.failure_page = _rendered(failed, out_dir / f"{entry.stem}.failed.html", entry, [])
        of_runs = [_in_folder(out_dir, line) for line in judged.problems if entry.stem in line]
        entry.problems = list(dict.fromkeys([*entry.problems, *of_runs]))
        if entry.result and entry.page:
            declared = _declared(entry.path.with_name(results.NOTEBOOK))
            entry.own = bool(advice.yours(entry.result.parameters, declared))
            entry.uses = advice.uses(Table(entry.result.rows), entry.result.purposes, entry.own)
            entry.drawn = {figure.name for figure in entry.result.figures}
    older = {entry.number: "older run" for entry in entries if entry.failure and entry.result}

    def line(record: Judged) -> ledger.LedgerLine:
        return ledger.line(record, lambda r: _figure_link(r, entries), older)

    rows = [line(record) for record in advice.by_surprise(judged.rows)]
    newest = max((e.result for e in entries if e.result), key=lambda result: result.started, default=None)
    html = _page(
        "index.html.j2",
        title="gnnlab",
        folder=out_dir.name,
        claims_of_documents=[row for row in rows if not row.record.is_goal],
        goals=[row for row in rows if row.record.is_goal],
        counts=_counts,
        documents=claims.documents(),
        missing=[(entry, ledger.claimed_text(entry)) for entry in judged.missing],
        entries=entries,
        headlines=[(kind, line(record)) for kind, record in advice.headlines(judged.rows)],
        own=[entry for entry in entries if entry.own],
        thumbnails={e.stem: _thumbnail(e.path.parent, e.result) for e in entries if e.result},
        environment=newest.environment if newest else None,
        machine=provenance.in_a_phrase(newest.environment) if newest else None,
        machines=sorted({provenance.in_a_phrase(e.result.environment) for e in entries if e.result}),
        newest=newest,
    )
    path = out_dir / "index.html"
    files.write_atomically(path, lambda file: file.write(html))
    return path


def _counts(rows: Sequence[ledger.LedgerLine]) -> list[tuple[Badge, int]]:
    """How many rows have each verdict; verdicts without a row are left out."""
    counts = Counter(row.badge for row in rows)
    return [(badge, counts[badge]) for badge in ledger.VERDICTS.values() if badge in counts]


def _rendered(
    path: Path | None, page: Path, entry: NotebookEntry, judged: Sequence[Judged]
) -> tuple[ResultFile | None, str | None]:
    """The result at `path` and the name of its page, rendered when it is older than the newest run of the notebook."""
    from . import notebook_html

    if path is None:
        page.unlink(missing_ok=True)
        return None, None
    result = results.read(path)
    try:
        entry.title = notebook_html.title(notebook_html.read(path.with_name(results.NOTEBOOK))) or entry.title
        if not page.exists() or page.stat().st_mtime < path.parent.parent.stat().st_mtime:  # when a run was put there
            render_notebook(path, page, judged)
    except GnnlabError as error:
        entry.problems.append(_in_folder(page.parent, str(error)))
        return result, None
    return result, page.name


def _in_folder(out_dir: Path, line: str) -> str:
    """With file names as they are in the folder of the page."""
    return line.replace(f"{out_dir}{os.sep}", "")


def _figure_link(record: Judged, entries: list[NotebookEntry]) -> str | None:
    """The place in a report that shows the claim: the figure of its study, else the report itself."""
    entry = next((e for e in entries if e.result and e.page and e.number == record.notebook), None)
    if entry is None:
        return None
    drawn = record.study in {figure.name for figure in entry.result.figures}
    return f"{entry.page}#fig-{record.study}" if drawn else entry.page


def _thumbnail(run: Path, result: ResultFile) -> tuple[FigureRecord, str] | None:
    """The key figure of a result (else its first) and its PNG as a data address; None where there is no such file."""
    figure = next((f for f in result.figures if f.key), result.figures[0] if result.figures else None)
    if figure is None:
        return None
    path = (run / figure.png).resolve()
    if path.suffix != ".png" or not path.is_relative_to(run.resolve()) or not path.is_file():
        return None
    return figure, "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def _declared(notebook: Path) -> Mapping[str, Any]:
    """The parameters that an executed notebook declares; none where it cannot be read."""
    from . import parameters

    try:
        return parameters.declared(notebook)
    except GnnlabError:
        return {}


def _in_words(stem: str) -> str:
    return stem[3:].replace("_", " ").capitalize()


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
    environment.filters["moment"] = _moment
    environment.filters["duration"] = duration
    environment.globals["environment_rows"] = provenance.in_rows
    return environment


def _moment(started: str) -> str:
    """An ISO 8601 moment as a reader writes it."""
    return datetime.fromisoformat(started).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
