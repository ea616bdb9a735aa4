"""Work on machines that lack something: memory to share, a folder to write to, a home, a clock that only goes forward.

What is done there is what is done elsewhere, or one line says why not; what was there before stays.
"""

import contextlib
import ctypes
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import nbformat
import pytest
import torch
import torch._dynamo  # what torch loads late asks for a temporary folder when it is loaded
from nbformat.v4 import new_code_cell, new_notebook
from planted_campaign import UNITS, PlantedUnits, cells
from synthetic_costs import Synthetic

from gnnlab import cli
from gnnlab.campaign import campaign, checkpoints
from gnnlab.campaign.cells import Settings
from gnnlab.errors import GnnlabError
from gnnlab.lab import results, runner
from gnnlab.planning.costs import Model
from gnnlab.planning.execution import Executor
from gnnlab.planning.partition import Graph
from gnnlab.planning.plans import parse
from gnnlab.planning.unit_workers import UnitWorkers
from gnnlab.profiling.races import relative_error
from gnnlab.training.loop import train
from gnnlab.training.recipe import TrainingRecipe
from gnnlab.workloads.deepfm import DeepFM
from gnnlab.workloads.graphsage import random_inputs, sage
from gnnlab.workloads.planted_table import planted

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(sys.platform != "linux", reason="mounts folders in a namespace of its own; only Linux has that"),
]
EXAMPLES = Path(__file__).parents[2] / "examples"
NAME = "ein Ordner, 名前 {0} %s 'ü'"
TIMEOUT_S = 240
PARAMETERS = 'nodes: int = 4  # nodes; 1..10\noutput_dir: str = "outputs/quick"  # where results go'
BODY = """\
from matplotlib.figure import Figure
from gnnlab import Lab
lab = Lab("01_first", globals())
lab.count("nodes", {"counted": lab.parameters.nodes})
figure = Figure()
figure.add_subplot().plot([1, 2])
figure.suptitle("It rises")
lab.figure(figure, "rising", alt="A line that rises from one to two.", key=True)
lab.finish()"""


@dataclass(frozen=True)
class Place:
    """A small repository, and where its results go."""

    repository: Path
    out: Path


def repository(root):
    (root / "notebooks").mkdir(parents=True)
    (root / "params/quick").mkdir(parents=True)
    cell = [new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}), new_code_cell(BODY)]
    nbformat.write(new_notebook(cells=cell), root / "notebooks/01_first.ipynb")
    (root / "params/quick/01_first.yaml").write_text("nodes: 7\n")
    (root / "modèle.py").write_text((EXAMPLES / "my_models.py").read_text(encoding="utf-8"), encoding="utf-8")
    (root / "Gräph {1}.csv").write_bytes((EXAMPLES / "my_graph.csv").read_bytes())
    return root


# ---- the work -------------------------------------------------------------------------------------------------------


def measures(place):
    campaign.run(place.out, cells(sizes=[(100, 400), (200, 800)]), PlantedUnits(UNITS, Settings(), 1.0))
    return {key: row["outcome"]["median_ms"] for key, row in checkpoints.raw(place.out).items()}


def trains(place):
    table, validation = planted(200, cardinalities=(5, 4), seed=0).split(0.25, 0)
    torch.manual_seed(0)
    model = DeepFM(table.cardinalities, table.specs, embedding_dim=4, hidden=8)
    recipe = TrainingRecipe(batch_size=32, epochs=2, learning_rate=0.01)
    return train(model, table, validation, recipe, folder=place.out, resume=True, checkpoint_steps=2).losses


def executes(place):
    """A plan on two units, whose workers share memory."""
    layer, units = sage(8), ("plan_units:cpu", "plan_units:gpu")
    inputs = random_inputs(30, 70, 8)
    graph = Graph(inputs["x"].numpy(), inputs["edge_index"].numpy())
    plan = parse(f'[[["{units[0]}"],[1,2,3],[1.0]],[["{units[1]}"],[4,5,6,7],[1.0]]]')
    with UnitWorkers() as workers:
        workers.start(units)
        with Executor(plan, Model(layer, Synthetic(units, layer)), [graph], workers) as executor:
            found = next(executor.run([0]))
    return relative_error(graph.through(layer), found.out, "plan") < 1e-5


def runs(place):
    """A notebook, in a kernel of its own, and the site of its results."""
    ended = runner.run(["01"], root=place.repository, overrides=[("output_dir", str(place.out))])
    if runner.exit_code(ended):
        raise GnnlabError(ended[0].reason)
    result = results.read(place.out / "01_first.json")
    made = [place.out / "index.html", *(place.out / figure.png for figure in result.figures)]
    return [row.value for row in result.rows], [path.exists() for path in made]


def profiles(place):
    """A user's model, tried in a process of its own."""
    to = place.out / "Bericht.json"
    given = ["--model", "modèle:make_gat", "--graph", "Gräph {1}.csv", "--profile", "memory", "--json", str(to)]
    commanded("profile", *given, "--budget", "0.2")
    return {key: json.loads(to.read_text(encoding="utf-8"))["model_info"][key] for key in ("nodes", "total_parameters")}


def decides(place):
    return commanded("infer", "--device", "cpu", "--batch", str(EXAMPLES / "states.jsonl"))


WORKS = (measures, trains, executes, runs, profiles, decides)


def commanded(*arguments):
    """What a command prints. What it says of bad input is an error of ours."""
    out, err = StringIO(), StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(arguments)
    if code == cli.BAD_INPUT:
        raise GnnlabError(err.getvalue().strip())
    assert code == 0, err.getvalue()
    return out.getvalue()


# ---- the conditions -------------------------------------------------------------------------------------------------


