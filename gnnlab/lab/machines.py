"""Reference runs: the ledger of each machine in `docs/reference-runs`, made, read and laid side by side.

publish(Path("outputs/full"), root)     # docs/reference-runs/<processor>/full.json and full.md, after the parameter set
compared(read(root))                    # a row for each claim, a cell for each machine, and whether they agree
write(root)                             # the tables in README.md and docs/reference-runs/README.md
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from gnnlab import files
from gnnlab.errors import GnnlabError

from . import advice, ledger, model_tables, provenance, results
from .claims import NO_GAIN_BELOW, RATIOS, catalogue
from .ledger import Judged, LedgerLine

TEMPLATES = Path(__file__).parent / "templates"
FOLDER = "docs/reference-runs"
BEGIN, END = "<!-- begin: gnnlab claims --machines --write -->", "<!-- end -->"
IN_README = 6  # rows of the table in README.md
PRIVATE = ("host",)  # of the environment: names a computer of someone


@dataclass(frozen=True)
class MachineLedger:
    """The ledgers of one machine: its folder's name, its processor in a phrase, its parameter sets, and of each claim
    the row that rests on most runs, then on most samples; what its tables of whole models show."""

    name: str
    phrase: str
    sets: tuple[str, ...]
    rows: dict[str, Judged]
    models: model_tables.Kept

    def linked(self, before: str = "") -> str:
        """Its name and phrase, with links to its pages from `before` its folder."""
        pages = ", ".join(f"[{one}]({before}{self.name}/{one}.md)" for one in self.sets)
        return f"{self.name} ({pages}): {self.phrase}"


@dataclass(frozen=True)
class Compared:
    """One claim on every machine: None where a ledger has no row of it. `word` says where they agree."""

    claim: Judged
    cells: tuple[LedgerLine | None, ...]
    word: str


# ---- made -----------------------------------------------------------------------------------------------------------


def publish(folder: Path, root: Path) -> Path:
    """Write the ledger of a folder of results as a reference run of its machine; gives the new page.

    Of the same machine and parameter set, notebooks that this folder has runs of are replaced and others stay. Raises
    `GnnlabError` where there are no results, or where they come from several machines or from code with uncommitted
    changes.
    """
    judged = ledger.judge(folder)
    runs = [run for of_notebook in results.runs_of(folder)[0].values() for run in of_notebook]
    runs = [(result, table) for result, table in runs if result.status is results.Status.PASSED]
    passed = [result for result, _ in runs]
    if not passed:
        raise GnnlabError(f"{folder} holds no results of a notebook that passed; run gnnlab run --params full first")
    phrases = dict.fromkeys(provenance.in_a_phrase(result.environment) for result in passed)
    if len(phrases) > 1:
        raise GnnlabError(f"{folder} holds results of several machines ({'; '.join(phrases)}); publish one of them")
    newest = max(passed, key=lambda result: result.started)
    if newest.environment.get("dirty"):
        raise GnnlabError(f"{folder} was made by code with uncommitted changes; commit them and run it again")
    path = root / FOLDER / _name(newest.environment) / f"{newest.params_set}.json"
    before = _read(path) if path.exists() else {"runs": {}, "claims": [], "noise": [], "models": {}}
    fresh = {
        result.notebook[:2]: {"measured": result.started, "commit": result.environment.get("commit")}
        for result in sorted(passed, key=lambda result: (result.notebook, result.started))
    }
    stay = {row["id"]: row for row in before["claims"] if row["notebook"] not in fresh}
    rows = stay | {row["id"]: row for row in judged.to_dict()["claims"]}
    raced = [table for _, table in runs if table.select(model_tables.RACED)]
    noise = [line for result in passed if (line := advice.noise(result, results.Table(result.rows)))]
    document = {
        "machine": next(iter(phrases)),
        "parameter_set": newest.params_set,
        "runs": dict(sorted((before["runs"] | fresh).items())),
        "noise": noise[:1] or before["noise"],
        "environment": {name: value for name, value in newest.environment.items() if name not in PRIVATE},
        "models": model_tables.figures_of(raced) if raced else before.get("models", {}),
        "claims": [rows[id] for id in catalogue() if id in rows],
        "not_measured": [id for id in catalogue() if id not in rows],
        "problems": judged.problems,
    }
    files.write_json(path, document)
    return _write_page(path, document)


def _write_page(path: Path, document: dict[str, Any]) -> Path:
    """Beside its ledger, the page to read."""
    page = path.with_suffix(".md")
    _write_text(page, _page(document, [_judged(row) for row in document["claims"]]))
    return page


def _read(path: Path) -> dict[str, Any]:
    return files.read_json(path, "make it again: gnnlab claims FOLDER --publish")


def _judged(row: dict[str, Any]) -> Judged:
    """A stored row, in the catalogue's words of today: a claim may have been put more clearly since."""
    known = catalogue().get(row["id"])
    return Judged(**row | ({"statement": known.statement} if known else {}))


