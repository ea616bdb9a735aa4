"""The reasons why notebooks stop. (The process and its kernel are tested with the runner.)"""

import pytest

from gnnlab.lab import execution
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
def test_each_end_has_a_reason_of_one_line(monkeypatch, tmp_path, answer, reason):
    monkeypatch.setattr(execution.Worker, "call", lambda *_, **__: answer)
    status, why = execution.execute(execution.Worker(), tmp_path / "in.ipynb", tmp_path / "out.ipynb", {}, timeout_s=1)
    assert status == "failed" and reason in why and len(why.splitlines()) == 1
