"""Small tables and models that the tests of the training loop share."""

import torch

from gnnlab.workloads.deepfm import DeepFM
from gnnlab.workloads.planted_table import planted

SIZES = (7, 5, 4, 6)


def tables(rows=300, validation=0.25, seed=0):
    return planted(rows, cardinalities=SIZES, seed=seed).split(validation, seed)


def model(table, dropout=0.1, seed=0, hidden=16, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DeepFM(table.cardinalities, table.specs, embedding_dim=8, hidden=hidden, dropout=dropout, **options)


def weights(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def largest_difference(one, other):
    return max((a.double() - b.double()).abs().max().item() for a, b in zip(one.values(), other.values(), strict=True))
