"""What an option does to the decisions: how many it changes, and what the changed ones cost.

equal, regret = count({"original": model, "pruned": pruned}, states, bound=0.01)
lab.record("decisions_kept", equal, keys=["nodes"])        # share of the decisions that are those of the first
lab.record("decision_regret", regret, keys=["nodes"])      # ms more than the best node costs, by the networks' model
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gnnlab.errors import Unavailable
from gnnlab.inference.states import NetworkArrays
from gnnlab.measure import estimates
from gnnlab.measure.conditions import row_of
from gnnlab.measure.race import comparable
from gnnlab.workloads import edge_allocator
from gnnlab.workloads.edge_networks import State
from gnnswap.errors import one_line

Layers = Callable[[Tensor, Tensor], Tensor]  # (x (N, 7), edge_index (2, E)) -> scores (N,)
CHUNK = 64  # networks in a pass
SHARE = {"unit": "share", "better": "higher", "origin": "counted", "statistic": "share"}
REGRET = {"unit": "ms", "better": "lower", "origin": "simulated", "statistic": "mean"}
REGRET["notes"] = ["ms of the model of the networks, not of a clock"]


def count(layers: Mapping[str, Layers], states: Sequence[State], *, bound: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(share of decisions that are those of the first form, regret in ms): a row for each form, a sample a state.

    The parity error of a row is the largest difference of a score over the largest score. A form that fails has a row
    with the reason; one that changes more than the share `bound` of the decisions has a note. What a form has in
    `context.row_of` goes into its rows.
    """
    parts = [NetworkArrays.of(states[at : at + CHUNK]) for at in range(0, len(states), CHUNK)]
    least, most = (of(len(state["nodes"]) for state in states) for of in (min, max))
    nodes = str(least) if least == most else f"{least} to {most}"
    shares, regrets = [], []
    expected = chosen = None
    for form, forward in layers.items():
        shared = {"form": form, "nodes": nodes, **row_of(forward)}
        try:
            with torch.no_grad():
                scored = [forward(torch.from_numpy(p.x), torch.from_numpy(p.edge_index)) for p in parts]
            scores = [of_part.float().cpu().numpy() for of_part in scored]
        except Exception as error:  # whatever an exported or compiled model raises: the others are counted
            if expected is None:
                raise
            status = "unavailable" if isinstance(error, Unavailable) else "failed"
            shares.append({**shared, **SHARE, "status": status, "reason": one_line(error)})
            continue
        rows = [part.decide(of_part) for part, of_part in zip(parts, scores, strict=True)]
        costs = [edge_allocator.regret(p.x, p.edge_index, r, p.network_of) for p, r in zip(parts, rows, strict=True)]
        regrets.append({**shared, **REGRET, "samples": np.concatenate(costs)})
        if expected is None:
            expected, chosen = scores, np.concatenate(rows)
            continue
        same = (np.concatenate(rows) == chosen).astype(float)
        notes = [*shared.get("notes", []), *_note(same, bound)]
        error = float(comparable(scores, expected, form))
        shares.append({**shared, **SHARE, "status": "ok", "notes": notes, "samples": same, "parity_error": error})
    return pd.DataFrame(shares), pd.DataFrame(regrets)


def _note(same: np.ndarray, bound: float) -> list[str]:
    """That more decisions change than the bound allows; `same` (states,) is 1 where one does not."""
    share = estimates.summary(same, "share")
    if 1 - share.value <= bound + 1e-9:  # as far as a difference of floats tells
        return []
    word = "changes" if 1 - share.high > bound else "may change"
    ends = f"({100 * (1 - share.high):.1f} % to {100 * (1 - share.low):.1f} %)"
    return [f"{word} {100 * (1 - share.value):.1f} % of the decisions {ends}, the bound is {100 * bound:.3g} %"]
