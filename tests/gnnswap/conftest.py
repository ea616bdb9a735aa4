"""Fixtures of the tests of gnnswap."""

import pytest
import torch


@pytest.fixture
def one_thread():
    """Two threads of a busy machine wait for each other. Numbers are drawn from the same seed in every test."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
