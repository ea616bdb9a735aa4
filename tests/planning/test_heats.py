"""The faster half goes on for longer, until one is left."""

import time

import pytest

from gnnlab.errors import GnnlabError
from gnnlab.planning.comparison import run_heats


def test_the_fastest_is_left_and_was_called_most():
    calls = dict.fromkeys("abcdefgh", 0)

    def form(name, ms):
        def call():
            calls[name] += 1
            time.sleep(ms / 1e3)

        return call

    found = run_heats({name: form(name, 2 + 6 * place) for place, name in enumerate(calls)}, rounds=1)
    assert found.ranked()[0] == "a" and found.ranked()[-1] in "efgh"
    assert found.left_after["a"] == found.left_after["b"] == 3 and found.left_after["h"] == 1
    assert calls["a"] == 1 + 2 + 4 and calls["h"] == 1 and len(found.samples["a"]) == 4


@pytest.mark.parametrize("names", ["a", "ab"])
def test_one_or_two_need_one_heat(names):
    found = run_heats({name: lambda: None for name in names}, rounds=2)
    assert set(found.left_after.values()) == {1} and all(len(ms) == 2 for ms in found.samples.values())


def test_none_is_refused():
    with pytest.raises(GnnlabError, match="no forms"):
        run_heats({})
