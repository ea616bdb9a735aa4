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
  gnnlab profile --model symptom_gat --graph symptoms --json > profile.json
"""

from __future__ import annotations

import json
import os
import time
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from gnnlab.errors import GnnlabError
from gnnswap.errors import OneLineError

from .arguments import add_inputs, add_json, count, graph_or_file, model_or_factory, seconds
from .tables import show, warn_if_busy

if TYPE_CHECKING:
    import pandas as pd

    from gnnlab.workloads.models import Workload

MIB = 2**20
_SIZES = {"hidden_dim": 32, "num_layers": 1, "num_heads": 2, "ffn_dim": 64}  # those that notebook 01 starts from
_NODES, _LAYERS = [100, 200, 400, 800, 1600], [1, 2, 4, 8, 12]  # these, too
_ALLOCATOR = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")  # what the user's environment says to the memory allocator
_NODES_OF_OTHERS = 200  # of the graph on which layers and encodings are varied


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        type=model_or_factory,
        default="graph_transformer",
        help="a built-in name or module:factory (%(default)s)",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--graph", "--dataset", type=graph_or_file, default="digits", help="the graph (%(default)s)")
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
    parser.add_argument("--budget", type=seconds, default=60.0, metavar="S", help="seconds for all (%(default)g)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu or cuda (%(default)s)")
    add_json(parser)


def run(arguments: Namespace) -> int:
    """Profile what the options ask for: each section shown when it is done, or all of them as JSON at the end."""
    from gnnlab.measure.timing import stopwatch
    from gnnlab.user_code import guarded, require

    parts = sorted(dict.fromkeys(arguments.profile), key=lambda part: part == "scaling")  # the longest one last
    if arguments.graph.startswith("inputs:") and "scaling" in parts:
        raise GnnlabError("--profile scaling needs graphs of other sizes, which --inputs cannot give; leave it out")
    if arguments.batch_size is not None and arguments.model != "symptom_gat":
        raise GnnlabError(f"{arguments.model} takes the whole graph: --batch_size has no effect; leave it out")
    if foreign := ":" in arguments.model:
        require(arguments.model)
    from gnnlab.measure.restore import ProfilingContext

    n = arguments.num_nodes
    workload = _built(arguments, f"random:nodes={n},edges={5 * n},seed=42" if n else arguments.graph)
    with ProfilingContext(workload.model):
        report = _about(workload)
        warn_if_busy()
        info, threads = report["model_info"], report["hardware"]["threads"]
        if not arguments.json:
            show(
                f"{workload.label}: {info['nodes']:,} nodes, {info['edges']:,} edges, {info['total_parameters']:,} "
                f"parameters ({info['parameter_memory_mb']:.2f} MiB); {threads} thread{'s' * (threads != 1)}"
            )
        with stopwatch() as spent:
            for number, part in enumerate(parts):
                share_s = max((arguments.budget - spent.s) / (len(parts) - number), 0.01)  # none is left out
                with guarded(f"{arguments.model}:") if foreign else nullcontext():
                    section, title = _PARTS[part]
                    report[part], result = section(workload, arguments, share_s)
                if not arguments.json:
                    text = result if isinstance(result, str) else result.to_string(float_format="{:.4g}".format)
                    show(f"\n{title}\n{text}")
    if arguments.json:
        show(json.dumps(report, indent=2))
    elif foreign:
        show(f"Next: gnnlab swap {arguments.model}, on the same graph, shows which of its layers have a faster form.")
    return 0


def _built(arguments: Namespace, graph: str, **changes: Any) -> Workload:
    """The model of the options on a graph; sizes that are not given are notebook 01's for the graph transformer."""
    from gnnlab.workloads import models

    given = {name: getattr(arguments, name) for name in _SIZES if getattr(arguments, name) is not None}
    sizes = (_SIZES if arguments.model == "graph_transformer" else {}) | given | changes
    return models.build(arguments.model, graph, batch_size=arguments.batch_size or 32, **sizes).to(arguments.device)


def _about(workload: Workload) -> dict[str, Any]:
    """When, on what hardware, and which model, as S1's JSON has them."""
    import torch

    from gnnlab.measure.conditions import products
    from gnnlab.measure.tensors import device_name, device_of

    gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    parameters = list(workload.model.parameters())
    return {
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": {
            "cuda_available": gpu is not None,
            "gpu_name": gpu and gpu.name,
            "gpu_memory_gb": gpu and round(gpu.total_memory / 1e9, 1),
            "device": device_name(device_of(workload.model, workload.batch)),
            "float32_products": products(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "allocator": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(_ALLOCATOR)},
        },
        "model_info": {
            "name": workload.label,
            "nodes": workload.graph.num_nodes or 0,
            "edges": workload.graph.num_edges,
            "total_parameters": sum(p.numel() for p in parameters),
            "parameter_memory_mb": sum(p.nbytes for p in parameters) / MIB,
        },
    }


# ---- the sections ----------------------------------------------------------------------------------------------------

Section = tuple[dict[str, Any], "pd.DataFrame | pd.Series | str"]  # for JSON; to be printed


