"""Fixtures that several test modules share."""

import pytest


@pytest.fixture
def result_file():
    """A factory of small valid result files."""
    from gnnlab.lab.results import ResultFile

    def make(**changes):
        fields = {
            "notebook": "01_profile_bottlenecks",
            "params_set": "quick",
            "status": "passed",
            "parameters": {},
            "environment": {},
            "started": "2026-01-02T03:04:05+00:00",
            "seconds": 1.5,
        }
        return ResultFile(**(fields | changes))

    return make
