"""A small site: executed notebooks with a figure, tables, an error and hostile strings, and a row of each verdict."""

import base64

import nbformat
import pandas as pd
import pytest
import run_folders
from nbformat import v4

from gnnlab.lab import claims, plot_style, plots, report, results
from gnnlab.lab.claims import Verdict
from gnnlab.lab.claims_report import ClaimResult, ClaimsReport
from gnnlab.lab.results import ResultFile

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "</style><script>alert(3)</script>"]
ENVIRONMENT = {
    "commit": "abc1234567",
    "dirty": True,
    "os": "Linux-6.1",
    "python": "3.11.7",
    "cpu": {"model": "AMD EPYC 9R14", "cores": 2, "logical": 4, "flags": ["avx2", "fma"], "l3_cache_bytes": 33554432},
    "memory_gb": 24.0,
    "devices": [{"name": "AMD EPYC 9R14", "kind": "CPU", "driver": None}],
    "versions": {"torch": "2.13.0", "openvino": None},
    "threads": 2,
    "load": [0.1, 0.2, 0.3],
    "steal_percent": 0.1,
}
PARAMETERS_CELL = 'output_dir: str = "outputs/quick"  # where results go\nruns: int = 5  # timed runs; 1..100'


PYTHON = {"name": "python3", "display_name": "Python 3", "language": "python"}


def judged(id, value, interval, n, why):
    """A row of the claims_report, its verdict by the interval."""
    claim = claims.catalogue()[id]
    named = {name: getattr(claim, name) for name in ("id", "source", "notebook", "statement", "metric", "unit")}
    low, high = interval or (None, None)
    if value is None:
        said = Verdict.UNTESTABLE
    elif claim.of.equals:
        said = Verdict.REPRODUCED
    else:
        said = claims.verdict(claim, interval)
    numbers = {"value": value, "low": low, "high": high, "n": n, "runs": min(n, 1)}
    study = "operators" if claim.notebook == "01" else "rungs"
    return ClaimResult(**named, **numbers, claimed=claim.bounds, verdict=said, study=study, conditions="CPU", why=why)


def records():
    """A row for each verdict, open and missing ranges among them."""
    why = "Interleaved pairs on equal weights; the interval says it."
    return [
        judged("gat.parameters", 169856, (169856, 169856), 1, f"Counted. {HOSTILE[1]}"),
        judged("gat.optimized", 0.972, (0.958, 0.988), 240, why),
        judged("gat.compile", 1.27, (1.25, 1.30), 120, why),
        judged("gat.expand", 1.04, (0.97, 1.12), 40, "Too noisy here."),
        judged("gat.throughput", 1.2, (1.17, 1.23), 90, why),
        judged("gat.compile_cuda", None, None, 0, "Needs a CUDA device; none is usable here."),
        judged("gat.cached_ids", 1.031, (1.02, 1.04), 120, why),
        judged("goal.gat_constant_output", 214.0, (205.0, 222.0), 60, why),
        judged("goal.gat_layer", 4.0, (3.9, 4.2), 60, why),
        judged("goal.gat_computed", 4.9, (4.0, 5.2), 60, why),
    ]


def figure(folder, name, *, key=True):
    """A small real figure in `folder`, and its PNG in base64 as a notebook stores it."""
    frame = pd.DataFrame({"operator": ["mm", "scatter_add"], "value": [31.2, 22.1], "low": [29, 20], "high": [33, 24]})
    finding = "mm and scatter_add take half of the forward pass"
    drawn = plots.bars(frame, y="operator", label="share", unit="%", title=finding)
    alt = "Bars of the share of CPU time by operator: mm 31 %, scatter_add 22 %."
    record = plot_style.save(drawn, name, title=finding, alt=alt, folder=folder, key=key)
    return record, base64.b64encode((folder / record.png).read_bytes()).decode()


def opened():
    """The cell that opens a session, with the run that it is of."""
    card = v4.new_code_cell("session", metadata={"tags": ["remove-output"]})
    card.outputs = [v4.new_output("display_data", {"text/plain": "CARD"})]
    return card


