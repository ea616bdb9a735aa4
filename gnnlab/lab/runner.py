"""Runs notebooks through papermill: in dependency order, with strict parameters, and only those that have to run.

    outcomes = run(["01"], "quick")
    outcomes = run(["02"], "full", runs=5)      # five times, each in a kernel of its own; the runs are samples

What ran and passed lies whole in `outputs/<set>`; a failure, a timeout, Ctrl-C or a kill leaves earlier results as they
were. papermill alone gives the same notebook: the runner adds convenience, never a meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from . import discovery, freshness, further_runs, parameters, results
from .discovery import Notebook, ParameterSet, RunnerError, root
from .live import Live, duration
from .results import Status
from .results_folder import only_run

__all__ = ["Outcome", "RunnerError", "exit_code", "output_folder", "root", "run"]

ALL_PARTS = ", ".join(freshness.PARTS)
MOST_RUNS = 100


@dataclass(frozen=True)
class Outcome:
    """How a notebook ended. `out_path` is the executed notebook, of a failed run too; None where none was written."""

    notebook: str
    status: Status
    reason: str | None
    seconds: float
    out_path: Path | None
    ran: bool = True  # False: its earlier results still hold, or it was skipped before it started


@dataclass(frozen=True)
class _Task:
    """A notebook with every parameter, and what its results are made from."""

    notebook: Notebook
    values: dict[str, Any]
    fingerprint: freshness.Fingerprint


@dataclass
class _Job:
    """What the notebooks of one run share."""

    root: Path
    set: ParameterSet
    folder: Path
    given: Mapping[str, dict[str, Any] | None]
    every: Mapping[str, Notebook]
    live: Live
    force: bool
    wanted: int  # runs of each notebook
    runs: freshness.Runs
    shared: freshness.Fingerprint
    outcomes: list[Outcome] = field(default_factory=list)


def run(
    numbers: Sequence[str] = (),
    params_set: str = "quick",
    *,
    force: bool = False,
    runs: int = 1,
    overrides: Sequence[tuple[str, str]] = (),
    root: Path | None = None,
    console: Console | None = None,
) -> list[Outcome]:
    """Run the notebooks `numbers` (none: all) with a parameter set, then render the site of its results.

    Every parameter file is checked before anything executes or is written: `ParameterError` or `RunnerError`, one line.
    Notebooks whose parameters, code, inputs, versions and machine are those of their last run are not run again unless
    `force`. Each is run until there are `runs` runs of it (1 to 100), each in a kernel of its own; those before the
    latest lie in `runs/`. `overrides` are (name, text) pairs as from a command line. Ctrl-C keeps what is done and
    passes through.
    """
    if not 1 <= runs <= MOST_RUNS:
        raise RunnerError(f"runs: got {runs}; allowed is a whole number from 1 to {MOST_RUNS}")
    base = root.resolve() if root else discovery.root()
    every = discovery.notebooks(base)
    chosen = discovery.select(every, numbers)
    set_ = discovery.parameter_set(params_set, base)
    given = discovery.read_parameters(chosen, set_, overrides, every=list(every.values()))
    folder = discovery.output_folder(set_, [values for values in given.values() if values is not None], base)
    live = Live(console, max(len(notebook.name) for notebook in chosen))
    with only_run(folder):
        recorded, damage = freshness.read_runs(folder)
        if damage:
            live.say(damage)
        job = _Job(base, set_, folder, given, every, live, force, runs, recorded, freshness.surroundings())
        try:
            for notebook in chosen:
                job.outcomes.append(_settle(notebook, job))
        except KeyboardInterrupt:
            live.say(f"stopped; {len(job.outcomes)} of {len(chosen)} notebooks are done; run again to go on")
            raise
        live.say(f"report: {_render(folder)}")
    return job.outcomes


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """1 when a notebook failed or timed out, else 0."""
    return int(any(outcome.status in (Status.FAILED, Status.TIMEOUT) for outcome in outcomes))


def output_folder(params_set: str, root: Path | None = None) -> Path:
    """The folder of the results of a parameter set; raises `RunnerError` where nothing has been run with it."""
    base = root.resolve() if root else discovery.root()
    set_ = discovery.parameter_set(params_set, base)
    files = [set_.file(notebook) for notebook in discovery.notebooks(base).values()]
    given = [parameters.load_yaml(file) for file in files if file.exists()]
    folder = discovery.output_folder(set_, given, base)
    if not folder.is_dir():
        raise RunnerError(f"there are no results in {folder}; run gnnlab run --params {params_set} first")
    return folder


# ---- one notebook ---------------------------------------------------------------------------------------------------


def _settle(notebook: Notebook, job: _Job) -> Outcome:
    """Skip a notebook, keep its earlier results, or run it as often as it takes; and print a line for each."""
    outcome = _skipped(notebook, job)
    if outcome is not None:
        return _told(outcome, "", job)
    values = _values(notebook, job)
    fingerprint = _fingerprint(notebook, values, job)
    why = _why(notebook, fingerprint, job)
    done = 0 if why else further_runs.count(job.runs.runs[notebook.name])
    if done >= job.wanted or (done and job.runs.runs[notebook.name].status == Status.SKIPPED):
        if not _failed_last(notebook, job):
            return _told(_unchanged(notebook, job), "", job)
        done, why = (done if done > 1 else 0), "runs again: its last run did not pass"  # a single run is replaced
    return _run_on(_Task(notebook, values, fingerprint), job, done, why)


def _why(notebook: Notebook, now: freshness.Fingerprint, job: _Job) -> str:
    """Why a notebook runs anew, as it is printed; empty when its earlier results still hold."""
    before = job.runs.runs.get(notebook.name)
    if job.force:
        return "forced"
    if before is None:
        return "runs again: its last run did not pass" if _failed_last(notebook, job) else "first run"
    changed = freshness.why_again(notebook.name, job.folder, before, now)
    if changed:
        return f"runs again: {changed}"
    further_runs.tidy(job.folder, notebook.name, job.runs)
    return ""


def _failed_last(notebook: Notebook, job: _Job) -> bool:
    return (job.folder / f"{notebook.name}.failed.json").exists()


def _skipped(notebook: Notebook, job: _Job) -> Outcome | None:
    """Why a notebook cannot run: no parameter file, or a need without results."""
    if job.given[notebook.name] is None:
        file = job.set.file(notebook)
        return _not_run(notebook, f"{file.parent.name} has no {file.name}")
    done = {outcome.notebook: outcome for outcome in job.outcomes}
    for number in notebook.needs:
        need = job.every[number]
        outcome = done.get(need.name)
        if outcome is not None and outcome.status is not Status.PASSED:
            return _not_run(notebook, f"it needs {need.name}, which is {outcome.status}")
        if outcome is None and not _has_passed(need, job.folder):
            wanted = job.set.name if job.set.folder.parent == job.root / "params" else job.set.folder
            return _not_run(notebook, f"run {number} first: gnnlab run {number} --params {wanted}")
    return None


def _unchanged(notebook: Notebook, job: _Job) -> Outcome:
    before = job.runs.runs[notebook.name]
    reason = f"unchanged since {before.when}: {ALL_PARTS}"
    if before.further:
        reason = f"{further_runs.count(before)} runs, {reason}"
    if before.reason:
        reason = f"{before.reason} ({reason})"
    path = job.folder / f"{notebook.name}.ipynb"
    return Outcome(notebook.name, Status(before.status), reason, before.seconds, path, ran=False)


def _not_run(notebook: Notebook, reason: str) -> Outcome:
    return Outcome(notebook.name, Status.SKIPPED, reason, 0.0, None, ran=False)


def _told(outcome: Outcome, why: str, job: _Job) -> Outcome:
    took = duration(outcome.seconds) if outcome.ran else ""
    job.live.ended(outcome.notebook, outcome.status, took, outcome.reason or "", why=why)
    return outcome


def _run_on(task: _Task, job: _Job, done: int, why: str) -> Outcome:
    """Run a notebook until there are as many runs as are wanted; `done` of them are there and hold.

    Stops at the first that does not pass; the earlier ones stand.
    """
    last = max(job.wanted, done + 1)
    outcome = None
    for number in range(done + 1, last + 1):
        place = f"run {number} of {last}" if last > 1 else ""
        changed = outcome and _changed(task, job)
        if changed:
            outcome = replace(outcome, status=Status.FAILED, reason=f"not started, {changed}; run again", seconds=0.0)
        else:
            outcome = _run(task, job, number, place, why)
        if outcome.status is not Status.PASSED and number > 1:
            stands = f"{number - 1} {'runs stand' if number > 2 else 'run stands'}"
            outcome = replace(outcome, reason=f"{place}: {outcome.reason}; {stands}")
        _told(outcome, ", ".join(part for part in (place, why) if part), job)
        if outcome.status is not Status.PASSED:
            break
        why = ""
    return outcome


def _changed(task: _Task, job: _Job) -> str | None:
    """What has changed since the run before: runs of other code are no samples of one thing."""
    now = _fingerprint(task.notebook, task.values, replace(job, shared=freshness.surroundings()))
    name = task.notebook.name
    return freshness.why_again(name, job.folder, job.runs.runs[name], now)


def _run(task: _Task, job: _Job, number: int, place: str, why: str) -> Outcome:
    """Run a notebook for the `number`-th time, and record what it was made from when its results stand.

    The first run supersedes all that are there, a later one keeps them as further runs.
    """
    from .attempt import attempt  # Jupyter, heavy

    notebook, name = task.notebook, task.notebook.name
    before = job.runs.runs.get(name)
    if number > 1:
        further_runs.keep(job.folder, name, job.runs)
    with job.live.running(name, why, place) as bar:
        made = attempt(
            notebook,
            task.values,
            ["output_dir", *(given for given in job.given[name] if given != "output_dir")],
            root=job.root,
            folder=job.folder,
            set_name=job.set.name,
            on_progress=lambda progress: bar.show(progress.done, progress.total, progress.heading),
            superseded=before.further if before and number == 1 else (),
        )
    if made.result is not None:
        path = job.folder / f"{name}.json"
        further = before.further if before and number > 1 else ()
        job.runs.runs[name] = freshness.record(made.result, path, task.fingerprint, made.seconds, further)
        freshness.write_runs(job.folder, job.runs)
    return Outcome(name, made.status, made.reason, made.seconds, made.out_path)


def _values(notebook: Notebook, job: _Job) -> dict[str, Any]:
    """Every parameter of a notebook, and where its results go."""
    below = job.folder.is_relative_to(job.root)
    folder = job.folder.relative_to(job.root) if below else job.folder
    given = {"output_dir": folder.as_posix(), **job.given[notebook.name]}
    return parameters.check(given, parameters.declared(notebook.path))


def _fingerprint(notebook: Notebook, values: dict[str, Any], job: _Job) -> freshness.Fingerprint:
    needs = [job.folder / f"{job.every[number].name}.json" for number in notebook.needs]
    return freshness.fingerprint(notebook.path, values, needs, job.shared, root=job.root, folder=job.folder)


def _has_passed(notebook: Notebook, folder: Path) -> bool:
    try:
        return results.read(folder / f"{notebook.name}.json").status is Status.PASSED
    except results.ResultError:
        return False


def _render(folder: Path) -> Path:
    from .report import build_site  # nbconvert, heavy

    page = build_site(folder)
    here = Path.cwd()
    return page.relative_to(here) if page.is_relative_to(here) else page
