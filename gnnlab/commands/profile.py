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

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnlab.errors import GnnlabError

from .arguments import add_inputs, count, seconds
from .tables import show, table, warn_if_busy

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Group

    from gnnlab.workloads.models import Workload

MIB = 2**20
_SIZES = {"hidden_dim": 32, "num_layers": 1, "num_heads": 2, "ffn_dim": 64}  # those that notebook 01 starts from
_NODES, _LAYERS = [100, 200, 400, 800, 1600], [1, 2, 4, 8, 12]  # these, too
_AVERAGE_DEGREE = 5


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--model", default="graph_transformer", help="a built-in name or module:factory (%(default)s)")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--graph", "--dataset", default="digits", help="the graph (%(default)s)")
    group.add_argument("--num_nodes", "--num-nodes", type=count, metavar="N", help="nodes of a random graph")
    add_inputs(group)
    parser.add_argument(
        "--profile",
        nargs="+",
        choices=tuple(_PARTS),
        default=["runtime", "memory", "flops"],
        metavar="WHAT",
        help=f"any of {', '.join(_PARTS)} (runtime memory flops)",
    )
    for name, meaning in (
        ("hidden_dim", "channels of a hidden layer"),
        ("num_layers", "layers"),
        ("num_heads", "attention heads"),
        ("ffn_dim", "channels inside the feed-forward network"),
        ("batch_size", "rows of a batch, where the model has one"),
        ("num_runs", "runs (default: until the interval is within 2 %%)"),
    ):
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", type=count, metavar="N", help=meaning)
    parser.add_argument(
        "--budget", type=seconds, default=60.0, metavar="S", help="seconds for all sections (%(default)g)"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="JSON to FILE, or to the terminal without one"
    )


def run(arguments: Namespace) -> int:
    """Profile what the options ask for: each section shown when it is done, or JSON to the terminal or a file."""
    from gnnlab import files
    from gnnlab.profiling.context import ProfilingContext
    from gnnlab.profiling.timing import stopwatch
    from gnnlab.progress import progress
    from gnnlab.rewrite import proof
    from gnnlab.user_code import guarded

    tables = arguments.json is None
    parts = sorted(dict.fromkeys(arguments.profile), key=lambda part: part == "scaling")  # the longest one last
    workload = _workload(arguments)
    with ProfilingContext(workload.model):
        report: dict[str, Any] = {
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "hardware": _hardware(),
            "model_info": _model_info(workload),
        }
        warn_if_busy()
        if ":" in arguments.model:
            report["remarks"] = []
            try:
                proof.check(proof.UserModel(workload.name, workload.graph, workload.model, workload.batch, False))
            except GnnlabError as error:  # what makes the profile doubtful
                report["remarks"].append(str(error))
                print(f"gnnlab: remark: {error}", file=sys.stderr)
        if tables:
            show(_header(report))
        with progress("sections", len(parts)) as step, stopwatch() as spent:
            for number, part in enumerate(parts):
                step(part, done=number)
                share_s = max((arguments.budget - spent.s) / (len(parts) - number), 0.01)  # none is left out
                with guarded(f"{arguments.model}:") if ":" in arguments.model else nullcontext():
                    report[part] = _PARTS[part](workload, arguments, share_s)
                if tables:
                    show(_shown(part, report[part]))
    if arguments.json == "-":
        show(json.dumps(report, indent=2))
    elif not tables:
        files.write_json(Path(arguments.json), report)
        print(f"wrote {arguments.json}", file=sys.stderr)
    return 0


# ---- what is profiled, and its parts --------------------------------------------------------------------------------


def _workload(arguments: Namespace) -> Workload:
    import torch

    from gnnlab.workloads import models

    if arguments.device not in ("cpu", "cuda"):
        raise GnnlabError(f"--device {arguments.device}: cpu and cuda are understood")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise GnnlabError(f"--device {arguments.device}: no CUDA device here; use --device cpu")
    graph = arguments.graph
    if graph.startswith(models.INPUTS) and "scaling" in arguments.profile:
        raise GnnlabError("--profile scaling needs graphs of other sizes, which --inputs cannot give; leave it out")
    if n := arguments.num_nodes:
        graph = f"random:nodes={n},edges={n * _AVERAGE_DEGREE},seed=42"
    options = {name: value for name in _SIZES if (value := getattr(arguments, name)) is not None}
    if arguments.model == "graph_transformer":
        options = _sizes(arguments)
    elif arguments.model in models.BUILT_IN and (unused := options.keys()):
        raise GnnlabError(f"{arguments.model} has fixed sizes: --{min(unused)} has no effect; leave it out")
    if arguments.batch_size is not None and arguments.model != "symptom_gat":
        raise GnnlabError(f"{arguments.model} takes the whole graph: --batch_size has no effect; leave it out")
    workload = models.build(arguments.model, graph, batch_size=arguments.batch_size or 32, **options)
    return workload.to(arguments.device)


