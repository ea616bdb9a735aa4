"""What is refused is said in one line."""

from contextlib import contextmanager

import pytest

from gnnswap.errors import OneLineError


@contextmanager
def refused(match="."):
    """The block raises a `OneLineError`, in which `match` is found; gives what was caught."""
    with pytest.raises(OneLineError, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value)


def refusal(function, *arguments, **options):
    """The line with which a call is refused."""
    with refused() as caught:
        function(*arguments, **options)
    assert str(caught.value)
    return str(caught.value)
