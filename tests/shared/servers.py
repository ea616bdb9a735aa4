"""Waiting for what happens elsewhere."""

import time


def until(condition, within_s=30.0):
    """Wait until `condition()` holds; fails when it does not within that time."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"did not happen within {within_s:g} s"
        time.sleep(0.02)
