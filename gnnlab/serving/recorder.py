"""Decisions written to the database behind the answers: none is lost without being counted.

    recorder = Recorder(settings.database_url, metrics, versions={"hybrid": "1f09..."})
    recorder.start()
    recorder.record("hybrid", check(state), decision)
    await recorder.stop()

Each decision that was recorded is stored, lost or pending: it waits in a queue that is bounded by bytes, or is on its
way to the database. Decisions that find the queue full, or that the database refuses, are lost. No answer waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL

from gnnlab.inference.predictor import Decision
from gnnlab.inference.states import CheckedState, Node, node_features
from gnnlab.serving.database import (
    LIMIT_S,
    MOST_ID,
    TIME,
    delete_before,
    engine_of,
    metadata,
    network_metrics,
    predictions,
)
from gnnswap.errors import one_line

log = logging.getLogger("gnnlab.serving")
MOST_BYTES = 64 << 20  # of decisions that wait
BATCH, BATCH_BYTES = 100, 4 << 20  # decisions of a transaction, and what they hold in memory
ROWS = 500  # of a statement; SQLite takes 32,766 values in one
EVERY_S, RETRY_S, CUT_S, STOP_S = 0.2, 1.0, LIMIT_S + 2.0, 20.0
DELETE_EVERY_S = 3600.0
CREATE_TRIES = 5  # workers that start together get in each other's way
Queued = tuple[int, datetime, str, tuple[Node, ...], tuple[str, int, float, float]]  # bytes, time, model, ...


class Recorder:
    """Writes decisions in bulk; `record` never waits and never fails.

    It writes in a thread of its own; `start` and `stop` belong into an event loop. `metrics` has counters `recorded`
    and `unrecorded`. `away`: whether the database failed when it was last used, or has not
    answered for longer than `CUT_S`, after which its connection is cut. `since_s`: seconds since it last succeeded.
    `keep_days`: rows that are older are deleted at the start and once an hour; 0: none is.
    """

    def __init__(self, url: URL, metrics: Any, versions: Mapping[str, str], keep_days: float = 0) -> None:
        self._engine, self._metrics, self._versions, self._keep_days = engine_of(url), metrics, versions, keep_days
        self._file = Path(url.database) if url.get_backend_name() == "sqlite" else None
        self._queue: deque[Queued] = deque()
        self._lock = threading.Lock()  # of the queue and of these counts
        self._bytes = self.asked = self.stored = self.lost = 0
        self.away = self._created = False
        self._ok_s = self._delete_at_s = time.monotonic()
        self._busy_s = math.inf  # since when the thread uses the database
        self._ending = threading.Event()
        self._connection: Any = None  # the driver's
        sa.event.listen(self._engine, "connect", self._connected)
        self._time = TIME.dialect_impl(self._engine.dialect).bind_processor(self._engine.dialect) or (lambda time: time)

    @property
    def since_s(self) -> float:
        return time.monotonic() - self._ok_s

    @property
    def pending(self) -> int:
        return self.asked - self.stored - self.lost

    def record(self, model_type: str, state: CheckedState, decision: Decision) -> None:
        """A decision and the network that it was about."""
        held = 1000 + 500 * len(state.nodes) + sum(map(len, state.node_ids))  # bytes, about
        with self._lock:
            self.asked += 1
            room = self._bytes + held <= MOST_BYTES
            if room:
                self._bytes += held
                self._queue.append((held, datetime.now(UTC), model_type, state.nodes, decision[:4]))
        if not room:
            self._count(lost=1)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="gnnlab-recorder", daemon=True)
        self._thread.start()
        self._watch()

    async def stop(self) -> None:
        """Write what is queued, unless the database is away, and say what became of all."""
        self._ending.set()
        await asyncio.to_thread(self._thread.join, STOP_S)
        with self._lock:
            left = len(self._queue)
            self._queue.clear()
        self._count(lost=left)
        level = logging.WARNING if self.lost or self.pending else logging.INFO
        counts = (self.asked, self.stored, self.lost, self.pending)
        log.log(level, "decisions for the database: %d, %d stored, %d lost, %d pending", *counts)
        if not self._thread.is_alive():
            self._engine.dispose()

    def _count(self, stored: int = 0, lost: int = 0) -> None:
        with self._lock:
            self.stored, self.lost = self.stored + stored, self.lost + lost
        self._metrics.recorded.inc(stored)
        self._metrics.unrecorded.inc(lost)

    def _watch(self) -> None:
        """Each second: a connection that hangs is shut, so that the call of the thread fails."""
        if time.monotonic() - self._busy_s > CUT_S:
            if not self.away:
                log.warning("the database is away: it has not answered for %g s", CUT_S)
            self.away = True
            with suppress(Exception):  # SQLite has no socket, and its lock a limit; or it is lost already
                shared = socket.socket(fileno=os.dup(self._connection.fileno()))
                shared.shutdown(socket.SHUT_RDWR)
                shared.close()
        if self._thread.is_alive():
            asyncio.get_running_loop().call_later(1, self._watch)

    # ---- in the thread

    def _run(self) -> None:
        while (self._queue or not self._ending.is_set()) and not (self._ending.is_set() and self.away):
            if self._guarded(self._prepare) and self._queue:
                batch = self._taken()
                written = self._guarded(self._write, batch)
                with self._lock:
                    self._bytes -= sum(held for held, *_ in batch)
                self._count(**{"stored" if written else "lost": len(batch)})
            if len(self._queue) < BATCH or self.away:
                self._ending.wait(RETRY_S if self.away else EVERY_S)  # others may come

    def _guarded(self, step: Any, *given: Any) -> bool:
        """Whether a step succeeded; one that gives True shows that the database is here."""
        self._busy_s = time.monotonic()
        try:
            here = step(*given)
        except Exception as error:  # drivers raise what they like; the service goes on
            if not self.away:
                log.warning("the database is away, decisions wait and are then lost to it: %s", one_line(error))
            self.away = True
            return False
        finally:
            self._busy_s = math.inf
        if here and self.away:
            log.warning("the database is back")
        if here:
            self.away, self._ok_s = False, time.monotonic()
        return True

    def _connected(self, connection: Any, _: Any) -> None:
        self._connection, self._inode = connection, self._file and self._file.stat().st_ino

    def _prepare(self) -> bool:
        """Tables are there, in the file of that name, and can be written; old rows are deleted."""
        asked = self.away or not self._created
        if self._created and self._file and not self._same_file():
            log.warning("the database's file is gone or another; what was stored in it is not here any more")
            self._engine.dispose()
            self._created = False
        if self._created and self.away:  # no batch is lost to find out that it still fails
            with self._engine.begin() as connection:
                connection.execute(sa.delete(predictions).where(sa.false()))
        elif not self._created:
            for place in range(CREATE_TRIES):
                try:
                    metadata.create_all(self._engine)
                    break
                except sa.exc.DBAPIError:
                    if self.away or place == CREATE_TRIES - 1 or self._ending.wait(0.1):
                        raise
            self._created = True
        due = self._keep_days and time.monotonic() >= self._delete_at_s
        if due and not delete_before(self._engine, datetime.now(UTC) - timedelta(days=self._keep_days)):
            self._delete_at_s = time.monotonic() + DELETE_EVERY_S
        return asked and not self._queue  # else the next batch tells

    def _same_file(self) -> bool:
        with suppress(OSError):
            return self._file.stat().st_ino == self._inode
        return False

    def _taken(self) -> list[Queued]:
        batch, held = [], 0
        with self._lock:
            while self._queue and len(batch) < BATCH and held < BATCH_BYTES:
                batch.append(self._queue.popleft())
                held += batch[-1][0]
        return batch

    def _write(self, batch: Sequence[Queued]) -> bool:
        decided: list[tuple] = []  # values in the order of the columns, without `id`
        reported: list[tuple] = []
        for _, moment, kind, nodes, (node_id, node, score, confidence) in batch:
            at = self._time(moment)
            decided.append((at, kind, self._versions[kind], len(nodes), _storable(node_id), node, score, confidence))
            reported += [(_storable(one.node_id), at, *node_features(one)) for one in nodes]
        with self._engine.begin() as connection:  # all rows of both tables, or none
            for table, rows in ((predictions, decided), (network_metrics, reported)):
                for at in range(0, len(rows), ROWS):
                    some = rows[at : at + ROWS]
                    values = tuple(chain.from_iterable(some))
                    connection.exec_driver_sql(_insert(table, len(some), self._engine.dialect), values)
        return True


@lru_cache(maxsize=64)
def _insert(table: sa.Table, rows: int, dialect: sa.Dialect) -> str:
    """The statement of so many rows as the driver takes it. One statement of many rows holds the interpreter's lock
    once; SQLAlchemy's own work on each row takes longer than the insert."""
    columns = [column.name for column in table.columns if column.name != "id"]
    text = str(sa.insert(table).inline().values(dict.fromkeys(columns)).compile(dialect=dialect))
    head, row = text.rsplit(" VALUES ", 1)
    return f"{head} VALUES {', '.join([row] * rows)}"


def _storable(node_id: str) -> str:
    """As much of an id as a database takes: PostgreSQL has no NUL."""
    return node_id[:MOST_ID].replace("\0", "\N{REPLACEMENT CHARACTER}")
