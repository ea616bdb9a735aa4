"""Reference runs: the claims report of each machine, its page, and the tables of README.md and docs/reference-runs.

python scripts/publish.py outputs/full    # that folder of results as docs/reference-runs/<processor>/full.json
python scripts/publish.py                 # all pages there, and the tables of both READMEs
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import gmean

from gnnlab.errors import GnnlabError, Untestable
from gnnlab.files import read_json, write_atomically, write_json
from gnnlab.lab import claims_report, results
from gnnlab.lab.claims import NO_GAIN_BELOW, RATIOS, catalogue, documents
from gnnlab.lab.claims_report import ClaimResult
from gnnlab.lab.ratios import of_cells
from gnnlab.lab.report import distance_to_claim, headlines, noise, parts
from gnnlab.lab.table import Table
from gnnlab.lab.text import environment_rows, machine_phrase, number

ROOT = Path(__file__).parents[1]
FOLDER = "docs/reference-runs"
BEGIN, END = "<!-- begin: python scripts/publish.py -->", "<!-- end -->"
ABSENT = "not measured"
WHOLE, NEW, GROWTH = "whole_models", "new_graph", "growth"  # studies of notebook 09
LEAST_EDGES = 1_000_000  # of the table of growth
FIRST_CALL = "first call over a later one"
GROWN = {  # heading: phase, quantity, and how much of its unit is one of the heading's
    "forward, s": ("forward", "time", 1000),
    "training step, s": ("training step", "time", 1000),
    "its peak memory, GiB": ("training step", "peak memory", 1024),
}
Documents = dict[str, dict[str, dict[str, Any]]]  # by machine and parameter set
Compared = tuple[
    ClaimResult, dict[str, ClaimResult], str
]  # the row farthest from its claim, all rows, where they agree

# ---- one folder of results ------------------------------------------------------------------------------------------


def publish(folder: Path, root: Path = ROOT) -> Path:
    """Write what a folder of results says of the claims as the reference run of its machine; returns the file.

    Raises `GnnlabError`: there are no results, or they come from several machines or from uncommitted changes.
    """
    runs = [run for of_notebook in results.runs_of(folder)[0].values() for run in of_notebook]
    passed = sorted((run for run in runs if run[0].status == "passed"), key=lambda run: run[0].started)
    machines = sorted({machine_phrase(result.environment) for result, _ in passed})
    if not passed:
        raise GnnlabError(f"{folder} holds no results of a notebook that passed; run gnnlab run --params full first")
    if len(machines) > 1:
        raise GnnlabError(f"{folder} holds results of several machines ({'; '.join(machines)}); publish one of them")
    newest = passed[-1][0]
    if newest.environment.get("dirty"):
        raise GnnlabError(f"{folder} was made by code with uncommitted changes; commit them and run it again")
    measured = {r.notebook[:2]: {"measured": r.started, "commit": r.environment.get("commit")} for r, _ in passed}
    document = {
        "machine": machines[0],
        "parameter_set": newest.params_set,
        "runs": dict(sorted(measured.items())),
        "noise": [line for result, _ in passed if (line := noise(result))][:1],
        "environment": newest.environment,
        "models": models_of([table for _, table in passed]),
        **claims_report.judge(folder).to_dict(),
    }
    chips = re.sub(r"\((R|TM)\)|\bCPU\b|@[^,]*|,[^,]*\bcores?\b|, torch .*", " ", machines[0])
    name = re.sub(r"[^a-z0-9]+", "-", chips.lower()).strip("-")  # "amd-epyc", "intel-xeon-platinum-8488c"
    path = root / FOLDER / name / f"{newest.params_set}.json"
    write_json(path, document)
    return path


def models_of(tables: Sequence[Table]) -> dict[str, list[dict[str, Any]]]:
    """What README shows of notebook 09, from all its runs: the gain of whole models over PyG and over the best of all
    alternatives, of layers on new graphs over PyG, and how models grow."""
    best, gains, new, grown = catalogue()["goal.whole_model_forward"].of.over, [], [], []
    for table in tables:
        for row in table.select(WHOLE, "gnnlab"):
            with suppress(Untestable):
                over = [of_cells(table, [row], table.select(WHOLE), names)[0].ratio.value for names in ((), best)]
                gains.append({**row.keys, "threads": row.threads, "over_pyg": over[0], "over_best": over[1]})
        new += [{**row.keys, "over_pyg": row.ratio} for row in table.select(NEW, "gnnlab") if row.ratio]
        rows = [
            row for row in table.select(GROWTH) if row.value is not None and row.keys.get("edges", 0) >= LEAST_EDGES
        ]
        grown += [{**row.keys, "variant": row.variant, "value": row.value} for row in rows]
    return {WHOLE: _pooled(gains, gmean), NEW: _pooled(new, "median"), GROWTH: _pooled(grown, "median")}


def _pooled(rows: Sequence[Mapping[str, Any]], how: Any) -> list[dict[str, Any]]:
    frame = pd.DataFrame(rows)
    keys = [name for name in frame if name not in ("over_pyg", "over_best", "value")]
    return frame.groupby(keys, sort=False, as_index=False).agg(how).to_dict("records") if rows else []


# ---- all of them ----------------------------------------------------------------------------------------------------


def read(root: Path = ROOT) -> Documents:
    """Every reference run of the repository. Raises `GnnlabError`."""
    machines: Documents = {}
    for path in sorted((root / FOLDER).glob("*/*.json")):
        document = read_json(path, "make it again: python scripts/publish.py FOLDER")
        if "parameter_set" in document:  # others lie there, too: of kernels on a card
            machines.setdefault(path.parent.name, {})[path.stem] = document
    if not machines:
        raise GnnlabError(f"there is no reference run in {root / FOLDER}; make one: python scripts/publish.py FOLDER")
    return machines


def write(root: Path = ROOT) -> list[Path]:
    """Write the pages and, between their marks, the tables; returns what was written."""
    machines = read(root)
    pages = {root / FOLDER / m / f"{name}.md": page(one) for m, sets in machines.items() for name, one in sets.items()}
    for path, text in blocks(machines).items():
        before = (root / path).read_text(encoding="utf-8")
        if BEGIN not in before or END not in before.partition(BEGIN)[2]:
            raise GnnlabError(f"{path} has no lines {BEGIN} and {END}; the table goes between them")
        head, _, rest = before.partition(BEGIN)
        pages[root / path] = f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"
    for path, text in pages.items():
        write_atomically(path, lambda file, text=text: file.write(text))
    return list(pages)


def judged(document: Mapping[str, Any]) -> list[ClaimResult]:
    """The stored rows, in the catalogue's words of today."""
    words = {id: {"statement": claim.statement} for id, claim in catalogue().items()}
    return [ClaimResult(**row | words.get(row["id"], {})) for row in document["claims"]]


