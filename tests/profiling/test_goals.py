"""Met and missed are of the measured value; the interval is told beside it."""

import pytest

from gnnlab.profiling.goals import reached


@pytest.mark.parametrize(
    ("value", "ci", "goal", "said"),
    [
        (5.2, (5.1, 5.3), (5, None), "met"),
        (5.2, (4.9, 5.3), (5, None), "met, though the interval reaches beyond the goal"),
        (4.8, (4.7, 5.3), (5, None), "missed, though the interval reaches the goal"),
        (4.8, (4.7, 4.9), (5, None), "missed"),
        (12.2, (7.8, 14.1), (None, 10), "missed, though the interval reaches the goal"),
        (2.4, (-9.5, 4.0), (None, 5), "met"),
        (1.0, (0.9, 1.1), (0.8, 1.2), "met"),
        (1.3, (1.21, 1.4), (0.8, 1.2), "missed"),
    ],
)
def test_the_value_decides_and_the_interval_is_told(value, ci, goal, said):
    assert reached(value, ci, goal) == said
