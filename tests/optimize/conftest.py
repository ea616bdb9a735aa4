"""The search of `gnnlab optimize` in this process, for several test modules."""

import pytest
import torch
from planted_search import Here, Planted

from gnnlab.optimize import search as optimize
from gnnlab.optimize import steps


@pytest.fixture
def dropout_again(monkeypatch):
    """A model to be trained turns dropout off for its process, which here is that of all tests."""
    monkeypatch.setattr(torch, "dropout", torch.dropout)
    monkeypatch.setattr(torch.nn.functional, "dropout", torch.nn.functional.dropout)


@pytest.fixture
def here(monkeypatch, dropout_again):
    """Runs the search on a real model, with steps that pay if they are right."""
    planted = Planted(lambda plan, process: 0.5 ** len(plan))
    monkeypatch.setattr(optimize, "Worker", lambda **environment: Here(planted, 1))
    monkeypatch.setattr(optimize, "clock", lambda: 0.0)

    def run(factory, names=("fast layers", "inference mode"), graph="karate", train=False):
        monkeypatch.setattr(steps, "tried", lambda train: list(names))
        return optimize.optimize(f"own_models:{factory}", graph, train=train, processes=2)

    return run
