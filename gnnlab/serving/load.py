"""A client that measures a service: an event loop that is on time, connections, answers checked against the predictor.

    connection = Connection("http://127.0.0.1:8000")     # kept alive: HTTP/1.1 in few lines, as a library takes longer
    answer = await connection.ask("/predict", msgspec.json.encode(state))
    answer.status, answer.json                                          # than the service does

    client = Client(random_states(1000, (10, 10), seed=0), "hybrid")
    chosen = client.asked(single_stream, url, places)                   # checked against the predictor
    observed = client.observed(server, url, places)                     # latencies, and how late the client was

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

from gnnlab.errors import ParityError
from gnnlab.inference.predictor import Predictor
from gnnlab.profiling.sampling import quiet
from gnnlab.workloads.edge_allocator import MODEL_TYPES
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


class Connection:
    """Opened when it is first needed, and again after it broke; one request at a time."""

    def __init__(self, url: str, headers: str = "") -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port, self._headers = int(port), headers  # each ends with its line: "accept-encoding: gzip\r\n"
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, path: str, body: bytes | None) -> HttpAnswer:
        """The answer to a POST of a body of JSON, or to a GET where there is no body.

        Raises `OSError` or `asyncio.IncompleteReadError`: the connection broke.
        """
        try:
            if self._writer is None:
                self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
            method = "GET" if body is None else "POST"
            head = f"{method} {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
            body = body or b""
            self._writer.write(f"{head}{self._headers}content-length: {len(body)}\r\n\r\n".encode() + body)
            await self._writer.drain()
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            answer = HttpAnswer(int(head.split(maxsplit=2)[1]), head, b"")
            answer = answer._replace(body=await self._reader.readexactly(int(answer.header("content-length"))))
        except BaseException:  # half an answer may be on its way: nobody may take it for the next one
            self.close()
            raise
        if answer.header("connection") == "close":
            self.close()
        return answer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


T = TypeVar("T")
MOST_CONNECTIONS = 256  # of a client; who comes then waits, and that is part of the latency
REUSED_S = 10.0  # a connection that has been idle for longer is not used again
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


class Endpoint:
    """`await endpoint(body)` asks one path of a service, over as many connections as are needed at once."""

    def __init__(self, url: str, path: str, headers: str = "") -> None:
        self._url, self._path, self._headers = url, path, headers
        self._idle: list[tuple[float, Connection]] = []  # since when
        self._room = asyncio.Semaphore(MOST_CONNECTIONS)

    async def __call__(self, body: bytes | None) -> HttpAnswer:
        async with self._room:
            # the one that was used last, so that few are used; none that the service may have closed meanwhile
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


class Expected:
    """What the predictor says of each of `states`: scores to float32 rounding, and the best node of them."""

    def __init__(self, states: Sequence[State], kinds: Sequence[str] = MODEL_TYPES) -> None:
        self._states = states
        decisions = {kind: Predictor(kind, "cpu").predict_batch(states, return_scores=True) for kind in kinds}
        self._scores = {kind: [one.scores for one in ones] for kind, ones in decisions.items()}

    def holds(self, answer: dict[str, Any], kind: str, place: int, scores: bool = True) -> bool:
        """Whether an answer is the one of this model to the state at `place`, with or without the scores of all."""
        known, nodes = self._scores[kind][place], self._states[place]["nodes"]
        within = 1e-4 * max(1, np.abs(known).max())
        share = 1 / np.exp(known.astype(np.float64) - known.max()).sum()
        node, given = answer.get("node"), answer.get("scores")
        return (
            answer.get("model_type") == kind
            and node in range(len(known))
            and answer["node_id"] == nodes[node]["node_id"]
            and known[node] >= known.max() - within
            and abs(answer["score"] - known[node]) <= within
            and abs(answer["confidence"] - share) < 1e-3
            and (given is not None) == scores
            and (not scores or (len(given) == len(known) and bool((np.abs(given - known) <= within).all())))
        )


class Client:
    """Asks services for decisions on `states`, and checks each answer against the predictor's.

    `bodies` are the states as JSON, `path` is where they are posted.
    """

    def __init__(self, states: Sequence[State], model_type: str) -> None:
        self.bodies = [msgspec.json.encode(state) for state in states]
        self.path = f"/predict?model_type={model_type}"
        self._kind, self._expected = model_type, Expected(states, (model_type,))
        self._endpoints: dict[tuple[str, ...], Endpoint] = {}

    def asked(
        self, scenario: Callable[..., Coroutine[Any, Any, list[HttpAnswer]]], url: str, places: Sequence[int]
    ) -> np.ndarray:
        """(n,) the nodes that a service chose for the states at `places`, asked as the scenario does.

        Raises `ParityError`: an answer is an error, wrong, or that of another state.
        """
        answers = run(scenario(self._endpoint(url), [self.bodies[place] for place in places]))
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
        return run(scenario(self._endpoint(url, path, headers), bodies))

    def observed(
        self, scenario: Callable[..., Coroutine[Any, Any, list[Any]]], url: str, places: Sequence[int]
    ) -> Observed:
        """One run of a scenario that gives (latency ms, ms late, answer) of each request.

        Raises `ParityError`: an answer is neither right nor a refusal (503).
        """
        bodies = [self.bodies[place] for place in places]
        with quiet():
            latency_ms, late_ms, answers = zip(*run(scenario(self._endpoint(url), bodies)), strict=True)
        refused = np.array([answer.status == 503 for answer in answers])
        given = np.flatnonzero(~refused)
        self._checked([places[at] for at in given], [answers[at] for at in given])
        return Observed(np.where(refused, REFUSED_MS, latency_ms), np.array(late_ms))

    def is_right(self, answer: HttpAnswer, place: int) -> bool:
        """Whether an answer is the predictor's to the state at `place`."""
        return answer.status == 200 and self._expected.holds(answer.json, self._kind, place, scores=False)

    def close(self) -> None:
        """Let go of all connections."""
        for endpoint in self._endpoints.values():
            run(endpoint.close())

    def _endpoint(self, url: str, path: str = "", headers: str = "") -> Endpoint:
        key = (url, path or self.path, headers)
        return self._endpoints.setdefault(key, Endpoint(*key))

    def _checked(self, places: Sequence[int], answers: Sequence[HttpAnswer]) -> np.ndarray:
        for place, answer in zip(places, answers, strict=True):
            if not self.is_right(answer, place):
                raise ParityError(f"the answer to state {place} is not the predictor's: {answer.body[:200]!r}")
        return np.array([answer.json["node"] for answer in answers])
