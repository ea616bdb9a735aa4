"""The site of an output folder: a page for each notebook, and a front page with what matters first.

JSON is the truth, HTML is rendered from it and from the executed notebooks: `NN_name/RUN/result.json` +
`notebook.ipynb` -> `NN_name.html`, and all of them -> `claims.json` + `index.html`. A run without an executed notebook
beside it has a page of its figures and numbers. A page holds its pictures, loads nothing from the network, and its
content policy lets no script run.
"""

from __future__ import annotations

import base64
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jinja2

from gnnlab import files, machine
from gnnlab.errors import GnnlabError
from gnnlab.measure.estimates import CONTROL

from . import claims, claims_report, discovery, notebook_html, ratios, results
from .claims import NO_GAIN_BELOW, RATIOS, Verdict
from .claims_report import Badge, ClaimResult, ClaimsReport
from .notebook_html import TEMPLATES, Cells
from .results import FigureRecord, ResultFile, Status
from .study import Study
from .table import Table
from .text import claimed_text, duration, environment_rows, machine_phrase

STATUSES = {
    Status.PASSED: Badge("ran", "✓", "good"),  # "passed" would read as a verdict on its claims
    Status.FAILED: Badge("failed", "✕", "bad"),
    Status.TIMEOUT: Badge("timeout", "◷", "bad"),
    Status.SKIPPED: Badge("skipped", "○", "none"),
}
DAMAGED = Badge("unreadable", "!", "bad")
HEADLINES = 6
NOISY = 0.03  # median difference of A/A controls from which a report warns
OWN = ("models", "graphs", "table")  # parameters that name what is the reader's
GENERATED = ("random:", "synthetic:")  # graphs and tables that are drawn
OWN_STUDY = "your_model"
# what a reader's GNN gains by `swap` or one call: whole models first, then layers, then a sum
SWAPPED = ("whole_models", "public_models", "graph_transformer", "layers", "gat_layer", "sage_layer", "neighbour_sum")
FALSE, LESS, UNSURE = "Does not pay here", "Pays less here", "Pays less here, if at all"
PAYS = "Pays here"


class StudyFinding(NamedTuple):
    """What a study with a baseline says, in a sentence, and whether it is a gain; `href` leads to its figure."""

    study: str
    sentence: str
    pays: bool
    href: str


@dataclass
class NotebookEntry:
    """A notebook on the front page: its last good result, the run that failed since, and what could not be read."""

    stem: str  # "01_profile_bottlenecks"
    result: ResultFile | None = None
    failure: ResultFile | None = None
    page: str | None = None  # NN_name.html, where there is one
    stopped: str | None = None  # the notebook of the run that failed, below the folder
    problems: list[str] = field(default_factory=list)
    findings: list[StudyFinding] = field(default_factory=list)
    cells: Cells = field(default_factory=Cells)  # of its executed notebook
    own: bool = False  # something of the reader's is in it
    rows: list[ClaimResult] = field(default_factory=list)  # claims and goals that rest on it
    key: FigureRecord | None = None
    picture: str = ""  # the key figure's PNG as a data address

    @property
    def title(self) -> str:
        return self.cells.title or self.stem[3:].replace("_", " ").capitalize()

    @property
    def badge(self) -> Badge:
        latest = self.failure or self.result
        return STATUSES[latest.status] if latest else DAMAGED


def environment_card(environment: Mapping[str, Any]) -> str:
    """The environment of a run as a small HTML card that also looks right inside JupyterLab, light and dark."""
    return _templates().get_template("macros.html.j2").module.card(environment_rows(environment))


def own(values: Mapping[str, Any], declared: Mapping[str, Any]) -> list[str]:
    """The parameters that name something of the reader's own: no default, and nothing that is generated."""

    def names(value: Any) -> set[str]:
        each = map(str, value if isinstance(value, list) else [value])
        return {name for name in each if not name.startswith(GENERATED)}

    there = [name for name in OWN if name in declared and name in values]
    return [name for name in there if names(values[name]) - names(declared[name].default)]


# ---- the front page -------------------------------------------------------------------------------------------------


