"""Profile one model on one graph: time, memory, FLOPs, operators, scaling, and the largest graph that fits.

Each section is printed when it is done; all of them share the budget, but for memory and fit, which take what they
need. These two run in a process of their own, on a CPU: it gives freed memory back at once, so that its resident
memory tells what torch's allocator does not see. The graph transformer has the sizes that notebook 01 starts from,
unless others are given.

Built-in models are symptom_gat and graph_transformer; a model of your own is module:factory, where
factory(data) returns a torch module. A graph is a built-in name (symptoms, digits, karate), a PyG dataset
(planetoid:Cora), random:nodes=1000,edges=5000, or a file (.npz, GraphML, edge-list CSV).

examples:
  gnnlab profile --model graph_transformer --profile runtime memory flops scaling
  gnnlab profile --model graph_transformer --hidden_dim 512 --num_layers 12 --num_nodes 1000
  gnnlab profile --model my_models:make_gat --graph my_graph.npz --profile runtime operators
  gnnlab profile --model my_models:make_gat --graph my_graph.npz --profile fit --memory 24
  gnnlab profile --model symptom_gat --graph symptoms --json > profile.json
"""

from __future__ import annotations

import json
import os
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from gnnlab.errors import GnnlabError
from gnnswap.errors import OneLineError

from .terminal import add_graph, add_json, count, graph_of, model_or_factory, number, seconds, show, warn_if_busy

if TYPE_CHECKING:
    import pandas as pd

    from gnnlab.workloads.models import Workload

MIB = 2**20
_SIZES = {"hidden_dim": 32, "num_layers": 1, "num_heads": 2, "ffn_dim": 64}  # those that notebook 01 starts from
_NODES, _LAYERS = [100, 200, 400, 800, 1600], [1, 2, 4, 8, 12]
_ALLOCATOR = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")  # what the user's environment says to the memory allocator
_NODES_OF_OTHERS = 200  # of the graph on which layers and encodings are varied
_LONGEST_S = 600  # of a section in a process of its own
_MEMORY_ROWS = {  # of the printed report whose names in JSON say too little
    "peak_mb": "forward pass without gradients, peak by torch's allocator",
    "process_peak_mb": "forward pass without gradients, peak by the process",
    "breakdown, activations": "breakdown, activations: the most at once",
    "training, peak_mb": "forward and backward pass, peak by torch's allocator",
    "training, process_peak_mb": "forward and backward pass, peak by the process",
    "training, breakdown, activations_and_gradients": "training, breakdown, activations, gradients: the most at once",
    "of_these, forward_activations": "of these, kept by a forward pass for the backward pass",
    "of_these, output": "of these, output",
    "of_these, gradients": "of these, gradients of the parameters",
}
_APART = ("memory", "fit")  # in a process of their own, on a CPU
_LAST = ("fit", "scaling")  # the longest ones


def add_arguments(parser: ArgumentParser) -> None:
    what = "a built-in name or module:factory (%(default)s)"
    parser.add_argument("--model", type=model_or_factory, default="graph_transformer", help=what)
    group = add_graph(parser, "--dataset")
    group.add_argument("--num_nodes", "--num-nodes", type=count, metavar="N", help="nodes of a random graph")
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
    gib = number(float, 0.001, 1e6, "number of GiB")
    parser.add_argument("--memory", type=gib, metavar="GIB", help="what the graph has to fit into (this machine's)")
    parser.add_argument("--budget", type=seconds, default=60.0, metavar="S", help="seconds for all (%(default)g)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu or cuda (%(default)s)")
    add_json(parser)