def _runtime(workload: Workload, arguments: Namespace, share_s: float) -> Section:
    import pandas as pd

    from gnnlab.profile import survey
    from gnnlab.profile.runtime import RuntimeStats

    rows = survey.times([workload], num_runs=arguments.num_runs, budget_s=share_s / 5).itertuples()  # four phases
    report = {row.phase.replace(", ", " ").replace(" ", "_"): RuntimeStats(row.samples).to_dict() for row in rows}
    frame = pd.DataFrame(report).T
    none = "none below six runs"
    frame["95 % interval"] = ["{:.4g} to {:.4g}".format(*ends) if ends else none for ends in frame["ci"]]
    return report, frame[["median", "95 % interval", "mean", "std", "num_runs"]]


def _memory(workload: Workload, arguments: Namespace, share_s: float) -> Section:
    """The peak of a forward pass without gradients and of a training pass; each breakdown adds up to its peak."""
    from gnnlab.profile.memory import get_memory_breakdown

    mib = get_memory_breakdown(workload.model, workload.batch)
    resident = {name: mib.pop(name) for name in ("parameters", "buffers", "input")}
    forward = {**resident, "activations": mib.pop("peak_temporary")}
    training = {**resident, "activations_and_gradients": mib.pop("peak_training")}
    peaks = [{"peak_mb": sum(parts.values()), "breakdown": parts} for parts in (forward, training)]
    report = {**peaks[0], "training": peaks[1], "of_these": mib}
    return report, _flat(report)


def _flops(workload: Workload, arguments: Namespace, share_s: float) -> Section:
    """Counted by operator, and by S1's formulas by component where they apply; each breakdown adds up to its total."""
    from gnnlab.profile.flops import FLOPsEstimator
    from gnnlab.profile.roofline import count

    counted = count(workload.model, workload.batch)
    flops = counted.operators.query("flops > 0").set_index("operator")["flops"].sort_values(ascending=False)
    report = {"total_gflops": counted.flops / 1e9, "breakdown": (flops / 1e9).to_dict()}
    report |= {"gb_moved": counted.bytes / 1e9, "coverage_of_bytes": counted.coverage_bytes}
    lacking = ", ".join(counted.uncounted)
    if lacking:
        report["not_counted"] = lacking
    try:
        estimate = FLOPsEstimator(workload.model).estimate(workload.graph.num_nodes, workload.graph.num_edges)
        parts = {name: flops / 1e9 for name, flops in estimate.breakdown.items()}
        report["formulas"] = {"total_gflops": estimate.total / 1e9, "breakdown": parts}
    except OneLineError as error:
        report["formulas"] = {"not_applicable": str(error)}
    return report, _flat(report).rename(
        {"total_gflops": f"total_gflops, at least: without {lacking}"} if lacking else {}
    )


def _flat(report: dict[str, Any]) -> pd.Series:
    """The numbers of a nested report, each named by the way to it."""
    import pandas as pd

    flat = pd.json_normalize(report, sep=", ").iloc[0]
    return flat[[not isinstance(value, str) for value in flat]]


def _scaling(workload: Workload, arguments: Namespace, share_s: float) -> Section:
    """From the sizes of notebook 01; models that are built on a graph are built anew on each size."""
    from gnnlab.profile import survey

    varied: dict[str, list[Any]] = {"nodes": _NODES}
    if workload.name == "graph_transformer":
        varied |= {"layers": _LAYERS, "encoding": ["none", "lap", "rwse"]}
    plan = survey.growth_plan(workload.name, partial(_built, arguments), varied, nodes=_NODES_OF_OTHERS)
    end, sizes = time.monotonic() + share_s, sum(map(len, varied.values()))
    swept = survey.sweeps(plan, budget_s=share_s / (2 * sizes), in_time=lambda: time.monotonic() < end)
    points = [
        {"parameter": name, "value": value, "median_ms": stats.median, "ci": stats.to_dict()["ci"], "n": stats.num_runs}
        for (_, name), result in swept.items()
        for value, stats in zip(result.parameter_values, result.runtime_stats, strict=True)
    ]
    report = {"points": points, "exponents": survey.exponents(swept).to_dict("records")}
    return report, "\n".join(map(str, swept.values()))


def _operators(workload: Workload, arguments: Namespace, share_s: float) -> Section:
    from gnnlab.measure.timing import stopwatch
    from gnnlab.profile.operators import profile_operators

    with stopwatch() as first:
        profile_operators(workload.model, workload.batch, runs=2)
    runs = int(min(max(2 * (share_s - first.s) / first.s, 6), 20))  # six make an interval
    top = profile_operators(workload.model, workload.batch, runs=runs).top(10).drop(columns="calls")
    return {"runs": runs, "top": top.to_dict("records")}, top.set_index("operator")


_PARTS = {
    "runtime": (_runtime, "runtime (ms)"),
    "memory": (_memory, "memory (MiB)"),
    "flops": (_flops, "FLOPs of a forward pass (GFLOP)"),
    "scaling": (_scaling, "scaling of the forward pass (ms)"),
    "operators": (_operators, "operators"),
}
