"""Scores that any worker on any host has computed, in Redis; while Redis is away, those of this process.

    cache = SharedCache("redis://127.0.0.1:6379/0", PredictionCache(1000, 300))
    Predictor("hybrid", cache=cache)

Whatever Redis answers, or does not, costs no decision.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from gnnlab.inference.predictor import PredictionCache
from gnnswap.errors import one_line

log = logging.getLogger("gnnlab.serving")
PREFIX, TTL_S = b"gnnlab:scores:", 3600  # the time is S2's
TIMEOUT_S = 0.1  # of one call
RETRY_S = 1.0  # how long Redis is left alone after a failure


class _Guarded:
    """Calls of one kind; after one that failed, none for `RETRY_S`."""

    def __init__(self, kind: str, drop: Callable[[], None]) -> None:
        self._kind, self._drop, self._until_s, self.away = kind, drop, 0.0, False

    def __call__(self, call: Callable[[], Any]) -> Any:
        """What `call` gives; None where it fails, or is not tried."""
        if time.monotonic() < self._until_s:
            return None
        try:
            answer = call()
        except Exception as error:  # beside its own errors, whatever its reader makes of strange bytes
            self._until_s = time.monotonic() + RETRY_S
            self._drop()  # half an answer may be on its way
            if not self.away:
                log.warning("Redis fails at %s, this process's cache stands in: %s", self._kind, ascii(one_line(error)))
            self.away = True
            return None
        if self.away:
            log.warning("Redis is back for %s", self._kind)
        self.away = False
        return answer


class SharedCache:
    """A cache of a `Predictor`, for one thread.

    Keys are `predictor.key`, with the digest of the model in it; values are the bytes of float32 scores, so that
    reading one runs nothing. A batch reads and writes in one round trip each. Reads and writes are given up apart:
    a Redis that is full still answers.
    """

    def __init__(self, url: str, local: PredictionCache) -> None:
        timeouts = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
        self._redis = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **timeouts)
        drop = self._redis.connection_pool.disconnect
        self._local, self._read, self._write = local, _Guarded("reading", drop), _Guarded("writing", drop)

    @property
    def away(self) -> bool:
        return self._read.away or self._write.away

    def get_many(self, keys: Sequence[bytes]) -> list[np.ndarray | None]:
        """The scores under each key, or None; those of this process where Redis does not answer."""
        values = self._read(lambda: self._values(keys))
        return self._local.get_many(keys) if values is None else [_scores(value) for value in values]

    def put_many(self, scores: Mapping[bytes, np.ndarray]) -> None:
        """Keep the scores in Redis, or in this process while Redis is away."""
        if self._write(lambda: self._set(scores)) is None:
            self._local.put_many(scores)

    def close(self) -> None:
        self._redis.close()

    def _values(self, keys: Sequence[bytes]) -> list[Any]:
        values = self._redis.mget([PREFIX + key for key in keys])
        if not isinstance(values, list) or len(values) != len(keys):
            raise redis.InvalidResponse(f"{len(keys)} values were asked for")
        return values

    def _set(self, scores: Mapping[bytes, np.ndarray]) -> bool:
        pipe = self._redis.pipeline(transaction=False)
        for key, part in scores.items():
            pipe.set(PREFIX + key, part.astype("<f4").tobytes(), ex=TTL_S)
        answers = pipe.execute(raise_on_error=False)  # an error that it raises itself holds the key
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return True


def _scores(value: Any) -> np.ndarray | None:
    """(N,) finite float32, read-only; None, a miss, for anything else: it is computed, and written over."""
    if not isinstance(value, bytes) or not value or len(value) % 4:
        return None
    scores = np.frombuffer(value, dtype="<f4")
    return scores if np.isfinite(scores).all() else None
