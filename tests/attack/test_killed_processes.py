"""Processes are killed while they stream, answer or run a notebook: what they gave stays, and the next ones go on.

A moment is the n-th report of a unit, answer, insert or write, not a time. Each costs the start of processes, so that a
share of `ATTACK_NUMBER` is tried.
"""

import asyncio
import io
import multiprocessing
import os
import shutil
import sqlite3
import sys
from collections import Counter
from contextlib import ExitStack, closing
from multiprocessing import resource_tracker
from pathlib import Path

import nbformat
import orjson
import psutil
import pytest
import torch
from moments import at_moment, die, forked
from rich.console import Console
from servers import or_skipped, until
from synthetic_costs import Synthetic

from gnnlab.planning.costs import Model
from gnnlab.planning.execution import Executor
from gnnlab.planning.partition import Graph
from gnnlab.planning.plans import parse
from gnnlab.planning.unit_workers import UnitWorkers
from gnnlab.serving import faults
from gnnlab.serving.database import Database, Recorder
from gnnlab.serving.load import Connection
from gnnlab.serving.local_servers import PostgresServer, RedisServer, up
from gnnlab.serving.server import here, started, workers_of
from gnnlab.serving.service import Service
from gnnlab.serving.settings import made
from gnnlab.workloads.edge_allocator import MODEL_TYPES
from gnnlab.workloads.graphsage import random_inputs, sage

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(sys.platform == "win32", reason="kills a forked process; Windows has no fork"),
]
FORK = multiprocessing.get_context("fork")
GONE_S = 120  # for a process that is to end by itself, on a busy machine


