"""Scores that were computed before, under a key of exactly what they were computed from.

    cache = PredictionCache(max_entries=1000, ttl_s=300)
    wanted = key(x, edge_index, fingerprint)
    if cache.get_many([wanted]) == [None]:
        cache.put_many({wanted: scores})

A key is the SHA-256 over type, shape and bytes of both arrays and over the fingerprint of the model, so states that
differ in one bit of what the model reads never share an answer, however alike they print. What the model does not read,
the names of the nodes, is not in it: keep scores, not names. 0.0 and -0.0 are different bytes, which costs
a miss and never a wrong answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from threading import Lock

import numpy as np
from cachetools import TTLCache

from gnnlab.errors import GnnlabError, whole_numbers


def key(x: np.ndarray, edge_index: np.ndarray, fingerprint: str) -> bytes:
    """32 bytes for features, edges and the model that answers; arrays of any layout, fingerprint any string.

    Raises `GnnlabError`: an array of Python objects, whose bytes are addresses.
    """
    digest = hashlib.sha256()
    for array in (x, edge_index):
        if array.dtype.hasobject:
            raise GnnlabError(f"an array of {array.dtype} cannot be a key; give numbers")
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array))
    digest.update(fingerprint.encode())
    return digest.digest()


class PredictionCache:
    """The scores used last, at most `max_entries` and none older than `ttl_s` seconds (`math.inf`: no limit).

    Safe to share among threads.
    Raises `GnnlabError`: `max_entries` is not an integer of 1 or more, or `ttl_s` not a number above 0.
    """

    def __init__(self, max_entries: int, ttl_s: float) -> None:
        whole_numbers(1, max_entries=max_entries)
        if not isinstance(ttl_s, (int, float)) or not ttl_s > 0:
            raise GnnlabError(f"ttl_s is {ttl_s!r}; a number of seconds above 0 is needed, math.inf for no limit")
        self._entries, self._lock = TTLCache(max_entries, ttl_s), Lock()

    def get_many(self, keys: Sequence[bytes]) -> list[np.ndarray | None]:
        """The scores under each key, or None."""
        with self._lock:
            return [self._entries.get(key) for key in keys]

    def put_many(self, scores: Mapping[bytes, np.ndarray]) -> None:
        """Keep copies of scores, which no reader can change, each under its key."""
        copies = {key: part.copy() for key, part in scores.items()}
        for part in copies.values():
            part.flags.writeable = False
        with self._lock:
            self._entries.update(copies)

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()
