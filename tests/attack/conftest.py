"""The attack: what may be lost is counted, and nothing may be invented. `make slow` runs it.

ATTACK_SEED=7 ATTACK_NUMBER=100 make slow     # another seed; so many attacks on each kind of file, moments of each work
"""

import os
from collections import Counter, defaultdict

import numpy as np
import pytest

SEED, NUMBER = int(os.environ.get("ATTACK_SEED", "1")), int(os.environ.get("ATTACK_NUMBER", "25"))
OUTCOMES = ("survived", "lost", "invented")
_TALLY = pytest.StashKey[dict[str, Counter]]()


@pytest.fixture
def tally(request):
    """Counts of outcomes under the name of an attack, for the table at the end."""
    return request.config.stash.setdefault(_TALLY, defaultdict(Counter))


@pytest.fixture
def random():
    return np.random.default_rng(SEED)


@pytest.fixture
def number():
    """How many attacks of a kind."""
    return NUMBER


def pytest_terminal_summary(terminalreporter, config):
    if not (tally := config.stash.get(_TALLY, None)):
        return
    terminalreporter.section(f"the attack, seed {SEED}")
    terminalreporter.write_line(f"{'':40} {'tried':>8} " + " ".join(f"{name:>9}" for name in OUTCOMES))
    for name, found in tally.items():
        counts = " ".join(f"{found[outcome]:>9}" for outcome in OUTCOMES)
        terminalreporter.write_line(f"{name:40} {found.total():>8} {counts}")