def page(document: Mapping[str, Any]) -> str:
    """A claims report as Markdown."""
    by_moment: dict[str, list[str]] = {}
    for notebook, run in document["runs"].items():
        by_moment.setdefault(f"on {run['measured'][:10]} by commit {run['commit']}", []).append(notebook)
    measured = "; ".join(f"{', '.join(numbers)} {moment}" for moment, numbers in by_moment.items())
    how = "[How to read a verdict](../../../README.md#how-to-read-a-verdict)."
    lines = [f"# {document['machine']}", "", f"`params/{document['parameter_set']}`: notebooks {measured}. {how}", ""]
    lines += [part for line in document["noise"] for part in (line, "")]
    rows = judged(document)
    lines += [f"- {kind}: {r.statement}: {r.text}; {r.of} claims {r.claimed_text}" for kind, r in headlines(rows)]
    for id, heading, part in parts(rows):
        named = ("goal", "wanted") if id == "goals" else ("claim", "claimed")
        columns = ("verdict", "of", *named, "measured", "95 % interval", "runs")
        cells = [
            (_verdict(r), r.of, r.statement, r.claimed_text, r.measured or "not here", r.interval, r.runs or "")
            for r in part
        ]
        lines += ["", f"## {heading}", "", *markdown(columns, cells)]
    environment = markdown(("", ""), environment_rows(document["environment"]))
    return "\n".join([*lines, "", "## Environment", "", *environment, ""])


