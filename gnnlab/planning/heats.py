"""One of several forms by executing them: all for a moment, then the faster half for longer, until one is left.

    found = run_heats(forms, rounds=2, seed=0)
    found.ranked()[0], found.samples, found.left_after

Successive halving (Karnin et al. 2013; Jamieson and Talwalkar 2016): time goes to those that could still be the best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnlab.errors import GnnlabError
from gnnlab.profiling.timing import stopwatch


@dataclass(frozen=True)
class Heats:
    """`samples`: ms of each call in the last heat of a form; `left_after`: that heat, counted from 1."""

    samples: dict[str, list[float]]
    left_after: dict[str, int]

    def ranked(self) -> list[str]:
        """Those that stayed longest first, of one heat by their medians."""
        return sorted(self.samples, key=lambda form: (-self.left_after[form], float(np.median(self.samples[form]))))


def run_heats(forms: Mapping[str, Callable[[], Any]], *, rounds: int = 2, seed: int = 0) -> Heats:
    """Each heat calls what is left `rounds` times, in turns and in random order, and the slower half leaves; each next
    one has twice the rounds. The last is run by two.

    Raises:
        GnnlabError: there are no forms.
    """
    if not forms:
        raise GnnlabError("no forms to choose from; give at least one")
    random, left = np.random.default_rng(seed), list(forms)
    samples: dict[str, list[float]] = {}
    left_after: dict[str, int] = {}
    heat = 0
    while left:
        heat += 1
        took: dict[str, list[float]] = {form: [] for form in left}
        for _ in range(rounds):
            for place in random.permutation(len(left)):
                with stopwatch() as clock:
                    forms[left[place]]()
                took[left[place]].append(clock.ms)
        samples |= took
        left_after |= dict.fromkeys(left, heat)
        if len(left) <= 2:
            break
        left = sorted(left, key=lambda form: float(np.median(took[form])))[: max(2, len(left) // 2)]
        rounds *= 2
    return Heats(samples, left_after)