def _sizes(arguments: Namespace) -> dict[str, int]:
    """Of the graph transformer."""
    given = {name: getattr(arguments, name) for name in _SIZES}
    return {name: size if given[name] is None else given[name] for name, size in _SIZES.items()}


def _hardware() -> dict[str, Any]:
    import torch

    cuda = torch.cuda.is_available()
    properties = torch.cuda.get_device_properties(0) if cuda else None
    return {
        "cuda_available": cuda,
        "gpu_name": properties.name if cuda else None,
        "gpu_memory_gb": round(properties.total_memory / 1e9, 1) if cuda else None,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def _model_info(workload: Workload) -> dict[str, Any]:
    parameters = list(workload.model.parameters())
    return {
        "name": workload.label,
        "nodes": workload.graph.num_nodes or 0,
        "edges": workload.graph.num_edges,
        "total_parameters": sum(p.numel() for p in parameters),
        "parameter_memory_mb": sum(p.numel() * p.element_size() for p in parameters) / MIB,
    }


def _runtime(workload: Workload, arguments: Namespace, share_s: float) -> dict[str, Any]:
    from gnnlab.profiling.runtime import RuntimeProfiler

    budget_s = share_s / 4  # three phases, and what is beside their samples
    profiler = RuntimeProfiler(workload.model, num_runs=arguments.num_runs, budget_s=budget_s)
    return {phase: found.to_dict() for phase, found in profiler.profile_all(workload.batch).items()}


def _memory(workload: Workload, arguments: Namespace, share_s: float) -> dict[str, Any]:
    """The peak of a forward pass without gradients and of a training pass; each breakdown adds up to its peak."""
    from gnnlab.profiling.memory import MemoryProfiler, get_memory_breakdown

    parts = get_memory_breakdown(workload.model, workload.batch)
    stats = MemoryProfiler(workload.model).profile_forward(workload.batch)
    resident = {name: parts[name] for name in ("parameters", "buffers", "input")}
    if (other := stats.peak_mb - sum(resident.values()) - parts["peak_temporary"]) > 1e-6:
        resident["other"] = other  # CUDA: whatever else lives on the device
    forward = {**resident, "activations": parts["peak_temporary"]}
    training = {**resident, "activations_and_gradients": parts["peak_training"]}
    return {
        "peak_mb": sum(forward.values()),
        "device": stats.device,
        "breakdown": forward,
        "training": {"peak_mb": sum(training.values()), "breakdown": training},
        "of_these": {"output": parts["output"], "kept_for_backward": parts["forward_activations"]}
        | {"gradients": parts["gradients"]},
    }


def _flops(workload: Workload, arguments: Namespace, share_s: float) -> dict[str, Any]:
    """Counted by operator, and by S1's formulas by component where they apply; each breakdown adds up to its total."""
    from gnnlab.profiling.flops import FLOPsEstimator
    from gnnlab.profiling.roofline import count

    found = count(workload.model, workload.batch)
    by_operator = found.operators.query("flops > 0").set_index("operator")["flops"].sort_values(ascending=False) / 1e9
    report: dict[str, Any] = {
        "total_gflops": found.flops / 1e9,
        "origin": "counted by dispatch, one forward pass",
        "gb_moved": found.bytes / 1e9,
        "coverage_of_bytes": found.coverage_bytes,
        "breakdown": by_operator.to_dict(),
    }
    try:
        formulas = FLOPsEstimator(workload.model).estimate(workload.graph.num_nodes, workload.graph.num_edges)
    except GnnlabError as error:
        return report | {"formulas": {"not_applicable": str(error)}}
    parts = {name: flops / 1e9 for name, flops in formulas.breakdown.items()}
    return report | {"formulas": {"total_gflops": formulas.total / 1e9, "breakdown": parts}}


def _scaling(workload: Workload, arguments: Namespace, share_s: float) -> dict[str, Any]:
    """From the sizes of notebook 01; models that are built on a graph are built anew on each size."""
    from gnnlab.profiling import scaling
    from gnnlab.workloads import models
    from gnnlab.workloads.graph_transformer import GraphTransformer

    points = len(_NODES) + (len(_LAYERS) + 3 if workload.name == "graph_transformer" else 0)
    end = time.monotonic() + share_s
    timed = {"budget_s": share_s / (2 * points), "in_time": lambda: time.monotonic() < end}
    if workload.name != "graph_transformer":

        def build(nodes: int) -> tuple[Any, Any]:
            graph = f"random:nodes={nodes},edges={nodes * _AVERAGE_DEGREE},seed=42"
            given = {name: getattr(arguments, name) for name in _SIZES}
            made = models.build(workload.name, graph, batch_size=arguments.batch_size or 32, **given)
            made = made.to(arguments.device)
            return made.model, made.batch

        return {"nodes": scaling.sweep("nodes", _NODES, build, **timed).to_dict()}
    options = _sizes(arguments)
    experiment = scaling.ScalingExperiment(
        lambda **changes: GraphTransformer(16, **(options | changes)), device=arguments.device, **timed
    )
    experiment.run_node_scaling(num_nodes_list=_NODES)
    experiment.run_layer_scaling(num_layers_list=_LAYERS, num_nodes=200)
    experiment.run_pe_scaling(num_nodes=200)
    return {name: result.to_dict() for name, result in experiment.results.items()}


def _operators(workload: Workload, arguments: Namespace, share_s: float) -> dict[str, Any]:
    from gnnlab.profiling.operators import profile_operators
    from gnnlab.profiling.timing import stopwatch

    with stopwatch() as first:
        profile_operators(workload.model, workload.batch, runs=2)
    runs = int(min(max(2 * (share_s - first.s) / first.s, 6), 20))  # six make an interval
    profile = profile_operators(workload.model, workload.batch, runs=runs)
    return {"runs": profile.runs, "device": profile.device, "top": profile.top(10).to_dict(orient="records")}


_PARTS = {"runtime": _runtime, "memory": _memory, "flops": _flops, "scaling": _scaling, "operators": _operators}


def _header(report: dict[str, Any]) -> str:
    info, hardware = report["model_info"], report["hardware"]
    return (
        f"{info['name']}: {info['nodes']:,} nodes, {info['edges']:,} edges, "
        f"{info['total_parameters']:,} parameters ({info['parameter_memory_mb']:.2f} MiB); "
        f"torch {hardware['torch']}, {hardware['threads']} thread{'s' * (hardware['threads'] != 1)}"
    )


def _shown(part: str, found: dict[str, Any]) -> Group:
    """A section as a table, names in its first column and numbers in the others, and what to know of them."""
    from rich.console import Group
    from rich.text import Text

    frame, captions = _frame(part, found).rename(columns={"ci": "95 % interval"}), []
    if part == "flops":
        covered = 100 * found["coverage_of_bytes"]
        captions = [f"{found['gb_moved']:.4f} GB moved at least; {covered:.1f} % of the bytes covered"]
    if part == "scaling":
        lines = ((name, r.get("formula"), r.get("held_out"), *r.get("notes", ())) for name, r in found.items())
        captions = [f"{name}: {line}" for name, *of in lines for line in of if line]
    columns = [name.replace("_", " ") for name in frame.columns]
    cells = [[name if "::" in name else name.replace("_", " "), *map(_cell, row)] for name, *row in frame.itertuples()]
    return Group(table(_TITLES[part], (part, *columns), cells, right=columns), *map(Text, captions))


_TITLES = {
    "runtime": "runtime (ms)",
    "memory": "memory (MiB)",
    "flops": "FLOPs of a forward pass (GFLOP)",
    "scaling": "scaling of the forward pass (ms)",
    "operators": "operators",
}


def _frame(part: str, found: dict[str, Any]) -> pd.DataFrame:
    """What of a section is shown, by name."""
    import pandas as pd

    if part == "runtime":
        return pd.DataFrame(found).T[["median", "ci", "mean", "std", "p90", "num_runs"]]
    if part == "memory":
        passes = {"forward pass": found, "training pass": found["training"]}
        columns = {name: {"peak": sizes["peak_mb"], **sizes["breakdown"]} for name, sizes in passes.items()}
        return pd.DataFrame({**columns, "of these": found["of_these"]})
    if part == "flops":
        ways = {"counted by dispatch": found, "by the closed formulas": found["formulas"]}
        return pd.DataFrame(
            {way: {"total": n["total_gflops"], **n["breakdown"]} for way, n in ways.items() if "breakdown" in n}
        )
    if part == "scaling":
        points = pd.DataFrame([{"parameter": name, **point} for name, r in found.items() for point in r["points"]])
        points["ci"] = list(zip(points["ci_low"], points["ci_high"], strict=True))
        return points.set_index("parameter")[["value", "median_ms", "ci"]]
    columns = ["calls_per_forward", "self_ms_per_forward", "share", "share_low", "share_high"]
    return pd.DataFrame(found["top"]).set_index("operator")[columns]


def _cell(value: Any) -> str:
    import pandas as pd

    if isinstance(value, list | tuple):
        return " to ".join(map(_cell, value))
    return "" if pd.isna(value) else f"{value:.4g}" if isinstance(value, float) else str(value)
