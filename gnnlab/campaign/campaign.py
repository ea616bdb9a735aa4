"""Measures cells, in random order, and loses nothing on the way.

    done = run(folder, plan, ask)      # ask: cells -> an answer for each, as they come

Everything that is known is in the journal. What is asked for and not in it is measured, so that a campaign that was
killed goes on where it was, and one that is complete measures nothing. Phase 1 is the CPU and the GPU, phase 2 the NPU,
each with its checkpoint; phase 3 merges them. What timed out or failed is tried again by the next campaign, once the
one that it failed in has come to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gnnlab.campaign import checkpoints
from gnnlab.campaign.cells import Cell, CellResult, merge_visits
from gnnlab.campaign.checkpoints import LOST, Journal
from gnnlab.campaign.reference import HERE, Visit, is_reference, visits_of
from gnnlab.campaign.reference import reference as reference_workload
from gnnlab.errors import GnnlabError
from gnnlab.files import locked
from gnnlab.progress import Step, progress
from gnnlab.units import registry as units

JOURNAL = "journal.jsonl"
PHASES = {"cpugpu": "phase 1, CPU and GPU", "npu": "phase 2, NPU"}
EVERY = 20  # cells between two runs of the reference workload
DRIFT = 0.15  # a reference workload this far off its median invalidates the cells beside it
SPARE_ATTEMPTS = 1  # beyond the visits that were asked for, for a cell beside a reference workload that had drifted
TRIED_AGAIN = ("failed", "timeout")


@dataclass(frozen=True)
class WantedCells:
    """What is asked for: each cell with its fingerprint, and that of the campaign, which all of them share."""

    campaign: str
    fingerprints: Mapping[Cell, str]

    def __post_init__(self) -> None:
        keys = [cell.key for cell in self.fingerprints]
        twice = sorted({key for key in keys if keys.count(key) > 1}) if len(set(keys)) < len(keys) else []
        if not keys:
            raise GnnlabError("no cells to measure; give at least one size, one block of stages and one unit")
        if twice:
            raise GnnlabError(
                f"cell {twice[0]} is asked for twice; a campaign has one layer, precision and thread count"
            )

    def phase(self, name: str) -> list[Cell]:
        return [cell for cell in self.fingerprints if phase_of(cell) == name]


@dataclass(frozen=True)
class CellAnswer:
    """What became of a cell: its outcome, on what host, and the seconds that its attempts took, loading included."""

    cell: Cell
    outcome: CellResult
    host: str = HERE
    took_s: float = 0.0


Ask = Callable[[Sequence[Cell]], Iterable[CellAnswer]]


@dataclass(frozen=True)
class Finished:
    """A campaign at its end: an answer for every cell that was asked for, in that order.

    `seconds` is what measuring them took, in however many runs, second attempts included. `known` of them were known
    before this run; it measured `measured`, `again` of those because the reference workload had drifted.
    """

    answers: tuple[CellAnswer, ...]
    seconds: float
    known: int
    measured: int
    again: int
    references: int
    messages: tuple[str, ...]

    def __str__(self) -> str:
        again = f", {self.again} of them a second time because the reference workload had drifted" if self.again else ""
        return (
            f"{len(self.answers)} cells, {self.known} known before; this run made {self.measured} measurements{again}. "
            f"All of them took {self.seconds / 60:.2f} minutes, between {self.references} runs of the reference "
            "workload."
        )

    @property
    def outcomes(self) -> dict[Cell, CellResult]:
        return {answer.cell: answer.outcome for answer in self.answers}


def run(
    folder: Path,
    plan: WantedCells,
    ask: Ask,
    *,
    reference: Callable[[], dict[str, float]] = reference_workload,
    every: int = EVERY,
    drift: float = DRIFT,
    visits: int = 1,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> Finished:
    """Measure what of the plan is not known yet, with the reference workload beside every so many cells.

    With more than one of `visits`, every cell is measured that often, in passes of all cells in an order of their own:
    what a neighbour does to one visit it seldom does to all. The samples of the visits count together.

    `folder` gets the journal, both checkpoints and `raw_measurements.json`. `reference` gives ms by host. Cells
    beside a reference that is more than `drift` off the median of all are measured again, once; of two measurements
    the less drifted one counts, and says so where the machine had drifted then, too.

    Raises:
        GnnlabError: another campaign holds the folder, or the disk refuses; what was measured is kept.
    """
    if every < 1 or not drift > 0 or visits < 1:
        raise GnnlabError(
            f"every={every}, drift={drift}, visits={visits}: at least 1 cell, a share above 0 and 1 visit are needed"
        )
    with locked(folder, "measures into"), Journal(folder / JOURNAL, plan.campaign) as journal:
        campaign = _Campaign(plan, journal, ask, reference, every, drift, visits, np.random.default_rng(seed), say)
        if journal.message:
            campaign.log(journal.message)
        for phase in PHASES:
            campaign.measure(phase)
            checkpoints.write(folder, phase, [as_json(a) for a in campaign.answers(phase)], plan.campaign)
        if campaign.measured:
            journal.append({"kind": "end"})
        checkpoints.merge(folder)
        return campaign.done()


@dataclass
class _Campaign:
    """A campaign on its way."""

    plan: WantedCells
    journal: Journal
    ask: Ask
    reference: Callable[[], dict[str, float]]
    every: int
    drift: float
    visits: int
    random: np.random.Generator
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self.messages: list[str] = []
        self.measured = self.again = 0
        records = self.journal.records
        ends = ("end", LOST)  # it may be an end that is lost
        self.ended = max((i for i, record in enumerate(records) if record["kind"] in ends), default=-1)
        self.known = sum(bool(tried) for phase in PHASES for tried in self._known(phase).values())

    def log(self, line: str) -> None:
        self.messages.append(line)
        self.say(line)

    def measure(self, phase: str) -> None:
        """Measure the cells of a phase until each has an attempt that stands."""
        while todo := self._todo(phase):
            tried = self._known(phase)
            again = sum(len(tried[cell]) >= self.visits for cell in todo)
            visit = f", visit {max(len(tried[cell]) for cell in todo) + 1}" if self.visits > 1 and not again else ""
            off = f"because the reference workload was more than {100 * self.drift:.0f} % off"
            why = f", {again} of them again {off}" if again else ""
            known = len(self.plan.phase(phase)) - len(todo)
            self.log(f"{PHASES[phase]}: {len(todo)} cells to measure{visit}{why}, {known} known")
            self.again += again
            order = [todo[i] for i in self.random.permutation(len(todo))]
            with progress("cells", len(order)) as step:
                for start in range(0, len(order), self.every):
                    self._batch(order[start : start + self.every], phase, step)

    def _batch(self, cells: Sequence[Cell], phase: str, step: Step) -> None:
        self._measure_reference(phase)
        waiting = set(cells)
        for answer in self.ask(cells):
            if answer.cell not in waiting:
                raise GnnlabError(f"an answer for cell {answer.cell.key}, which is not asked for or has one already")
            waiting.remove(answer.cell)
            fingerprint = self.plan.fingerprints[answer.cell]
            self.journal.append({**as_json(answer), "kind": "cell", "fingerprint": fingerprint})
            self.measured += 1
            step(answer.cell.key)
        if waiting:
            raise GnnlabError(f"{len(waiting)} cells got no answer, {min(c.key for c in waiting)} among them")
        self._measure_reference(phase)

    def _measure_reference(self, phase: str) -> None:
        """Measure the reference workload, unless it was the last thing that this run did."""
        last = self.journal.records[-1:]
        if not (self.measured and last and is_reference(last[0], self.plan.campaign, phase)):
            self.journal.append({"kind": "reference", "phase": phase, "ms": self.reference()})

    def _known(self, phase: str) -> dict[Cell, list[Visit]]:
        """Attempts by cell; what failed before the end of an earlier campaign does not count."""
        found = visits_of(self.journal.records, self.plan.campaign, phase)
        for attempts in found.values():
            attempts[:] = [a for a in attempts if a.place > self.ended or _status(a) not in TRIED_AGAIN]
        return {cell: found.get(self.plan.fingerprints[cell], []) for cell in self.plan.phase(phase)}

    def _todo(self, phase: str) -> list[Cell]:
        """Those with the fewest attempts of all that still want one: passes, not one cell's visits in a row."""
        wanting = {cell: len(tried) for cell, tried in self._known(phase).items() if self._wants(tried)}
        return [cell for cell, tries in wanting.items() if tries == min(wanting.values())]

    def _wants(self, tried: Sequence[Visit]) -> bool:
        if any(_status(attempt) != "measured" for attempt in tried):
            return False
        stable = sum(attempt.off <= self.drift for attempt in tried)
        return stable < self.visits and len(tried) < self.visits + SPARE_ATTEMPTS

    def answers(self, phase: str) -> list[CellAnswer]:
        """For each cell its attempts of the least drifted times, as many as were asked for."""
        return [self._answer(cell, tried) for cell, tried in self._known(phase).items()]

    def _answer(self, cell: Cell, tried: Sequence[Visit]) -> CellAnswer:
        least_drifted = sorted(tried, key=lambda each: (_status(each) != "measured", each.off))[: self.visits]
        best = least_drifted[0]
        outcomes = [CellResult.from_json(attempt.record["outcome"]) for attempt in least_drifted]
        outcome = merge_visits([found for found in outcomes if found.status == outcomes[0].status])
        if outcome.status == "measured" and best.off > self.drift:
            how = "lost" if np.isinf(best.off) else f"{100 * best.off:.0f} % off its median"
            note = f"the reference workload was {how} beside this measurement"
            outcome = replace(outcome, notes=(*outcome.notes, note))
        return CellAnswer(cell, outcome, best.record["host"], sum(attempt.record["took_s"] for attempt in tried))

    def done(self) -> Finished:
        answers = {answer.cell: answer for phase in PHASES for answer in self.answers(phase)}
        in_order = tuple(answers[cell] for cell in self.plan.fingerprints)
        references = sum(
            is_reference(record, self.plan.campaign, phase) for record in self.journal.records for phase in PHASES
        )
        seconds = sum(answer.took_s for answer in in_order)
        return Finished(in_order, seconds, self.known, self.measured, self.again, references, tuple(self.messages))


def _status(attempt: Visit) -> str:
    return attempt.record["outcome"]["status"]


def phase_of(cell: Cell) -> str:
    return "npu" if units.find(cell.unit).processor == "NPU" else "cpugpu"


def as_json(answer: CellAnswer) -> dict[str, Any]:
    return {
        "key": answer.cell.key,
        "cell": asdict(answer.cell),
        "host": answer.host,
        "took_s": round(answer.took_s, 4),
        "outcome": answer.outcome.to_json(),
    }
