"""Runs of notebooks, as folders in an outputs folder."""

from gnnlab.lab import results


def put(folder, result, table=None, at="1"):
    """Write a run of `result.notebook`; of several the one with the last `at` is the newest. The result file."""
    path = folder / result.notebook / at / results.RESULT
    results.write(path, result, table)
    return path


def newest(folder, notebook):
    """The result file of the newest run that passed."""
    path = results.newest(folder, notebook)[0]
    assert path is not None, f"no run of {notebook} in {folder}"
    return path
