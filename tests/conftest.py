"""Fixtures that several test modules share."""

import functools
import os
import re
import sys

import pytest
import torch
from hypothesis import HealthCheck, settings

# kernels of Triton run by its interpreter where there is no GPU: it reads this when it is imported, as PyG does
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

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


@pytest.fixture
def command(capsys):
    """Runs a command line: exit code, standard output and standard error."""
    from gnnlab import cli

    return lambda *arguments: (cli.main(arguments), *capsys.readouterr())


@pytest.fixture(scope="session")
def one_registry():
    """torch collects what it can write as ONNX anew at every export, most of a second; here all exports share it."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        yield


def pytest_collection_modifyitems(items):
    """What takes minutes is begun first."""
    items.sort(key=lambda item: "notebooks" not in item.path.parts)


def pytest_xdist_make_scheduler(config, log):
    """A file stays on one worker; of the notebooks those that need each other do, and every other by itself."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file, _, test = nodeid.partition("::")
            number = re.search(r"\[(\d\d)_", test) if file.endswith("test_notebooks.py") else None
            return file if number is None else "04 to 07" if number[1] in ("04", "05", "06", "07") else number[1]

    return ByFile(config, log)


@pytest.fixture(autouse=True, scope="session")
def quiet_machine():
    """What a test prints does not depend on how busy the machine is. Gives what looks at the real one."""
    from gnnlab import machine

    real = machine.at_work
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "at_work", lambda *_: {"others_percent": 0.0, "steal_percent": 0.0})
        yield real
