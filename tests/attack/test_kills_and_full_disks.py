"""New results take the place of earlier ones, and are ended before each write reaches the disk or is renamed.

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
FIRST_SAMPLE = {"a" * 32: 2.0, "b" * 32: 1.0}  # of each run


def work(folder, result_file):
    for run, first in FIRST_SAMPLE.items():
        staged, table = outputs.stage(folder, "01_a"), Table()
        put(table, "gat_layer", {"size": "58/776"}, "PyG", [first, 2.0, 3.0] * 3)
        path = staged / "01_a.json"
        results.write(path, result_file(notebook="01_a", run=run), table)
        outputs.commit(staged, folder, "01_a", outputs.record(results.read(path), {"code": {}}, 1.0))


def state(folder):
    result = results.read(folder / "01_a.json")
    samples = results.table_of(folder / "01_a.json", result).samples_of(result.rows[0]).tolist()
    return result.run, samples, list(outputs.read_runs(folder)[0].runs)


def refuse():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def killed_at(wanted, folder, result_file):
    return killed(lambda: work(folder, result_file), wanted)


def refused_at(wanted, folder, result_file):
    """Work until the disk refuses. In one line?"""
    with pytest.MonkeyPatch.context() as patch:
        at_moment(patch, wanted, refuse)
        try:
            work(folder, result_file)
        except (GnnlabError, OSError) as error:
            return len(str(error).splitlines()) == 1
    return False


@pytest.mark.parametrize("end", [killed_at, refused_at])
def test_one_run_or_the_other_is_there_with_its_own_samples_and_the_next_gives_what_it_would_have(
    end, tmp_path, result_file, random, number
):
    with pytest.MonkeyPatch.context() as patch:
        calls = at_moment(patch, 0, refuse)
        work(tmp_path / "whole", result_file)
    whole = state(tmp_path / "whole")
    for wanted in (random.permutation(calls["all"])[:number] + 1).tolist():
        folder = tmp_path / f"Ende {wanted} ä 名"
        assert end(wanted, folder, result_file), wanted
        folder.mkdir(parents=True, exist_ok=True)
        outputs.recover(folder)
        if (folder / "01_a.json").exists():
            run, samples, _ = state(folder)
            assert samples[0] == FIRST_SAMPLE[run], wanted
        work(folder, result_file)
        assert state(folder) == whole, wanted
