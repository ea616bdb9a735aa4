"""Fixtures of the tests of gnnswap."""

import inspect

import pytest
import torch
from torch_geometric.nn import FiLMConv, ResGatedGraphConv

from gnnswap.guards import HOOKS


@pytest.fixture
def one_thread():
    """Two threads of a busy machine wait for each other. Numbers are drawn from the same seed in every test."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def defaults_without_hooks():
    """All layers of these classes share one activation, the default of an argument: a hook on one would be on all."""
    yield
    for kind in (ResGatedGraphConv, FiLMConv):
        shared = inspect.signature(kind.__init__).parameters["act"].default
        for name in HOOKS:
            vars(shared)[name].clear()
        vars(shared).pop("forward", None)
