import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnlab.errors import GnnlabError
from gnnlab.rewrite.claim_file import read_claim


@pytest.mark.parametrize(
    ("words", "claimed"),
    [
        ("1.5x", (1.5, 1.5)),
        ("1.2 - 1.5 x", (1.2, 1.5)),
        ("2 times", (2, 2)),
        ("twice as fast", (2, 2)),
        ("10 %", (1 / 0.9, 1 / 0.9)),
        ("10-15% less time", (1 / 0.9, 1 / 0.85)),
        ("20 % faster", (1.2, 1.2)),
        ("at least 10 %", (1 / 0.9, math.inf)),
        ("At least  1.5x", (1.5, math.inf)),
        ("half the time", (2, 2)),
        ("faster", None),
        ("same speed", (1, 1)),
    ],
)
def test_words_of_speed_are_ratios_of_time(words, claimed):
    (part,) = read_claim(words)
    assert part.claimed == (claimed and pytest.approx(claimed)) and not part.memory


@pytest.mark.parametrize(
    ("words", "claimed"),
    [("half the memory", (2, 2)), ("30 % less memory", (1 / 0.7,) * 2), ("less memory", None), ("same memory", (1, 1))],
)
def test_words_of_memory_are_ratios_of_bytes(words, claimed):
    (part,) = read_claim(words)
    assert part.claimed == (claimed and pytest.approx(claimed)) and part.memory


def test_parts_stand_behind_commas_and_and():
    speed, memory = read_claim("same speed within 2 %, half the memory")
    assert (speed.margin, speed.memory, memory.claimed, memory.memory) == (0.02, False, (2, 2), True)
    assert [part.text for part in read_claim("1.5x and less memory")] == ["1.5x", "less memory"]


@pytest.mark.parametrize("words", ["", " , ", "much faster", "0.5x", "1x", "100 %", "0 %", "1.5-1.2x", "-3 %", "x"])
def test_what_is_not_understood_is_said_with_what_is(words):
    with pytest.raises(GnnlabError, match="understood are") as error:
        read_claim(words)
    assert "\n" not in str(error.value)


@given(st.text(max_size=40))
def test_any_text_is_understood_or_refused_in_one_line(words):
    try:
        assert all(part.claimed is None or part.claimed[0] >= 1 for part in read_claim(words))
    except GnnlabError as error:
        assert len(str(error).splitlines()) == 1
