import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnlab.campaign import sizes
from gnnlab.prediction.measured import draw, inside_hull

STUDY = [(size.nodes, size.edges) for size in sizes.read(["study"])]
LINE = [(1000, 1000), (1000, 4000), (1000, 10_000)]


def inside(known, size, **options):
    return bool(inside_hull(known, [size], **options)[0])


def test_what_lies_between_is_inside_and_what_does_not_is_not():
    assert inside(STUDY, (4000, 9000)) and inside(STUDY, (1000, 1000)) and inside(STUDY, (10_000, 10_000))
    assert not inside(STUDY, (999, 1000)) and not inside(STUDY, (4000, 3000)) and not inside(STUDY, (5000, 10_001))


def test_a_hull_of_one_size_is_that_size_and_of_a_line_the_line():
    assert inside([(10, 20)], (10, 20)) and not inside([(10, 20)], (11, 20))
    assert inside(LINE, (1000, 2000)) and not inside(LINE, (1001, 2000)) and not inside(LINE, (1000, 999))


def test_a_block_that_looks_at_nodes_alone_has_a_hull_of_nodes():
    assert inside([*LINE, (3000, 3000)], (2000, 77), coordinates=(0,))
    assert not inside(STUDY, (0, 5), coordinates=(0,))


@given(st.lists(st.floats(0.01, 1), min_size=15, max_size=15))
def test_every_mean_of_logarithms_is_inside(weights):
    mixed = np.exp(np.average(np.log(STUDY), axis=0, weights=weights))
    centre = np.exp(np.log(STUDY).mean(axis=0))
    inner = mixed**0.95 * centre**0.05  # rounding to whole numbers may leave the hull at its edge
    assert inside(STUDY, tuple(np.rint(inner).astype(int).tolist()))


@pytest.mark.parametrize("grid", [STUDY, LINE])
def test_sizes_are_drawn_inside_and_are_new_and_the_same_for_the_same_seed(grid):
    drawn = draw(grid, 8, seed=3)
    assert len(drawn) == len(set(drawn)) == 8 and not set(drawn) & set(grid)
    assert all(inside(grid, size) for size in drawn)
    assert drawn == draw(grid, 8, seed=3) != draw(grid, 8, seed=4)


def test_a_hull_of_one_size_has_no_other():
    assert draw([(10, 20)], 3, seed=0) == []
