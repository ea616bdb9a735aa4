"""The tables are those of the code, in SQLite and in PostgreSQL; what is recorded behind the answers arrives."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from edge_states import S2_STATE, random_state

from gnnlab.inference.predictor import Decision
from gnnlab.inference.state_checks import check
from gnnlab.serving import database
from gnnlab.serving.database import Database, Recorder, network_metrics, predictions
from gnnlab.serving.metrics import Metrics
from gnnlab.serving.settings import configure

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """Of an empty database."""
    if request.param == "sqlite":
        return configure(database=f"sqlite:///{tmp_path / 'decisions.sqlite'}").database_url
    found = configure(database=request.getfixturevalue("postgres_url")).database_url

    async def empty(opened):
        async with opened.engine.begin() as connection:
            await connection.run_sync(database.metadata.drop_all)

    with_database(found, empty)
    return found


def with_database(url, body):
    async def run():
        opened = Database(url)
        try:
            return await body(opened)
        finally:
            await opened.close()

    return asyncio.run(asyncio.wait_for(run(), 60))


async def rows_of(opened, table, *conditions):
    """What a table holds under these conditions, the latest first."""
    query = sa.select(table).where(*conditions).order_by(table.c.id.desc())
    async with opened.engine.connect() as connection:
        return [dict(row) for row in (await connection.execute(query)).mappings()]


def decided(state=S2_STATE, node_id="node_3"):
    """What `record` takes, and the rows of it begin with the time."""
    return "ppo", check(state), Decision(node_id, 3, -1.5, 0.25)


def recorded(url, body):
    """What `body(recorder, database)` leaves behind: (rows of predictions, decisions counted as lost)."""

    async def run(opened):
        metrics, own = Metrics(), Database(url)
        recorder = Recorder(own, metrics)
        recorder.start()
        await body(recorder, own)
        await recorder.stop()
        return await rows_of(opened, predictions), metrics.unrecorded._value.get()

    return with_database(url, run)


def test_tables_are_made_once_with_the_indexes_of_the_guide(url):
    async def body(opened):
        await opened.create()
        await opened.create()  # nothing left to do
        async with opened.engine.connect() as connection:
            return await connection.run_sync(
                lambda c: {
                    i["name"]: i["column_names"] for t in database.metadata.tables for i in sa.inspect(c).get_indexes(t)
                }
            )

    expected = {"idx_prediction_time": ["created_at"], "idx_node_timestamp": ["node_id", "timestamp"]}
    assert with_database(url, body) == expected


def test_rows_come_back_the_latest_first_and_by_node(url):
    async def body(opened):
        await opened.create()
        recorder = Recorder(opened, Metrics())
        for hours in (0, 1, 2):
            await opened.insert(recorder._rows([(NOW + timedelta(hours=hours), *decided(random_state(5, hours)))]))
        return (
            await rows_of(opened, predictions, predictions.c.created_at >= NOW + timedelta(minutes=30)),
            await rows_of(opened, network_metrics, network_metrics.c.node_id == "node_4"),
        )

    made_since, reported = with_database(url, body)
    assert [(row["model_type"], row["nodes"], row["node"]) for row in made_since] == [("ppo", 5, 3)] * 2
    assert [row["timestamp"].hour for row in reported] == [5, 4, 3]
    assert reported[2]["cpu_util"] == random_state(5, 0)["nodes"][4]["cpu_util"]


@pytest.mark.parametrize("node_id", ["a\0b", "é" * 5000, "'; DROP TABLE predictions; --"])
def test_ids_of_any_characters_are_stored(url, node_id):
    async def body(recorder, _):
        recorder.record(*decided({"nodes": [{**S2_STATE["nodes"][0], "node_id": node_id}]}, node_id))

    rows, _ = recorded(url, body)
    assert [row["node_id"] for row in rows] == [node_id[:200].replace("\0", "\ufffd")]


def test_all_that_is_recorded_arrives_before_the_end_and_what_has_no_room_is_counted(url, monkeypatch):
    async def body(recorder, _):
        for _ in range(1000):
            recorder.record(*decided())

    rows, lost = recorded(url, body)
    assert (len(rows), lost) == (1000, 0)
    monkeypatch.setattr(database, "MOST_QUEUED", 100)
    rows, lost = recorded(url, body)
    assert (len(rows), lost) == (1100, 900)


def test_a_database_that_is_away_costs_records_which_are_counted_and_nothing_after_it_is_back(url, monkeypatch):
    monkeypatch.setattr(database, "RETRY_S", 0.05)

    async def body(recorder, own):
        insert = own.insert

        async def fails(bulks):
            raise OSError("connection refused")

        own.insert = fails
        for _ in range(50):
            recorder.record(*decided())
        while not recorder.away:
            await asyncio.sleep(0.02)
        own.insert = insert
        recorder.record(*decided())
        while recorder.away:
            await asyncio.sleep(0.02)

    rows, lost = recorded(url, body)
    assert (len(rows), lost) == (1, 50)
