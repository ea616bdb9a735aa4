"""The search of `gnnlab optimize` in this process, for several test modules."""

import pytest
import torch
from fake_search import Planted

from gnnlab.optimize import search, steps


@pytest.fixture
def dropout_again(monkeypatch):
    """A model to be trained turns dropout off for its process, which here is that of all tests."""
    monkeypatch.setattr(torch, "dropout", torch.dropout)
    monkeypatch.setattr(torch.nn.functional, "dropout", torch.nn.functional.dropout)


@pytest.fixture
def here(monkeypatch, dropout_again):
    """Runs the search on a real model, with steps that pay if they are right."""
    Planted(monkeypatch, lambda plan, process: 0.5 ** len(plan), here=True)

    def run(factory, names=("fast layers", "inference mode"), graph="karate", train=False):
        monkeypatch.setattr(steps, "tried", lambda train: list(names))
        return search.optimize(f"own_models:{factory}", graph, train=train)

    return run
