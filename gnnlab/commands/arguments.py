"""What the commands take, and those that work apart from notebooks: profile, optimize, units, ..., infer, serve.

What these do stands in modules of their names, which load heavy packages: when they are called, and no sooner.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module

WIDTH_IN_A_FILE = 160  # columns of a table that goes to a file or a pipe
PROFILES = ("runtime", "memory", "flops", "scaling", "operators")
Command = Callable[[argparse.Namespace], int]
COMMANDS: dict[str, tuple[Command, tuple]] = {}  # by name: what it does, what it takes


def command(*arguments: tuple) -> Callable[[Command], Command]:
    """Make a function a command that takes `arguments`; a list of them excludes each other."""

    def add(function: Command) -> Command:
        COMMANDS[function.__name__] = function, arguments
        return function

    return add


def takes(*names: str, **options) -> tuple:
    """An argument, as argparse's `add_argument` has it."""
    return names, options


INPUTS = takes(
    "--inputs",
    dest="graph",  # what `workloads.models.build` takes in place of a graph
    type="inputs:{}".format,
    metavar="module:function",
    help="instead: a function that returns what forward takes (tuple, dict, Data, HeteroData, batch of molecules)",
)
JSON = takes("--json", action="store_true", help="as JSON")
PARAMS = takes(
    "--params",
    metavar="SET",
    default="quick",
    help="parameter set: quick, full, gpu, npu, or a folder of YAML files named as the notebooks (default: quick)",
)


def show(what: object) -> None:
    """Print text as it is, and anything else as rich renders it."""
    if isinstance(what, str):
        print(what)
        return
    from rich.console import Console

    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_IN_A_FILE
    Console(width=wide).print(what)