def _name(environment: dict[str, Any]) -> str:
    """ "amd-epyc", "intel-xeon-platinum-8488c"; an accelerator is named, too."""
    known = provenance.readable(environment)
    others = [str(device.get("name")) for device in known["devices"] if device.get("kind") not in ("CPU", None)]
    words = re.sub(r"\((R|TM)\)|\bCPU\b|@.*", " ", " ".join([str(known["cpu"].get("model") or "processor"), *others]))
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def _page(document: dict[str, Any], rows: Sequence[Judged]) -> str:
    """The ledger as Markdown, for a reader of the repository."""
    by_moment: dict[tuple[str, str], list[str]] = {}
    for number, run in document["runs"].items():
        day = datetime.fromisoformat(run["measured"]).astimezone(UTC)
        by_moment.setdefault((f"{day:%Y-%m-%d}", run["commit"]), []).append(number)
    notebooks = [f"{', '.join(numbers)} on {day} by commit {commit}" for (day, commit), numbers in by_moment.items()]
    parts = []
    for title, is_goal in {"Claims of the documents": False, "Goals of the lab": True}.items():
        what = ("goal", "wanted") if is_goal else ("claim", "claimed")
        lines = [ledger.line(row) for row in advice.by_surprise(rows) if row.is_goal is is_goal]
        cells = [
            (_verdict(line), row.of, row.statement, line.claimed, line.measured or "not here", line.interval, row.runs)
            for line in lines
            for row in [line.record]
        ]
        cells = [(*line, runs or "") for *line, runs in cells]
        parts.append((title, ("verdict", "of", *what, "measured", "95 % interval", "runs"), cells))
    text = (TEMPLATES / "reference_run.md.j2").read_text(encoding="utf-8")
    return jinja2.Template(text, trim_blocks=True, keep_trailing_newline=True).render(
        document=document,
        measured="; ".join(notebooks),
        headlines=[(kind, ledger.line(row)) for kind, row in advice.headlines(rows)],
        parts=parts,
        environment=provenance.in_rows(document["environment"]),
        table=lambda header, lines: "\n".join(_table(header, lines)),
    )


# ---- side by side ---------------------------------------------------------------------------------------------------


def read(root: Path) -> list[MachineLedger]:
    """Every reference run of the repository, by name. Raises `GnnlabError`."""
    machines = []
    for folder, paths in itertools.groupby(ledgers(root), key=lambda path: path.parent):
        documents = {path.stem: _read(path) for path in paths}
        rows: dict[str, Judged] = {}
        for row in (_judged(row) for document in documents.values() for row in document["claims"]):
            rows[row.id] = max(rows.get(row.id, row), row, key=lambda r: (r.value is not None, r.runs, r.n))
        machine = next(iter(documents.values()))["machine"]
        models = max((document.get("models", {}) for document in documents.values()), key=lambda kept: len(str(kept)))
        machines.append(MachineLedger(folder.name, machine, tuple(documents), rows, models))
    if not machines:
        raise GnnlabError(f"there is no reference run in {root / FOLDER}; make one: gnnlab claims FOLDER --publish")
    return machines


def ledgers(root: Path) -> list[Path]:
    """The ledger of every machine and parameter set: the JSON files that have a page beside them."""
    return [page.with_suffix(".json") for page in sorted((root / FOLDER).glob("*/*.md"))]


def compared(machines: Sequence[MachineLedger]) -> list[Compared]:
    """Every claim that a machine measured: the documents' first, then the lab's goals; by surprise on any of them."""
    ids = dict.fromkeys(id for one in machines for id, row in one.rows.items() if row.value is not None)
    claims = []
    for id in ids:
        rows = [one.rows.get(id) for one in machines]
        most = max((row for row in rows if row is not None and row.value is not None), key=advice.surprise)
        claims.append(Compared(most, tuple(row and ledger.line(row) for row in rows), _word(machines, rows)))
    return sorted(claims, key=lambda one: (one.claim.is_goal, -advice.surprise(one.claim)))


