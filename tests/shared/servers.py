"""Waiting for what happens elsewhere, and for servers that are not on every machine."""

import time
from contextlib import ExitStack, contextmanager

import pytest

from gnnlab.errors import Unavailable


def until(condition, within_s=30.0):
    """Wait until `condition()` holds; fails when it does not within that time."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"did not happen within {within_s:g} s"
        time.sleep(0.02)


@contextmanager
def or_skipped(server):
    """What the context manager `server` gives; where there is none, the test is skipped."""
    with ExitStack() as stack:
        try:
            entered = stack.enter_context(server)
        except Unavailable as error:
            pytest.skip(str(error))
        yield entered
