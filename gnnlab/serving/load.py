"""A client that measures a service: an event loop that is on time, connections, answers checked against the predictor.

    client = Client(random_states(1000, (10, 10), seed=0), "hybrid")
    url = "http://127.0.0.1:8000/predict?model_type=hybrid"
    nodes = client.decided(single_stream, url, places)                  # each answer is held to the predictor's
    latency_ms, late_ms = client.observed(open_arrivals, url, places)   # and how late the client was
    runs = over_rates(lambda form, rate, seed: ..., {"fast": ([400, 800], 6)})
    largest(runs, bound_ms=20)["fast"]                                  # requests/s, one a round

The scenarios themselves are in notebook 10: coroutine functions of `ask`, which sends a body and gives the answer, and
of the bodies to send.
"""

from __future__ import annotations

import asyncio
import gzip
import math
import select
import selectors
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import numpy as np
import pandas as pd
import psutil

from gnnlab.errors import ParityError
from gnnlab.inference.predictor import Predictor
from gnnlab.measure import estimates
from gnnlab.workloads.edge_networks import State
from gnnswap.cost import quiet

Scenario = Callable[..., Coroutine[Any, Any, Any]]
Observed = Callable[[str, float, int], tuple[np.ndarray, np.ndarray]]  # what `Client.observed` gives
REUSED_S = 10.0  # a connection that has been idle for longer is not used again
MOST_CONNECTIONS = 256  # of a client; who comes then waits, and that is part of the latency
REFUSED_MS = 1e4  # what a request that was refused counts as
LOST_S = 60  # a request without an answer for so long is lost
UNRIGHT = "wrong, lost or swapped answers"


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
    """HTTP/1.1 in few lines, as a library takes longer than the service does: kept alive, opened when it is needed,
    again after it broke; one request at a time."""

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


class Client:
    """Asks services for decisions on `states`, `bodies` as JSON, and holds each answer to the predictor's."""

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
                # the one that was used last, so that few are used; none that the service may be closing just now
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
        answers = self.run(scenario, url, [self.bodies[place] for place in places])
        return self._checked(places, answers)

    def observed(self, scenario: Scenario, url: str, places: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """One run of a scenario that gives (s late, answer, latency in s) of each request: (n,) latencies from the
        intended start, (n,) how late the client was to send, both in ms.

        Raises `ParityError`: an answer is neither right nor a refusal (503).
        """
        with quiet():
            seen = self.run(scenario, url, [self.bodies[place] for place in places])
        late_s, answers, latency_s = zip(*seen, strict=True)
        refused = np.array([answer.status == 503 for answer in answers])
        given = np.flatnonzero(~refused)
        self._checked([places[at] for at in given], [answers[at] for at in given])
        return np.where(refused, REFUSED_MS, 1e3 * np.array(latency_s)), 1e3 * np.array(late_s)

    def processor_us(
        self, process: psutil.Process, scenario: Scenario, url: str, body: bytes | None, *, requests=480, rounds=6
    ) -> list[float]:
        """The processor time of a service, its workers included, for a request, in µs: a sample a round."""
        spent_s = []
        for _ in range(rounds + 1):
            spent_s.append(sum(sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True))))
            if len(spent_s) <= rounds:
                self.run(scenario, url, [body] * requests)
        return (1e6 * np.diff(spent_s) / requests).tolist()

    def count_unright(
        self, scenario: Scenario, url: str, places: Sequence[int], strike: Callable[[], Any], each: int
    ) -> Counter[str]:
        """Requests, strikes, broken connections and `UNRIGHT` answers, by their names. `strike()` kills something once
        in `each` requests; what breaks, or is refused (503), is sent again."""
        counts, one_strike = Counter({"requests": 0, UNRIGHT: 0}), asyncio.Lock()

        async def struck(ask: Callable, bodies: Sequence[bytes]) -> list[HttpAnswer]:
            async def persistent(body: bytes) -> HttpAnswer:
                counts["requests"] += 1
                if counts["requests"] % each == each // 3:
                    async with one_strike:  # the others ask on
                        await asyncio.to_thread(strike)
                    counts["strikes"] += 1
                answer, end_s = HttpAnswer(503, b"", b""), time.monotonic() + LOST_S
                while answer.status == 503 and time.monotonic() < end_s:
                    try:
                        answer = await asyncio.wait_for(ask(body), LOST_S)
                    except OSError:
                        counts["connections broken, sent again"] += 1
                    await asyncio.sleep(0.05 if answer.status == 503 else 0)
                return answer

            return await scenario(persistent, bodies)

        answers = self.run(struck, url, [self.bodies[place] for place in places])
        counts[UNRIGHT] = sum(not self.is_right(*one) for one in zip(answers, places, strict=True))
        return counts

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
            and abs(given["confidence"] - expected.confidence) < 1e-3
            and len(scores) == len(known)
            and np.allclose([given["score"], *scores], [known[node], *known], rtol=0, atol=within)
        )

    def _checked(self, places: Sequence[int], answers: Sequence[HttpAnswer]) -> np.ndarray:
        for place, answer in zip(places, answers, strict=True):
            if not self.is_right(answer, place):
                raise ParityError(f"the answer to state {place} is not the predictor's: {answer.body[:200]!r}")
        return np.array([answer.json["node"] for answer in answers])


