"""Reference runs: the ledger of each machine in `docs/reference-runs`, made, read and laid side by side.

publish(Path("outputs/full"), root)     # docs/reference-runs/<processor>/full.json, named as the parameter set
compared(read(root))                    # a row for each claim, a column for each machine, and whether they agree
write(root)                             # a page for each ledger, the tables in README.md and in the folder
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
ABSENT = "not measured"
BEGIN, END = "<!-- begin: gnnlab claims --machines --write -->", "<!-- end -->"


@dataclass(frozen=True)
class MachineLedger:
    """The ledgers of one machine: its folder's name, its documents by parameter set, and of each claim the row that
    rests on most runs, then on most samples."""

    name: str
    documents: dict[str, dict[str, Any]]
    rows: dict[str, Judged]

    @property
    def phrase(self) -> str:
        """Its processor, in a phrase."""
        return next(iter(self.documents.values()))["machine"]

    @property
    def models(self) -> model_tables.Figures:
        """The fullest tables of whole models."""
        return max((document.get("models", {}) for document in self.documents.values()), key=lambda t: len(str(t)))

    def linked(self, before: str = "") -> str:
        """Its name and phrase, with links to its pages from `before` its folder."""
        pages = ", ".join(f"[{one}]({before}{self.name}/{one}.md)" for one in self.documents)
        return f"{self.name} ({pages}): {self.phrase}"


class Compared(NamedTuple):
    """One claim: the row that lies farthest from what was claimed, the row of each machine that measured it by the
    machine's name, and in a word where they agree."""

    claim: Judged
    rows: dict[str, Judged]
    word: str


def publish(folder: Path, root: Path) -> Path:
    """Write the ledger of a folder of results as the reference run of its machine and parameter set; gives the file.

    Raises `GnnlabError` where there are no results, or where they come from several machines or from code with
    uncommitted changes.
    """
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
    noise = [line for result, _ in passed if (line := advice.noise(result))]
    document = {
        "machine": phrases[0],
        "parameter_set": newest.params_set,
        "runs": dict(sorted(measured.items())),
        "noise": noise[:1],
        "environment": newest.environment,
        "models": model_tables.figures_of([table for _, table in passed if table.select(model_tables.RACED)]),
        **ledger.judge(folder).to_dict(),
    }
    known = provenance.readable(newest.environment)
    others = [str(device.get("name")) for device in known["devices"] if device.get("kind") != "CPU"]
    words = re.sub(r"\((R|TM)\)|\bCPU\b|@.*", " ", " ".join([str(known["cpu"].get("model") or "processor"), *others]))
    name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")  # "amd-epyc", "intel-xeon-platinum-8488c"
    path = root / FOLDER / name / f"{newest.params_set}.json"
    files.write_json(path, document)
    return path


# ---- side by side ---------------------------------------------------------------------------------------------------


def read(root: Path) -> list[MachineLedger]:
    """Every reference run of the repository, by name. Raises `GnnlabError`."""
    machines = []
    paths = [path for path in sorted((root / FOLDER).glob("*/*.json")) if path.name != ledger.RECORD]
    for folder, of_machine in itertools.groupby(paths, key=lambda path: path.parent):
        again = "make it again: gnnlab claims FOLDER --publish"
        read_here = {path.stem: files.read_json(path, again) for path in of_machine}
        documents = {name: document for name, document in read_here.items() if "claims" in document}
        if not documents:  # other measurements, as those of kernels on a card
            continue
        rows: dict[str, Judged] = {}
        for row in (row for document in documents.values() for row in _judged(document)):
            rows[row.id] = max(rows.get(row.id, row), row, key=lambda r: (r.value is not None, r.runs, r.n))
        machines.append(MachineLedger(folder.name, documents, rows))
    if not machines:
        raise GnnlabError(f"there is no reference run in {root / FOLDER}; make one: gnnlab claims FOLDER --publish")
    return machines


