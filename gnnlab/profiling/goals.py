"""Is a goal met? In the words of the ledger's reasons."""

from __future__ import annotations

import math


def reached(value: float, ci: tuple[float, float], goal: tuple[float | None, float | None]) -> str:
    """Met or missed, and what the interval says to it. `goal`: its least and its most, None where it is open."""
    low, high = -math.inf if goal[0] is None else goal[0], math.inf if goal[1] is None else goal[1]
    if low <= ci[0] and ci[1] <= high:
        return "met"
    if low <= value <= high:
        return "met, though the interval reaches beyond the goal"
    return "missed, though the interval reaches the goal" if ci[0] <= high and ci[1] >= low else "missed"
