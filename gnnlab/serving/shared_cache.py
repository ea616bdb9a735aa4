"""Scores that any worker on any host has computed, in Redis; while Redis is away, those of this process.

    cache = SharedCache("redis://127.0.0.1:6379/0", PredictionCache(1000, 300))
    Predictor("hybrid", cache=cache)

Keys are those of `PredictionCache`: dtype, shape and bytes of what the model reads, and the digest of the model. Values
are the bytes of float32 scores, so that reading one runs nothing. A batch reads and writes in one round trip each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

import numpy as np
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from gnnlab.errors import one_line
from gnnlab.inference.prediction_cache import PredictionCache

log = logging.getLogger("gnnlab.serving")
PREFIX = b"gnnlab:scores:"
TTL_S = 3600  # S2's
TIMEOUT_S = 0.1  # of one call
RETRY_S = 1.0  # how long Redis is left alone after a failure


class SharedCache:
    """A cache for `Predictor`, for one thread. `away`: whether Redis failed when it was last asked.

    `hits` and `misses` are counted, those of `local` among them.
    """

    key = staticmethod(PredictionCache.key)

    def __init__(self, url: str, local: PredictionCache) -> None:
        timeouts = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
        self._redis = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **timeouts)
        self._local, self._away_until = local, 0.0
        self.away = False
        self.hits = self.misses = 0

    def get_many(self, keys: Sequence[bytes]) -> list[np.ndarray | None]:
        """The scores under each key, or None; those of this process where Redis does not answer."""
        scores = self._stored(keys)
        hits = sum(one is not None for one in scores)
        self.hits, self.misses = self.hits + hits, self.misses + len(keys) - hits
        return scores

    def _stored(self, keys: Sequence[bytes]) -> list[np.ndarray | None]:
        if time.monotonic() >= self._away_until:
            try:
                values = self._redis.mget([PREFIX + key for key in keys])
            except (redis.RedisError, OSError) as error:
                self._failed(error)
            else:
                if self.away:
                    log.warning("Redis is back")
                self.away = False
                return [_scores(value) for value in values]
        return self._local.get_many(keys)

    def put_many(self, scores: Mapping[bytes, np.ndarray]) -> None:
        """Keep the scores in Redis, or in this process while Redis is away."""
        if not self.away:
            pipe = self._redis.pipeline(transaction=False)
            for key, part in scores.items():
                pipe.set(PREFIX + key, part.astype("<f4").tobytes(), ex=TTL_S)
            try:
                pipe.execute()
                return
            except (redis.RedisError, OSError) as error:
                self._failed(error)
        self._local.put_many(scores)

    def close(self) -> None:
        self._redis.close()

    def _failed(self, error: Exception) -> None:
        self._away_until = time.monotonic() + RETRY_S
        if not self.away:
            log.warning("Redis is away, answers are cached in this process: %s", one_line(error))
        self.away = True


def _scores(value: bytes | None) -> np.ndarray | None:
    """(N,) float32, read-only; None for a value that holds no such numbers."""
    return None if value is None or len(value) % 4 else np.frombuffer(value, dtype="<f4")