def compared(machines: Documents) -> list[Compared]:
    """Of each claim the row that lies farthest from it, the row of each machine, and where they agree: the documents'
    claims first, then the goals, by distance. Of a machine's rows counts the one of more runs and samples."""
    found: dict[str, dict[str, ClaimResult]] = {}
    for name, sets in machines.items():
        rows = [row for one in sets.values() for row in judged(one) if row.value is not None]
        for row in sorted(rows, key=lambda row: (row.runs, row.n), reverse=True):
            found.setdefault(row.id, {}).setdefault(name, row)
    in_order = [found[id] for id in dict.fromkeys([*catalogue(), *found]) if id in found]
    farthest = [max(rows.values(), key=distance_to_claim) for rows in in_order]
    claims = [(row, rows, _agreement(rows, len(machines))) for row, rows in zip(farthest, in_order, strict=True)]
    return sorted(claims, key=lambda one: (one[0].is_goal, -distance_to_claim(one[0])))


def _agreement(rows: Mapping[str, ClaimResult], machines: int) -> str:
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


def _verdict(row: ClaimResult) -> str:
    return f"{row.badge.symbol} {row.badge.word}"


def blocks(machines: Documents) -> dict[str, str]:
    """What belongs between the marks of each file: in README.md what matters most, elsewhere all of it."""
    raced, claims, pages = _models(machines, WHOLE), compared(machines), f"{FOLDER}/README.md"
    front = [*speedups(raced), "", *promises(machines, claims, pages)]
    more = [*over_pyg(raced), *new_graphs(machines), *growth(machines)]
    return {
        "README.md": "\n".join(front).strip(),
        pages: "\n".join([f"{_linked(machines)}.", "", *more, "", *every_claim(machines, claims)]),
    }


def promises(machines: Documents, claims: Sequence[Compared], pages: str) -> list[str]:
    """The table of the guides' advice: what was promised, and what it is on each machine."""
    rows = []
    for kind, claim in headlines([claim for claim, *_ in claims]):
        seen, word = next((seen, word) for other, seen, word in claims if other.id == claim.id)
        word = word if " on " in word else kind.removesuffix(" here").lower()
        promised = f"{documents()[claim.source]['title']}: {claim.claimed_text}"
        rows.append((claim.statement, promised, *_cells(machines, seen, _gain), word))
    title = f"What the guides promise, and what it brings: times as fast, with the 95 % interval. [All rows]({pages})."
    return [title, "", *markdown(("advice", "promised", *map(_chip, machines), "result"), rows)]


def every_claim(machines: Documents, claims: Sequence[Compared]) -> list[str]:
    """The table of all claims and goals: verdict, value and interval on each machine, and where they agree."""
    rows = [
        (row.of, row.statement, row.claimed_text, *_cells(machines, seen, lambda r: f"{_verdict(r)}: {r.text}"), word)
        for row, seen, word in claims
    ]
    return markdown(("of", "claim", "claimed", *machines, "machines"), rows)


def _cells(machines: Documents, rows: Mapping[str, ClaimResult], text: Callable[[ClaimResult], str]) -> list[str]:
    return [text(rows[name]) if name in rows else ABSENT for name in machines]


def _gain(row: ClaimResult) -> str:
    """A ratio with its interval; one below a half as "25× slower"."""
    if row.metric not in RATIOS or None in (row.value, row.low, row.high) or row.value >= 0.5 or row.low <= 0:
        return row.text
    slower, least, most = (number(1 / value) for value in (row.value, row.high, row.low))
    return f"{slower}× slower ({least} to {most}×)"


def _chip(machine: str) -> str:
    """ "Intel Xeon" of the folder "intel-xeon-processor"."""
    words = machine.removesuffix("-processor").split("-")
    return " ".join(
        word.upper() if len(word) == 3 else word.capitalize() if word != "epyc" else "EPYC" for word in words
    )


