"""What a client that measures a service needs beside its scenario: an event loop that is on time, connections, checks.

    connection = Connection("http://127.0.0.1:8000")     # kept alive: HTTP/1.1 in few lines, as a library takes longer
    answer = await connection.post("/predict", orjson.dumps(state))
    answer.status, answer.json                                          # than the service does

    client = Client(random_states(1000, (10, 10), seed=0), "hybrid")
    chosen = client.asked(single_stream, url, places)                   # checked against the predictor
    seen = client.observed(server, url, places, pid)                    # latencies, and what the client itself took

The scenarios themselves (single stream, server, offline) stand in notebook 10. One is a coroutine function of `ask`,
which posts a body and gives the answer, and of the bodies to be asked.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import time
import urllib.request
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cache
from threading import Thread
from typing import Any, NamedTuple, TypeVar

import numpy as np
import orjson
import psutil
from prometheus_client.parser import text_string_to_metric_families

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
        return orjson.loads(self.body)

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

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    async def post(self, path: str, body: bytes, length: int | None = None) -> HttpAnswer:
        """The answer to a body of JSON; `OSError` or `asyncio.IncompleteReadError` where the connection breaks.

        `length` is what the request says of its body, where that is to be untrue.
        """
        return await self._answered(self.send(path, body, length))

    async def get(self, path: str) -> HttpAnswer:
        """The same of a request without a body."""
        return await self._answered(self.send(path, b"", method="GET"))

    async def _answered(self, sent: Awaitable[None]) -> HttpAnswer:
        try:
            await sent
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            answer = HttpAnswer(int(head.split(maxsplit=2)[1]), head, b"")
            answer = answer._replace(body=await self._reader.readexactly(int(answer.header("content-length"))))
        except BaseException:  # half an answer may be on its way: nobody may take it for the next one
            self.close()
            raise
        if answer.header("connection") == "close":
            self.close()
        return answer

    async def send(self, path: str, body: bytes, length: int | None = None, method: str = "POST") -> None:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        head = f"{method} {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n{self._headers}"
        self._writer.write(f"{head}content-length: {length or len(body)}\r\n\r\n".encode() + body)
        await self._writer.drain()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


T = TypeVar("T")
MOST_CONNECTIONS = 256  # of a client; who comes then waits, and that is part of the latency
KEPT_S = 10.0  # a connection that nobody used for longer is not used again
REFUSED_MS = 1e4  # what a request that was refused counts as


class _ToTheMicrosecond(selectors.DefaultSelector):
    """Waits as long as it is told: epoll alone rounds up to a millisecond, and every request would be that late."""

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is not None and timeout > 0 and hasattr(self, "fileno"):
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all clients, in a thread of its own: a notebook has one already."""
    loop = asyncio.SelectorEventLoop(_ToTheMicrosecond())
    Thread(target=loop.run_forever, name="gnnlab-client", daemon=True).start()
    return loop


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, on the client's event loop."""
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


class Endpoint:
    """`await endpoint(body)` posts to one path of a service, or gets it where there is no body, over as many
    connections as are needed at once."""

    def __init__(self, url: str, path: str, headers: str = "") -> None:
        self._url, self._path, self._headers = url, path, headers
        self._idle: list[tuple[float, Connection]] = []  # since when
        self._room = asyncio.Semaphore(MOST_CONNECTIONS)

    async def __call__(self, body: bytes | None) -> HttpAnswer:
        async with self._room:
            # the one that was used last, so that few are used; none that the service may have closed meanwhile
            fresh = self._idle and time.monotonic() - self._idle[-1][0] < KEPT_S
            connection = self._idle.pop()[1] if fresh else Connection(self._url, self._headers)
            answer = await (connection.get(self._path) if body is None else connection.post(self._path, body))
            self._idle.append((time.monotonic(), connection))
            return answer

    async def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()