def run(arguments: Namespace) -> int:
    """Profile what the options ask for: each section shown when it is done, or all of them as JSON at the end."""
    parts = sorted(dict.fromkeys(arguments.profile), key=lambda part: part in _LAST and _LAST.index(part) + 1)
    grown = [part for part in parts if part in _LAST]
    if arguments.graph.startswith("inputs:") and grown:
        raise GnnlabError(f"--profile {grown[0]} needs graphs of other sizes, which --inputs cannot give; leave it out")
    if arguments.memory and "fit" not in parts:
        raise GnnlabError("--memory says what --profile fit is for: add fit, or leave --memory out")
    if arguments.batch_size is not None and arguments.model != "symptom_gat":
        raise GnnlabError(f"{arguments.model} takes the whole graph: --batch_size has no effect; leave it out")
    from gnnlab.child import Worker
    from gnnlab.measure.restore import ProfilingContext
    from gnnlab.measure.timing import stopwatch
    from gnnlab.measure.versus import FREED_AT_ONCE
    from gnnlab.user_code import guarded

    tell = (lambda text: None) if arguments.json else show
    workload = _built(arguments, _graph(arguments))
    tell("\n".join(workload.read))
    with ProfilingContext(workload.model):
        report = _about(workload)
        warn_if_busy()
        info, threads = report["model_info"], report["hardware"]["threads"]
        sizes = f"{info['nodes']:,} nodes, {info['edges']:,} edges, {info['parameter_memory_mb']:.2f} MiB of parameters"
        tell(f"{workload.label}: {sizes}; {threads} thread{'s' * (threads != 1)}")
        options = {name: value for name, value in vars(arguments).items() if not callable(value)}
        with stopwatch() as spent, Worker(keep_memory=False, **FREED_AT_ONCE) as worker:
            for number, part in enumerate(parts):
                share_s = max((arguments.budget - spent.s) / (len(parts) - number), 0.01)  # none is left out
                with guarded(f"{arguments.model}:") if ":" in arguments.model else nullcontext():
                    section, title = _PARTS[part]
                    if part in _APART and arguments.device == "cpu":
                        task = {"part": part, "options": options}
                        answer = worker.call(f"{__name__}:in_this_process", task, timeout_s=_LONGEST_S)
                        report[part], text = answer.get(arguments.model)
                    else:
                        report[part], text = section(workload, arguments, share_s)
                tell(f"\n{title}\n{text}")
    report["next"] = _next(report, workload, arguments)
    if arguments.json or report["next"]:
        show(json.dumps(report, indent=2) if arguments.json else f"\n{report['next']}")
    return 0


def _graph(arguments: Namespace) -> str:
    n = arguments.num_nodes
    return f"random:nodes={n},edges={5 * n},seed=42" if n else graph_of(arguments)


def _next(report: dict[str, Any], workload: Workload, arguments: Namespace) -> str:
    """What was found largest, and what to do about it; "" where nothing was."""
    said = []
    if top := report.get("operators", {}).get("top"):
        said.append(f"{100 * top[0]['share']:.0f} % of the operators' time is {top[0]['operator']}")
    if memory := report.get("memory"):
        name, size = max(memory["breakdown"].items(), key=lambda part: part[1])
        said.append(f"{size:.3g} of {memory['peak_mb']:.3g} MiB at the peak of a forward pass are {name}")
    if ":" in arguments.model:
        from gnnswap import swap

        graph = f"--graph {_graph(arguments)}".replace("--graph inputs:", "--inputs ")
        graph = graph.replace(f"+{arguments.nodes}", f" --nodes {arguments.nodes}")
        said.append(f"next: gnnlab optimize {arguments.model} {graph}")
        with suppress(OneLineError):  # a model that cannot be copied
            kinds = Counter(kind for _, kind, _ in swap(workload.model).replaced)
            layers = " and ".join(f"{n} {kind}" for kind, n in kinds.items()) or "no layer"
            said[-1] += f", with fast variants to be tried for {layers}"
    return "; ".join(said)


def in_this_process(part: str, options: dict[str, Any]) -> Section:
    """A section of the model that the options name; what a process of its own is asked for."""
    from gnnlab.measure.restore import ProfilingContext

    arguments = Namespace(**options)
    workload = _built(arguments, _graph(arguments))
    with ProfilingContext(workload.model):
        return _PARTS[part][0](workload, arguments, _LONGEST_S)


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
        "read": workload.read,
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

