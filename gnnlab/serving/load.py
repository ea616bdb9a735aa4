"""A client that measures a service: on time, with each answer checked against the predictor.

    client = Client(random_states(1000, (10, 10), seed=0), "hybrid")
    url = "http://127.0.0.1:8000/predict?model_type=hybrid"
    nodes = client.decided(closed_loop, url, places)                        # raises where an answer is wrong
    latency_ms, late_ms = client.at_rate(url, 5, rate=400, seed=0)           # and how late the client itself was
    runs = over_rates(lambda name, rate, seed: ..., {"fast": [400, 800]}, rounds=6)
    max_throughput(runs, slo_ms=20)                                         # requests/s

A scenario is a coroutine function of `ask`, which sends a body and gives the answer, and of the bodies to send.
"""

from __future__ import annotations

import asyncio
import gzip
import math
import select
import selectors
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache, partial
from operator import itemgetter
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import numpy as np
import pandas as pd

from gnnlab.errors import ParityError
from gnnlab.inference.predictor import Predictor
from gnnlab.workloads.edge_networks import State
from gnnswap.cost import quiet

Scenario = Callable[..., Coroutine[Any, Any, Any]]
Ask = Callable[[Any], Coroutine[Any, Any, Any]]
Latencies = tuple[np.ndarray, np.ndarray]  # of each request from its intended start, and how late it was sent, in ms
REUSED_S = 10.0  # a connection that was idle for longer is not used again: the service may be closing it
MOST_CONNECTIONS = 256  # of a client; further requests wait, and the wait is part of their latency
REFUSED_MS = 1e4  # latency of a request that was refused


class HttpAnswer(NamedTuple):
    """What came back; the head in lower case."""

    status: int
    head: bytes
    body: bytes

    @property
    def json(self) -> Any:
        packed = b"\ncontent-encoding: gzip" in self.head
        return msgspec.json.decode(gzip.decompress(self.body) if packed else self.body)