def executed(picture, name, alt):
    """An executed notebook with a figure, a table, stderr, an error and hostile strings in each of them."""
    table = pd.DataFrame({"operator": ["mm", HOSTILE[0]], "ms": [0.31, 0.22]})
    parameters = v4.new_code_cell(PARAMETERS_CELL, metadata={"tags": ["parameters"]})
    injected = v4.new_code_cell("# Parameters\nruns = 7\n", metadata={"tags": ["injected-parameters"]})
    card = opened()
    drawing = v4.new_code_cell("figure", execution_count=3, metadata={"tags": ["conclusion"]})
    drawing.outputs = [
        v4.new_output("display_data", {"image/png": picture}, metadata={"image/png": {"alt": alt, "name": name}}),
        v4.new_output(
            "execute_result", {"text/html": table.to_html(escape=False), "text/plain": "table"}, execution_count=3
        ),
        v4.new_output("display_data", {"text/markdown": f"**0.97** of it {HOSTILE[1]} `{'long' * 20}`"}),
        v4.new_output("display_data", {"text/plain": HOSTILE[0]}, metadata={}),
        v4.new_output(
            "display_data", {"image/png": picture}, metadata={"image/png": {"alt": HOSTILE[1], "name": HOSTILE[1]}}
        ),
        v4.new_output("stream", name="stderr", text=f"warning: {HOSTILE[2]} \x1b[31mred\x1b[0m"),
        v4.new_output(
            "error", ename="ValueError", evalue=HOSTILE[0], traceback=[f"\x1b[31mError\x1b[0m: {HOSTILE[0]}"]
        ),
    ]
    texts = [
        "# Where does the time go?\n\nOne **question**.\n\n| needs | minutes |\n|---|---|\n| nothing | 1 |",
        f"## Operators\n\nA [link](https://example.org/paper). {HOSTILE[1]}",
        "## What to read next\n\n- ![far](https://example.org/pixel.png) and [bad](javascript:alert(4))",
    ]
    raw = v4.new_raw_cell(HOSTILE[2])
    first, second, last = (v4.new_markdown_cell(text) for text in texts)
    cells = [first, parameters, injected, card, second, drawing, last, raw]
    return v4.new_notebook(cells=cells, metadata={"kernelspec": PYTHON})


def result(number_name, folder, at="1", **changes):
    """Write a run; its folder."""
    content = {
        "run": "0" * 32,
        "notebook": number_name,
        "params_set": "quick",
        "status": "passed",
        "parameters": {"output_dir": "outputs/quick", "runs": 7, "graph": HOSTILE[0]},
        "environment": ENVIRONMENT,
        "started": "2026-11-20T16:40:00+00:00",
        "seconds": 41.2,
    }
    written = ResultFile.model_validate(content | changes)
    return run_folders.put(folder, written, at=at).parent


def write(folder):
    """The site in `folder`: 01 passed, 02 passed once and then failed, 03 damaged, 04 skipped without a notebook."""
    first, second, later = (
        folder / place for place in ("01_profile_bottlenecks/1", "02_optimize_gnn/1", "02_optimize_gnn/2")
    )
    record, picture = figure(first, "operators")
    rungs, picture_2 = figure(second, "rungs", key=False)
    result(first.parent.name, folder, figures=[record])
    result(second.parent.name, folder, figures=[rungs])
    result(later.parent.name, folder, later.name, status="failed", reason=f"cell 3: {HOSTILE[0]}", seconds=3)
    nbformat.write(executed(picture, "operators", record.alt), first / results.NOTEBOOK)
    for place in (second, later):
        nbformat.write(executed(picture_2, "rungs", rungs.alt), place / results.NOTEBOOK)
    (folder / "03_fm_amp_training/1").mkdir(parents=True)
    (folder / "03_fm_amp_training/1" / results.RESULT).write_text("{not json")
    result("04_stage_export", folder, status="skipped", reason="run 03 first: gnnlab run 03 --params quick", seconds=1)
    known = {row.id for row in records()}
    missing = [claim for id, claim in claims.catalogue().items() if id not in known]
    with pytest.MonkeyPatch.context() as patch:
        problems = results.runs_of(folder)[1]
        patch.setattr(report.claims_report, "judge", lambda _: ClaimsReport(records(), missing, problems))
        report.build_site(folder)
