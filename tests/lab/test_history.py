"""The history of a folder: what left its interval is told with its moment, noise is not."""

import pytest
from small_site import judged, result

from gnnlab.errors import GnnlabError
from gnnlab.lab import compare
from gnnlab.lab.ledger import Ledger


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Appends a run of notebook 02 that measured this of one claim."""

    def run(value, low, high, commit="aaa", **parameters):
        result(
            "02_optimize_gnn",
            tmp_path,
            environment={"commit": commit, "versions": {"torch": "2"}},
            parameters=parameters,
        )
        rows = [judged("gat.compile", value, (low, high), 9, ""), judged("gat.parameters", 1, (1, 1), 1, "")]
        monkeypatch.setattr(compare.ledger, "judge", lambda folder: Ledger(rows, []))
        compare.remember(tmp_path, ["02"])

    return run


def test_what_left_its_interval_is_told_and_noise_is_not(measured, tmp_path):
    with pytest.raises(GnnlabError, match="has no history yet"):
        compare.history(tmp_path)
    measured(1.00, 0.95, 1.05)
    measured(1.08, 1.03, 1.13)  # overlaps
    measured(1.14, 1.09, 1.19, commit="bbb")  # drifted away from the first
    measured(1.13, 1.08, 1.18, commit="bbb")
    (change,) = compare.history(tmp_path)
    assert (change.before.value, change.after.value) == (1.0, 1.14) and change.besides == ("commit aaa -> bbb",)
    assert change.cells[1:] == (
        "gat.compile",
        "weaker: 1.00× (0.95 to 1.05×)",
        "reproduced: 1.14× (1.09 to 1.19×)",
        "commit aaa -> bbb",
    )


def test_a_run_with_other_parameters_starts_anew(measured, tmp_path):
    measured(1.0, 0.9, 1.1)
    measured(2.0, 1.9, 2.1, size=5)
    assert compare.history(tmp_path) == []
    measured(3.0, 2.9, 3.1, size=5)
    assert [(c.before.value, c.after.value) for c in compare.history(tmp_path)] == [(2.0, 3.0)]


def test_a_history_that_was_changed_is_said_in_one_line_and_the_next_run_goes_on_with_what_is_good(measured, tmp_path):
    path = tmp_path / compare.HISTORY
    for value in (1.0, 2.0, 3.0):
        measured(value, value - 0.1, value + 0.1)
    first, second, third = path.read_bytes().splitlines(keepends=True)
    for changed in (b"{not json\n", first + second + second + third, first + third, second + first + third,
                    first + second.replace(b"2.1", b"2.2") + third):  # fmt: skip
        path.write_bytes(changed)
        with pytest.raises(GnnlabError, match="is damaged"):
            compare.history(tmp_path)
    measured(4.0, 3.9, 4.1)
    assert [(c.before.value, c.after.value) for c in compare.history(tmp_path)] == [(3.0, 4.0), (1.0, 3.0)]
    assert path.with_name("history.jsonl.damaged-1").read_bytes() == changed
