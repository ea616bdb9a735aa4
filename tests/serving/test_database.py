"""The tables are those of the code, in SQLite and in PostgreSQL; what is recorded behind the answers arrives."""

import asyncio
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from edge_states import S2_STATE, random_state

from gnnlab.inference.predictor import Decision
from gnnlab.inference.states import check
from gnnlab.serving import database
from gnnlab.serving.database import Recorder, engine_of, network_metrics, predictions
from gnnlab.serving.settings import configure


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """Of an empty database."""
    if request.param == "sqlite":
        return configure(database=f"sqlite:///{tmp_path / 'decisions.sqlite'}").database_url
    url = configure(database=request.getfixturevalue("postgres_url")).database_url
    in_database(url, database.metadata.drop_all)
    return url


def in_database(url, body):
    """What `body(connection)` returns."""
    engine = engine_of(url)
    with engine.begin() as connection:
        result = body(connection)
    engine.dispose()
    return result


def recorded(url, *states, node_id="node_3", started=True):
    """What recording a decision on each of the states leaves: (rows of predictions, of network_metrics, how many
    decisions were counted as lost). Not `started`: the thread that writes starts when all are recorded."""

    async def run():
        lost = []
        recorder = Recorder(engine_of(url), SimpleNamespace(inc=lambda count=1: lost.append(count)))
        if started:
            recorder.start()
        for state in states:
            recorder.record("ppo", check(state), Decision(node_id, 3, -1.5, 0.25))
        if not started:
            recorder.start()
        await recorder.stop()
        return sum(lost)

    lost = asyncio.run(asyncio.wait_for(run(), 60))
    tables = (predictions, network_metrics)
    rows = in_database(url, lambda c: [c.execute(sa.select(t).order_by(t.c.id)).mappings().all() for t in tables])
    return *rows, lost


def test_a_decision_has_a_row_and_so_has_each_node_and_the_guides_indexes_are_there(url):
    states = [random_state(5, seed) for seed in range(3)]
    decisions, reports, _ = recorded(url, *states)
    row = ("ppo", 5, "node_3", 3)
    assert [(r["model_type"], r["nodes"], r["node_id"], r["node"]) for r in decisions] == [row] * 3
    nodes = [node for state in states for node in state["nodes"]]
    assert [{name: row[name] for name in nodes[0]} for row in reports] == nodes
    assert {row["timestamp"] for row in reports} == {row["created_at"] for row in decisions}
    tables = database.metadata.tables
    indexes = in_database(url, lambda c: [i for table in tables for i in sa.inspect(c).get_indexes(table)])
    expected = {"idx_prediction_time": ["created_at"], "idx_node_timestamp": ["node_id", "timestamp"]}
    assert {index["name"]: index["column_names"] for index in indexes} == expected


@pytest.mark.parametrize("node_id", ["a\0b", "é" * 5000, "'; DROP TABLE predictions; --"])
def test_ids_of_any_characters_are_stored(url, node_id):
    rows, _, _ = recorded(url, {"nodes": [{**S2_STATE["nodes"][0], "node_id": node_id}]}, node_id=node_id)
    assert [row["node_id"] for row in rows] == [node_id[:200].replace("\0", "\ufffd")]


def test_all_that_is_recorded_arrives_before_the_end_and_what_has_no_room_is_counted(url, monkeypatch):
    rows, _, lost = recorded(url, *[S2_STATE] * 1000)
    assert (len(rows), lost) == (1000, 0)
    monkeypatch.setattr(database, "MOST_QUEUED", 100)
    rows, _, lost = recorded(url, *[S2_STATE] * 1000, started=False)  # else a batch may be on its way already
    assert (len(rows), lost) == (1100, 900)


def test_a_database_that_is_away_costs_records_which_are_counted_and_nothing_after_it_is_back(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "RETRY_S", 0.05)
    url = configure(database=f"sqlite:///{tmp_path}/later/decisions.sqlite").database_url

    async def run():
        lost, decided = [], ("ppo", check(S2_STATE), Decision("node_3", 3, -1.5, 0.25))
        recorder = Recorder(engine_of(url), SimpleNamespace(inc=lambda count=1: lost.append(count)))
        recorder.start()
        for _ in range(50):
            recorder.record(*decided)
        while sum(lost) < 50:
            await asyncio.sleep(0.02)
        (tmp_path / "later").mkdir()
        while recorder.away:
            await asyncio.sleep(0.02)
        recorder.record(*decided)
        await recorder.stop()
        return sum(lost)

    assert asyncio.run(asyncio.wait_for(run(), 60)) == 50
    assert in_database(url, lambda c: c.scalar(sa.select(sa.func.count()).select_from(predictions))) == 1
