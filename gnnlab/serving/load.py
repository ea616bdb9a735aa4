"""A client that measures a service: an event loop that is on time, connections, answers checked against the predictor.

    client = Client(random_states(1000, (10, 10), seed=0), "hybrid")
    chosen = client.asked(single_stream, url, places)                   # checked against the predictor
    observed = client.observed(server, url, places)                     # latencies, and how late the client was

    connection = Connection("http://127.0.0.1:8000")     # kept alive: HTTP/1.1 in few lines, as a library takes longer
    answer = await connection.ask("/predict", msgspec.json.encode(state))           # than the service does

The scenarios themselves (single stream, server, offline) are in notebook 10. One is a coroutine function of `ask`,
which sends a body and gives the answer, and of the bodies to send.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cache
from threading import Thread
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import psutil

from gnnlab.errors import ParityError
from gnnlab.inference.predictor import Predictor
from gnnlab.profiling.sampling import quiet
from gnnlab.workloads.edge_networks import State


class HttpAnswer(NamedTuple):
    """What came back: `headers` is the whole head in lower case."""

    status: int
    headers: str
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    def header(self, name: str) -> str:
        """The value of a header, "" where it is not there."""
        return self.headers.partition(f"\r\n{name}: ")[2].partition("\r\n")[0]


class Connection(asyncio.Protocol):
    """Opened when it is first needed, and again after it broke; one request at a time."""

    def __init__(self, url: str, headers: str = "") -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port, self._headers = int(port), headers  # each ends with its line: "accept-encoding: gzip\r\n"
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[HttpAnswer] | None = None

    async def ask(self, path: str, body: bytes | None) -> HttpAnswer:
        """The answer to a POST of a body of JSON, or to a GET where there is no body.

        Raises `OSError`: the connection broke.
        """
        loop = asyncio.get_running_loop()
        if self._transport is None:
            self._transport, _ = await loop.create_connection(lambda: self, self._host, self._port)
        self._answer, self._data = loop.create_future(), b""
        method, body = ("GET", b"") if body is None else ("POST", body)
        head = f"{method} {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        self._transport.write(f"{head}{self._headers}content-length: {len(body)}\r\n\r\n".encode() + body)
        try:
            answer = await self._answer
        except BaseException:  # half an answer may be on its way: nobody may take it for the next one
            self.close()
            raise
        if answer.header("connection") == "close":
            self.close()
        return answer

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        text = head.decode("latin-1").lower()
        answer = HttpAnswer(int(text[9:12]), text, body)  # after "http/1.1 "
        if len(body) >= int(answer.header("content-length")) and self._answer and not self._answer.done():
            self._answer.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError("the service closed the connection"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._transport = None


T = TypeVar("T")
REUSED_S = 10.0  # a connection that has been idle for longer is not used again
MOST_CONNECTIONS = 256  # of a client; who comes then waits, and that is part of the latency
REFUSED_MS = 1e4  # what a request that was refused counts as


class _MicrosecondSelector(selectors.DefaultSelector):
    """Waits as long as it is told: epoll alone rounds up to a millisecond, and every request would be that late."""

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is not None and timeout > 0 and hasattr(self, "fileno"):
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all clients, in a thread of its own: a notebook has one already."""
    loop = asyncio.SelectorEventLoop(_MicrosecondSelector())
    Thread(target=loop.run_forever, name="gnnlab-client", daemon=True).start()
    return loop


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, on the client's event loop."""
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


def processor_us(process: psutil.Process, work: Callable[[], Any], requests: int) -> float:
    """The processor time of a service, its workers included, for each of the requests of `work()`, in µs."""

    def spent_s() -> float:
        processes = [process, *process.children(recursive=True)]
        return sum(sum(one.cpu_times()[:2]) for one in processes)

    before_s = spent_s()
    work()
    return 1e6 * (spent_s() - before_s) / requests


