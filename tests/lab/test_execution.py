"""What is said about cells that fail. (The kernels themselves are tested with the runner.)"""

import nbformat
import pytest
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.exceptions import PapermillExecutionError

from gnnlab.lab import execution
from gnnlab.lab.discovery import Notebook
from gnnlab.lab.results import Status


def raised(ename, evalue):
    return PapermillExecutionError(3, 4, "source", ename, evalue, [f"{ename}: {evalue}"])


def ending(monkeypatch, tmp_path, error):
    def stop(*arguments, **given):
        raise error

    monkeypatch.setattr(execution.papermill, "execute_notebook", stop)
    return execution.execute(Notebook(tmp_path / "in.ipynb"), {}, here=tmp_path, staged=tmp_path)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (raised("GnnlabError", "no edges in x.npz"), "no edges in x.npz"),
        (raised("Unavailable", "needs openvino"), "needs openvino"),
        (raised("ValueError", "a bug"), "ValueError: a bug (cell [0])"),
        (raised("StopIteration", ""), "StopIteration (cell [0])"),
        (raised("SystemExit", "3"), "sys.exit(3) in cell [0]"),
        (raised("RuntimeError", "\x1b[31mmat1\x1b[0m\n  and mat2"), "RuntimeError: mat1 and mat2 (cell [0])"),
        (DeadKernelError("Kernel died"), "the kernel died in cell [0]"),
        (CellTimeoutError("no output"), "the outputs of cell [0] did not arrive (no output)"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (
            RuntimeError("Kernel didn't respond in 120 seconds"),
            "in 120 seconds); run it again when the machine is less",
        ),
        (RuntimeError("no event loop"), "could not be executed (RuntimeError: no event loop)"),
    ],
)
def test_each_end_has_a_reason_of_one_line(monkeypatch, tmp_path, error, reason):
    ended = ending(monkeypatch, tmp_path, error)
    assert ended.status is Status.FAILED
    assert reason in ended.reason and len(ended.reason.splitlines()) == 1


def test_clean_takes_out_the_marks_of_papermill_once_and_leaves_the_rest(tmp_path):
    error = nbformat.v4.new_output("error", ename="KeyError", evalue="'x'", traceback=[])
    cells = [
        nbformat.v4.new_markdown_cell("red", metadata={"tags": ["papermill-error-cell-tag"]}),
        nbformat.v4.new_code_cell("x", outputs=[error]),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "out.ipynb")
    execution.clean(tmp_path / "out.ipynb")
    assert [cell.source for cell in nbformat.read(tmp_path / "out.ipynb", as_version=4).cells] == ["x"]
    before = (tmp_path / "out.ipynb").stat().st_mtime_ns
    execution.clean(tmp_path / "out.ipynb")
    assert (tmp_path / "out.ipynb").stat().st_mtime_ns == before
