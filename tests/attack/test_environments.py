"""Work on machines that lack shared memory, a folder to write to, or a home is done, or one line says why not."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not shutil.which("unshare")
        or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
        reason="mounts folders in a namespace of its own, which is not possible here",
    ),
]
NAME = "ein Ordner, 名前 {0} %s 'ü'"
LACKING = {
    "shared memory": "mount -t tmpfs -o size=4k tmpfs /dev/shm",
    "results to write": "mount --bind {out} {out} && mount -o remount,ro,bind {out}",
    "home": "unset HOME",
}
PARAMETERS = 'nodes: int = 4  # nodes; 1..10\noutput_dir: str = "outputs/quick"  # where results go'
BODY = """\
from gnnlab import Lab
lab = Lab("01_first", globals())
lab.count("nodes", {"counted": lab.parameters.nodes})
lab.finish()"""
EXECUTE = """\
import sys
from gnnlab import cli
from gnnlab.errors import GnnlabError
from gnnlab.planning.costs import Model
from gnnlab.planning.execution import Executor
from gnnlab.planning.partition import Graph
from gnnlab.planning.plans import parse
from gnnlab.planning.unit_workers import UnitWorkers
from gnnlab.profiling.races import relative_error
from gnnlab.workloads.graphsage import random_inputs, sage
from synthetic_costs import Synthetic

layer, units, inputs = sage(8), ("plan_units:cpu", "plan_units:gpu"), random_inputs(30, 70, 8)
graph = Graph(inputs["x"].numpy(), inputs["edge_index"].numpy())
plan = parse('[[["plan_units:cpu"],[1,2,3],[1.0]],[["plan_units:gpu"],[4,5,6,7],[1.0]]]')
try:
    with UnitWorkers() as workers:
        workers.start(units)
        with Executor(plan, Model(layer, Synthetic(units, layer)), [graph], workers) as executor:
            assert relative_error(graph.through(layer), next(executor.run([0])).out, "plan") < 1e-5
except GnnlabError as error:
    print(error, file=sys.stderr)
    sys.exit(cli.BAD_INPUT)
"""
PROFILE = ["profile", "--model", "modèle:make_gat", "--profile", "memory", "--budget", "0.2"]
WORKS = {
    "run": ["-m", "gnnlab", "run", "01", "-p", "output_dir", "OUT"],
    "profile": ["-m", "gnnlab", *PROFILE, "--graph", "Gräph {1}.csv", "--json", "OUT/Bericht.json"],
    "execute": ["-c", EXECUTE],
}
REFUSED = {("execute", "shared memory"), ("run", "results to write"), ("profile", "results to write")}


@pytest.mark.parametrize("lacking", LACKING)
@pytest.mark.parametrize("work", WORKS)
def test_work_is_done_or_refused_in_one_line_whatever_the_machine_lacks(work, lacking, tmp_path):
    repository, out = tmp_path / NAME / "repository", tmp_path / NAME / "Ergebnisse 名"
    for folder in (repository / "notebooks", repository / "params/quick", out):
        folder.mkdir(parents=True)
    cells = [new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}), new_code_cell(BODY)]
    nbformat.write(new_notebook(cells=cells), repository / "notebooks/01_first.ipynb")
    (repository / "params/quick/01_first.yaml").write_text("nodes: 7\n")
    shutil.copy(ROOT / "examples/my_models.py", repository / "modèle.py")
    shutil.copy(ROOT / "examples/my_graph.csv", repository / "Gräph {1}.csv")
    command = shlex.join([sys.executable, *(part.replace("OUT", str(out)) for part in WORKS[work])])
    script = f"{LACKING[lacking].format(out=shlex.quote(str(out)))} && exec {command}"
    path = os.pathsep.join(map(str, [ROOT, ROOT / "tests/shared"]))
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if (work, lacking) in REFUSED:
        lines = [line for line in done.stderr.splitlines() if "machine is busy" not in line]
        assert done.returncode == 2 and len(lines) == 1, done.stderr
    else:
        assert done.returncode == 0, done.stderr + done.stdout
        assert work == "execute" or any(out.iterdir())
