"""Reference runs: the ledger of each machine in `docs/reference-runs`, made, read and laid side by side.

publish(Path("outputs/full"), root)     # docs/reference-runs/<processor>/full.json and full.md, after the parameter set
compared(read(root))                    # a row for each claim, a column for each machine, and whether they agree
write(root)                             # the tables in README.md and docs/reference-runs/README.md
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from gnnlab import files
from gnnlab.errors import GnnlabError

from . import advice, ledger, model_tables, provenance, results
from .claims import NO_GAIN_BELOW, RATIOS, catalogue, documents
from .ledger import Judged
from .text import markdown

TEMPLATES = Path(__file__).parent / "templates"
FOLDER = "docs/reference-runs"
BEGIN, END = "<!-- begin: gnnlab claims --machines --write -->", "<!-- end -->"


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


class Compared(NamedTuple):
    """One claim: the row that lies farthest from what was claimed, the row of each machine that measured it by the
    machine's name, and in a word where they agree."""

    claim: Judged
    rows: dict[str, Judged]
    word: str


# ---- made -----------------------------------------------------------------------------------------------------------


def publish(folder: Path, root: Path) -> Path:
    """Write the ledger of a folder of results as the reference run of its machine and parameter set; gives the page.

    Raises `GnnlabError` where there are no results, or where they come from several machines or from code with
    uncommitted changes.
    """
    judged = ledger.judge(folder)
    runs = [run for of_notebook in results.runs_of(folder)[0].values() for run in of_notebook]
    passed = sorted((run for run in runs if run[0].status is results.Status.PASSED), key=lambda run: run[0].started)
    phrases = sorted({provenance.in_a_phrase(result.environment) for result, _ in passed})
    if not passed:
        raise GnnlabError(f"{folder} holds no results of a notebook that passed; run gnnlab run --params full first")
    if len(phrases) > 1:
        raise GnnlabError(f"{folder} holds results of several machines ({'; '.join(phrases)}); publish one of them")
    newest = passed[-1][0]
    if newest.environment.get("dirty"):
        raise GnnlabError(f"{folder} was made by code with uncommitted changes; commit them and run it again")
    measured = {r.notebook[:2]: {"measured": r.started, "commit": r.environment.get("commit")} for r, _ in passed}
    noise = [line for result, table in passed if (line := advice.noise(result, table))]
    document = {
        "machine": phrases[0],
        "parameter_set": newest.params_set,
        "runs": dict(sorted(measured.items())),
        "noise": noise[:1],
        "environment": newest.environment,
        "models": model_tables.figures_of([table for _, table in passed if table.select(model_tables.RACED)]),
        **judged.to_dict(),
    }
    known = provenance.readable(newest.environment)
    others = [str(device.get("name")) for device in known["devices"] if device.get("kind") not in ("CPU", None)]
    words = re.sub(r"\((R|TM)\)|\bCPU\b|@.*", " ", " ".join([str(known["cpu"].get("model") or "processor"), *others]))
    name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")  # "amd-epyc", "intel-xeon-platinum-8488c"
    path = root / FOLDER / name / f"{newest.params_set}.json"
    files.write_json(path, document)
    return _write_page(path, document)


def _write_page(path: Path, document: dict[str, Any]) -> Path:
    """Beside its ledger, the same as Markdown for a reader of the repository; gives its path."""
    by_moment: dict[tuple[str, str], list[str]] = {}
    for number, run in document["runs"].items():
        by_moment.setdefault((run["measured"][:10], run["commit"]), []).append(number)
    measured = [f"{', '.join(numbers)} on {day} by commit {commit}" for (day, commit), numbers in by_moment.items()]
    rows = [_judged(row) for row in document["claims"]]
    text = (TEMPLATES / "reference_run.md.j2").read_text(encoding="utf-8")
    page = jinja2.Template(text, trim_blocks=True, keep_trailing_newline=True).render(
        document=document,
        measured="; ".join(measured),
        headlines=advice.headlines(rows),
        parts=advice.parts(rows),
        environment=provenance.in_rows(document["environment"]),
    )
    return _write_text(path.with_suffix(".md"), page)


# ---- side by side ---------------------------------------------------------------------------------------------------


def read(root: Path) -> list[MachineLedger]:
    """Every reference run of the repository, by name. Raises `GnnlabError`."""
    machines = []
    for folder, paths in itertools.groupby(_ledgers(root), key=lambda path: path.parent):
        documents = {path.stem: _read(path) for path in paths}
        rows: dict[str, Judged] = {}
        for row in (_judged(row) for document in documents.values() for row in document["claims"]):
            rows[row.id] = max(rows.get(row.id, row), row, key=lambda r: (r.value is not None, r.runs, r.n))
        phrase = next(iter(documents.values()))["machine"]
        models = max((document.get("models", {}) for document in documents.values()), key=lambda kept: len(str(kept)))
        machines.append(MachineLedger(folder.name, phrase, tuple(documents), rows, models))
    if not machines:
        raise GnnlabError(f"there is no reference run in {root / FOLDER}; make one: gnnlab claims FOLDER --publish")
    return machines


