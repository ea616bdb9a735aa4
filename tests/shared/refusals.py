"""What is refused is said in one line."""

from contextlib import contextmanager

import pytest

from gnnlab.errors import GnnlabError


@contextmanager
def refused(match="."):
    """The block raises a `GnnlabError` of one line, in which `match` is found; gives what was caught."""
    with pytest.raises(GnnlabError, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value)


def refusal(function, *arguments, **options):
    """The line with which a call is refused."""
    with refused() as caught:
        function(*arguments, **options)
    assert str(caught.value)
    return str(caught.value)
