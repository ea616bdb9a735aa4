"""The names of the profiling framework (S1), loaded when they are asked for."""

import subprocess
import sys

import pytest

import gnnlab.profiling as profiling


def test_every_name_of_the_framework_is_there_and_no_other():
    assert all(callable(getattr(profiling, name)) for name in profiling.__all__) and len(profiling.__all__) == 30
    with pytest.raises(AttributeError, match="profile_nothing"):
        _ = profiling.profile_nothing


def test_what_needs_neither_torch_nor_all_of_scipys_statistics_does_not_load_them():
    code = "import sys, gnnlab.profiling.timing; print([m for m in ('torch', 'scipy.stats') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