def over_rates(observed: Observed, forms: Mapping[str, tuple[Sequence[float], int]]) -> pd.DataFrame:
    """`observed(form, rate, seed)` of each form at each of its rates (requests/s), in each of its rounds, in random
    order: a row for each form and rate, requests_per_s, with lists of one number a round, in ms: p50 and p99 of the
    latency, and `late`, the p99 of how late the client sent."""
    order, runs = np.random.default_rng(0), {(f, r): [] for f, (rates, _) in forms.items() for r in sorted(rates)}
    for at in range(max(rounds for _, rounds in forms.values())):
        cells = [(form, rate) for form, rate in runs if at < forms[form][1]]
        for place in order.permutation(len(cells)):
            form, rate = cells[place]
            latency_ms, late_ms = observed(form, rate, int(order.integers(2**31)))
            p50, p99 = np.percentile(latency_ms, [50, 99], method="higher")
            runs[form, rate].append((p50, p99, np.percentile(late_ms, 99, method="higher")))
    rows = [(*cell, *map(list, zip(*seen, strict=True))) for cell, seen in runs.items()]
    return pd.DataFrame(rows, columns=["form", "requests_per_s", "p50", "p99", "late"])


def largest(runs: pd.DataFrame, bound_ms: float) -> dict[str, list[float]]:
    """The largest rate of each form before its p99 first exceeds the bound, one a round, in requests/s.

    Between two rates it is interpolated in logarithms. 0 where all exceed it; where none does, the largest rate: it may
    hold more.
    """
    by_form: dict[str, list[float]] = {}
    for form, part in runs.groupby("form", sort=False):
        rates = part["requests_per_s"].to_numpy()
        for p99 in np.array([*part["p99"]]).T:  # (rates,) of a round
            within = int((p99 <= bound_ms).cumprod().sum())  # what comes after the first beyond it is luck
            ends = slice(within - 1, within + 1)
            between = np.interp(math.log(bound_ms), np.log(p99[ends]), np.log(rates[ends])) if within else -math.inf
            by_form.setdefault(form, []).append(math.exp(between))
    return by_form


def compared(samples: Mapping[str, Sequence[float]], baseline: str) -> pd.DataFrame:
    """Rows of forms that ran in the same rounds: their samples, and the ratio of the baseline's over each.

    A form with a sample that is not finite, or whose baseline has one, has no number, and a reason.
    """
    rows: list[dict[str, Any]] = []
    for form, values in samples.items():
        rows.append({"form": form, "samples": list(values)})
        never = next((name for name in (form, baseline) if not np.isfinite(samples[name]).all()), None)
        if never:
            rows[-1] |= {"status": "unavailable", "reason": f"{never} keeps the bound at no rate in some rounds"}
        elif form != baseline:
            gain = estimates.ratio(samples[baseline], values)
            rows[-1] |= {"baseline": baseline, "ratio": gain.value, "ratio_low": gain.low, "ratio_high": gain.high}
    return pd.DataFrame(rows)