@dataclass(frozen=True)
class Observed:
    """What came of one run of open arrivals: latency from the intended start, and how late the client was to send."""

    latency_ms: np.ndarray  # (n,)
    late_ms: np.ndarray  # (n,)
    client: float  # cores that the client took
    service: float  # and the service


class Expected:
    """What the predictor says of each of `states`: scores to float32 rounding, and the best node of them."""

    def __init__(self, states: Sequence[State], kinds: Sequence[str] = MODEL_TYPES) -> None:
        self._states = states
        found = {kind: Predictor(kind, "cpu").predict_batch(states, return_scores=True) for kind in kinds}
        self._scores = {kind: [one.scores for one in decisions] for kind, decisions in found.items()}

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
    """Asks services for decisions on `states`, and holds each answer to what the predictor says of the same state."""

    def __init__(self, states: Sequence[State], model_type: str) -> None:
        self.bodies = [orjson.dumps(state) for state in states]
        self._kind, self._expected = model_type, Expected(states, (model_type,))
        self._endpoints: dict[tuple[str, ...], Endpoint] = {}

    def asked(
        self, scenario: Callable[..., Coroutine[Any, Any, list[HttpAnswer]]], url: str, places: Sequence[int]
    ) -> Any:
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
        self, scenario: Callable[..., Coroutine[Any, Any, list[Any]]], url: str, places: Sequence[int], pid: int
    ) -> Observed:
        """One run of a scenario that gives (latency ms, ms late, answer) of each request; `pid` is the service's.

        Raises `ParityError`: an answer is neither right nor a refusal (503).
        """
        service = psutil.Process(pid)
        bodies = [self.bodies[place] for place in places]
        with quiet():
            before = time.process_time(), _cpu_s(service), time.perf_counter()
            seen = run(scenario(self._endpoint(url), bodies))
            after = time.process_time(), _cpu_s(service), time.perf_counter()
        client_s, service_s, seconds = (end - start for start, end in zip(before, after, strict=True))
        latency_ms, late_ms, answers = zip(*seen, strict=True)
        refused = np.array([answer.status == 503 for answer in answers])
        kept = [at for at, gone in enumerate(refused) if not gone]
        self._checked([places[at] for at in kept], [answers[at] for at in kept])
        latencies = np.where(refused, REFUSED_MS, latency_ms)
        return Observed(latencies, np.array(late_ms), client_s / seconds, service_s / seconds)

    def hit_rate(self, url: str) -> Callable[[], float]:
        """A function that gives the share of look-ups, from now until it is called, that the service's cache knew."""
        before = [_counted(url, result) for result in ("hit", "miss")]

        def share() -> float:
            hit, miss = (_counted(url, r) - b for r, b in zip(("hit", "miss"), before, strict=True))
            return hit / max(hit + miss, 1)

        return share

    def close(self) -> None:
        """Let go of all connections."""
        for endpoint in self._endpoints.values():
            run(endpoint.close())

    def _endpoint(self, url: str, path: str = "", headers: str = "") -> Endpoint:
        key = (url, path or f"/predict?model_type={self._kind}", headers)
        return self._endpoints.setdefault(key, Endpoint(*key))

    def _checked(self, places: Sequence[int], answers: Sequence[HttpAnswer]) -> np.ndarray:
        found = [answer.json for answer in answers]
        for place, answer, one in zip(places, answers, found, strict=True):
            if answer.status != 200 or not self._expected.holds(one, self._kind, place, scores=False):
                raise ParityError(f"the answer to state {place} is not the predictor's: {answer.body[:200]!r}")
        return np.array([one["node"] for one in found])


def _cpu_s(process: psutil.Process) -> float:
    """Of a process and its workers, to a hundredth of a second."""
    return sum(own.user + own.system for own in (one.cpu_times() for one in (process, *process.children())))


def _counted(url: str, result: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=20) as page:
        families = text_string_to_metric_families(page.read().decode())
    wanted = ("cache_requests_total", {"result": result})
    return sum(s.value for family in families for s in family.samples if (s.name, s.labels) == wanted)
