"""What a client sees of a real service on the loopback, with Redis where it is installed."""

import contextlib
import json
import re
import shutil
import socket
import sqlite3
from http.client import HTTPConnection
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest
from asking import CLIENTS, STATES, ask_all, served, value
from edge_states import S2_STATE, random_state
from servers import until

from gnnlab.serving.load import HttpAnswer
from gnnlab.serving.protocol import _InOnePiece
from gnnlab.workloads.edge_allocator import MODEL_TYPES

JSON = {"content-type": "application/json"}
LIMITS = {"max_body_bytes": 100_000, "max_waiting": 40, "deadline_s": 2, "max_batch": 8}


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    return tmp_path_factory.mktemp("database") / "decisions.sqlite"


@pytest.fixture(scope="module")
def url(request, database):
    redis = request.getfixturevalue("redis_server").url if shutil.which("redis-server") else "none"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gnnlab.serving.shared_cache.TIMEOUT_S", 5)
        with served(redis=redis, database=f"sqlite:///{database}", **LIMITS) as (url, _, _):
            yield url


@pytest.fixture
def http(url):
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        yield client


def post(http, path, body, **headers):
    content = body if isinstance(body, bytes) else json.dumps(body)
    return http.post(path, content=content, headers={**JSON, **headers})


# ---- answers


def test_many_clients_at_once_each_get_the_answer_to_their_own_state(url):
    for kind in MODEL_TYPES:
        places = [n * 7 % len(STATES) for n in range(200)]
        answers = ask_all(url, kind, places)
        assert all(CLIENTS[kind].is_right(one, place) for one, place in zip(answers, places, strict=True))


def test_a_batch_is_answered_in_order_with_errors_in_their_places(http):
    states = [*STATES[:5], {"nodes": []}, *STATES[5:20], 3]
    answers = post(http, "/predict_batch?scores=true&model_type=ppo", states).json()
    assert all(set(one) == {"error"} for one in (answers.pop(20 + 1), answers.pop(5)))
    given = [HttpAnswer(200, b"", json.dumps(answer).encode()) for answer in answers]
    assert all(CLIENTS["ppo"].is_right(answer, place) for place, answer in enumerate(given))


def test_the_state_of_the_guides_benchmark_is_answered_and_scores_come_on_request_alone(http):
    answer = post(http, "/predict", S2_STATE)
    assert answer.status_code == 200 and answer.json()["model_type"] == "hybrid"
    assert set(answer.json()) == {"node_id", "node", "confidence", "score", "model_type", "model_version"}
    assert answer.json()["confidence"] == pytest.approx(0.1)


def test_long_answers_are_compressed_where_the_client_takes_it(http):
    long, short = [S2_STATE] * 20, [S2_STATE]
    assert post(http, "/predict_batch", long).headers["content-encoding"] == "gzip"
    assert "content-encoding" not in post(http, "/predict_batch", short).headers
    for unwanted in ("identity", "gzip;q=0", "*;q=0.0, br", "gzip; q=0, *"):
        plain = post(http, "/predict_batch", long, **{"accept-encoding": unwanted})
        assert "content-encoding" not in plain.headers and len(plain.content) > 1000
        assert plain.json() == post(http, "/predict_batch", long).json() and plain.headers["vary"] == "accept-encoding"


# ---- what is refused


GOOD = json.dumps(STATES[0]).encode()
BAD_FIELD = {"nodes": [{**STATES[0]["nodes"][0], "cpu_util": 1.5}]}
REFUSED = [
    ("/predict", b"", 422, "not JSON"),
    ("/predict", b"[" * 90_000, 422, "Expected `object`"),
    ("/predict", BAD_FIELD, 422, "node 'node_0': Expected `float` <= 1.0 - at `$.nodes[0].cpu_util`"),
    ("/predict", b" " * 100_001, 413, "longer than the 100000 bytes"),
    ("/predict?model_type=a2c", GOOD, 422, "model_type"),
    ("/predict?scores=perhaps", GOOD, 422, "scores"),
    ("/predict_batch", GOOD, 422, "a list of 1 to 40 states"),
    ("/predict_batch", b"[" * 90_000, 422, "a list of 1 to 40 states"),
    ("/predict_batch", [3] * 41, 422, "a list of 1 to 40 states"),
    ("/nope", GOOD, 404, "Not Found"),
    ("/health", GOOD, 405, "Method Not Allowed"),
]


