"""The tables are those of the code, in SQLite and in PostgreSQL; what is recorded behind the answers arrives."""

import asyncio
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from edge_states import S2_STATE, random_state

from gnnlab.inference.predictor import Decision
from gnnlab.inference.states import check
from gnnlab.serving import database
from gnnlab.serving.database import Recorder, create_tables, engine_of, network_metrics, predictions
from gnnlab.serving.settings import configure


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """Of an empty database."""
    if request.param == "sqlite":
        return configure(database=f"sqlite:///{tmp_path / 'decisions.sqlite'}").database_url
    url = configure(database=request.getfixturevalue("postgres_url")).database_url

    async def empty(engine):
        async with engine.begin() as connection:
            await connection.run_sync(database.metadata.drop_all)

    with_engine(url, empty)
    return url


def with_engine(url, body):
    async def run():
        engine = engine_of(url)
        try:
            return await body(engine)
        finally:
            await engine.dispose()

    return asyncio.run(asyncio.wait_for(run(), 60))


def decided(state=S2_STATE, node_id="node_3"):
    """What `record` takes."""
    return "ppo", check(state), Decision(node_id, 3, -1.5, 0.25)


def recorded(url, body, table=predictions):
    """What `await body(recorder)` leaves behind: (rows of a table, the latest first, decisions counted as lost)."""

    async def run(engine):
        lost = []
        recorder = Recorder(engine, SimpleNamespace(inc=lambda count=1: lost.append(count)))
        recorder.start()
        await body(recorder)
        await recorder.stop()
        async with engine_of(url).connect() as connection:
            rows = (await connection.execute(sa.select(table).order_by(table.c.id.desc()))).mappings()
            return [dict(row) for row in rows], sum(lost)

    return with_engine(url, run)


def test_tables_are_made_once_with_the_indexes_of_the_guide(url):
    async def body(engine):
        await create_tables(engine)
        await create_tables(engine)  # nothing left to do
        async with engine.connect() as connection:
            return await connection.run_sync(
                lambda c: {
                    i["name"]: i["column_names"] for t in database.metadata.tables for i in sa.inspect(c).get_indexes(t)
                }
            )

    expected = {"idx_prediction_time": ["created_at"], "idx_node_timestamp": ["node_id", "timestamp"]}
    assert with_engine(url, body) == expected


def test_a_decision_has_a_row_and_so_has_each_node_that_was_reported(url):
    states = [random_state(5, seed) for seed in range(3)]

    async def body(recorder):
        for state in states:
            recorder.record(*decided(state))

    rows, _ = recorded(url, body)
    assert [(row["model_type"], row["nodes"], row["node_id"], row["node"]) for row in rows] == [
        ("ppo", 5, "node_3", 3)
    ] * 3
    reported, _ = recorded(url, body, network_metrics)
    nodes = [node for state in states * 2 for node in state["nodes"]][::-1]
    assert [{name: row[name] for name in nodes[0]} for row in reported] == nodes
    assert {row["timestamp"] for row in reported} >= {row["created_at"] for row in rows}


@pytest.mark.parametrize("node_id", ["a\0b", "é" * 5000, "'; DROP TABLE predictions; --"])
def test_ids_of_any_characters_are_stored(url, node_id):
    async def body(recorder):
        recorder.record(*decided({"nodes": [{**S2_STATE["nodes"][0], "node_id": node_id}]}, node_id))

    rows, _ = recorded(url, body)
    assert [row["node_id"] for row in rows] == [node_id[:200].replace("\0", "\ufffd")]


def test_all_that_is_recorded_arrives_before_the_end_and_what_has_no_room_is_counted(url, monkeypatch):
    async def body(recorder):
        for _ in range(1000):
            recorder.record(*decided())

    rows, lost = recorded(url, body)
    assert (len(rows), lost) == (1000, 0)
    monkeypatch.setattr(database, "MOST_QUEUED", 100)
    rows, lost = recorded(url, body)
    assert (len(rows), lost) == (1100, 900)


def test_a_database_that_is_away_costs_records_which_are_counted_and_nothing_after_it_is_back(url, monkeypatch):
    monkeypatch.setattr(database, "RETRY_S", 0.05)
    here = database.create_tables

    async def away(engine):
        raise OSError("connection refused")

    async def body(recorder):
        monkeypatch.setattr(database, "create_tables", away)
        for _ in range(50):
            recorder.record(*decided())
        while not recorder.away:
            await asyncio.sleep(0.02)
        monkeypatch.setattr(database, "create_tables", here)
        recorder.record(*decided())
        while recorder.away:
            await asyncio.sleep(0.02)

    rows, lost = recorded(url, body)
    assert (len(rows), lost) == (1, 50)