@pytest.fixture(autouse=True)
def one_thread():
    """A process that was forked has the threads of its parent no more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def some(random, moments, number):
    """Moments of so many, from 1."""
    return (random.permutation(moments)[: max(1, number)] + 1).tolist()


# ---- a plan at work -------------------------------------------------------------------------------------------------

UNITS = ("plan_units:cpu", "plan_units:gpu")
PLAN = parse(f'[[["{UNITS[0]}"],[1,2,3,4,5]],[["{UNITS[1]}"],[6,7]]]')
ITEMS = 10
REPORTS = ((Executor, "next_report"),)


def executor_of(workers):
    layer = sage(8)
    inputs = [random_inputs(nodes, edges, 8, seed=nodes) for nodes, edges in ((30, 70), (41, 20), (12, 200))]
    graphs = [Graph(found["x"].numpy(), found["edge_index"].numpy()) for found in inputs]
    return Executor(PLAN, Model(layer, Synthetic(UNITS, layer, ())), graphs, workers)


def test_who_carries_out_a_plan_is_killed_and_leaves_no_process_and_no_memory(random, number, tally):
    def work(told, wanted):
        resource_tracker._resource_tracker._fd = resource_tracker._resource_tracker._pid = None  # its parent's
        with pytest.MonkeyPatch.context() as patch, UnitWorkers() as workers:
            executor = executor_of(workers)
            told.send(([workers[unit].pid for unit in UNITS], executor._arrays.layout["memory"]))
            at_moment(patch, wanted, die, REPORTS)
            list(executor.run(i % 3 for i in range(ITEMS)))

    for wanted in some(random, 2 * ITEMS, number // 12):
        ours, theirs = FORK.Pipe()
        process = forked(work, theirs, wanted)
        pids, memory = ours.recv()
        units = [psutil.Process(pid) for pid in pids]
        process.join()
        left = psutil.wait_procs(units, timeout=GONE_S)[1]
        until(lambda memory=memory: not Path("/dev/shm", memory).exists(), GONE_S)
        found = "lost" if left or process.exitcode != -9 else "survived"
        tally["plan: its process killed"][found] += 1
        assert found == "survived", wanted


# ---- the service ----------------------------------------------------------------------------------------------------

STATES = faults.STATES[:40]


class Told:
    """Of a service that may be killed: what is said behind a commit."""

    @staticmethod
    def tell(pipe, rows):
        pipe.send(rows)


ANSWERS = ((Service, "answer"), (Recorder, "record"), (Database, "insert"), (Told, "tell"))


@pytest.fixture(scope="module")
def expected():
    return faults.Expected(STATES)


def serve(settings, wanted, pipe):
    """In a forked process: a service that dies at the moment `wanted`, or stops when it is told so."""
    insert = Database.insert

    async def insert_and_tell(self, *bulks):
        await insert(self, *bulks)
        Told.tell(pipe, len(bulks[0][1]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "insert", insert_and_tell)
        at_moment(patch, wanted, die, ANSWERS)
        with here(settings) as url:
            pipe.send(url)
            pipe.recv()


def kind_of(place):
    return MODEL_TYPES[place % len(MODEL_TYPES)]


async def ask(url, places, answers, sent, most=10**9):
    """Ask for these states, one after the other, until the connection breaks, or for `most` answers."""
    connection = Connection(url)
    while places and len(answers) < most:
        place = places.pop(0)
        sent[place] += 1
        try:
            path = f"/predict?scores=true&model_type={kind_of(place)}"
            answer = await connection.post(path, orjson.dumps(STATES[place]))
        except (OSError, asyncio.IncompleteReadError):
            places.insert(0, place)
            break
        if answer.status in (503, 504):
            places.append(place)
        else:
            answers[place] = answer.json
    connection.close()


def rows_of(url):
    """What a database holds: (place, model, node, score), and whether both tables tell of the same networks."""
    decisions, nodes = "SELECT node_id, model_type, node, score, nodes FROM predictions", "FROM network_metrics"
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            whole = connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            found = connection.execute(f"{decisions} ORDER BY id").fetchall()
            metrics = connection.execute(f"SELECT count(*) {nodes}").fetchone()[0]
    else:
        import asyncpg

        async def fetch():
            connection = await asyncpg.connect(url)
            rows = await connection.fetch(f"{decisions} ORDER BY id")
            count = await connection.fetchval(f"SELECT count(*) {nodes}")
            await connection.close()
            return [tuple(row) for row in rows], count

        (found, metrics), whole = asyncio.run(fetch()), True
    rows = [(int(name.partition("/")[0]), kind, node, score) for name, kind, node, score, _ in found]
    return rows, whole and metrics == sum(row[-1] for row in found)


def judged(answers, sent, rows, whole, committed, certain, expected):
    """`committed`: decisions that the database took; `certain`: places whose answer a service gave that stopped."""
    right = all(expected.holds(answer, kind_of(place), place) for place, answer in answers.items())
    for place, kind, node, score in rows:
        answer = answers[place]  # every state is answered in the end
        right &= (kind, node) == (kind_of(place), answer["node"]) and abs(score - answer["score"]) < 1e-4
    times = Counter(row[0] for row in rows)
    if not right or any(times[place] > sent[place] for place in times):
        return "invented"
    return "survived" if whole and len(rows) >= committed and certain <= set(times) else "lost"


def attacked(settings, wanted, expected):
    """A service is asked until it dies at that moment; then another one is, for what has no answer."""
    answers, sent, places, committed = {}, Counter(), list(range(len(STATES))), 0
    certain, kills = set(), 0
    for moment in (wanted, 0):
        ours, theirs = FORK.Pipe()
        process = forked(serve, settings, moment, theirs)
        theirs.close()
        url, before = ours.recv(), set(answers)
        asyncio.run(ask(url, places, answers, sent))
        if places or not process.is_alive():
            process.join(GONE_S)
        else:
            ours.send("stop")
        try:
            while True:
                committed += ours.recv()
        except (EOFError, ConnectionError):
            process.join(GONE_S)
        if process.exitcode == 0:
            certain |= set(answers) - before
        kills += process.exitcode == -9
    rows, whole = rows_of(settings.database.get_secret_value())
    if places or process.exitcode != 0:
        return "lost", kills
    return judged(answers, sent, rows, whole, committed, certain, expected), kills


@pytest.mark.parametrize("beside", ["SQLite", "PostgreSQL, Redis"])
def test_a_service_that_is_killed_gave_right_answers_and_its_database_is_whole(
    beside, tmp_path, expected, random, number, tally
):
    with ExitStack() as stack:
        options = {"port": 0, "max_batch": 4}
        if beside == "PostgreSQL, Redis":
            postgres = stack.enter_context(or_skipped(up(PostgresServer)))
            options["redis"] = stack.enter_context(or_skipped(up(RedisServer))).url
        for wanted in some(random, 2 * len(STATES), number // (3 if beside == "SQLite" else 12)):
            database = f"sqlite:///{tmp_path}/{wanted}.sqlite"
            if beside != "SQLite":
                database = made_database(postgres.url, f"attack{wanted}")
            found, kills = attacked(made(database=database, **options), wanted, expected)
            tally[f"service, {beside}: killed"][found] += 1
            assert found == "survived" and kills == 1, wanted


def made_database(url, name):
    import asyncpg

    async def create():
        connection = await asyncpg.connect(url)
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()

    asyncio.run(create())
    return f"{url.rpartition('/')[0]}/{name}"


@pytest.mark.parametrize("victim", ["a worker", "their parent"])
def test_a_service_of_workers_loses_no_answer_and_no_decision_to_a_kill_of_their_parent(
    victim, tmp_path, expected, random, number, tally
):
    """What a worker that is killed has not written yet, a fifth of a second at most, the database does not get."""
    for wanted in some(random, len(STATES) - 8, number // 50):
        database = f"sqlite:///{tmp_path}/{wanted}.sqlite"
        answers, sent, places = {}, Counter(), list(range(len(STATES)))

        async def clients(url, most=10**9, asked=(places, answers, sent)):
            await asyncio.gather(*(ask(url, *asked, most) for _ in range(4)))

        with started(made(port=0, workers=2, database=database)) as (url, process):
            until(lambda process=process: len(workers_of(process)) == 2, GONE_S)
            workers = [psutil.Process(pid) for pid in workers_of(process)]
            asyncio.run(clients(url, wanted))
            if victim == "a worker":
                workers[wanted % 2].kill()
                while places:
                    asyncio.run(clients(url))
            else:
                process.kill()
                asyncio.run(clients(url))
                left = psutil.wait_procs(workers, timeout=GONE_S)[1]
        certain = set(answers) if victim == "their parent" else set()
        with started(made(port=0, workers=1, database=database)) as (url, _):
            asyncio.run(clients(url))
        rows, whole = rows_of(database)
        found = judged(answers, sent, rows, whole, 0, certain, expected)
        found = "lost" if places or (victim == "their parent" and left) else found
        tally[f"service of workers: {victim} killed"][found] += 1
        assert found == "survived", wanted


# ---- a notebook -----------------------------------------------------------------------------------------------------

PARAMETERS = """\
width: int = 8                      # what it measures; 1..64
output_dir: str = "outputs/quick"   # where results go"""
BODY = """\
import os, uuid
from pathlib import Path
from gnnlab.lab import results, table
fields = dict(params_set="quick", parameters=dict(width=width), environment={}, seconds=0)
result = results.ResultFile(run=uuid.uuid4().hex, notebook="01_first", status="passed",
                            started="2026-01-02T03:04:05+00:00", **fields)
rows = table.Table()
rows.put(table.row(study="attack", form="width", value=width, n=1, unit="count", better="neither", origin="measured",
                   statistic="single", interval="none", device="CPU", runtime="python", precision="none", threads=1),
         [width])
results.write(Path(os.environ["GNNLAB_STAGED"], "01_first.json"), result, rows)"""