@pytest.mark.parametrize(("path", "body", "status", "part"), REFUSED)
def test_a_bad_request_is_answered_by_one_line(http, path, body, status, part):
    answer = post(http, path, body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json" and set(answer.json()) == {"error"}
    line = answer.json()["error"]
    assert part in line and "\n" not in line and "Traceback" not in line and len(line) < 400
    assert answer.headers.get("allow") == ("GET, HEAD" if status == 405 else None)


def test_a_body_without_a_length_is_cut_off_at_the_limit(http):
    answer = http.post("/predict", content=(b" " * 10_000 for _ in range(20)), headers=JSON)
    assert answer.status_code == 413 and answer.headers["connection"] == "close"


@pytest.mark.parametrize("kind", ["text/plain", "", "x" * 1000])
def test_what_a_web_page_of_another_site_can_send_unasked_is_refused(http, kind):
    answer = http.post("/predict", content=GOOD, headers={"content-type": kind})
    assert answer.status_code == 415 and len(answer.json()["error"]) < 200


# ---- HTTP as it comes


def raw(url, *parts, wait_s=1):
    """What a connection answers to these bytes until it closes or says nothing for so long."""
    place, answer = urlsplit(url), b""
    with socket.create_connection((place.hostname, place.port), 10) as connection:
        connection.settimeout(wait_s)
        try:
            for part in parts:
                connection.sendall(part)
            while data := connection.recv(65536):
                answer += data
        except (TimeoutError, ConnectionError):
            pass
    return answer


def request(body=GOOD, *headers, line="POST /predict HTTP/1.1"):
    head = [line, "host: localhost", "content-type: application/json", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


OFFER = (
    "connection: Upgrade, HTTP2-Settings",
    "upgrade: h2c",
    "http2-settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
)


@pytest.mark.parametrize("at", [10, 150, 300, 700])
def test_an_offer_of_another_protocol_is_answered_in_this_one_with_its_body(url, at):
    asked = request(GOOD, *OFFER) + request(GOOD, line="POST /predict?model_type=dqn HTTP/1.1")
    answer = raw(url, asked[:at], asked[at:])
    assert answer.count(b"HTTP/1.1 200") == 2 and re.findall(rb'"model_type":"(\w+)"', answer) == [b"hybrid", b"dqn"]


CHUNKED = (
    b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
)
ENDLESS = {
    "value": (b"GET /health HTTP/1.1\r\nhost: localhost\r\na: ", b"a" * 1000),
    "headers": (b"GET /health HTTP/1.1\r\nhost: localhost\r\n", b"a: " + b"a" * 95 + b"\r\n"),
    "path": (b"GET /", b"a" * 1000),
    "extension": (CHUNKED + b"5;", b"a" * 1000),
    "trailers": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"a: " + b"a" * 95 + b"\r\n"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_what_has_no_end_is_given_up(url, kind):
    place, (begin, more) = urlsplit(url), ENDLESS[kind]
    with socket.create_connection((place.hostname, place.port), 10) as connection:
        connection.sendall(begin)
        sent = 0
        with pytest.raises(ConnectionError):
            while sent < 100 << 20:
                connection.sendall(more * 10)
                sent += len(more) * 10
    assert sent < 50 << 20  # what the buffers of the sockets hold
    assert raw(url, request()).startswith(b"HTTP/1.1 200")


def test_a_head_is_refused_by_its_length(url):
    assert raw(url, request(GOOD, *["a: " + "b" * 1000] * 70)).startswith(b"HTTP/1.1 431")
    assert raw(url, request(GOOD, *["a: " + "b" * 1000] * 50)).startswith(b"HTTP/1.1 200")


MANY = b"GET /health HTTP/1.1\r\nhost: localhost\r\na: " + b"a" * 200_000


@pytest.mark.parametrize("behind", [b"garbage\r\n\r\n", b"\0" * 100, MANY, MANY * 20, None])
def test_a_whole_request_is_answered_whatever_comes_behind_it_and_if_nothing_can(url, behind):
    place, asked = urlsplit(url), request() * 2
    with socket.create_connection((place.hostname, place.port), 10) as connection:
        connection.sendall(asked + (behind or b""))
        if behind is None:
            connection.shutdown(socket.SHUT_WR)  # as `nc -N` does
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # what came behind it may be unread
            while data := connection.recv(65536):
                answer += data
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"200"] and answer.count(b"connection: close") == 1


def test_a_client_that_sends_all_of_a_body_that_is_too_long_before_it_reads_sees_why_it_is_refused(url):
    for _ in range(3):
        connection = HTTPConnection(urlsplit(url).netloc, timeout=20)
        connection.request("POST", "/predict", body=b" " * (10 << 20), headers=JSON)
        assert connection.getresponse().status == 413
        connection.close()


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/metrics", "/openapi.json"])
def test_head_says_what_get_does(http, path):
    head = http.head(path)
    assert head.status_code == 200 and head.content == b"" and int(head.headers["content-length"]) > 10


HOSTS = [(b"localhost", 200), (b"LOCALHOST:8000", 200), (b"127.0.0.1:1", 200), (b"[::1]:80", 200), (b"[::2]", 421)]
HOSTS += [(b"evil.example", 421), (b"localhost.evil.example", 421), (b"", 421)]


HEADS = [(b"GET /health HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n\r\n" % host, status) for host, status in HOSTS]
HEADS += [(b"GET /health HTTP/1.0\r\n\r\n", 200), (b"GET /health HTTP/1.1\r\n\r\n", 400)]
TUNNEL = b"CONNECT localhost:1 HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.mark.parametrize(("head", "status"), [*HEADS, (TUNNEL, 400)])
def test_the_host_is_one_of_the_settings_or_missing_in_http_1_0_and_there_are_no_tunnels(url, head, status):
    assert raw(url, head).startswith(b"HTTP/1.1 %d " % status)


def test_a_body_that_never_comes_ends_with_the_deadline(url):
    answer = raw(url, request()[:-1], wait_s=10)
    assert answer.startswith(b"HTTP/1.1 408") and b"the body did not come within 2 s" in answer


@pytest.mark.parametrize(("given", "kept"), [("an-id_1", True), ("a b", False), ("é", False), ("x" * 129, False)])
def test_a_request_has_an_id_which_is_the_clients_where_it_is_plain(http, given, kept):
    answer = post(http, "/predict", GOOD, **{"x-request-id": given.encode()})
    own = answer.headers["x-request-id"]
    assert (own == given) is kept and re.fullmatch(r"[!-~]{1,128}", own)


# ---- beside the answers


def test_health_says_what_is_there(http):
    assert http.get("/health").json() == {"status": "live"}
    ready = http.get("/health/ready").json()
    assert ready["status"] == "ready" and ready["database"] == "here" and ready["redis"] in ("here", "off")
    assert ready["waiting"] == 0 and ready["pending"] >= 0 and ready["database_since_s"] < 10
    answer = post(http, "/predict", GOOD).json()
    assert re.fullmatch("[0-9a-f]{12}", answer["model_version"])
    assert ready["model_versions"][answer["model_type"]] == answer["model_version"]


def test_the_description_has_every_path_and_an_example_that_is_answered(http):
    paths = http.get("/openapi.json").json()["paths"]
    assert set(paths) == {"/predict", "/predict_batch", "/health", "/health/ready", "/metrics", "/openapi.json"}
    for path in ("/predict", "/predict_batch"):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]
        assert body["schema"] and post(http, path, body["example"]).status_code == 200
        assert {"200", "408", "413", "415", "421", "422", "431", "500", "503"} <= set(paths[path]["post"]["responses"])
    assert (body["schema"]["minItems"], body["schema"]["maxItems"]) == (1, 40)


def test_metrics_count_what_was_answered(http):
    before = http.get("/metrics").text
    for _ in range(3):
        post(http, "/predict?model_type=dqn", random_state(6, 987))
    post(http, "/predict?model_type=dqn", {"nodes": []})
    after = http.get("/metrics").text

    def grew(name, **labels):
        return value(after, name, **labels) - value(before, name, **labels)

    assert grew("predictions_total", model_type="dqn") == 3
    assert grew("prediction_latency_seconds_count", model_type="dqn") == 3
    assert grew("batch_size_sum") == 3
    assert grew("requests_refused_total", status="422") == 1
    assert grew("cache_requests_total") == 3 and grew("cache_requests_total", result="hit") >= 1
    assert value(after, "model_memory_bytes", model_type="hybrid") > 10_000
    version = post(http, "/predict", GOOD).json()["model_version"]
    assert value(after, "model_info", model_type="hybrid", model_version=version) == 1
    until(lambda: value(http.get("/metrics").text, "records_pending") == 0)
    text = http.get("/metrics").text
    assert value(text, "recorded_total") == value(text, "predictions_total") > 0


def test_decisions_and_nodes_reach_the_database(http, database):
    node_id = "a node of this test alone"
    state = {"nodes": [{**S2_STATE["nodes"][0], "node_id": node_id}]}
    version = post(http, "/predict?model_type=ppo", state).json()["model_version"]

    def rows(table):
        with sqlite3.connect(database) as connection:
            return connection.execute(f"SELECT * FROM {table} WHERE node_id = ?", [node_id]).fetchall()

    until(lambda: rows("predictions"))
    assert rows("predictions")[0][2:7] == ("ppo", version, 1, node_id, 0) and len(rows("network_metrics")) == 1


def test_an_answer_is_sent_in_one_piece_but_for_the_word_that_a_client_waits_for():
    sent = []
    transport = SimpleNamespace(write=sent.append, close=lambda: sent.append("closed"), is_closing=lambda: False)
    whole = _InOnePiece(transport)
    whole.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    whole.write(b"HTTP/1.1 200 OK\r\n\r\n")
    whole.write(b"body")
    assert sent == [b"HTTP/1.1 100 Continue\r\n\r\n"] and not whole.is_closing()
    whole.flush(), whole.flush()
    whole.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    whole.close()
    assert sent[1:] == [b"HTTP/1.1 200 OK\r\n\r\nbody", b"HTTP/1.1 400 Bad Request\r\n\r\n", "closed"]


def test_who_waits_for_a_word_before_the_body_gets_it(url):
    place, asked = urlsplit(url), request(GOOD, "expect: 100-continue")
    with socket.create_connection((place.hostname, place.port), 10) as connection:
        connection.sendall(asked.removesuffix(GOOD))
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(GOOD)
        assert connection.recv(10_000).startswith(b"HTTP/1.1 200 OK")
