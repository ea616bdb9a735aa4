"""Work is ended at the moments that count: before each of its writes reaches the disk, is renamed, is on its way.

A moment is the n-th of these calls, not a time. Processes that answer, stream and run: `test_killed_processes`.
"""

import errno
import os
import sys

import pytest
from moments import at_moment, killed
from table_rows import put

from gnnlab.errors import GnnlabError
from gnnlab.lab import outputs, results
from gnnlab.lab.table import Table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(sys.platform == "win32", reason="kills a forked process; Windows has no fork"),
]


class Results:
    """Results of a notebook that take the place of earlier ones."""

    def __init__(self, result_file):
        self.result_file = result_file

    def work(self, folder):
        for run in ("a" * 32, "b" * 32):
            staged, table = outputs.stage(folder, "01_a"), Table()
            put(table, "gat_layer", {"size": "58/776"}, "PyG", [1.0 + (run < "b"), 2.0, 3.0] * 3)
            path = staged / "01_a.json"
            results.write(path, self.result_file(notebook="01_a", run=run), table)
            outputs.commit(staged, folder, "01_a", outputs.record(results.read(path), {"code": {}}, 1.0))

    def state(self, folder):
        result = results.read(folder / "01_a.json")
        samples = results.table_of(folder / "01_a.json", result).samples_of(result.rows[0]).tolist()
        return result.run, samples, list(outputs.read_runs(folder)[0].runs)

    def check(self, folder, whole):
        """One run or the other, with its own samples."""
        folder.mkdir(parents=True, exist_ok=True)
        outputs.recover(folder)
        firsts = {"a" * 32: 2.0, "b" * 32: 1.0}
        if (folder / "01_a.json").exists():
            run, samples, _ = self.state(folder)
            if samples[0] != firsts[run]:
                return "invented"
        self.work(folder)
        return "survived" if self.state(folder) == whole else "lost"


def refuse():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def ended(made, folder, wanted):
    return killed(lambda: made.work(folder), wanted)


def full(made, folder, wanted):
    """Work until the disk refuses. In one line?"""
    with pytest.MonkeyPatch.context() as patch:
        at_moment(patch, wanted, refuse)
        try:
            made.work(folder)
        except (GnnlabError, OSError) as error:
            return len(str(error).splitlines()) == 1
    return False


ENDS = {"killed": ended, "disk full": full}
KINDS = (Results,)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_work_that_was_ended_is_gone_on_with_and_gives_what_it_would_have(
    kind, end, tmp_path, result_file, random, number, tally
):
    made = kind(result_file)
    with pytest.MonkeyPatch.context() as patch:
        calls = at_moment(patch, 0, refuse)
        made.work(tmp_path / "whole")
    whole, moments = made.state(tmp_path / "whole"), calls["all"]
    chosen = random.permutation(moments)[:number] + 1
    for wanted in chosen.tolist():
        folder = tmp_path / f"Ende {wanted} ä 名"
        found = made.check(folder, whole) if ENDS[end](made, folder, wanted) else "lost"
        tally[f"{kind.__name__}: {end}"][found] += 1
        assert found == "survived", wanted
