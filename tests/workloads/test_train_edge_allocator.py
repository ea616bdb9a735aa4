"""The example that trains an edge allocator writes weights that load, of a model that learned something."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from gnnlab.workloads import edge_allocator

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples/train_edge_allocator.py"))


@pytest.mark.parametrize("model_type", edge_allocator.MODEL_TYPES)
def test_a_short_training_writes_weights_that_load_and_decide_better_than_chance(model_type, tmp_path, monkeypatch):
    EXAMPLE["main"](["--type", model_type, "--steps", "60", "--folder", str(tmp_path)])
    monkeypatch.setattr(edge_allocator, "DATA", tmp_path)
    batch = EXAMPLE["networks"](50, (5, 60), np.random.default_rng(7))
    own, chance = (
        EXAMPLE["mean_regret_ms"](score, batch)
        for score in (edge_allocator.load(model_type), lambda x, edge_index: torch.rand(len(x)))
    )
    assert own * 2 < chance
