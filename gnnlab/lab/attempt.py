"""One attempt to run a notebook: its results replace the earlier ones only when it reached its end and wrote them."""

from __future__ import annotations

import platform
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import execution, freshness, further_runs, results
from .discovery import Notebook
from .earlier import earlier_results
from .execution import Execution, Progress
from .freshness import Further
from .results import ResultFile, Status

Stamp = tuple[int, bytes] | None


@dataclass(frozen=True)
class Attempt:
    """How it ended. `result` is what the notebook wrote, None unless it passed or skipped itself with a reason."""

    status: Status
    reason: str | None
    seconds: float
    result: ResultFile | None
    out_path: Path | None


def attempt(
    notebook: Notebook,
    values: Mapping[str, Any],
    injected: Sequence[str],
    *,
    root: Path,
    folder: Path,
    set_name: str,
    on_progress: Callable[[Progress], None],
    superseded: Sequence[Further] = (),
) -> Attempt:
    """Run `notebook` with `values`, of which the `injected` ones are handed over (the others are its own defaults).

    What passed or was skipped by the notebook is `NN_name.{ipynb,json}` in `folder`, and the further runs that are
    `superseded` by it are gone. What failed is `NN_name.failed.{ipynb,json}`, and earlier results stand as they were.
    Raises `ResultError` on a full disk, or where files of someone else are in the way.
    """
    started = datetime.now(UTC)
    result_path = folder / f"{notebook.name}.json"
    with earlier_results(folder, notebook.name) as earlier:
        before = _stamp(result_path)
        ended = execution.execute(
            notebook.path,
            earlier.running,
            {name: values[name] for name in injected},
            root=root,
            timeout_s=notebook.timeout_minutes * 60,
            on_progress=on_progress,
        )
        status, reason, result = _judge(ended, result_path, before)
        if result is not None:
            out_path = _keep(earlier.running, notebook, folder)
            further_runs.discard(folder, superseded)
            earlier.let_go()
            return Attempt(status, reason, ended.seconds, result, out_path)
        failed = ResultFile(
            run=uuid.uuid4().hex,
            notebook=notebook.name,
            params_set=set_name,
            status=status,
            reason=reason,
            parameters=dict(values),
            environment=_environment(),
            started=started.isoformat(timespec="seconds"),
            seconds=ended.seconds,
        )
        return Attempt(status, reason, ended.seconds, None, _keep_failed(earlier.running, failed, folder))


def _judge(ended: Execution, path: Path, before: Stamp) -> tuple[Status, str | None, ResultFile | None]:
    """What the notebook says of itself in its result file; every cell ran, but did it write one?"""
    if ended.status is not Status.PASSED:
        return ended.status, ended.reason, None
    now = _stamp(path)
    if now is None or now == before:
        return Status.FAILED, f"it ended without writing {path.name}; its last cell has to finish the session", None
    try:
        result = results.read(path)
    except results.ResultError as error:
        return Status.FAILED, execution.one_line(str(error)), None
    if result.status not in (Status.PASSED, Status.SKIPPED):
        return result.status, result.reason or "the notebook says so without a reason", None
    return result.status, result.reason, result


def _keep(running: Path, notebook: Notebook, folder: Path) -> Path:
    execution.clean(running)
    out_path = running.replace(folder / f"{notebook.name}.ipynb")
    for kind in ("json", "ipynb", "html"):  # the last one that failed, and its report
        (folder / f"{notebook.name}.failed.{kind}").unlink(missing_ok=True)
    return out_path


def _keep_failed(running: Path, failed: ResultFile, folder: Path) -> Path | None:
    """Write what there is of a failed run beside the earlier results; the executed notebook, where it can be read."""
    results.write(folder / f"{failed.notebook}.failed.json", failed)
    try:
        execution.clean(running)
        return running.replace(folder / f"{failed.notebook}.failed.ipynb")
    except (OSError, ValueError):  # cut short by a full disk, or never begun
        (folder / f"{failed.notebook}.failed.ipynb").unlink(missing_ok=True)
        return None


def _environment() -> dict[str, Any]:
    """What is known of the environment without loading a framework; the notebook did not come to write its own."""
    versions, machine = freshness.versions(), freshness.machine()
    return {
        "commit": None,
        "dirty": None,
        "host": platform.node(),
        "os": platform.platform(),
        "python": versions.pop("python"),
        "cpu": {"model": machine.get("processor"), "logical": machine.get("cores")},
        "versions": versions,
    }


def _stamp(path: Path) -> Stamp:
    """Tells whether a file was written anew."""
    try:
        return path.stat().st_mtime_ns, path.read_bytes()
    except OSError:
        return None