Section = tuple[dict[str, Any], str]  # for JSON; to be printed


def _runtime(workload: Workload, arguments: Namespace, share_s: float) -> Section:
    import pandas as pd

    from gnnlab.profile import survey
    from gnnlab.profile.runtime import RuntimeStats

    rows = survey.times([workload], num_runs=arguments.num_runs, budget_s=share_s / 5).itertuples()  # four phases
    report = {row.phase.replace(", ", " ").replace(" ", "_"): RuntimeStats(row.samples).to_dict() for row in rows}
    frame = pd.DataFrame(report).T
    none = "none below six runs"
    frame["95 % interval"] = ["{:.4g} to {:.4g}".format(*ends) if ends else none for ends in frame["ci"]]
    frame = frame.rename({"training_step": "training step, with Adam"})
    return report, _text(frame[["median", "95 % interval", "mean", "std", "num_runs"]])


def _memory(workload: Workload, arguments: Namespace, share_s: float) -> Section:
    """The peak of a forward pass without gradients and of a training pass, by torch's allocator (`peak_mb`, to which
    the breakdown adds up) and by the resident memory of the process, where the system tells that."""
    from gnnlab.profile.memory import get_memory_breakdown

    mib = get_memory_breakdown(workload.model, workload.batch)
    resident = {name: mib.pop(name) for name in ("parameters", "buffers", "input")}
    peaks = []
    for name, holds in (("temporary", "activations"), ("training", "activations_and_gradients")):
        parts, process = {**resident, holds: mib.pop(f"peak_{name}")}, mib.pop(f"process_{name}", None)
        process = {} if process is None else {"process_peak_mb": sum(resident.values()) + process}
        peaks.append({"peak_mb": sum(parts.values()), **process, "breakdown": parts})
    report = {**peaks[0], "training": peaks[1], "of_these": dict(mib), "notes": mib.notes}
    return report, "\n".join([_text(_flat(report).rename(_MEMORY_ROWS)), *mib.notes])


def _flops(workload: Workload, arguments: Namespace, share_s: float) -> Section:
    """Counted by operator, and by S1's formulas by component where they apply; each breakdown adds up to its total."""
    from gnnlab.profile.flops import FLOPsEstimator
    from gnnlab.profile.roofline import count

    counted = count(workload.model, workload.batch)
    flops = counted.operators.query("flops > 0").set_index("operator")["flops"].sort_values(ascending=False)
    report = {"total_gflops": counted.flops / 1e9, "breakdown": (flops / 1e9).to_dict()}
    report |= {"gb_moved": counted.bytes / 1e9}
    lacking = ", ".join(counted.uncounted)
    if counted.coverage_bytes == counted.coverage_bytes:  # else something ran unseen, and there is no share
        report["coverage_of_bytes"] = counted.coverage_bytes
    if lacking:
        report["not_counted"] = lacking
    try:
        estimate = FLOPsEstimator(workload.model).estimate(workload.graph.num_nodes, workload.graph.num_edges)
        parts = {name: flops / 1e9 for name, flops in estimate.breakdown.items()}
        report["formulas"] = {"total_gflops": estimate.total / 1e9, "breakdown": parts}
    except OneLineError as error:
        report["formulas"] = {"not_applicable": str(error)}
    names = {"total_gflops": f"total, at least: without {lacking}" if lacking else "total"}
    names |= {"gb_moved": "bytes moved, at least (GB)", "coverage_of_bytes": "share of these bytes that was counted"}
    return report, _text(_flat(report).rename(names))


def _flat(report: dict[str, Any]) -> pd.Series:
    """The numbers of a nested report, each named by the way to it."""
    import pandas as pd

    flat = pd.json_normalize(report, sep=", ").iloc[0]
    return flat[[isinstance(value, (int, float)) for value in flat]]


