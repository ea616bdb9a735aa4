"""The search of `gnnlab optimize` in this process, for several test modules."""

import pytest
import torch
from planted_search import Here, Planted

from gnnlab.rewrite import bench, optimize, steps


@pytest.fixture
def here(monkeypatch):
    """Runs the search on a real model, with steps that pay if they are right."""
    monkeypatch.setattr(torch, "dropout", torch.dropout)
    monkeypatch.setattr(torch.nn.functional, "dropout", torch.nn.functional.dropout)
    process = Here(Planted(lambda plan, process: 0.5 ** len(plan)), 1)
    monkeypatch.setattr(optimize, "Worker", lambda: process)
    monkeypatch.setattr(bench, "race", lambda spec, graph, train, plans, budget_s, seed: process.race(plans, seed))

    monkeypatch.setattr(optimize, "clock", lambda: 0.0)

    def run(factory, names=("fast layers", "inference mode"), graph="karate", train=False):
        monkeypatch.setattr(steps, "tried", lambda train: list(names))
        return optimize.optimize(f"own_models:{factory}", graph, train=train, budget_s=29, processes=2)

    return run
