"""Settings of the service: from options of `gnnlab serve`, from variables GNNLAB_SERVE_..., or from Python.

settings = configure(port=0, workers=2, redis="redis://127.0.0.1:6379/0")
environment(settings)      # as variables for a process: no secret stands on a command line
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from redis.connection import parse_url
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from gnnlab.errors import GnnlabError, first_wrong, meant
from gnnswap.errors import quoted

PREFIX, NONE = "GNNLAB_SERVE_", "none"
DRIVERS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg"}
TLS = {f"ssl_{name}" for name in ("cert_reqs", "ca_certs", "ca_path", "certfile", "keyfile", "check_hostname")}
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class ServiceSettings(BaseSettings):
    """The settings of a service; the defaults of `max_batch` and `cache_ttl_s` are S2's."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, allow_inf_nan=False)

    # the loopback: whoever binds elsewhere puts a proxy with TLS and a login before it
    host: str = Field("127.0.0.1", pattern=r"^[^\s,]+$")
    hosts: str = Field("localhost,127.0.0.1,::1", min_length=1)  # names that requests may ask for, and `host`; *: any
    port: int = Field(8000, ge=0, le=65535)  # 0: any that is free
    workers: int = Field(1, ge=1, le=64)  # processes

    model_type: Literal["dqn", "ppo", "hybrid"] = "hybrid"  # what answers a request that names none
    max_batch: Count = 32  # networks of a pass
    max_body_bytes: int = Field(1 << 20, ge=1, le=1 << 30)
    max_waiting: Count = 1024  # lone states that wait; states of batches that wait, and of a /predict_batch
    deadline_s: float = Field(5.0, gt=0, le=600)  # of a request: from its head to its answer
    drain_s: float = Field(1.0, ge=0, le=600)  # after SIGTERM: not ready any more, and answers all the same

    cache_entries: int = Field(0, ge=0, le=1_000_000)  # of this process; worth it if most states repeat
    cache_ttl_s: float = Field(300.0, gt=0, le=86_400)
    redis: SecretStr = SecretStr(NONE)  # none, or redis://user:password@host:6379/0

    # none, sqlite:///FILE or postgresql://...; a decision of ten nodes is eleven rows, which take a third of the rate
    database: SecretStr = SecretStr(NONE)
    keep_days: float = Field(0, ge=0, le=36_500)  # rows that are older are deleted; 0: none is

    @property
    def host_names(self) -> frozenset[str]:
        """In lower case, without ports and brackets."""
        return frozenset(name.strip().strip("[]").lower() for name in (self.host, *self.hosts.split(",")))

    @property
    def redis_url(self) -> str | None:
        text = self.redis.get_secret_value()
        if text == NONE:
            return None
        with suppress(ValueError):
            options = parse_qs(urlsplit(text).query, keep_blank_values=True)
            if parse_url(text) and options.keys() <= (TLS if text.startswith("rediss:") else set()):
                return text  # an option that redis-py does not know fails at the first call, some change what it gives
        raise ValueError("redis: none, or a URL redis://HOST:PORT/NUMBER is needed, with no options but those of TLS")

    @property
    def database_url(self) -> URL | None:
        """With its driver."""
        text = self.database.get_secret_value()
        if text == NONE:
            return None
        with suppress(ArgumentError, ValueError, KeyError):  # what these say may hold a part of a password
            url = make_url(text)
            url = url.set(drivername=DRIVERS[url.drivername])
            if url.get_backend_name() == "sqlite":
                usable = url.database not in (None, "", ":memory:") and not url.query  # workers share no memory
            else:  # a password with a plain @ or / gives a strange host
                usable = re.fullmatch(r"[\w.:-]*", url.host or "") and _libpq_knows(url)
            if usable:
                return url
        raise ValueError(
            "database: none, sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME is needed, with signs of the "
            "password as %40 for @, and options that libpq knows"
        )

    @model_validator(mode="after")
    def _urls_are_valid(self) -> ServiceSettings:
        _ = self.redis_url, self.database_url
        return self


def _libpq_knows(url: URL) -> bool:
    """Whether all options of a URL are those of PostgreSQL's own library."""
    from psycopg import Error, conninfo  # loads that library

    with suppress(Error, TypeError):
        return bool(conninfo.make_conninfo("user=x", **url.query))
    return False


def configure(**given: Any) -> ServiceSettings:
    """Settings from `given`, then from the environment, then from the defaults.

    Raises `GnnlabError`: one of them is invalid, or unknown; the line names it, and no value of a secret.
    """
    known = {PREFIX + name.upper() for name in ServiceSettings.model_fields}
    for name in os.environ:
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            raise GnnlabError(f"{quoted(name)}: no setting of gnnlab serve{meant(name, known)}; see docs/serving.md")
    try:
        return ServiceSettings(**given)
    except ValidationError as error:
        name, wrong = first_wrong(error)  # no name: a URL, which names itself
        text = f"{name}: {quoted(error.errors()[0]['input'])} given, " if name else ""
        raise GnnlabError(f"{text}{wrong}; see gnnlab serve --help") from None


def environment(settings: ServiceSettings) -> dict[str, str]:
    """All settings as variables of a process, secrets in the clear."""
    values = {name: getattr(settings, name) for name in ServiceSettings.model_fields}
    plain = {name: v.get_secret_value() if isinstance(v, SecretStr) else v for name, v in values.items()}
    return {PREFIX + name.upper(): v if isinstance(v, str) else json.dumps(v) for name, v in plain.items()}
