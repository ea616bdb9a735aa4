"""The tables are those of the code, in SQLite and in PostgreSQL; each decision is stored, or counted as lost."""

import asyncio
import contextlib
import logging
import sqlite3
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from edge_states import S2_STATE, random_state

from gnnlab.inference.predictor import Decision
from gnnlab.inference.states import check
from gnnlab.serving import database, recorder
from gnnlab.serving.database import engine_of, network_metrics, predictions
from gnnlab.serving.recorder import Recorder
from gnnlab.serving.settings import configure

CHECKED = check(S2_STATE)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "decisions.sqlite"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, file):
    """Of an empty database."""
    if request.param == "sqlite":
        return sqlite_url(file)
    url = configure(database=request.getfixturevalue("postgres_url")).database_url
    in_database(url, database.metadata.drop_all)
    return url


def sqlite_url(file):
    return configure(database=f"sqlite:///{file}").database_url


def in_database(url, body):
    """What `body(connection)` returns."""
    engine = engine_of(url)
    with engine.begin() as connection:
        result = body(connection)
    engine.dispose()
    return result


def rows(url, table=predictions):
    return in_database(url, lambda c: c.execute(sa.select(table).order_by(table.c.id)).mappings().all())


def recorder_of(url, **given):
    """With counters that add up."""
    counts = SimpleNamespace(recorded=0, unrecorded=0)

    def counter(name):
        def inc(by=1):
            setattr(counts, name, getattr(counts, name) + by)

        return SimpleNamespace(inc=inc, dec=lambda by: inc(-by))

    metrics = SimpleNamespace(**{name: counter(name) for name in vars(counts)})
    made = Recorder(url, metrics, {"ppo": "0123456789ab"}, **given)
    made.counts = counts
    return made


def record(made, *states, node_id="node_3"):
    for state in states:
        made.record("ppo", check(state), Decision(node_id, 3, -1.5, 0.25))


def working(url, body, **given):
    """The recorder after `await body(recorder)`, which starts it, and its end."""

    async def run():
        made = recorder_of(url, **given)
        await body(made)
        await made.stop()
        return made

    return asyncio.run(asyncio.wait_for(run(), 60))


def recorded(url, *states, started=True, **given):
    """The recorder after its end. Not `started`: the thread that writes starts when all are recorded."""

    async def body(made):
        if started:
            made.start()
        record(made, *states, **given)
        if not started:
            made.start()

    return working(url, body)


@contextlib.contextmanager
def locked(file):
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


async def until(condition):
    while not condition():
        await asyncio.sleep(0.02)


def test_a_decision_has_a_row_and_so_has_each_node_and_the_guides_indexes_are_there(url, monkeypatch):
    monkeypatch.setattr(recorder, "ROWS", 4)  # of a statement
    states = [random_state(5, seed) for seed in range(3)]
    recorded(url, *states)
    decisions, reports = rows(url), rows(url, network_metrics)
    columns = ("model_type", "model_version", "nodes", "node_id", "node")
    assert [tuple(r[name] for name in columns) for r in decisions] == [("ppo", "0123456789ab", 5, "node_3", 3)] * 3
    nodes = [node for state in states for node in state["nodes"]]
    assert [{name: row[name] for name in nodes[0]} for row in reports] == nodes
    assert {row["timestamp"] for row in reports} == {row["created_at"] for row in decisions}
    tables = database.metadata.tables
    indexes = in_database(url, lambda c: [i for table in tables for i in sa.inspect(c).get_indexes(table)])
    expected = {"idx_prediction_time": ["created_at"], "idx_node_timestamp": ["node_id", "timestamp"]}
    assert {index["name"]: index["column_names"] for index in indexes} == expected


@pytest.mark.parametrize(("database", "mark"), [("sqlite:///x.sqlite", "?"), ("postgresql://a@127.0.0.1/x", "%s")])
def test_a_statement_of_many_rows_has_a_mark_for_each_value_and_nothing_behind_them(database, mark):
    text = recorder._insert(predictions, 3, engine_of(configure(database=database).database_url).dialect)
    assert text.count(mark) == 3 * 8 and text.count("(") == 1 + 3 and text.endswith(")")


@pytest.mark.parametrize("node_id", ["a\0b", "é" * 5000, "'; DROP TABLE predictions; --"])
def test_ids_of_any_characters_are_stored(url, node_id):
    recorded(url, {"nodes": [{**S2_STATE["nodes"][0], "node_id": node_id}]}, node_id=node_id)
    assert [row["node_id"] for row in rows(url)] == [node_id[:200].replace("\0", "\ufffd")]


