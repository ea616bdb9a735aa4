"""The ledgers that a folder of results has had, a line of `history.jsonl` for each run, and what changed between them.

append(Path("outputs/quick"), ["02"])      # the runner does, when notebooks have run
changes(Path("outputs/quick"))             # what left its interval, and when
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gnnlab import files
from gnnlab.errors import GnnlabError

from . import ledger, ledger_view, results
from .ledger import Judged

HISTORY = "history.jsonl"
CIRCUMSTANCES = ("commit", "cpu", "devices", "versions")  # of the environment: what may explain a change


@dataclass(frozen=True)
class LedgerChange:
    """A row of the ledger that left its interval: before and after, the moment of each, and what else had changed."""

    before: Judged
    after: Judged
    since: str
    at: str
    besides: tuple[str, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """When, claim, before, after, what else changed."""
        return (
            _moment(self.at),
            self.after.id,
            _said(self.before),
            _said(self.after),
            ", ".join(self.besides) or "nothing known",
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        sides = {"before": self.before.model_dump(mode="json"), "after": self.after.model_dump(mode="json")}
        return {**sides, "since": self.since, "at": self.at, "besides": list(self.besides)}


def append(folder: Path, numbers: Collection[str]) -> None:
    """Add the ledger rows of these notebooks, as they stand now, to the history of `folder`. Raises `GnnlabError`.

    A history that is not as it was written is kept beside what can be believed of it.
    """
    rows = [row for row in ledger.judge(folder).rows if row.notebook in numbers]
    latest = [runs[0][0] for name, runs in results.runs_of(folder)[0].items() if name[:2] in numbers]
    if not latest:
        return
    entry = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "circumstances": {name: latest[-1].environment.get(name) for name in CIRCUMSTANCES},
        "parameters": {result.notebook[:2]: files.digest(result.parameters) for result in latest},
        "rows": [row.model_dump(mode="json") for row in rows],
    }
    path = folder / HISTORY
    entries, name, _ = files.take_lines(path)
    before = path.read_bytes() if path.exists() else b""
    line = files.sealed_line(entry, name, len(entries))
    files.write_atomically(path, lambda file: file.write(before + line), mode="wb")


def changes(folder: Path) -> list[LedgerChange]:
    """Every change beyond noise, the latest first: the interval of a row lies apart from the one it had when it last
    changed, or, of a count, the number differs. A row under other parameters starts anew.

    Raises `GnnlabError` where there is no history, or where it is damaged.
    """
    known: dict[str, tuple[Judged, dict[str, Any]]] = {}
    found = []
    for entry in _entries(folder):
        for row in (Judged(**each) for each in entry["rows"]):
            before, then = known.get(row.id, (row, entry))
            if row.notebook in then["parameters"] and _parameters(then, row) != _parameters(entry, row):
                known[row.id] = row, entry
            elif _apart(before, row):
                found.append(LedgerChange(before, row, then["at"], entry["at"], _besides(then, entry)))
                known[row.id] = row, entry
            else:
                known.setdefault(row.id, (row, entry))
    return found[::-1]


def _entries(folder: Path) -> list[dict[str, Any]]:
    path = folder / HISTORY
    try:
        found = files.read_lines(path.read_bytes())
    except FileNotFoundError:
        raise GnnlabError(f"{folder} has no history yet; gnnlab run writes it") from None
    except OSError as error:
        raise GnnlabError(f"could not read {path}: {error.strerror or error}") from None
    if not found.as_written:
        raise GnnlabError(
            f"{path} is damaged: it is not as gnnlab wrote it, so it is not believed; the next gnnlab run keeps a copy "
            "and goes on with what is good of it"
        )
    return found.records


def _parameters(entry: dict[str, Any], row: Judged) -> str | None:
    return entry["parameters"].get(row.notebook)


def _apart(a: Judged, b: Judged) -> bool:
    """Do two measurements of a row differ beyond their intervals? Without an interval nothing is told of a sample."""
    if None in (a.value, b.value, a.low, b.low):
        return False
    return a.high < b.low or b.high < a.low


def _besides(then: dict[str, Any], now: dict[str, Any]) -> tuple[str, ...]:
    """What else was not the same: "commit 1a2b -> 3c4d", "torch 2.13.0 -> 2.14.0"."""
    before, after = then["circumstances"], now["circumstances"]
    lines = [f"commit {before['commit']} -> {after['commit']}"] if before["commit"] != after["commit"] else []
    old, new = before["versions"] or {}, after["versions"] or {}
    lines += [
        f"{name} {old.get(name)} -> {new.get(name)}" for name in sorted({*old, *new}) if old.get(name) != new.get(name)
    ]
    lines += [
        f"another {what}"
        for what, key in (("processor", "cpu"), ("set of devices", "devices"))
        if before[key] != after[key]
    ]
    return tuple(lines)


def _said(row: Judged) -> str:
    line = ledger_view.line(row)
    return f"{line.badge.word}: {line.measured}" + (f" ({line.interval})" if line.interval else "")


def _moment(at: str) -> str:
    return f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M}"


COLUMNS: Sequence[str] = ("when", "claim", "before", "after", "what else changed")