def _ledgers(root: Path) -> list[Path]:
    """The ledger of every machine and parameter set: the JSON files that have a page beside them."""
    return [page.with_suffix(".json") for page in sorted((root / FOLDER).glob("*/*.md"))]


def _read(path: Path) -> dict[str, Any]:
    return files.read_json(path, "make it again: gnnlab claims FOLDER --publish")


def _judged(row: dict[str, Any]) -> Judged:
    """A stored row, in the catalogue's words of today: a claim may have been put more clearly since."""
    known = catalogue().get(row["id"])
    return Judged(**row | ({"statement": known.statement} if known else {}))


def compared(machines: Sequence[MachineLedger]) -> list[Compared]:
    """Every claim that a machine measured: the documents' first, then the lab's goals; by surprise on any of them."""
    by_id: dict[str, dict[str, Judged]] = {}
    for one in machines:
        for row in one.rows.values():
            if row.value is not None:
                by_id.setdefault(row.id, {})[one.name] = row
    claims = [
        Compared(max(rows.values(), key=advice.surprise), rows, _word(rows, len(machines))) for rows in by_id.values()
    ]
    return sorted(claims, key=lambda one: (one.claim.is_goal, -advice.surprise(one.claim)))


def _word(rows: dict[str, Judged], machines: int) -> str:
    """Where machines agree, and where advice pays on some of them only."""
    if len(rows) == 1:
        return f"{next(iter(rows))} only" if machines > 1 else ""
    verdicts = {row.verdict.value for row in rows.values()}
    agree = f"all: {verdicts.pop()}" if len(verdicts) == 1 else "verdicts differ"
    if not all(row.metric in RATIOS and row.low is not None for row in rows.values()):
        return agree
    pays = [name for name, row in rows.items() if row.low > NO_GAIN_BELOW]
    not_so = [name for name, row in rows.items() if row.high < NO_GAIN_BELOW]
    if pays and not_so:
        return f"pays on {' and '.join(pays)}, not on {' and '.join(not_so)}"
    return "pays on all" if len(pays) == len(rows) and agree == "verdicts differ" else agree


def write(root: Path) -> list[Path]:
    """Put the tables between their marks in README.md and the page of the reference runs, and write each ledger's page
    again; gives what was written."""
    written = [_write_page(path, _read(path)) for path in _ledgers(root)]
    for path, text in blocks(root).items():
        before = path.read_text(encoding="utf-8")
        if BEGIN not in before or END not in before.partition(BEGIN)[2]:
            raise GnnlabError(f"{path} has no lines {BEGIN} and {END}; the table goes between them")
        head, _, rest = before.partition(BEGIN)
        written.append(_write_text(path, f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"))
    return written


def blocks(root: Path) -> dict[Path, str]:
    """What belongs between the marks of each file: in README.md the findings that matter, elsewhere every claim."""
    machines = read(root)
    rows = compared(machines)
    models = [line for one in machines for line in model_tables.lines(one.models, one.phrase)]
    pages = f"{'; '.join(one.linked(f'{FOLDER}/') for one in machines)}; [every row]({FOLDER}/README.md)."
    title = "Advice of the guides, times as fast with the 95 % interval:"
    front = [*models, "", title, "", *_findings(machines, rows), "", pages]
    every = [f"{'; '.join(one.linked() for one in machines)}.", "", *side_by_side(machines, rows)]
    return {root / "README.md": "\n".join(front).strip(), root / FOLDER / "README.md": "\n".join(every)}


def _findings(machines: Sequence[MachineLedger], rows: Sequence[Compared]) -> list[str]:
    """A table of what matters of the documents' advice, with what each machine measured."""
    by_id, lines = {row.claim.id: row for row in rows}, []
    for kind, claim in advice.headlines([row.claim for row in rows]):
        row = by_id[claim.id]
        word = row.word if " on " in row.word else kind.removesuffix(" here").lower()
        values = [row.rows[one.name].text if one.name in row.rows else "not measured" for one in machines]
        title = documents()[claim.source]["title"]
        lines.append((word, claim.statement, f"{title}: {claim.claimed_text}", *values))
    return markdown(("", "advice", "promised", *(one.name for one in machines)), lines)


def side_by_side(machines: Sequence[MachineLedger], rows: Sequence[Compared]) -> list[str]:
    """A Markdown table, claim by machine."""
    names = [one.name for one in machines]
    lines = [
        (row.claim.of, row.claim.statement, row.claim.claimed_text, *map(_cell, map(row.rows.get, names)), row.word)
        for row in rows
    ]
    several = len(machines) > 1
    header = ("of", "claim", "claimed", *names, *["machines"] * several)
    return markdown(header, [line[: len(header)] for line in lines])


def _cell(row: Judged | None) -> str:
    return f"{_verdict(row)}: {row.text}" if row else "not measured"


def _verdict(row: Judged) -> str:
    return f"{row.badge.symbol} {row.badge.word}"


def _write_text(path: Path, text: str) -> Path:
    files.write_atomically(path, lambda file: file.write(text))
    return path
