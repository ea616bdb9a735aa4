"""Scores that any worker on any host has computed, in Redis; without Redis for a while, those of this process.

    cache = SharedCache("redis://127.0.0.1:6379/0", PredictionCache(1000, 300))
    Predictor("hybrid", cache=cache)

Keys are those of `PredictionCache`: dtype, shape and bytes of what the model reads, and the digest of the model. Values
are msgpack of a dtype and bytes, so that reading one runs nothing; what cannot be read is a miss. A batch asks for all
its keys in one round trip; what is new is written by a thread, behind the answers. Redis that is slow or gone is left
alone for `retry_s`, and everything is answered all the same.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence

import msgpack
import numpy as np
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from gnnlab.errors import one_line
from gnnlab.inference.prediction_cache import PredictionCache

log = logging.getLogger("gnnlab.serving")
PREFIX = b"gnnlab:scores:"
MOST_UNWRITTEN = 256  # batches


class SharedCache:
    """A cache for `Predictor`, safe to share among threads. `close` ends its thread.

    `timeout_s` bounds one call of Redis, `ttl_s` is how long it keeps a value.
    """

    key = staticmethod(PredictionCache.key)

    def __init__(
        self, url: str, local: PredictionCache, *, ttl_s: int = 3600, timeout_s: float = 0.1, retry_s: float = 1.0
    ) -> None:
        self._redis = redis.Redis.from_url(
            url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
        )
        self._local, self._ttl_s, self._retry_s = local, ttl_s, retry_s
        self._away_until = 0.0
        self._away = False
        self._unwritten: queue.Queue[Mapping[bytes, np.ndarray] | None] = queue.Queue(MOST_UNWRITTEN)
        self._writer = threading.Thread(target=self._write, name="gnnlab-redis", daemon=True)
        self._writer.start()

    @property
    def away(self) -> bool:
        """Whether Redis failed when it was last asked."""
        return self._away

    def get_many(self, keys: Sequence[bytes]) -> list[np.ndarray | None]:
        """The scores under each key, or None; of this process where Redis does not answer."""
        if time.monotonic() >= self._away_until:
            try:
                found = self._redis.mget([PREFIX + key for key in keys])
            except (redis.RedisError, OSError) as error:
                self._failed(error)
            else:
                if self._away:
                    log.warning("Redis is back")
                self._away = False
                return [_scores(value) for value in found]
        return self._local.get_many(keys)

    def put_many(self, scores: Mapping[bytes, np.ndarray]) -> None:
        """Keep the scores in this process while Redis is away, else have them written; never waits."""
        if self._away:
            self._local.put_many(scores)
            return
        try:
            self._unwritten.put_nowait({key: part.copy() for key, part in scores.items()})
        except queue.Full:
            self._local.put_many(scores)

    def close(self) -> None:
        """Write what is there, if Redis takes it, and let go of it."""
        self._unwritten.put(None)
        self._writer.join()
        self._redis.close()

    def _write(self) -> None:
        while (scores := self._unwritten.get()) is not None:
            if time.monotonic() < self._away_until:
                self._local.put_many(scores)
                continue
            try:
                pipe = self._redis.pipeline(transaction=False)
                for key, part in scores.items():
                    pipe.set(PREFIX + key, msgpack.packb([part.dtype.str, part.tobytes()]), ex=self._ttl_s)
                pipe.execute()
            except (redis.RedisError, OSError) as error:
                self._failed(error)
                self._local.put_many(scores)

    def _failed(self, error: Exception) -> None:
        self._away_until = time.monotonic() + self._retry_s
        if not self._away:
            log.warning("Redis is away, answers are cached in this process: %s", one_line(error))
        self._away = True


def _scores(value: bytes | None) -> np.ndarray | None:
    """(N,) float32, read-only; None for what is no such value."""
    if value is None:
        return None
    try:
        kind, data = msgpack.unpackb(value)
        return np.frombuffer(data, dtype="<f4") if kind == "<f4" else None
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