def number(kind: type, least: float, most: float, what: str) -> Callable[[str], float]:
    """What argparse calls for a number, int or float, from `least` to `most`; `what` is how an error names it."""

    def understood(text: str) -> float:
        form = r"\d{1,12}" if kind is int else r"\d{1,12}(\.\d+)?"
        if re.fullmatch(form, text, re.ASCII) and least <= kind(text) <= most:
            return kind(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a {what}")

    return understood


_count = number(int, 1, 9_999_999_999, "whole number above 0")
_seconds = number(float, 1e-9, 9_999.999, "number of seconds above 0 and below 10,000")
SIZES = {
    "hidden_dim": "channels of a hidden layer",
    "num_layers": "layers",
    "num_heads": "attention heads",
    "ffn_dim": "channels inside the feed-forward network",
    "batch_size": "rows of a batch, where the model has one",
}


def _apart(name: str, arguments) -> int:
    """What the module of that name does, loaded now."""
    return import_module(f"{__package__}.{name}").run(arguments, show)


@command(
    takes("--model", default="graph_transformer", help="a built-in name or module:factory (%(default)s)"),
    [
        takes("--graph", "--dataset", default="digits", help="the graph (%(default)s)"),
        takes("--num_nodes", "--num-nodes", type=_count, metavar="N", help="nodes of a random graph"),
        INPUTS,
    ],
    takes(
        "--profile",
        nargs="+",
        choices=PROFILES,
        default=["runtime", "memory", "flops"],
        metavar="WHAT",
        help=f"any of {', '.join(PROFILES)} (runtime memory flops)",
    ),
    *(
        takes(f"--{name}", f"--{name.replace('_', '-')}", type=_count, metavar="N", help=meaning)
        for name, meaning in SIZES.items()
    ),
    takes(
        "--num_runs", "--num-runs", type=_count, metavar="N", help="runs (default: until the interval is within 2 %%)"
    ),
    takes("--budget", type=_seconds, default=60.0, metavar="S", help="seconds for all sections (%(default)g)"),
    takes("--device", default="cpu", help="cpu or cuda (%(default)s)"),
    takes("--json", nargs="?", const="-", metavar="FILE", help="JSON to FILE, or to the terminal without one"),
)
def profile(arguments) -> int:
    """Profile one model on one graph: time, memory, FLOPs, scaling, operators.

    Each section is printed when it is done; all of them share the budget. The graph transformer has the sizes that
    notebook 01 starts from, unless others are given.

    Built-in models are symptom_gat and graph_transformer; a model of your own is module:factory, where
    factory(data) returns a torch module. A graph is a built-in name (symptoms, digits, karate), a PyG dataset
    (planetoid:Cora), random:nodes=1000,edges=5000, or a file (.npz, GraphML, edge-list CSV).

    examples:
      gnnlab profile --model graph_transformer --profile runtime memory flops scaling
      gnnlab profile --model graph_transformer --hidden_dim 512 --num_layers 12 --num_nodes 1000
      gnnlab profile --model my_models:make_gat --graph my_graph.npz --profile runtime operators
      gnnlab profile --model symptom_gat --graph symptoms --json profile.json
    """
    return _apart("profile", arguments)


MODEL = takes(
    "model", metavar="module:factory", help="a function that makes your model, given the graph if it asks for it"
)
GRAPH = [takes("--graph", default="digits", help="the graph (%(default)s)"), INPUTS]


@command(MODEL, GRAPH, takes("--train", action="store_true", help="also measure a forward and backward pass"))
def swap(arguments) -> int:
    """Show which layers of your model have a faster form, and what they bring.

    The same as `gnnlab.swap(model, inputs)` in Python: each layer is tried beside its fast form, outputs and all
    gradients, and replaced where it is equal and, on these inputs, faster. The report says what was replaced, what was
    not and why, and time and memory of a forward pass before and after. It takes seconds; `gnnlab optimize` looks for
    more, proves the whole model and writes it.

    examples:
      gnnlab swap my_models:make --graph my_graph.npz
      gnnlab swap my_models:make --inputs my_models:molecules --train
    """
    return _apart("swap", arguments)


@command(
    MODEL,
    GRAPH,
    takes("--train", action="store_true", help="forward and backward pass, and gradients in the proof"),
    takes("--out", metavar="FILE", help="write the fast model as a module"),
    takes("--budget", type=_count, default=90, metavar="S", help="seconds for all of it (%(default)s)"),
    takes("--processes", type=_count, default=3, metavar="N", help="processes that race (%(default)s)"),
    JSON,
)
def optimize(arguments) -> int:
    """Find what makes your model faster, measure it, prove it equal, and write the fast model.

    Fast layers come first, then constant output, inference mode, threads, torch.compile, mallopt (freed memory is
    kept). Each step is added to those that were kept, compared on your graph and on others (isolated nodes, repeated
    edges, self-loops, no edges, other sizes), raced in several processes, and stays if it makes the model faster.
    bfloat16, which changes results, is measured, listed, and not applied.

    examples:
      gnnlab optimize my_models:make --graph digits
      gnnlab optimize my_models:make --graph planetoid:Cora --train --out fast_model.py
      gnnlab optimize my_models:make --graph my_graph.npz --budget 300 --processes 5 --json
    """
    return _apart("optimize", arguments)


@command(
    takes("units", nargs="*", metavar="UNIT", help="names of units (default: all)"),
    JSON,
)
def units(arguments) -> int:
    """Show every processing unit: usable or not, why not, what to install.

    Each is really tried, with a tiny inference in a process of its own, where a driver may hang or crash.
    A unit of your own is module:factory, where factory() returns a gnnlab.units.unit.Unit.

    examples:
      gnnlab units
      gnnlab units openvino:GPU openvino:NPU --json
    """
    return _apart("units", arguments)


@command(
    PARAMS,
    takes("--export", action="store_true", help="export the models that are missing or stale"),
    takes("--measure", action="store_true", help="measure what is not known yet"),
    takes("--analyze", action="store_true", help="merge the checkpoints, print the report, write both tables"),
    takes("--all", action="store_true", help="all three"),
    takes("--sizes", nargs="+", metavar="SIZE", help="nodes/edges, study, a JSON file, or graph:NAME"),
    takes("--units", nargs="+", metavar="UNIT", help="units, as openvino:CPU or module:factory (default: all)"),
    takes("--blocks", nargs="+", metavar="BLOCK", help="3, 1-5, stages (each by itself), all (fused, too)"),
    takes(
        "--cluster",
        metavar="ADDRESS",
        help="of a Dask scheduler whose workers measure; each declares its processor, as in `dask worker ADDRESS "
        '--nthreads 1 --resources "NPU=1"` (needs gnnlab[cluster], and a folder of models that all see)',
    ),
)
def stages(arguments) -> int:
    """Export one GNN layer stage by stage and measure the stages on every processing unit.

    The same as notebooks 04 and 05, into the same folders: exported_models and stages of outputs/SET; with sizes,
    units or blocks of your own into outputs/lab, so that what gnnlab run left stays. --analyze ends with S4's
    lookup_table.json and bandwidth_table.json in tables beside them, for which it measures copies. A campaign that
    was stopped, or killed, goes on where it was. Delete its folder stages to measure all anew.

    examples:
      gnnlab stages --all
      gnnlab stages --all --params npu      the whole of S4 where there is an NPU
      gnnlab stages --all --sizes 1000/10000 my_sizes.json graph:digits --units openvino:CPU torch:CPU
      gnnlab stages --measure --blocks 1-5 6 7      a fused block and two stages
      gnnlab stages --measure --cluster tcp://10.0.0.1:8786      on machines that hold the devices
    """
    return _apart("stages", arguments)


@command(
    PARAMS,
    takes("--nodes", type=_count, metavar="N", help="nodes of the graph"),
    takes("--edges", type=_count, metavar="E", help="edges of the graph"),
    takes("--graph", metavar="GRAPH", help="a graph: a name, random:..., or a file"),
    takes("--execute", action="store_true", help="run the layer on the graph by the plan"),
    takes("--parts", type=_count, default=1, metavar="N", help="cut the graph into parts (%(default)s)"),
    takes("--plan", metavar="PLAN", help="in words or as [[units, stages, ratios], ...]; default: best"),
    takes("--units", nargs="+", metavar="UNIT", help="units to plan with (default: this CPU's runtimes)"),
    takes("--lookup", metavar="FILE", help="a lookup table in S4's format, of any machine, instead of notebook 06's"),
    takes("--bandwidth", metavar="FILE", help="the bandwidth table that belongs to it"),
    takes(
        "--objective",
        choices=("throughput", "latency"),
        default="throughput",
        help="a stream of graphs, or one graph alone (%(default)s)",
    ),
)
def plan(arguments) -> int:
    """Choose which processing unit runs which stages of a layer, and carry it out.

    The layer is the lab's own, not a model of yours: of --graph it takes the size and the edges.
    Needs the tables of notebook 06; notebook 07 executes plans.

    examples:
      gnnlab plan --nodes 4000 --edges 9000
      gnnlab plan --graph digits --execute
      gnnlab plan --graph my_graph.npz --execute --parts 8       cut by METIS, its parts streamed
      gnnlab plan --nodes 1000 --edges 9000 --plan "1-5 on fast:CPU, 6-7 on openvino:CPU"
      gnnlab plan --nodes 1000 --edges 5000 --lookup lookup_table.json --bandwidth bandwidth_table.json
    """
    return _apart("plan", arguments)


@command(
    takes("--model-type", choices=("dqn", "ppo", "hybrid"), default="hybrid", help="the model (%(default)s)"),
    takes("--device", default="auto", help="auto, cuda, mps or cpu (%(default)s)"),
    takes("--quantize", action="store_true", help="weights and activations in int8, on the CPU"),
    [
        takes(
            "--batch", nargs="?", const="-", metavar="FILE", help="answer all lines of FILE, or of the input, together"
        ),
        takes("--benchmark", action="store_true", help="measure this predictor against the original path"),
    ],
)
def infer(arguments) -> int:
    """Choose the node for the next task: states of edge networks in, decisions out, as JSON lines.

    A line in: {"nodes": [{"node_id": ..., "cpu_util": ..., ...}, ...], "links": [[id, id], ...]}.
    A line out: its number and the chosen node. A line that is no such state is answered by an error line,
    the others are answered all the same, and the exit code is 1.

    examples:
      gnnlab infer --model-type hybrid --device cpu < states.jsonl
      gnnlab infer --model-type dqn --device cpu --quantize < states.jsonl
      gnnlab infer --batch states.jsonl > decisions.jsonl
      gnnlab infer --benchmark
    """
    return _apart("infer", arguments)


@command(
    takes("--host", help="address to bind (127.0.0.1); any other makes it reachable from elsewhere, without a login"),
    takes("--port", type=int, metavar="N", help="port (8000); 0: any that is free"),
    takes("--model-type", choices=("dqn", "ppo", "hybrid"), help="what answers a request that names none (hybrid)"),
    takes("--workers", type=_count, metavar="N", help="processes that answer (1)"),
    takes("--redis", metavar="URL", help="cache of all workers and hosts: redis://HOST:6379/0, or none (none)"),
    takes(
        "--database",
        metavar="URL",
        help="what keeps the decisions: sqlite:///FILE, postgresql://USER@HOST/NAME or none "
        "(sqlite:///outputs/serving.sqlite)",
    ),
)
def serve(arguments) -> int:
    """Serve the decisions of `gnnlab infer` over HTTP, in batches, with a cache, a record and metrics.

    POST /predict takes one network, POST /predict_batch a list of them; /openapi.json describes both.
    Every further setting is a variable GNNLAB_SERVE_... (docs/serving.md); a URL with a password belongs
    there, too: what is typed here, every user of this machine can read. Ctrl-C answers what was accepted, and ends.

    examples:
      gnnlab serve
      gnnlab serve --model-type dqn --port 8080 --workers 2
      gnnlab serve --redis redis://127.0.0.1:6379/0 --database postgresql://gnnlab@127.0.0.1/gnnlab
      curl -H 'content-type: application/json' -d @state.json http://127.0.0.1:8000/predict
    """
    import logging

    from ..serving import server
    from ..serving.settings import configure

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    options = ("host", "port", "model_type", "workers", "redis", "database")
    given = {name: getattr(arguments, name) for name in options}  # others: the environment, or the default
    return server.serve(configure(**{name: value for name, value in given.items() if value is not None}))


@command(
    takes("file", metavar="CLAIM.py", help="defines before, after, inputs and claim"),
    takes("--processes", type=_count, default=5, metavar="N", help="fresh processes to race in (%(default)s)"),
    takes("--budget", type=_seconds, default=2.0, metavar="S", help="seconds of sampling in each (%(default)g)"),
    takes("--inputs", metavar="module:function", help="a function that returns the inputs, in place of the file's"),
    JSON,
)
def check(arguments) -> int:
    """Judge a claim of your own: a form before, a form after, raced in several processes.

    The file defines before and after (functions or modules), inputs (by the names of arguments, or a tuple) and a
    claim in words: "1.5x", "at least 10 %", "20 % faster", "same speed, half the memory". Exit code 0: reproduced
    or exceeded; 1: refuted or weaker; 3: inconclusive; 2: bad input, or the two compute different results.

    examples:
      gnnlab check examples/claims/expand.py
      gnnlab check my_claim.py --processes 10 > check.md     Markdown for a pull request
    """
    return _apart("check", arguments)
