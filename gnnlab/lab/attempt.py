"""One attempt to run a notebook: its results replace the earlier ones only when it reached its end and wrote them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import execution, freshness, results
from .discovery import Notebook
from .execution import Execution, Progress
from .results import ResultFile, Status
from .results_folder import earlier_results

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
) -> Attempt:
    """Run `notebook` with `values`, of which the `injected` ones are handed over (the others are its own defaults).

    What passed or was skipped by the notebook is `NN_name.{ipynb,json}` in `folder`. What failed is
    `NN_name.failed.{ipynb,json}`, and earlier results stand as they were. Raises `ResultError` on a full disk.
    """
    started = datetime.now(UTC)
    running = folder / f"{notebook.name}.running.ipynb"
    result_path = folder / f"{notebook.name}.json"
    try:
        with earlier_results(folder, notebook.name) as earlier:
            before = _stamp(result_path)
            ended = execution.execute(
                notebook.path,
                running,
                {name: values[name] for name in injected},
                root=root,
                timeout_s=notebook.timeout_minutes * 60,
                on_progress=on_progress,
            )
            status, reason, result = _judge(ended, result_path, before)
            if result is not None:
                out_path = _keep(running, notebook, folder)
                earlier.let_go()
                return Attempt(status, reason, ended.seconds, result, out_path)
        failed = ResultFile(
            notebook=notebook.name,
            params_set=set_name,
            status=status,
            reason=reason,
            parameters=dict(values),
            environment=_environment(),
            started=started.isoformat(timespec="seconds"),
            seconds=ended.seconds,
        )
        return Attempt(status, reason, ended.seconds, None, _keep_failed(running, failed, folder))
    finally:
        running.unlink(missing_ok=True)


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
    for stale in folder.glob(f"{notebook.name}.failed.*"):
        stale.unlink(missing_ok=True)
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