def test_all_that_is_recorded_arrives_before_the_end_and_what_has_no_room_is_counted(url, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    made = recorded(url, *[S2_STATE] * 1000)
    assert (len(rows(url)), made.stored, made.lost, made.pending) == (1000, 1000, 0, 0)
    assert "decisions for the database: 1000, 1000 stored, 0 lost, 0 pending" in caplog.text
    monkeypatch.setattr(recorder, "MOST_BYTES", 50_000)
    made = recorded(url, *[random_state(40, 1)] * 20, started=False)  # else a batch may be on its way already
    assert (made.asked, made.stored, made.lost) == (20, 2, 18)  # 21 kB each
    assert vars(made.counts) == {"recorded": 2, "unrecorded": 18} and len(rows(url)) == 1002


def test_decisions_wait_for_a_database_that_is_not_there_yet(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "RETRY_S", 0.05)
    url = sqlite_url(tmp_path / "later" / "decisions.sqlite")

    async def body(made):
        made.start()
        record(made, *[S2_STATE] * 50)
        await until(lambda: made.away)
        assert made.pending == 50
        (tmp_path / "later").mkdir()
        await until(lambda: not made.away)

    made = working(url, body)
    assert (made.stored, made.lost) == (50, 0) and len(rows(url)) == 50


def test_a_database_that_refuses_until_the_end_costs_records_and_each_is_counted(file, monkeypatch):
    monkeypatch.setattr(database, "LIMIT_S", 0.05)

    with contextlib.ExitStack() as until_the_end:

        async def body(made):
            made.start()
            record(made, S2_STATE)
            await until(lambda: made.stored)
            until_the_end.enter_context(locked(file))
            record(made, *[S2_STATE] * 300)

        made = working(sqlite_url(file), body)
    assert (made.asked, made.stored, made.lost, made.pending) == (301, 1, 300, 0)
    assert vars(made.counts) == {"recorded": 1, "unrecorded": 300} and len(rows(sqlite_url(file))) == 1


def test_while_it_is_locked_one_batch_is_lost_and_the_others_wait(file, monkeypatch, caplog):
    monkeypatch.setattr(database, "LIMIT_S", 0.02)
    monkeypatch.setattr(recorder, "RETRY_S", 0.02)
    monkeypatch.setattr(recorder, "EVERY_S", 0.02)

    async def body(made):
        made.start()
        record(made, S2_STATE)
        await until(lambda: made.stored)
        with locked(file):
            record(made, S2_STATE)
            await until(lambda: made.lost)
            record(made, *[S2_STATE] * 300)
            await asyncio.sleep(0.5)  # many tries
        await until(lambda: not made.away)

    made = working(sqlite_url(file), body)
    assert (made.stored, made.lost) == (301, 1)
    assert [text.partition(",")[0] for text in caplog.messages[:2]] == ["the database is away", "the database is back"]


@pytest.mark.parametrize("failures", [1, 4])
def test_writes_that_are_refused_are_lost_and_logged_once(file, monkeypatch, caplog, failures):
    monkeypatch.setattr(recorder, "RETRY_S", 0.02)
    monkeypatch.setattr(recorder, "BATCH", 1)

    async def body(made):
        write, left = made._write, [1] * failures
        monkeypatch.setattr(made, "_write", lambda batch: write(batch if not left else [left.pop()]))  # no decision
        record(made, *[S2_STATE] * 6)
        made.start()
        await until(lambda: made.stored)

    made = working(sqlite_url(file), body)
    assert (made.stored, made.lost) == (6 - failures, failures)
    assert len([text for text in caplog.messages if "away" in text]) == 1
    assert len([text for text in caplog.messages if "is back" in text]) == 1


def test_a_write_that_does_not_come_back_is_away_and_counts_as_pending_at_the_end(file, monkeypatch, caplog):
    monkeypatch.setattr(recorder, "CUT_S", 0.05)
    monkeypatch.setattr(recorder, "STOP_S", 2.5)
    cuts = []

    def lost_already():
        cuts.append(1)
        raise RuntimeError("the connection is lost")

    async def body(made):
        gate, loop = asyncio.Event(), asyncio.get_running_loop()

        def hang(batch):
            made._connection = SimpleNamespace(fileno=lost_already)
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()

        monkeypatch.setattr(made, "_write", hang)
        made.start()
        record(made, *[S2_STATE] * 150)
        await until(lambda: made.away)
        await made.stop()
        assert (made.asked, made.stored, made.lost, made.pending) == (150, 0, 50, 100)
        gate.set()  # the database says yes after all
        await until(lambda: not made._thread.is_alive())

    made = working(sqlite_url(file), body)
    assert made.pending == 0 and len(cuts) > 1  # it looks on
    assert "150, 0 stored, 50 lost, 100 pending" in caplog.text and "has not answered" in caplog.text


def test_a_file_that_is_gone_is_noticed_and_the_next_decisions_are_in_a_new_one(file, caplog):
    async def body(made):
        made.start()
        record(made, S2_STATE)
        await until(lambda: made.stored == 1)
        for one in file.parent.glob(f"{file.name}*"):
            one.unlink()
        record(made, S2_STATE)

    working(sqlite_url(file), body)
    assert "the database's file is gone" in caplog.text and len(rows(sqlite_url(file))) == 1


def test_rows_older_than_keep_days_are_deleted_and_others_are_not(url, monkeypatch):
    monkeypatch.setattr(database, "DELETED", 4)
    recorded(url, *[S2_STATE] * 10)
    old = datetime.now(UTC) - timedelta(days=8)
    for table, column in ((predictions, "created_at"), (network_metrics, "timestamp")):
        in_database(url, lambda c, t=table, n=column: c.execute(sa.update(t).where(t.c.id <= 7).values({n: old})))

    async def body(made):
        made.start()
        await until(lambda: made._delete_at_s > made._ok_s + 60)

    working(url, body, keep_days=7)
    assert [row["id"] for row in rows(url)] == [8, 9, 10]
    assert len(rows(url, network_metrics)) == 10 * len(S2_STATE["nodes"]) - 7
