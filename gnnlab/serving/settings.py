"""What a service is told: by `gnnlab serve`, by variables GNNLAB_SERVE_..., or by `made(...)`.

settings = made(port=0, batching="window", redis="redis://127.0.0.1:6379/0")
environment(settings)      # the same for a process of its own: no secret stands on a command line
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from redis.connection import parse_url
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from gnnlab.errors import GnnlabError, first_wrong, shown

PREFIX = "GNNLAB_SERVE_"
NONE = "none"
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Bytes = Annotated[int, Field(ge=0, le=1 << 30)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class ServiceSettings(BaseSettings):
    """The options of a service; those of `window_s`, `max_batch`, `gzip_from`, the pool and the caches are S2's."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, allow_inf_nan=False)

    host: str = "127.0.0.1"  # the loopback: whoever binds elsewhere puts a proxy with TLS and a login before it
    port: int = Field(8000, ge=0, le=65535)  # 0: any that is free
    workers: int = Field(1, ge=1, le=64)  # processes

    model_type: Literal["dqn", "ppo", "hybrid"] = "hybrid"  # what answers a request that names none
    engine: Literal["guide", "fast"] = "fast"  # guide: S2's one PyG pass a request
    threads: int = Field(1, ge=1, le=256)  # of torch, in each worker
    batching: Literal["none", "threads", "window", "free"] = "free"  # none: in the event loop, as S2's /predict;
    # threads: each request in one of a pool, as FastAPI runs what is no coroutine
    window_s: Seconds = 0.1
    max_batch: Count = 32  # networks of a pass

    max_body_bytes: Bytes = 1 << 20
    max_nodes: Count = 10_000  # of a network
    max_states: Count = 1000  # of a /predict_batch
    max_waiting: Count = 1024  # states that wait for one model; more are refused with 503
    max_requests: Count = 512  # in the service at once, bodies that are still coming included; more: 503
    deadline_s: Seconds = 10.0  # of a request, from its headers to its answer
    retry_after_s: int = Field(1, ge=1, le=3600)
    gzip_from: Bytes | None = 1000  # bytes of an answer; none: never
    shutdown_s: Seconds = 30.0  # for what was accepted

    cache: bool = True
    cache_entries: Count = 1000
    cache_ttl_s: Seconds = 300.0
    redis: SecretStr = SecretStr(NONE)  # none, or redis://user:password@host:6379/0
    redis_ttl_s: int = Field(3600, ge=1)
    redis_timeout_s: Seconds = 0.1
    redis_retry_s: Seconds = 1.0  # how long it is left alone after a failure

    database: SecretStr = SecretStr("sqlite:///outputs/serving.sqlite")  # none, sqlite:///FILE or postgresql://...
    pool_size: Count = 20
    pool_overflow: int = Field(40, ge=0, le=1000)
    record_nodes: bool = True  # the nodes of each network beside its decision
    max_unrecorded: Count = 10_000  # answers that wait for the database; more are lost to it, and counted
    database_timeout_s: Seconds = 10.0
    keep_days: float = Field(30.0, gt=0, le=36_500)

    otlp_endpoint: str = NONE  # none, or where spans go, as http://127.0.0.1:4318/v1/traces

    @field_validator("gzip_from", mode="before")
    @classmethod
    def _perhaps(cls, value: object) -> object:
        return None if value in (NONE, "null") else value

    @field_validator("redis")
    @classmethod
    def _redis_url(cls, value: SecretStr) -> SecretStr:
        text = value.get_secret_value()
        if text == NONE:
            return value
        with suppress(ValueError):
            if text.startswith(("redis://", "rediss://")) and parse_url(text) is not None:
                return value
        raise ValueError("none, or a URL redis://HOST:PORT/NUMBER is needed")

    @field_validator("database")
    @classmethod
    def _database_url(cls, value: SecretStr) -> SecretStr:
        _database(value.get_secret_value())
        return value

    @field_validator("otlp_endpoint")
    @classmethod
    def _endpoint(cls, value: str) -> str:
        if value != NONE and not value.startswith(("http://", "https://")):
            raise ValueError("none, or a URL http://HOST:4318/v1/traces is needed")
        return value

    @model_validator(mode="after")
    def _batches_fit(self) -> ServiceSettings:
        if self.max_states > self.max_waiting:
            raise ValueError(f"max_states {self.max_states} is above max_waiting {self.max_waiting}")
        return self

    @property
    def redis_url(self) -> str | None:
        text = self.redis.get_secret_value()
        return None if text == NONE else text

    @property
    def database_url(self) -> URL | None:
        """With the driver that speaks asynchronously."""
        return _database(self.database.get_secret_value())


def _database(text: str) -> URL | None:
    if text == NONE:
        return None
    try:
        url = make_url(text)
    except ArgumentError:
        raise ValueError("none, sqlite:///FILE or postgresql://USER@HOST/NAME is needed") from None
    kind = url.drivername.partition("+")[0]
    if kind not in DRIVERS or url.drivername not in (kind, DRIVERS[kind]):
        raise ValueError("none, sqlite:///FILE or postgresql://USER@HOST/NAME is needed")
    if DRIVERS[kind].startswith("sqlite") and url.database in (None, "", ":memory:"):
        raise ValueError("a file is needed, as in sqlite:///serving.sqlite; workers cannot share memory")
    return url.set(drivername=DRIVERS[kind])


def made(**given: Any) -> ServiceSettings:
    """Settings from what is given, then from the environment, then from the defaults.

    Raises `GnnlabError`: one of them is not what it has to be; the line names it, and no value of a secret.
    """
    try:
        return ServiceSettings(**given)
    except ValidationError as error:
        name, wrong = first_wrong(error)
        known = ServiceSettings.model_fields.get(name)
        secret = known is not None and known.annotation is SecretStr
        text = "" if secret else f" {shown(error.errors()[0]['input'])} given,"
        raise GnnlabError(f"{name or 'settings'}:{text} {wrong}; see gnnlab serve --help") from None


def plain(settings: ServiceSettings) -> dict[str, Any]:
    """The settings by their names, every one of them, secrets in the clear: for a process of one's own."""
    values = {name: getattr(settings, name) for name in ServiceSettings.model_fields}
    return {n: v.get_secret_value() if isinstance(v, SecretStr) else v for n, v in values.items()}


def environment(settings: ServiceSettings) -> dict[str, str]:
    """The same as variables of a process."""
    return {PREFIX + n.upper(): v if isinstance(v, str) else json.dumps(v) for n, v in plain(settings).items()}