def _text(table: pd.DataFrame | pd.Series) -> str:
    return table.to_string(float_format="{:.4g}".format)


def _scaling(workload: Workload, arguments: Namespace, share_s: float) -> Section:
    """From the sizes of notebook 01; models that are built on a graph are built again for each size."""
    from gnnlab.profile.scaling import sweep

    varied: dict[str, list[Any]] = {"nodes": _NODES}
    if workload.name == "graph_transformer":
        varied |= {"layers": _LAYERS, "encoding": ["none", "lap", "rwse"]}
    end, sizes = time.monotonic() + share_s, sum(map(len, varied.values()))
    options = {"budget_s": share_s / (2 * sizes), "in_time": lambda: time.monotonic() < end}

    def at(parameter: str, value: Any) -> tuple[Any, Any]:
        nodes = value if parameter == "nodes" else _NODES_OF_OTHERS
        changed = {"layers": {"num_layers": value}, "encoding": {"pe_type": value}}.get(parameter, {})
        built = _built(arguments, f"random:seed=42,edges={5 * nodes},nodes={nodes}", **changed)
        return built.model, built.batch

    swept = [sweep(parameter, values, partial(at, parameter), **options) for parameter, values in varied.items()]
    points = [
        {"parameter": s.parameter, "value": value, "median_ms": t.median, "ci": t.to_dict()["ci"], "n": t.num_runs}
        for s in swept
        for value, t in zip(s.parameter_values, s.runtime_stats, strict=True)
    ]
    exponents = [
        {"parameter": s.parameter, "variant": workload.name, "value": s.fit.exponent}
        | dict(zip(("low", "high"), s.fit.exponent_ci, strict=True))
        for s in swept
        if s.fit and s.fit.identified
    ]
    return {"points": points, "exponents": exponents}, "\n".join(map(str, swept))


def _operators(workload: Workload, arguments: Namespace, share_s: float) -> Section:
    from gnnlab.measure.timing import stopwatch
    from gnnlab.profile.operators import profile_operators

    with stopwatch() as first:
        profile_operators(workload.model, workload.batch, runs=2)
    runs = int(min(max(2 * (share_s - first.s) / first.s, 6), 20))  # six make an interval
    top = profile_operators(workload.model, workload.batch, runs=runs).top(10).drop(columns="calls")
    return {"runs": runs, "top": top.to_dict("records")}, _text(top.set_index("operator"))


def _fit(workload: Workload, arguments: Namespace, share_s: float) -> Section:
    """The largest graph of so many edges a node that fits, in a forward and in a training pass."""
    from gnnlab.profile.memory_fit import memory_sweep

    graph = workload.graph

    def at(nodes: int, edges: int) -> tuple[Any, Any]:
        sizes = f"nodes={nodes},edges={edges},features={max(graph.num_node_features, 1)}"
        built = _built(arguments, f"random:seed=42,{sizes}")
        return built.model, built.batch

    ratio = graph.num_edges / max(graph.num_nodes or 0, 1)
    fits = [memory_sweep(at, training=training, gib=arguments.memory) for training in (False, True)]
    report = {
        fit.what.replace(" ", "_"): {
            "nodes": fit.largest(ratio) if fit.reliable else None,
            "bytes": {"offset": fit.offset, "node": fit.node, "edge": fit.edge, "pair_of_nodes": fit.square},
            "held_out_off": fit.off,
            "notes": fit.notes,
        }
        for fit in fits
    }
    text = "\n".join(line for fit in fits for line in (fit.sentence(ratio), *fit.notes))
    return {"gib": fits[0].gib, "edges_per_node": ratio, **report}, text


_PARTS = {
    "runtime": (_runtime, "runtime (ms)"),
    "memory": (_memory, "memory (MiB)"),
    "flops": (_flops, "FLOPs of a forward pass (GFLOP)"),
    "operators": (_operators, "operators"),
    "fit": (_fit, "the largest graph that fits"),
    "scaling": (_scaling, "scaling of the forward pass (ms)"),
}