def _word(machines: Sequence[MachineLedger], rows: Sequence[Judged | None]) -> str:
    """Where machines agree, and where advice pays on some of them only."""
    there = [
        (one.name, row) for one, row in zip(machines, rows, strict=True) if row is not None and row.value is not None
    ]
    if len(there) == 1:
        return f"{there[0][0]} only" if len(machines) > 1 else ""
    if all(row.metric in RATIOS and row.low is not None for _, row in there):
        pays = [name for name, row in there if row.low > NO_GAIN_BELOW]
        not_so = [name for name, row in there if row.high < NO_GAIN_BELOW]
        if len(pays) == len(there):
            return "pays on all" if len({row.verdict for _, row in there}) > 1 else f"all: {there[0][1].verdict.value}"
        if pays and not_so:
            return f"pays on {' and '.join(pays)}, not on {' and '.join(not_so)}"
    words = {row.verdict for _, row in there}
    return f"all: {words.pop().value}" if len(words) == 1 else "verdicts differ"


def write(root: Path) -> list[Path]:
    """Put the tables between their marks in README.md and the page of the reference runs, and write each ledger's page
    again; gives what was written."""
    written = [_write_page(path, _read(path)) for path in ledgers(root)]
    for path, text in blocks(root).items():
        before = path.read_text(encoding="utf-8")
        if BEGIN not in before or END not in before.partition(BEGIN)[2]:
            raise GnnlabError(f"{path} has no lines {BEGIN} and {END}; the table goes between them")
        head, _, rest = before.partition(BEGIN)
        _write_text(path, f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")
        written.append(path)
    return written


def blocks(root: Path) -> dict[Path, str]:
    """What belongs between the marks of each file."""
    machines = read(root)
    rows = compared(machines)
    short = [row for row in rows if row.claim.metric in RATIOS and not row.claim.is_goal][:IN_README]
    every = f"{'; '.join(one.linked(f'{FOLDER}/') for one in machines)}; [every row]({FOLDER}/README.md)."
    here = f"{'; '.join(one.linked() for one in machines)}."
    models = [line for one in machines for line in model_tables.lines(one.models, one.phrase)]
    front = [*models, *[""] * bool(models), *_headlines(machines, rows), "", *side_by_side(machines, short), "", every]
    return {
        root / "README.md": "\n".join(front),
        root / FOLDER / "README.md": "\n".join([here, "", *side_by_side(machines, rows)]),
    }


def _headlines(machines: Sequence[MachineLedger], rows: Sequence[Compared]) -> list[str]:
    """The findings that matter, each with what every machine measured."""
    by_id = {row.claim.id: row for row in rows}
    lines = []
    for kind, claim in advice.headlines([row.claim for row in rows]):
        row = by_id[claim.id]
        cells = zip(machines, row.cells, strict=True)
        values = [f"{line.text} on {one.name}" for one, line in cells if line and line.measured]
        says = row.word.capitalize() if " on " in row.word else kind.removesuffix(" here")
        lines.append(f"- {says}: {claim.statement}: {', '.join(values)}{ledger.line(claim).promise}")
    return lines


def side_by_side(machines: Sequence[MachineLedger], rows: Iterable[Compared]) -> list[str]:
    """A Markdown table, claim by machine."""
    several = len(machines) > 1
    cells = [
        (row.claim.of, row.claim.statement, ledger.line(row.claim).claimed, *map(_cell, row.cells), row.word)
        for row in rows
    ]
    header = ("of", "claim", "claimed", *(one.name for one in machines), "machines")
    return _table(header, cells) if several else _table(header[:-1], [line[:-1] for line in cells])


def _cell(line: LedgerLine | None) -> str:
    return f"{_verdict(line)}: {line.text}" if line and line.measured else "not measured"


def _verdict(line: LedgerLine) -> str:
    return f"{line.badge.symbol} {line.badge.word}"


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    def of(cells: Sequence[Any]) -> str:
        return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"

    return [of(header), f"|{'---|' * len(header)}", *map(of, rows)]


def _write_text(path: Path, text: str) -> None:
    files.write_atomically(path, lambda file: file.write(text))