def repository(root):
    cells = [
        nbformat.v4.new_markdown_cell("# The question"),
        nbformat.v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell(BODY),
    ]
    for folder in ("notebooks", "params/quick"):
        (root / folder).mkdir(parents=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"gnnlab": {}}), root / "notebooks/01_first.ipynb")
    (root / "params/quick/01_first.yaml").write_text("width: 9\n")
    return root


def run(root, *overrides, wanted=0):
    """A run in a forked process that dies at that moment; what it printed, and how many moments there were."""

    def work(pipe):
        from gnnlab.lab import runner

        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(root)
            calls = at_moment(patch, wanted, die)
            runner.run(["01"], root=root, overrides=overrides, console=Console(file=printed, width=200))
            pipe.send((printed.getvalue(), calls["all"]))

    ours, theirs = FORK.Pipe()
    process = forked(work, theirs)
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return None, 0
    finally:
        process.join()


def width_of(folder):
    """What the result there says, with its own samples; None where there is none. Pages are whole or not there."""
    from gnnlab.lab import outputs, results

    outputs.recover(folder)  # as whoever comes next does
    path = folder / "01_first.json"
    result = results.read(path)
    samples = results.table_of(path, result).samples_of(result.rows[0]).tolist()
    pages = [page.read_text(encoding="utf-8").rstrip().endswith("</html>") for page in folder.rglob("*.html")]
    return result.rows[0].value if samples == [result.rows[0].value] and pages and all(pages) else None


def test_a_notebook_run_that_is_killed_leaves_the_results_before_it_or_new_ones_and_the_next_says_why(
    tmp_path, random, number, tally, monkeypatch
):
    import gnnlab.lab.execution
    import gnnlab.lab.report
    import gnnlab.lab.runner  # noqa: F401  loaded once, for all that are forked

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    before = repository(tmp_path / "Ordner, 名前")
    assert "first run" in run(before)[0]
    whole = shutil.copytree(before, tmp_path / "whole")
    printed, moments = run(whole, ("width", "10"))
    assert "parameters changed (width)" in printed and width_of(whole / "outputs/quick") == 10
    for wanted in some(random, moments, number // 12):
        root = shutil.copytree(before, tmp_path / str(wanted))
        folder = root / "outputs/quick"
        printed, _ = run(root, ("width", "10"), wanted=wanted)
        assert printed is None  # it was killed
        stands = width_of(folder)
        again, _ = run(root, ("width", "10"))
        reason = {9: "parameters changed (width", 10: "unchanged since"}.get(stands)
        found = "survived" if reason and again and reason in again and width_of(folder) == 10 else "lost"
        found = found if stands in (9, 10) else "invented"
        tally["notebook: its runner killed"][found] += 1
        assert found == "survived", (wanted, stands, again)
