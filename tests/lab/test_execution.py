"""What is said about notebooks that stop. (The process and its kernel are tested with the runner.)"""

import nbformat
import pytest

from gnnlab.lab import execution, results
from gnnlab.lab.discovery import Notebook
from gnnlab.worker import Answer

MARK = nbformat.v4.new_markdown_cell("red", metadata={"tags": [execution.MARK]})


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
    ],
)
def test_each_end_has_a_reason_of_one_line_and_the_red_lines_of_papermill_go(
    monkeypatch, tmp_path, result_file, outputs, answer, reason
):
    cells = [nbformat.v4.new_code_cell("1", metadata={"papermill": {"status": "completed"}})]
    cells += [MARK, nbformat.v4.new_markdown_cell("## Scaling"), nbformat.v4.new_code_cell("2", outputs=outputs)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / results.NOTEBOOK)
    monkeypatch.setattr(execution.Worker, "call", lambda *_, **__: Answer("raised", reason=answer))
    notebook = Notebook(tmp_path / "in.ipynb")
    result = execution.execute(notebook, {}, result_file(), here=tmp_path, place=tmp_path)
    assert result == results.read(tmp_path / results.RESULT) and result.status == "failed"
    assert reason in result.reason and len(result.reason.splitlines()) == 1
    cells = nbformat.read(tmp_path / results.NOTEBOOK, as_version=4).cells
    assert [cell.source for cell in cells] == ["1", "## Scaling", "2"]
