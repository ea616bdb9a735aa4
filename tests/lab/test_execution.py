"""What is said about notebooks that stop. (The process and its kernel are tested with the runner.)"""

import pytest

from gnnlab.lab import execution, results
from gnnlab.lab.discovery import Notebook
from gnnlab.worker import Answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer("done", ["GnnlabError", "no edges in x.npz", 2]), "no edges in x.npz"),
        (Answer("done", ["Unavailable", "needs openvino", 2]), "needs openvino"),
        (Answer("done", ["ValueError", "a bug", 2]), "ValueError: a bug (cell [2])"),
        (Answer("done", ["StopIteration", "", 2]), "StopIteration (cell [2])"),
        (Answer("done", ["SystemExit", "3", 2]), "sys.exit(3) in cell [2]"),
        (
            Answer("done", ["RuntimeError", "\x1b[31mmat1\x1b[0m\n  and mat2", 2]),
            "RuntimeError: mat1 and mat2 (cell [2]",
        ),
        (
            Answer("raised", None, "DeadKernelError: Kernel died"),
            "could not be executed (DeadKernelError: Kernel died)",
        ),
        (Answer("failed", None, "the process died of SIGKILL"), "could not be executed (the process died of SIGKILL);"),
    ],
)
def test_each_end_has_a_reason_of_one_line(monkeypatch, tmp_path, result_file, answer, reason):
    monkeypatch.setattr(execution.Worker, "call", lambda *_, **__: answer)
    result = execution.execute(Notebook(tmp_path / "in.ipynb"), {}, result_file(), tmp_path)
    assert result == results.read(tmp_path / results.RESULT) and result.status == "failed"
    assert reason in result.reason and len(result.reason.splitlines()) == 1