def markdown(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |" for cells in lines]


def _linked(machines: Documents, before: str = "") -> str:
    """Each machine with links to its pages, and its processor in a phrase."""
    pages = {name: ", ".join(f"[{one}]({before}{name}/{one}.md)" for one in sets) for name, sets in machines.items()}
    return "; ".join(
        f"{name} ({pages[name]}): {next(iter(sets.values()))['machine']}" for name, sets in machines.items()
    )


# ---- whole models ---------------------------------------------------------------------------------------------------


def speedups(raced: pd.DataFrame) -> list[str]:
    """The table of `swap` on whole models over the fastest alternative: a row a model, and their geometric mean."""
    if raced.empty:
        return []
    chips = " / ".join(_chip(machine) for machine in raced["machine"].unique())
    return [
        f"Speed-up of `swap` on two-layer models of PyG over the fastest alternative ({chips}, "
        f"{raced['threads'][0]} threads).",
        "The alternatives are PyG, PyG with `cached=True`, a sparse CSR adjacency, sparse features, `EdgeIndex` and "
        "`torch.compile`.",
        "",
        *_by_model(raced, "over_best"),
    ]


def over_pyg(raced: pd.DataFrame) -> list[str]:
    """The same table over PyG as its tutorials use it."""
    if raced.empty:
        return []
    machines = " / ".join(raced["machine"].unique())
    return [f"Speed-up of `swap` on the same models over PyG as it is, {machines}:", "", *_by_model(raced, "over_pyg")]


def _by_model(raced: pd.DataFrame, ratio: str) -> list[str]:
    raced = raced.assign(column=raced["graph"] + ", " + raced["pass"])
    means = raced.groupby(["column", "machine"], sort=False)[ratio].agg(gmean).reset_index()
    rows = pd.concat([raced, means.assign(model="geometric mean")])
    cells = rows.set_index(["model", "column", "machine"])[ratio].map("{:.1f}".format).unstack(sort=False)
    text = cells.fillna("–").agg(" / ".join, axis=1).unstack(sort=False).fillna("")
    return markdown(("", *text.columns), text.itertuples())


def new_graphs(machines: Documents) -> list[str]:
    """A sentence on layers whose graph is new in each call."""
    new = _models(machines, NEW)
    if new.empty:
        return []
    spans = [
        f"{number(of.min())} to {number(of.max())}, geometric mean {number(gmean(of))} ({machine})"
        for machine, of in new.groupby("machine", sort=False)["over_pyg"]
    ]
    title = "Speed-up of layers over PyG, forward, on a graph that is new in each call, as sampled batches are"
    return ["", f"{title}: {'; '.join(spans)}."]


def growth(machines: Documents) -> list[str]:
    """The table of models on the largest graph: seconds, peak memory and the price of the first call."""
    grown = _models(machines, GROWTH)
    if grown.empty:
        return []
    edges, rows = grown["edges"].max(), []
    grown = grown[grown["edges"] == edges]
    grown[["model", "variant"]] = grown["variant"].str.split(", ", n=1, expand=True)
    for (machine, model), cells in grown.groupby(["machine", "model"], sort=False):
        values = cells.set_index(["phase", "quantity", "variant"])["value"]
        first = values.get(("forward", FIRST_CALL, "gnnlab"))
        both = [_before_and_after(values, *column) for column in GROWN.values()]
        rows.append((model, machine, *both, "" if first is None else number(first)))
    title = f"On {edges:,} edges, PyG → `swap`, 100 features, two layers of 64 channels:"
    return ["", title, "", *markdown(("model", "machine", *GROWN, FIRST_CALL), rows)]


def _models(machines: Documents, study: str) -> pd.DataFrame:
    """The rows of a study in the fullest document of each machine."""
    rows = []
    for machine, sets in machines.items():
        fullest = max((one.get("models", {}) for one in sets.values()), key=lambda models: len(str(models)))
        rows += [{**row, "machine": machine.removesuffix("-processor")} for row in fullest.get(study, [])]
    return pd.DataFrame(rows)


def _before_and_after(values: pd.Series, phase: str, quantity: str, per: float) -> str:
    """ "4 → 0.5", "does not fit → 2.5"; nothing where neither was measured."""
    pair = [values.get((phase, quantity, variant)) for variant in ("PyG", "gnnlab")]
    return "" if pair == [None, None] else " → ".join("does not fit" if v is None else number(v / per) for v in pair)


if __name__ == "__main__":
    try:
        print(*([publish(Path(sys.argv[1]))] if sys.argv[1:] else write()), sep="\n")
    except GnnlabError as error:
        sys.exit(f"publish: {error}")