def build_site(out_dir: Path, only: str = "") -> Path:
    """Render the page of each notebook in `out_dir`, `claims.json` and `index.html`; returns the path of the last.

    What cannot be read is said on the page, in a line for each, and everything else is rendered. Raises `GnnlabError`
    when there is no such folder, or when writing fails.
    """
    out_dir = Path(out_dir)
    if not out_dir.is_dir():
        raise GnnlabError(f"there is no folder {out_dir}; run something first: gnnlab run --params {out_dir.name}")
    judged = claims_report.judge(out_dir)
    files.write_json(out_dir / claims_report.RECORD, judged.to_dict())
    stems = sorted({path.parent.parent.name for path in results.paths(out_dir)})
    entries = {stem[:2]: _entry(out_dir, stem, judged, only in ("", stem)) for stem in stems}
    ran = [entry.result for entry in entries.values() if entry.result]

    def href(row: ClaimResult) -> str:
        entry = entries.get(row.notebook)
        return entry.page + _anchor(entry.result, row.study) if entry and entry.page else ""

    path = out_dir / "index.html"
    _write_page(
        path,
        "index.html.j2",
        title="gnnlab",
        folder=out_dir.name,
        parts=parts(judged.rows),
        href=href,
        documents=claims.documents(),
        missing=judged.missing,
        entries=list(entries.values()),
        gains=_gains(list(entries.values())),
        headlines=headlines(judged.rows),
        noisy=[entry for entry in entries.values() if entry.result and noise(entry.result)],
        newest=max(ran, key=lambda result: result.started, default=None),
        machines=sorted({machine_phrase(result.environment) for result in ran}),
    )
    return path


def _entry(out_dir: Path, stem: str, judged: ClaimsReport, write: bool) -> NotebookEntry:
    """What the front page says of a notebook; with `write` its own page is written, too."""
    entry, page = NotebookEntry(stem), out_dir / f"{stem}.html"
    path, failed = results.newest(out_dir, stem)
    entry.problems = [line for line in judged.problems if stem in line]
    if failed:
        entry.failure = results.read(failed)
        entry.stopped = str(failed.with_name(results.NOTEBOOK).relative_to(out_dir))
    if path is None and not entry.problems:  # what cannot be read may have been shown by it
        page.unlink(missing_ok=True)
    elif path is not None:
        entry.result = results.read(path)
        entry.rows = [row for row in judged.rows if row.notebook == stem[:2]]
        try:
            _render(entry, path, page, write or not page.exists())
        except GnnlabError as error:
            entry.problems.append(str(error))
    entry.problems = list(dict.fromkeys(line.replace(f"{out_dir}{os.sep}", "") for line in entry.problems))
    return entry


def _gains(entries: Sequence[NotebookEntry]) -> list[tuple[NotebookEntry, StudyFinding]]:
    """What makes the reader's GNN faster: first of the reader's own models, then of whole models, layers and sums."""
    found = [(entry, one) for entry in entries for one in entry.findings if one.pays and entry.page]
    mine = [(entry, one) for entry, one in found if entry.own and one.study == OWN_STUDY]
    return mine + [pair for study in SWAPPED for pair in found if pair[1].study == study]


# ---- the page of a notebook -----------------------------------------------------------------------------------------


def _render(entry: NotebookEntry, path: Path, page: Path, write: bool) -> None:
    """Fill in what the run at `path` says, and write its page.

    Raises `GnnlabError` when the executed notebook cannot be shown, or when writing fails.
    """
    result, executed = entry.result, path.with_name(results.NOTEBOOK)
    entry.key = next((figure for figure in result.figures if figure.key), next(iter(result.figures), None))
    entry.picture = _picture(path.parent / entry.key.png) if entry.key else ""
    entry.cells = notebook_html.read(executed, result.figures, entry.key.name if entry.picture else "", whole=write)
    declared = discovery.declared(executed) if executed.exists() else {}
    entry.own, entry.findings = bool(own(result.parameters, declared)), _findings(result)
    entry.page = page.name
    if not write:
        return
    _write_page(
        page,
        "report.html.j2",
        title=entry.title,
        entry=entry,
        status=STATUSES[result.status],
        place=path.parent.relative_to(page.parent).as_posix(),
        pictures=[(figure, _picture(path.parent / figure.png)) for figure in result.figures],
        parts=parts(entry.rows),
        href=lambda row: _anchor(result, row.study),
        meanings={name: parameter.meaning for name, parameter in declared.items()},
        machine=machine_phrase(result.environment),
        noise=noise(result),
    )


def _picture(png: Path) -> str:
    """A PNG as a data address; "" where it is not there."""
    return f"data:image/png;base64,{base64.b64encode(png.read_bytes()).decode()}" if png.is_file() else ""


def _anchor(result: ResultFile | None, study: str) -> str:
    """The fragment of a link to the figure of a study, or to the first of a part of it; "" without one."""
    study, names = study.removesuffix(ratios.SUMMARY), [figure.name for figure in result.figures] if result else []
    names = [name for name in names if name == study or name.startswith(f"{study}-")]
    return f"#fig-{study if study in names else names[0]}" if names else ""


def _findings(result: ResultFile) -> list[StudyFinding]:
    """What each study with a baseline says, a line each; those with a gain first."""
    table, titles = Table(result.rows), {figure.name: figure.title.partition(":")[0] for figure in result.figures}
    studies = dict.fromkeys(row.study for row in table if row.ratio is not None and row.variant != CONTROL)
    of_rows = [Study(name, table.select(name), label=titles.get(name, "")) for name in studies]
    found = [
        StudyFinding(one.name, one.finding(), one.fastest() is not None, _anchor(result, one.name)) for one in of_rows
    ]
    return sorted(found, key=lambda one: not one.pays)


