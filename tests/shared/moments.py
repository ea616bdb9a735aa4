"""The moments that count: before each call of some functions, so that it does not matter how busy the machine is."""

import multiprocessing
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

WRITES = ((os, "fsync"), (Path, "replace"), (Path, "rename"))


def at_moment(patch, wanted, act, moments=WRITES):
    """Call `act` before the call number `wanted` of those that count; returns the counter."""
    calls = Counter()

    def counted(original):
        def call(*arguments, **options):
            calls["all"] += 1
            if calls["all"] == wanted:
                act()
            return original(*arguments, **options)

        return call

    for owner, name in moments:
        patch.setattr(owner, name, counted(getattr(owner, name)))
    return calls


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def killed(work, wanted, moments=WRITES, within_s=120):
    """Work in a forked process that ends itself at that moment. Does it?"""

    def child():
        with pytest.MonkeyPatch.context() as patch:
            at_moment(patch, wanted, die, moments)
            work()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(within_s)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL
