"""Fixtures that several test modules share."""

import sys

import pytest
from hypothesis import HealthCheck, settings

# how busy the machine is must not decide a test
settings.register_profile("lab", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lab")

# jsonschema loads this grammar for nbformat, seconds for each process, and nothing here checks an IRI
sys.modules.setdefault("rfc3987_syntax", None)


@pytest.fixture
def result_file():
    """A factory of small valid result files."""
    from gnnlab.lab.results import ResultFile

    def make(**changes):
        fields = {
            "run": "a" * 32,
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