class Endpoint:
    """`await endpoint(body)` asks one path of a service, over as many connections as are needed at once."""

    def __init__(self, url: str, path: str, headers: str = "") -> None:
        self._url, self._path, self._headers = url, path, headers
        self._idle: list[tuple[float, Connection]] = []  # since when
        self._room = asyncio.Semaphore(MOST_CONNECTIONS)

    async def __call__(self, body: bytes | None) -> HttpAnswer:
        async with self._room:
            # the one that was used last, so that few are used; none that the service may be closing just now
            fresh = self._idle and time.monotonic() - self._idle[-1][0] < REUSED_S
            connection = self._idle.pop()[1] if fresh else Connection(self._url, self._headers)
            answer = await connection.ask(self._path, body)
            self._idle.append((time.monotonic(), connection))
            return answer

    async def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()


@dataclass(frozen=True)
class Observed:
    """One run of open arrivals: latency from the intended start, and how late the client was to send."""

    latency_ms: np.ndarray  # (n,)
    late_ms: np.ndarray  # (n,)


class Client:
    """Asks services for decisions on `states`, and checks each answer against the predictor's.

    `bodies` are the states as JSON; `path` is where they are posted, unless a call names another.
    """

    def __init__(self, states: Sequence[State], model_type: str) -> None:
        self.bodies = [msgspec.json.encode(state) for state in states]
        self.path = f"/predict?model_type={model_type}"
        self._kind, self._states = model_type, states
        self._expected = Predictor(model_type, "cpu").predict_batch(states, return_scores=True)
        self._endpoints: dict[tuple[str, ...], Endpoint] = {}

    def asked(
        self, scenario: Callable[..., Coroutine[Any, Any, list[HttpAnswer]]], url: str, places: Sequence[int], path=""
    ) -> np.ndarray:
        """(n,) the nodes that a service chose for the states at `places`, asked as the scenario does.

        Raises `ParityError`: an answer is an error, wrong, or that of another state.
        """
        answers = self.unchecked(scenario, url, path or self.path, [self.bodies[place] for place in places])
        return self._checked(places, answers)

    def unchecked(
        self,
        scenario: Callable[..., Coroutine[Any, Any, T]],
        url: str,
        path: str,
        bodies: Sequence[bytes | None],
        headers: str = "",
    ) -> T:
        """What a scenario gives that asks anything else of a service; None is a request without a body, a GET."""
        key = (url, path, headers)
        return run(scenario(self._endpoints.setdefault(key, Endpoint(*key)), bodies))

    def observed(
        self, scenario: Callable[..., Coroutine[Any, Any, list[Any]]], url: str, places: Sequence[int], path=""
    ) -> Observed:
        """One run of a scenario that gives (latency ms, ms late, answer) of each request.

        Raises `ParityError`: an answer is neither right nor a refusal (503).
        """
        bodies = [self.bodies[place] for place in places]
        with quiet():
            seen = self.unchecked(scenario, url, path or self.path, bodies)
        latency_ms, late_ms, answers = zip(*seen, strict=True)
        refused = np.array([answer.status == 503 for answer in answers])
        given = np.flatnonzero(~refused)
        self._checked([places[at] for at in given], [answers[at] for at in given])
        return Observed(np.where(refused, REFUSED_MS, latency_ms), np.array(late_ms))

    def is_right(self, answer: HttpAnswer, place: int) -> bool:
        """Whether an answer is the predictor's to the state at `place`: its scores to float32 rounding, and the best
        node of them."""
        if answer.status != 200:
            return False
        given, expected = answer.json, self._expected[place]
        known, node, scores = expected.scores, given["node"], given.get("scores")
        scores = known if scores is None else scores  # asked for or not
        within = 1e-4 * max(1, np.abs(known).max())
        return (
            given["model_type"] == self._kind
            and node in range(len(known))
            and given["node_id"] == self._states[place]["nodes"][node]["node_id"]
            and known[node] >= known.max() - within
            and abs(given["score"] - known[node]) <= within
            and abs(given["confidence"] - expected.confidence) < 1e-3
            and len(scores) == len(known)
            and bool((np.abs(np.subtract(scores, known)) <= within).all())
        )

    def close(self) -> None:
        """Let go of all connections."""
        for endpoint in self._endpoints.values():
            run(endpoint.close())

    def _checked(self, places: Sequence[int], answers: Sequence[HttpAnswer]) -> np.ndarray:
        for place, answer in zip(places, answers, strict=True):
            if not self.is_right(answer, place):
                raise ParityError(f"the answer to state {place} is not the predictor's: {answer.body[:200]!r}")
        return np.array([answer.json["node"] for answer in answers])
