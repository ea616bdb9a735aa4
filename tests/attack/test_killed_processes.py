"""A run of a notebook is killed: the results before it or the new ones are there, and the next run goes on.

A moment is the n-th write, not a time. Each costs the start of processes, so that a share of `ATTACK_NUMBER` is tried.
"""

import io
import multiprocessing
import os
import shutil
import sys

import nbformat
import pytest
import torch
from moments import at_moment, die, forked
from rich.console import Console

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(sys.platform == "win32", reason="kills a forked process; Windows has no fork"),
]
FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def one_thread():
    """A process that was forked has the threads of its parent no more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def some(random, moments, number):
    """Moments of so many, from 1."""
    return (random.permutation(moments)[: max(1, number)] + 1).tolist()


PARAMETERS = """\
width: int = 8                      # what it measures; 1..64
output_dir: str = "outputs/quick"   # where results go"""
BODY = """\
import os, uuid
from pathlib import Path
from gnnlab.lab import results, table
fields = dict(params_set="quick", parameters=dict(width=width), environment={}, seconds=0)
result = results.ResultFile(run=uuid.uuid4().hex, notebook="01_first", status="passed",
                            started="2026-01-02T03:04:05+00:00", **fields)
rows = table.Table()
rows.put(table.row(study="attack", form="width", value=width, n=1, unit="count", better="neither", origin="measured",
                   statistic="single", interval="none", device="CPU", runtime="python", precision="none", threads=1),
         [width])
results.write(Path(os.environ["GNNLAB_RUN"], "result.json"), result, rows)"""


def repository(root):
    cells = [
        nbformat.v4.new_markdown_cell("# The question"),
        nbformat.v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell(BODY),
    ]
    for folder in ("notebooks", "params/quick"):
        (root / folder).mkdir(parents=True)
    metadata = {"gnnlab": {}, "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), root / "notebooks/01_first.ipynb")
    (root / "params/quick/01_first.yaml").write_text("width: 9\n")
    return root


def run(root, *overrides, wanted=0):
    """A run in a forked process that dies at that moment; what it printed, and how many moments there were."""

    def work(pipe):
        from gnnlab.lab import runner

        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(root)
            calls = at_moment(patch, wanted, die)
            runner.run(["01"], root=root, overrides=overrides, console=Console(file=printed, width=200))
            pipe.send((printed.getvalue(), calls["all"]))

    ours, theirs = FORK.Pipe()
    process = forked(work, theirs)
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return None, 0
    finally:
        process.join()


def width_of(folder):
    """What the result there says, with its own samples; None where there is none. Pages are whole or not there."""
    from gnnlab.lab import results

    path = results.newest(folder, "01_first")[0]
    result = results.read(path)
    samples = results.table_of(path, result).samples_of(result.rows[0]).tolist()
    pages = [page.read_text(encoding="utf-8").rstrip().endswith("</html>") for page in folder.rglob("*.html")]
    return result.rows[0].value if samples == [result.rows[0].value] and pages and all(pages) else None


def test_a_notebook_run_that_is_killed_leaves_the_results_before_it_or_new_ones_and_the_next_says_why(
    tmp_path, random, number, monkeypatch
):
    import gnnlab.lab.execution
    import gnnlab.lab.report
    import gnnlab.lab.runner  # noqa: F401  loaded once, for all that are forked

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    before = repository(tmp_path / "Ordner, 名前")
    assert "first run" in run(before)[0]
    whole = shutil.copytree(before, tmp_path / "whole")
    printed, moments = run(whole, ("width", "10"))
    assert "parameters changed (width)" in printed and width_of(whole / "outputs/quick") == 10
    for wanted in some(random, moments, number // 12):
        root = shutil.copytree(before, tmp_path / str(wanted))
        folder = root / "outputs/quick"
        printed, _ = run(root, ("width", "10"), wanted=wanted)
        assert printed is None  # it was killed
        stands = width_of(folder)
        again, _ = run(root, ("width", "10"))
        reason = {9: "parameters changed (width", 10: "unchanged since"}[stands]
        assert reason in (again or "") and width_of(folder) == 10, (wanted, stands, again)