def _judged(document: dict[str, Any]) -> list[Judged]:
    """The stored rows, in the catalogue's words of today: a claim may have been put more clearly since."""
    words = {id: {"statement": claim.statement} for id, claim in catalogue().items()}
    return [Judged(**row | words.get(row["id"], {})) for row in document["claims"]]


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


def side_by_side(machines: Sequence[MachineLedger]) -> list[str]:
    """A Markdown table, claim by machine."""
    names = [one.name for one in machines]
    lines = []
    for claim, rows, word in compared(machines):
        cells = [f"{rows[n].badge.symbol} {rows[n].badge.word}: {rows[n].text}" if n in rows else ABSENT for n in names]
        lines.append((claim.of, claim.statement, claim.claimed_text, *cells, *[word] * (len(names) > 1)))
    return markdown(("of", "claim", "claimed", *names, *["machines"] * (len(names) > 1)), lines)


def write(root: Path) -> list[Path]:
    """Write each ledger as a page for a reader of the repository, and the tables between their marks in README.md and
    the page of the reference runs; gives what was written."""
    pages = {
        root / FOLDER / one.name / f"{name}.md": page(document)
        for one in read(root)
        for name, document in one.documents.items()
    }
    for path, text in blocks(root).items():
        before = path.read_text(encoding="utf-8")
        if BEGIN not in before or END not in before.partition(BEGIN)[2]:
            raise GnnlabError(f"{path} has no lines {BEGIN} and {END}; the table goes between them")
        head, _, rest = before.partition(BEGIN)
        pages[path] = f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"
    for path, text in pages.items():
        files.write_atomically(path, lambda file, text=text: file.write(text))
    return list(pages)


def page(document: dict[str, Any]) -> str:
    """A ledger as Markdown."""
    by_moment: dict[tuple[str, str], list[str]] = {}
    for number, run in document["runs"].items():
        by_moment.setdefault((run["measured"][:10], run["commit"]), []).append(number)
    measured = [f"{', '.join(numbers)} on {day} by commit {commit}" for (day, commit), numbers in by_moment.items()]
    rows = _judged(document)
    text = (TEMPLATES / "reference_run.md.j2").read_text(encoding="utf-8")
    return jinja2.Template(text, trim_blocks=True, keep_trailing_newline=True).render(
        document=document,
        measured="; ".join(measured),
        headlines=advice.headlines(rows),
        parts=advice.parts(rows),
        environment=provenance.in_rows(document["environment"]),
    )


def blocks(root: Path) -> dict[Path, str]:
    """What belongs between the marks of each file: in README.md the findings that matter, elsewhere every claim."""
    machines = read(root)
    models = model_tables.lines({one.name: one.models for one in machines})
    pages = f"{'; '.join(one.linked(f'{FOLDER}/') for one in machines)}; [every row]({FOLDER}/README.md)."
    title = "Advice of the guides, times as fast with the 95 % interval:"
    front = [*models, "", title, "", *_findings(machines), "", pages]
    every = [f"{'; '.join(one.linked() for one in machines)}.", "", *side_by_side(machines)]
    return {root / "README.md": "\n".join(front).strip(), root / FOLDER / "README.md": "\n".join(every)}


def _findings(machines: Sequence[MachineLedger]) -> list[str]:
    """A table of what matters of the documents' advice, with what each machine measured."""
    by_id, lines = {row.claim.id: row for row in compared(machines)}, []
    for kind, claim in advice.headlines([row.claim for row in by_id.values()]):
        row = by_id[claim.id]
        word = row.word if " on " in row.word else kind.removesuffix(" here").lower()
        values = [row.rows[one.name].text if one.name in row.rows else ABSENT for one in machines]
        title = documents()[claim.source]["title"]
        lines.append((word, claim.statement, f"{title}: {claim.claimed_text}", *values))
    return markdown(("", "advice", "promised", *(one.name for one in machines)), lines)