def mounted(*commands):
    """In a namespace of this process's own, which ends with it."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x00020000):  # CLONE_NEWNS
        raise OSError(ctypes.get_errno(), "no namespace of mounts")
    for command in (["--make-rprivate", "/"], *commands):
        subprocess.run(["mount", *map(str, command)], check=True, capture_output=True)


def read_only(folder):
    return ["--bind", folder, folder], ["-o", "remount,ro,bind", folder]


def as_usual(place):
    pass


def no_shared_memory(place):
    """Only the devices that a program cannot do without."""
    bare = place.repository.parent / "dev"
    bare.mkdir()
    kept = [Path("/dev", name) for name in ("null", "zero", "urandom", "random", "full") if Path("/dev", name).exists()]
    for device in kept:
        (bare / device.name).touch()
    mounted(*(["--bind", device, bare / device.name] for device in kept), ["--rbind", bare, "/dev"])


def little_shared_memory(place):
    mounted(["-t", "tmpfs", "-o", "size=4k", "tmpfs", "/dev/shm"])


def read_only_shared_memory(place):
    mounted(["-t", "tmpfs", "-o", "ro", "tmpfs", "/dev/shm"])


def read_only_results(place):
    mounted(*read_only(place.out))


def read_only_repository(place):
    mounted(*read_only(place.repository))


def no_temporary_folder(place):
    """Nowhere to write but where the results go and where kernels keep what they are."""
    os.environ |= {"JUPYTER_RUNTIME_DIR": str(place.out / ".jupyter"), "TMPDIR": "/proc"}
    tempfile.tempdir, own = None, place.repository.parent
    folders = [read_only(name) for name in ("/tmp", "/var/tmp", "/usr/tmp") if Path(name).is_dir()]
    mounted(*(bind for bind, _ in folders), ["--bind", own, own], *(only for _, only in folders))
    mounted(*read_only(place.repository))


def no_home(place):
    os.environ.pop("HOME", None)


def home_that_is_not_there(place):
    os.environ["HOME"] = "/nirgends/名"


def home_that_cannot_be_written(place):
    home = place.repository.parent / "home"
    home.mkdir()
    mounted(*read_only(home))
    os.environ["HOME"] = str(home)


def clock_that_jumps(place):
    """By an hour, forward and back, at each look; in this process and in those that it starts."""
    import datetime as module

    real, jumps = time.time, iter([0, 3600, -7200, 3600, -86400, 31_536_000] * 10**6)
    time.time = lambda: real() + next(jumps)

    class Jumping(module.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(time.time(), tz)

    for loaded in [found for name, found in sys.modules.items() if name.startswith("gnnlab")]:
        if getattr(loaded, "datetime", None) is module.datetime:
            loaded.datetime = Jumping


CONDITIONS = (
    as_usual,
    no_shared_memory,
    little_shared_memory,
    read_only_shared_memory,
    read_only_results,
    read_only_repository,
    no_temporary_folder,
    no_home,
    home_that_is_not_there,
    home_that_cannot_be_written,
    clock_that_jumps,
)


# work that says in one line that it needs what is not there; all other work is done
REFUSED = {
    "executes": {no_shared_memory, little_shared_memory, read_only_shared_memory},
    "measures": {read_only_results},
    "trains": {read_only_results},
    "runs": {read_only_results, no_temporary_folder, clock_that_jumps},  # Jupyter waits for its kernel by that clock
    "profiles": {read_only_results, no_temporary_folder},
}


# ---- in a process of its own ----------------------------------------------------------------------------------------


def under(condition, place, work):
    """What became of some work under a condition: its value, the line that says why there is none, or a traceback."""
    ours, theirs = multiprocessing.Pipe(duplex=False)

    def child():
        torch.set_num_threads(1)  # a process that was forked has the threads of its parent no more
        os.chdir(place.repository)
        try:
            condition(place)
        except (OSError, subprocess.SubprocessError) as error:
            theirs.send(("not possible", f"mounts are not allowed here: {error}"))
            return
        try:
            found = "value", json.loads(json.dumps(work(place)))
        except GnnlabError as error:
            found = "line" if len(str(error).splitlines()) == 1 else "traceback", str(error)
        except BaseException:
            found = "traceback", traceback.format_exc()
        theirs.send(found)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(TIMEOUT_S) else ("traceback", f"not done after {TIMEOUT_S} s")
    except EOFError:
        return "traceback", "the process ended"
    finally:
        process.kill()
        process.join()


def outcome_of(kind, found, expected, *, refused):
    if kind == "value":
        return "survived" if found == expected else "invented"
    return "survived" if kind == "line" and refused else "lost"


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_work_is_done_or_refused_in_one_line_whatever_the_machine_lacks(work, tmp_path, tally):
    impossible = {}
    for condition in CONDITIONS:
        folder = tmp_path / condition.__name__ / NAME
        place = Place(repository(folder / "repository"), folder / "Ergebnisse 名")
        place.out.mkdir()
        kind, found = under(condition, place, work)
        if condition is as_usual:
            assert kind == "value", found
            expected = found
        if kind == "not possible":
            impossible[condition.__name__] = found
            continue
        may_refuse = condition in REFUSED.get(work.__name__, ())
        outcome = outcome_of(kind, found, expected, refused=may_refuse)
        if kind == "line":  # nothing that was refused stands in the way of doing it where nothing is lacking
            again = under(as_usual, place, work)
            outcome = outcome if again == ("value", expected) else "lost"
        tally[f"environment: {condition.__name__}"][outcome] += 1
        assert outcome == "survived", (condition.__name__, kind, found)
    if impossible:
        pytest.skip(f"not tried: {', '.join(impossible)} ({next(iter(impossible.values()))})")
