import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_cases import tables

from gnnlab.optimize.training.input_pipeline import Share, feed, mixed, one_pass, order
from gnnlab.optimize.training.recipe import Recipe

PIPELINES = [
    {"pipeline": "table"},
    {"pipeline": "samples"},
    {"pipeline": "samples", "transfer": "dictionary"},
    {"pipeline": "batches"},
    {"pipeline": "batches", "transfer": "dictionary"},
    {"pipeline": "samples", "workers": 2},
    {"pipeline": "batches", "workers": 1, "persistent": True, "prefetch": 3},
    {"pipeline": "samples", "workers": 4},
]


@pytest.mark.parametrize("switches", PIPELINES, ids=str)
def test_every_pipeline_gives_the_rows_that_were_asked_for_in_their_order(switches):
    table, _ = tables(60)
    with feed(table, Recipe(**switches)) as batches:
        for epoch in range(2):
            indices = order(len(table), 0, epoch).split(16)
            got = one_pass(batches, indices)
            assert len(got) == len(indices)
            for rows, (fields, targets) in zip(indices, got, strict=True):
                assert torch.equal(fields, table.fields[rows])
                assert targets.keys() == table.targets.keys()
                assert all(torch.equal(targets[name], table.targets[name][rows]) for name in targets)


@pytest.mark.parametrize("pipeline", ["samples", "batches", "table"])
def test_pipelines_leave_the_generator_of_dropout_alone(pipeline):
    table, _ = tables(60)
    before = torch.get_rng_state()
    with feed(table, Recipe(pipeline=pipeline)) as batches:
        one_pass(batches, order(len(table), 0, 0).split(16))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_order_holds_each_row_once_and_differs_by_seed_and_epoch():
    assert order(50, 1, 2).sort().values.tolist() == list(range(50))
    assert torch.equal(order(50, 1, 2), order(50, 1, 2))
    assert not torch.equal(order(50, 1, 2), order(50, 2, 1)) and not torch.equal(order(50, 1, 2), order(50, 1, 3))


@given(st.lists(st.lists(st.integers(0, 10**6), min_size=1, max_size=4), min_size=2, max_size=8, unique_by=tuple))
def test_mixed_numbers_make_unlike_seeds(numbers):
    seeds = [mixed(*each) for each in numbers]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**63 for seed in seeds)


@given(st.integers(1, 40), st.integers(1, 9))
def test_shares_of_a_batch_make_the_batch(rows, world):
    batch = torch.randperm(rows)
    shares = [Share(rank, world) for rank in range(world)]
    own = [share.of(batch)[: share.count(rows)] for share in shares]
    assert torch.equal(torch.cat(own), batch)
    assert all(len(share.of(batch)) >= 1 for share in shares)  # every process has something to compute
    assert max(map(len, own)) - min(map(len, own)) <= 1