def noise(result: ResultFile) -> str | None:
    """Why the times of a run mislead: a machine that was busy, or variants that differ from themselves."""
    states = (("at its start", result.environment), ("at its end", result.environment.get("finished") or {}))
    seen = [f"{when}, {busy}" for when, state in states if (busy := machine.busy(state))]
    off = [abs(row.ratio - 1) for row in result.rows if row.variant == CONTROL and row.ratio is not None]
    if off and median(off) > NOISY:
        seen.append(f"a variant timed against itself (A/A) differs by {100 * median(off):.0f} % in the median")
    advice = "Trust ratios more than times; run it again when it is quiet."
    return f"Measured on a busy machine: {'; '.join(seen)}. {advice}" if seen else None


# ---- claims in the order of what matters ----------------------------------------------------------------------------


def distance_to_claim(row: ClaimResult) -> float:
    """How far the interval lies from what was claimed: in logarithms of a ratio, else relative to the claim. 0 where it
    reaches into the claim, -1 without a number."""
    if row.value is None:
        return -1.0
    low, high = (row.value, row.value) if row.low is None else (row.low, row.high)
    least, most = row.claimed or (NO_GAIN_BELOW, None)
    below, above = least is not None and high < least, most is not None and low > most
    if not (below or above):
        return 0.0
    near, claimed = (high, least) if below else (low, most)
    if row.metric in RATIOS and near > 0 and claimed > 0:
        return abs(math.log(near / claimed))
    return math.log1p(abs(near - claimed) / (abs(claimed) or 1.0))


def parts(rows: Iterable[ClaimResult]) -> list[tuple[str, str, list[ClaimResult]]]:
    """Claims and goals apart, where there are any: (anchor, heading, rows), the farthest from its claim first, what has
    no number last."""
    rows = sorted(rows, key=lambda row: -distance_to_claim(row))
    of_documents, goals = ([row for row in rows if row.is_goal is is_goal] for is_goal in (False, True))
    both = [("claims", "Claims of the documents", of_documents), ("goals", "Goals of the lab", goals)]
    return [part for part in both if part[2]]


def headlines(rows: Sequence[ClaimResult]) -> list[tuple[str, ClaimResult]]:
    """What of the documents' advice matters: (`FALSE`, `UNSURE`, `LESS` or `PAYS`, row), one of a study,
    and of as many notebooks as there are.

    First advice that is wrong on this machine, at most half of `HEADLINES` if as much pays; then advice that pays, by
    its gain. Goals of the lab and claims of equality are left out.
    """
    rows = [row for row in rows if row.metric in RATIOS and row.low is not None and not row.is_goal]
    rows = [row for row in rows if row.claimed != (1.0, 1.0)]
    short = [row for row in rows if row.verdict in (Verdict.REFUTED, Verdict.WEAKER)]
    pays = [row for row in rows if row.low > NO_GAIN_BELOW and row not in short]
    wrong = _varied(sorted(short, key=distance_to_claim, reverse=True))
    pays = _varied(sorted(pays, key=lambda row: row.value, reverse=True))
    wrong = wrong[: max(HEADLINES // 2, HEADLINES - len(pays))]
    words = (LESS if row.low > NO_GAIN_BELOW else UNSURE if row.high > NO_GAIN_BELOW else FALSE for row in wrong)
    lines = list(zip(words, wrong, strict=True))  # what is true of the whole interval
    return lines + [(PAYS, row) for row in pays[: HEADLINES - len(lines)]]


def _varied(rows: Sequence[ClaimResult]) -> list[ClaimResult]:
    """The first of each study; the first of each notebook, then the second of each, and so on."""
    first = {row.study: row for row in reversed(rows)}
    rows, seen = [row for row in rows if first[row.study] is row], Counter()
    place = {}
    for row in rows:
        place[row.id] = seen[row.notebook]
        seen[row.notebook] += 1
    return sorted(rows, key=lambda row: place[row.id])


# ---- pages ----------------------------------------------------------------------------------------------------------


def _write_page(path: Path, template: str, **content: Any) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    html = _templates().get_template(template).render(now=now, **content)
    files.write_atomically(path, lambda file: file.write(html))


@cache
def _templates() -> jinja2.Environment:
    """Templates with escaping on."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"moment": lambda iso: f"{iso[:10]} {iso[11:16]} UTC", "duration": duration}
    environment.globals |= {"environment_rows": environment_rows, "counts": Counter, "verdicts": claims_report.VERDICTS}
    environment.globals |= {"claimed_text": claimed_text, "widened": f"{100 * (claims.TOLERANCE - 1):.0f} %"}
    return environment
