"""What is said about notebooks that stop. (The process and its kernel are tested with the runner.)"""

import types

import nbformat
import pytest

from gnnlab.lab import execution, results
from gnnlab.lab.discovery import Notebook
from gnnlab.lab.results import Status

MARK = nbformat.v4.new_markdown_cell("red", metadata={"tags": [execution.MARK]})


def ending(monkeypatch, folder, outputs, answer):
    """A child that leaves an executed notebook whose last cell put out this, says `answer` and ends with code 1."""
    cells = [nbformat.v4.new_code_cell("1", metadata={"papermill": {"status": "completed"}})]
    cells += [MARK, nbformat.v4.new_markdown_cell("## Scaling"), nbformat.v4.new_code_cell("2", outputs=outputs)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / results.NOTEBOOK)
    child = types.SimpleNamespace(pid=2**31 - 1, returncode=1, communicate=lambda *_, **__: (answer.encode(), None))
    monkeypatch.setattr(execution.subprocess, "Popen", lambda *_, **__: child)
    return execution.execute(Notebook(folder / "in.ipynb"), {}, here=folder, place=folder)


def raised(ename, evalue):
    return [nbformat.v4.new_output("error", ename=ename, evalue=evalue, traceback=[])]


@pytest.mark.parametrize(
    ("outputs", "answer", "reason"),
    [
        (raised("GnnlabError", "no edges in x.npz"), "", "no edges in x.npz"),
        (raised("Unavailable", "needs openvino"), "", "needs openvino"),
        (raised("ValueError", "a bug"), "", "ValueError: a bug (cell [2], under 'Scaling')"),
        (raised("StopIteration", ""), "", "StopIteration (cell [2], under 'Scaling')"),
        (raised("SystemExit", "3"), "", "sys.exit(3) in cell [2], under 'Scaling'"),
        (raised("RuntimeError", "\x1b[31mmat1\x1b[0m\n  and mat2"), "", "RuntimeError: mat1 and mat2 (cell [2]"),
        ([], "DeadKernelError: Kernel died", "the kernel died in cell [2], under 'Scaling'"),
        ([], "OSError: [Errno 28] No space left on device", "could not be executed (OSError: [Errno 28] No space left"),
        ([], "RuntimeError: Kernel didn't respond in 120 seconds", "seconds); run it again when the machine is less"),
        ([], "", "could not be executed (exit code 1: )"),
    ],
)
def test_each_end_has_a_reason_of_one_line_and_the_red_lines_of_papermill_go(
    monkeypatch, tmp_path, outputs, answer, reason
):
    ended = ending(monkeypatch, tmp_path, outputs, answer)
    assert ended.status is Status.FAILED
    assert reason in ended.reason and len(ended.reason.splitlines()) == 1
    cells = nbformat.read(tmp_path / results.NOTEBOOK, as_version=4).cells
    assert [cell.source for cell in cells] == ["1", "## Scaling", "2"]