class Connection(asyncio.Protocol):
    """A kept-alive HTTP/1.1 connection, one request at a time, opened when it is needed and again after it broke.

    Written by hand: HTTP libraries take longer for a request than the service does.
    """

    def __init__(self, url: str, headers: str = "") -> None:
        parts = urlsplit(url)
        self._host, self._port, self._path = parts.hostname, parts.port, f"{parts.path}?{parts.query}"
        self._headers = headers  # each ends with its line: "accept-encoding: gzip\r\n"
        self._transport: asyncio.Transport | None = None
        self.used_s = -math.inf

    async def ask(self, body: bytes | None) -> HttpAnswer:
        """The answer to a POST of a body of JSON, or to a GET where there is no body.

        Raises `OSError`: the connection broke.
        """
        loop = asyncio.get_running_loop()
        if self._transport is None:
            self._transport, _ = await loop.create_connection(lambda: self, self._host, self._port)
        self._answer, self._data = loop.create_future(), b""
        method, body = ("GET", b"") if body is None else ("POST", body)
        head = f"{method} {self._path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        self._transport.write(f"{head}{self._headers}content-length: {len(body)}\r\n\r\n".encode() + body)
        try:
            answer = await self._answer
        except BaseException:  # half an answer may be on its way: nobody may take it for the next one
            self.close()
            raise
        self.used_s = time.monotonic()
        return answer

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        head = head.lower()
        length = head.partition(b"\ncontent-length: ")[2].partition(b"\r")[0]
        if end and len(body) >= int(length) and not self._answer.done():
            self._answer.set_result(HttpAnswer(int(head[9:12]), head, body))  # after "http/1.1 "

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if not self._answer.done():
            self._answer.set_exception(ConnectionResetError("the service closed the connection"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._transport = None


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


def run(work: Scenario, *given: Any) -> Any:
    """What `work`, a coroutine function, gives on the client's event loop."""
    return asyncio.run_coroutine_threadsafe(work(*given), _loop()).result()


async def closed_loop(ask: Ask, bodies: Sequence[Any], callers: int = 32) -> list[Any]:
    """The answers, in the order of the bodies: each caller asks for the next when it has its answer."""

    async def caller() -> list[tuple[int, Any]]:
        return [(place, await ask(body)) for place, body in waiting]

    waiting = enumerate(bodies)
    parts = await asyncio.gather(*(caller() for _ in range(callers)))
    return [answer for _, answer in sorted((pair for part in parts for pair in part), key=itemgetter(0))]


async def open_arrivals(ask: Ask, bodies: Sequence[Any], due_s: np.ndarray) -> list[tuple[float, Any, float]]:
    """(s late, answer, latency in s) of each request, sent when it is due, whether or not earlier ones are answered.

    `due_s` (n,) counts from now, ascending. Latency counts from the moment when a request was due.
    """

    async def one(due: float, body: Any) -> tuple[float, Any, float]:
        return loop.time() - due, await ask(body), loop.time() - due

    loop, tasks = asyncio.get_running_loop(), []
    for due, body in zip(loop.time() + due_s, bodies, strict=True):
        await asyncio.sleep(due - loop.time())
        tasks.append(asyncio.create_task(one(due, body)))
    return await asyncio.gather(*tasks)


class Client:
    """Asks services for decisions on `states` (`bodies` as JSON), and compares each answer with the predictor's."""

    def __init__(self, states: Sequence[State], model_type: str) -> None:
        self.bodies = [msgspec.json.encode(state) for state in states]
        self._kind, self._states = model_type, states
        self._expected = Predictor(model_type, "cpu").predict_batch(states, return_scores=True)
        self._idle: dict[tuple[str, str], list[Connection]] = {}
        self._room = asyncio.Semaphore(MOST_CONNECTIONS)

    def run(self, scenario: Scenario, url: str, bodies: Sequence[bytes | None], headers: str = "") -> list[Any]:
        """What a scenario gives that asks a URL; None is a request without a body, a GET."""
        idle = self._idle.setdefault((url, headers), [])

        async def ask(body: bytes | None) -> HttpAnswer:
            async with self._room:
                # the one used last, so that few are open
                fresh = idle and time.monotonic() - idle[-1].used_s < REUSED_S
                connection = idle.pop() if fresh else Connection(url, headers)
                answer = await connection.ask(body)
                idle.append(connection)
                return answer

        return run(scenario, ask, bodies)

    def decided(self, scenario: Scenario, url: str, places: Sequence[int]) -> np.ndarray:
        """(n,) the nodes that a service chose for the states at `places`, asked as the scenario does.

        Raises `ParityError`: an answer is an error, wrong, or that of another state.
        """
        return self._checked(places, self.run(scenario, url, [self.bodies[place] for place in places]))

    def at_rate(self, url: str, run_s: float, rate: float, seed: int) -> Latencies:
        """Open arrivals for `run_s` seconds, by a Poisson process of `rate` requests/s; eight requests at least."""
        due_s = np.random.default_rng(seed).exponential(1 / rate, max(8, round(rate * run_s))).cumsum()
        return self.observed(partial(open_arrivals, due_s=due_s), url, np.arange(len(due_s)) % len(self.bodies))

    def observed(self, scenario: Scenario, url: str, places: Sequence[int]) -> Latencies:
        """The latencies of a scenario that gives what `open_arrivals` does; a refusal (503) counts as `REFUSED_MS`.

        Raises `ParityError`: an answer is neither right nor a refusal.
        """
        with quiet():
            seen = self.run(scenario, url, [self.bodies[place] for place in places])
        late_s, answers, latency_s = zip(*seen, strict=True)
        refused = np.array([answer.status == 503 for answer in answers])
        given = np.flatnonzero(~refused)
        self._checked([places[at] for at in given], [answers[at] for at in given])
        return np.where(refused, REFUSED_MS, 1e3 * np.array(latency_s)), 1e3 * np.array(late_s)

    def is_right(self, answer: HttpAnswer, place: int) -> bool:
        """Whether an answer is the predictor's for the state at `place`: a best node, and the scores to rounding."""
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
            and abs(given["confidence"] - expected.confidence) < 1e-3
            and len(scores) == len(known)
            and np.allclose([given["score"], *scores], [known[node], *known], rtol=0, atol=within)
        )

    def _checked(self, places: Sequence[int], answers: Sequence[HttpAnswer]) -> np.ndarray:
        for place, answer in zip(places, answers, strict=True):
            if not self.is_right(answer, place):
                raise ParityError(f"the answer to state {place} is not the predictor's: {answer.body[:200]!r}")
        return np.array([answer.json["node"] for answer in answers])


def over_rates(
    at_rate: Callable[[str, float, int], Latencies], rates: Mapping[str, Sequence[float]], rounds: int
) -> pd.DataFrame:
    """Run `at_rate(name, rate, seed)` of each service at each of its rates (requests/s) in random order, every round.

    A row for each service ("variant") and rate ("requests_per_s"), with lists of one number a round, in ms: p50 and p99
    of the latency, and `late`, the p99 of how late the client sent.
    """
    order, runs = np.random.default_rng(0), {(name, rate): [] for name, of in rates.items() for rate in sorted(of)}
    for _ in range(rounds):
        for name, rate in order.permutation(np.array([*runs], dtype=object)):
            latency_ms, late_ms = at_rate(name, rate, int(order.integers(2**31)))
            p50, p99 = np.percentile(latency_ms, [50, 99], method="higher")
            runs[name, rate].append((p50, p99, np.percentile(late_ms, 99, method="higher")))
    rows = [(*cell, *map(list, zip(*seen, strict=True))) for cell, seen in runs.items()]
    return pd.DataFrame(rows, columns=["variant", "requests_per_s", "p50", "p99", "late"])


def max_throughput(runs: pd.DataFrame, slo_ms: float) -> pd.DataFrame:
    """A row for each service: `samples`, the requests/s of each round at which its p99 first exceeds `slo_ms`.

    Interpolated in logarithms. Where none of the rates exceeds it, the highest is a lower bound, and 0 where all do; a
    note counts such rounds. A service of which more than half are 0 has no number, and a reason.
    """
    rows = []
    for variant, part in runs.groupby("variant", sort=False):
        rates, most = part["requests_per_s"].to_numpy(), []
        for p99 in np.array([*part["p99"]]).T:  # (rates,) of a round
            within = int((p99 <= slo_ms).cumprod().sum())  # a rate beyond the first that exceeds it does not count
            ends = slice(within - 1, within + 1)
            log_rate = np.interp(math.log(slo_ms), np.log(p99[ends]), np.log(rates[ends])) if within else -math.inf
            most.append(math.exp(log_rate))
        bounds = np.isclose(most, 0).sum() + np.isclose(most, rates.max()).sum()
        row = {"notes": [f"a lower bound in {bounds} of {len(most)} rounds"] if bounds else []}
        if np.median(most) == 0:
            reason = f"its p99 exceeds {slo_ms:g} ms already at the lowest rate tried, {rates.min():.0f} requests/s"
            row = {"status": "unavailable", "reason": reason}
        rows.append({"variant": variant, "samples": most, **row})
    return pd.DataFrame(rows)
