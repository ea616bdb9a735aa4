"""Runs notebooks: in dependency order, with strict parameters, and only those that have to run.

    outcomes = run(["01"], "quick")
    outcomes = run(["02"], "full", runs=5)      # five times, each in a kernel of its own; the runs are samples

A run that passed is put in place whole (`runs.put`); a failure, a timeout, Ctrl-C or a kill leaves earlier results as
they were. papermill alone gives the same notebook: the runner adds convenience, never a meaning.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from gnnlab import machine
from gnnlab.errors import GnnlabError

from . import discovery, execution, parameters, provenance, results
from . import runs as folders
from .discovery import Notebook, ParameterSet
from .results import ResultFile, Status
from .text import duration

ALL_PARTS = ", ".join(provenance.PARTS)


@dataclass(frozen=True)
class NotebookRun:
    """How a notebook ended. `out_path` is the executed notebook, of a failed run too; None where none was written."""

    notebook: str
    status: Status
    reason: str | None
    seconds: float
    out_path: Path | None
    ran: bool = True  # False: its earlier results still hold, or it was skipped before it started


def run(
    numbers: Sequence[str] = (),
    params_set: str = "quick",
    *,
    force: bool = False,
    runs: int = 1,
    overrides: Sequence[tuple[str, str]] = (),
    root: Path | None = None,
    console: Console | None = None,
) -> list[NotebookRun]:
    """Run the notebooks `numbers` (none: all) with a parameter set, then render the site of its results.

    Every parameter file is checked before anything executes or is written: `GnnlabError`, one line.
    Notebooks whose parameters, code, inputs, versions and machine are those of their last run are not run again unless
    `force`. Each is run until there are `runs` runs of it, each in a kernel of its own; all
    count. `overrides` are (name, text) pairs as from a command line. Files and modules that parameters
    name are looked for in the current folder; with a `root` in that. Ctrl-C keeps what is done and passes through.
    """
    base = root.resolve() if root else discovery.root()
    every = discovery.notebooks(base)
    chosen = discovery.select(every, numbers)
    set_ = discovery.parameter_set(params_set, base)
    given = discovery.read_parameters(chosen, set_, overrides, every=list(every.values()))
    here = base if root else Path.cwd()
    folder = discovery.output_folder(set_, given.values(), base)
    with folders.only_run(folder):
        from .report import build_site  # nbconvert, heavy

        page = None
        job = _Job(
            root=base,
            here=here,
            set=set_,
            folder=folder,
            given=given,
            every=every,
            shared=provenance.surroundings(),
            console=console or Console(),
            width=max(len(notebook.name) for notebook in chosen),
        )
        try:
            for notebook in chosen:
                job.settle(notebook, runs, force)
                if job.outcomes[notebook.name].ran:
                    page = build_site(folder)  # what is done can be read while the others run
        except KeyboardInterrupt:
            job.say(f"stopped; {len(job.outcomes)} of {len(chosen)} notebooks are done; run again to go on")
            raise
        page = page or build_site(folder)
        job.say(f"report: {page.relative_to(Path.cwd()) if page.is_relative_to(Path.cwd()) else page}")
    return list(job.outcomes.values())


def exit_code(outcomes: Sequence[NotebookRun]) -> int:
    """1 when a notebook failed or timed out, else 0."""
    return int(any(outcome.status in (Status.FAILED, Status.TIMEOUT) for outcome in outcomes))


def output_folder(params_set: str, root: Path | None = None) -> Path:
    """The folder of the results of a parameter set; raises `GnnlabError` where nothing has been run with it."""
    base = root.resolve() if root else discovery.root()
    set_ = discovery.parameter_set(params_set, base)
    files = [set_.file(notebook) for notebook in discovery.notebooks(base).values()]
    given = [parameters.load_yaml(file) for file in files if file.exists()]
    folder = discovery.output_folder(set_, given, base)
    if not folder.is_dir():
        raise GnnlabError(f"there are no results in {folder}; run gnnlab run --params {params_set} first")
    return folder


@dataclass
class _Job:
    """The notebooks of one run: what they share, how each ended, and the lines that are printed of them."""

    root: Path
    here: Path  # what paths and modules of the user's are relative to
    set: ParameterSet
    folder: Path
    given: Mapping[str, dict[str, Any] | None]
    every: Mapping[str, Notebook]
    shared: provenance.Fingerprint
    console: Console
    width: int  # of the longest name, so that the columns align
    outcomes: dict[str, NotebookRun] = field(default_factory=dict)

    def settle(self, notebook: Notebook, wanted: int, force: bool) -> None:
        """Skip a notebook, keep its earlier results, or run it until there are `wanted` runs; a line for each."""
        name = notebook.name
        if reason := self.cannot_run(notebook):
            self.ended(NotebookRun(name, Status.SKIPPED, reason, 0.0, None, ran=False))
            return
        path, failed = results.newest(self.folder, name)
        changed = self.changed(notebook)
        done = 0 if path is None or changed else len(results.runs_of(self.folder, name)[0].get(name, []))
        if force:
            self.run_on(notebook, done, done + wanted, "forced")
        elif failed:
            self.run_on(notebook, done, max(wanted, done + 1), "runs again: its last run did not pass")
        elif done >= wanted or (done and results.read(path).status is Status.SKIPPED):
            self.ended(self.unchanged(name, path, done))
        else:
            why = f"runs again: {changed}" if changed else "" if path else "first run"
            self.run_on(notebook, done, wanted, why)

    def cannot_run(self, notebook: Notebook) -> str | None:
        """Why a notebook cannot run: no parameter file, or a need without results."""
        if self.given[notebook.name] is None:
            return f"{self.set.folder.name} has no {self.set.file(notebook).name}"
        for number in notebook.needs:
            need = self.every[number].name
            path, _ = results.newest(self.folder, need)
            if need in self.outcomes and self.outcomes[need].status is not Status.PASSED:
                return f"it needs {need}, which is {self.outcomes[need].status}"
            if path is None or results.read(path).status is not Status.PASSED:
                wanted = self.set.name if self.set.folder.parent == self.root / "params" else self.set.folder
                elsewhere = self.given[notebook.name].get("output_dir")
                into = f" -p output_dir {elsewhere}" if elsewhere else ""
                return f"run {number} first: gnnlab run {number} --params {wanted}{into}"
        return None

    def fingerprint(self, notebook: Notebook) -> provenance.Fingerprint:
        needs = [results.newest(self.folder, self.every[number].name)[0] for number in notebook.needs]
        values = self.values(notebook)
        return provenance.fingerprint(notebook.path, values, needs, self.shared, here=self.here, folder=self.folder)

    def changed(self, notebook: Notebook) -> str | None:
        """What is not as it was when the newest run of a notebook was made; None where nothing is, or none was."""
        path, _ = results.newest(self.folder, notebook.name)
        return path and folders.why_again(path, results.read(path), self.fingerprint(notebook))

    def values(self, notebook: Notebook) -> dict[str, Any]:
        """Every parameter of a notebook, and where its results go."""
        below = self.folder.is_relative_to(self.root)
        folder = self.folder.relative_to(self.root) if below else self.folder
        given = {"output_dir": folder.as_posix(), **self.given[notebook.name]}
        return parameters.check(given, notebook.declared)

    def unchanged(self, name: str, path: Path, done: int) -> NotebookRun:
        before = results.read(path)
        when = f"{datetime.fromisoformat(before.started).astimezone():%Y-%m-%d %H:%M}"
        reason = f"{done} runs, " * (done > 1) + f"unchanged since {when}: {ALL_PARTS}"
        reason = f"{before.reason} ({reason})" if before.reason else reason
        return NotebookRun(name, before.status, reason, before.seconds, path.with_name(results.NOTEBOOK), ran=False)

    def run_on(self, notebook: Notebook, done: int, last: int, why: str) -> None:
        """Run a notebook until there are `last` runs, of which `done` are there.

        Stops at the first that does not pass, and where something has changed since the run before: runs of other code
        are no samples of one thing. The earlier ones stand.
        """
        for number in range(done + 1, last + 1):
            place, changed = f"run {number} of {last}" if last > 1 else "", None
            about = ", ".join(filter(None, (place, why if number == done + 1 else "")))
            if number > done + 1:
                self.shared = provenance.surroundings()
                changed = self.changed(notebook)
            if changed:
                outcome = NotebookRun(notebook.name, Status.FAILED, f"not started, {changed}; run again", 0.0, None)
            else:
                outcome = self.run_once(notebook, about)
            if outcome.status is not Status.PASSED and number > 1:
                stands = f"{number - 1} {'runs stand' if number > 2 else 'run stands'}"
                outcome = replace(outcome, reason=f"{place}: {outcome.reason}; {stands}")
            self.ended(outcome, about)
            if outcome.status is not Status.PASSED:
                return

    def run_once(self, notebook: Notebook, about: str) -> NotebookRun:
        """Run a notebook, and put its run in place, with from what it was made, or with the reason of its failure."""
        if busy := machine.warning():
            self.say(busy)
        name, started, values = notebook.name, datetime.now(UTC), self.values(notebook)
        made_from = self.fingerprint(notebook)  # before it runs: code may change meanwhile
        given = {parameter: values[parameter] for parameter in {"output_dir", *self.given[name]}}
        place = folders.begin(self.folder, name)
        bar = name.ljust(self.width) if self.console.is_terminal else None
        if bar is None:
            self.say(f"{name.ljust(self.width)}  running  {about}")
        ended = execution.execute(notebook, given, here=self.here, place=place, bar=bar)
        result = ended.result or ResultFile(
            run=uuid.uuid4().hex,
            notebook=name,
            params_set=self.set.name,
            status=ended.status,
            reason=ended.reason,
            parameters=values,
            environment=provenance.system(),
            started=started.isoformat(timespec="seconds"),
            seconds=ended.seconds,
        )
        results.write(place / results.RESULT, result.model_copy(update={"fingerprint": made_from}))
        executed = folders.put(place, self.folder, name) / results.NOTEBOOK
        return NotebookRun(name, ended.status, ended.reason, ended.seconds, executed if executed.exists() else None)

    # ---- the lines that a run prints --------------------------------------------------------------------------------

    def say(self, text: str | Text) -> None:
        """One line, never wrapped, and nothing in it read as markup."""
        self.console.print(Text(text) if isinstance(text, str) else text, soft_wrap=True)

    def ended(self, outcome: NotebookRun, about: str = "") -> None:
        """The line of a notebook that is done: "01_profile_bottlenecks  passed   41 s"; on a terminal also why it ran,
        which a log says at the start.
        """
        self.outcomes[outcome.notebook] = outcome
        word = (outcome.status.ljust(7), COLOURS[outcome.status])
        took = duration(outcome.seconds) if outcome.ran else ""
        notes = [took, outcome.reason, about if self.console.is_terminal else ""]
        self.say(Text.assemble(outcome.notebook.ljust(self.width), "  ", word, "  ", "  ".join(filter(None, notes))))


COLOURS = {Status.PASSED: "green", Status.SKIPPED: "yellow", Status.FAILED: "red", Status.TIMEOUT: "red"}
