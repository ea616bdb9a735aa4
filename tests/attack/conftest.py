"""The attack: nothing may be lost, and nothing may be invented. `make slow` runs it.

ATTACK_SEED=7 ATTACK_NUMBER=100 make slow     # another seed; moments of each work
"""

import os

import numpy as np
import pytest


@pytest.fixture
def random():
    return np.random.default_rng(int(os.environ.get("ATTACK_SEED", "1")))


@pytest.fixture
def number():
    """How many attacks of a kind."""
    return int(os.environ.get("ATTACK_NUMBER", "25"))
