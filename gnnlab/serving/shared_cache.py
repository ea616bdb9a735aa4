"""Scores that any worker on any host has computed, in Redis; while Redis is away, those of this process.

    cache = SharedCache("redis://127.0.0.1:6379/0", PredictionCache(1000, 300))
    Predictor("hybrid", cache=cache)

Keys are `prediction_cache.key`: dtype, shape and bytes of what the model reads, and the digest of the model. Values
are the bytes of float32 scores, so that reading one runs nothing. A batch reads and writes in one round trip each.
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

from gnnlab.errors import one_line
from gnnlab.inference.prediction_cache import PredictionCache

log = logging.getLogger("gnnlab.serving")
PREFIX = b"gnnlab:scores:"
TTL_S = 3600  # S2's
TIMEOUT_S = 0.1  # of one call
RETRY_S = 1.0  # how long Redis is left alone after a failure


class SharedCache:
    """A cache for `Predictor`, for one thread. `away`: whether Redis failed when it was last asked."""

    def __init__(self, url: str, local: PredictionCache) -> None:
        timeouts = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
        self._redis = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **timeouts)
        self._local, self._away_until_s, self.away = local, 0.0, False

    def get_many(self, keys: Sequence[bytes]) -> list[np.ndarray | None]:
        """The scores under each key, or None; those of this process where Redis does not answer."""
        values = self._asked(lambda: self._redis.mget([PREFIX + key for key in keys]))
        if values is None:
            return self._local.get_many(keys)
        # (N,) float32, read-only; a value that holds no such numbers is a miss
        return [None if v is None or len(v) % 4 else np.frombuffer(v, dtype="<f4") for v in values]

    def put_many(self, scores: Mapping[bytes, np.ndarray]) -> None:
        """Keep the scores in Redis, or in this process while Redis is away."""
        pipe = self._redis.pipeline(transaction=False)
        for key, part in scores.items():
            pipe.set(PREFIX + key, part.astype("<f4").tobytes(), ex=TTL_S)
        if self._asked(pipe.execute) is None:
            self._local.put_many(scores)

    def close(self) -> None:
        self._redis.close()

    def _asked(self, call: Callable[[], list[Any]]) -> list[Any] | None:
        """What Redis answers; None while it is away."""
        if time.monotonic() < self._away_until_s:
            return None
        try:
            answer = call()
        except (redis.RedisError, OSError) as error:
            self._away_until_s = time.monotonic() + RETRY_S
            if not self.away:
                log.warning("Redis is away, answers are cached in this process: %s", one_line(error))
            self.away = True
            return None
        if self.away:
            log.warning("Redis is back")
        self.away = False
        return answer
