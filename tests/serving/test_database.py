"""The tables are those that were drawn, on SQLite and on PostgreSQL; what is recorded behind the answers arrives."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from edge_states import S2_STATE, random_state
from sqlalchemy.engine import make_url

from gnnlab.serving import database
from gnnlab.serving.database import Answered, Database, Recorder, network_metrics, predictions
from gnnlab.serving.metrics import Metrics
from gnnlab.serving.settings import made

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """Of an empty database."""
    if request.param == "sqlite":
        return made(database=f"sqlite:///{tmp_path / 'folder' / 'kept.sqlite'}").database_url
    server = request.getfixturevalue("postgres_there")
    found = made(database=server.url).database_url
    asyncio.run(emptied(found))
    return found


async def emptied(url):
    kept = Database(url)
    async with kept.engine.begin() as connection:
        await connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        await connection.execute(sa.text("CREATE SCHEMA public"))
    await kept.close()


def with_database(url, body, **options):
    async def run():
        kept = Database(url, **options)
        try:
            return await body(kept)
        finally:
            await kept.close()

    return asyncio.run(asyncio.wait_for(run(), 60))


async def rows_of(kept, table, *conditions):
    """What a table holds under these conditions, the latest first."""
    asked = sa.select(table).where(*conditions).order_by(table.c.id.desc())
    async with kept.engine.connect() as connection:
        return [dict(row) for row in (await connection.execute(asked)).mappings()]


def answered(time=NOW, state=S2_STATE, node_id="node_3"):
    return Answered(time, "ppo", state, node_id, 3, -1.5, 0.25)


def test_migrations_make_the_tables_that_the_code_has_with_their_indexes(url):
    async def body(kept):
        await kept.migrate()
        await kept.migrate()  # nothing left to do
        async with kept.engine.connect() as connection:
            differences = await connection.run_sync(
                lambda c: compare_metadata(MigrationContext.configure(c), database.metadata)
            )
            indexes = await connection.run_sync(
                lambda c: {
                    i["name"]: i["column_names"] for t in database.metadata.tables for i in sa.inspect(c).get_indexes(t)
                }
            )
        return differences, indexes

    differences, indexes = with_database(url, body)
    assert differences == []
    assert indexes == {"idx_prediction_time": ["created_at"], "idx_node_timestamp": ["node_id", "timestamp"]}


def test_processes_that_start_together_migrate_once(url):
    async def body(kept):
        others = [Database(url) for _ in range(4)]
        await asyncio.gather(*(one.migrate() for one in others))
        for one in others:
            await one.close()
        return await rows_of(kept, predictions)

    assert with_database(url, body) == []


def test_rows_come_back_the_latest_first_and_by_node(url):
    async def body(kept):
        await kept.migrate()
        for hours in (0, 1, 2):
            one = answered(NOW + timedelta(hours=hours), random_state(5, hours))
            rows = [database._prediction(one)], database._nodes(one)
            await kept.insert((predictions, rows[0]), (network_metrics, rows[1]))
        return (
            await rows_of(kept, predictions, predictions.c.created_at >= NOW + timedelta(minutes=30)),
            await rows_of(kept, network_metrics, network_metrics.c.node_id == "node_4"),
            await rows_of(kept, network_metrics, network_metrics.c.node_id == "x"),
        )

    made_since, reported, nothing = with_database(url, body)
    assert [(row["model_type"], row["nodes"], row["node"]) for row in made_since] == [("ppo", 5, 3)] * 2
    assert [row["timestamp"].hour for row in reported] == [5, 4, 3] and nothing == []
    assert reported[2]["cpu_util"] == random_state(5, 0)["nodes"][4]["cpu_util"]


@pytest.mark.parametrize("node_id", ["a\0b", "é" * 5000, "'; DROP TABLE predictions; --"])
def test_ids_of_any_characters_are_kept(url, node_id):
    state = {"nodes": [{**S2_STATE["nodes"][0], "node_id": node_id}]}

    async def body(kept):
        one = Recorder(kept, Metrics())
        one.start()
        one.record(answered(datetime.now(UTC), state, node_id))
        await one.stop(20)
        again = Database(url)
        found = await rows_of(again, predictions)
        await again.close()
        return [row["node_id"] for row in found]

    assert with_database(url, body) == [node_id[:200].replace("\0", "\ufffd")]


def recorded(url, body, **options):
    """What `body(recorder, database)` leaves behind: (in the database, counted as recorded, as lost)."""

    async def run(kept):
        metrics = Metrics()
        own = Database(url)
        one = Recorder(own, metrics, **options)
        one.start()
        await body(one, own)
        await one.stop(20)
        rows = await rows_of(kept, predictions)
        return len(rows), metrics.recorded._value.get(), metrics.unrecorded._value.get()

    return with_database(url, run)


def test_all_that_is_recorded_arrives_before_the_end_and_what_has_no_room_is_counted(url):
    async def body(one, _):
        for _ in range(3000):
            one.record(answered(datetime.now(UTC)))

    assert recorded(url, body) == (3000, 3000, 0)
    assert recorded(url, body, most=100)[1:] == (100, 2900)


def test_a_database_that_fails_for_a_while_gets_all_of_it_afterwards(url, monkeypatch):
    monkeypatch.setattr(database, "RETRY_S", 0.05)

    async def body(one, own):
        insert, ping = own.insert, own.ping

        async def fails(*bulks):
            raise OSError("connection refused")

        own.insert = own.ping = fails
        for _ in range(50):
            one.record(answered(datetime.now(UTC)))
        await asyncio.sleep(0.4)
        assert one.away
        own.insert, own.ping = insert, ping

    assert recorded(url, body) == (50, 50, 0)


def test_rows_that_a_database_refuses_are_given_up_and_the_others_kept(url, monkeypatch):
    monkeypatch.setattr(database, "RETRY_S", 0.05)
    monkeypatch.setattr(database, "ROWS", 1)

    async def body(one, _):
        for node in (1, None, 2):
            one.record(answered(datetime.now(UTC))._replace(node=node))
        await asyncio.sleep(0.5)

    assert recorded(url, body) == (2, 2, 1)


def test_what_is_old_is_deleted(url, monkeypatch):
    async def body(one, _):
        one.record(answered(datetime.now(UTC) - timedelta(days=3)))
        one.record(answered(datetime.now(UTC)))

    assert recorded(url, body, keep_days=2)[0] == 1


def test_the_pool_is_of_the_sizes_that_were_asked_for_and_tries_a_connection_before_it_is_used(url):
    async def body(kept):
        pool = kept.engine.pool
        async with kept.engine.connect(), kept.engine.connect():
            return pool.size(), pool._max_overflow, pool._pre_ping, pool.checkedout()

    assert with_database(url, body, pool_size=20, pool_overflow=40) == (20, 40, True, 2)


def test_postgresql_that_crashes_and_comes_back_costs_no_record(postgres_there, monkeypatch):
    monkeypatch.setattr(database, "RETRY_S", 0.05)
    url = make_url(postgres_there.url).set(drivername="postgresql+asyncpg")
    asyncio.run(emptied(url))

    async def body(one, own):
        one.record(answered(datetime.now(UTC)))
        while one._waiting:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(postgres_there.stop)
        one.record(answered(datetime.now(UTC)))
        while not one.away:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(postgres_there.start)

    assert recorded(url, body) == (2, 2, 0)
