"""Every option of the guide as a form of one prediction: alone in the original path, and ours together in a predictor.

options, missing = make("hybrid", store=ModelStore(folder), compilers=["package"])
options["no_grad"].predict(state)            # the original path with this alone changed
options["onnx"].predict(state)               # the guide's model in ONNX Runtime in place of its layers
options["rewritten, onnx"].predict(state)    # our rewrite of the model in its place
options["predictor, fast"].predict(state)    # all of ours together, on one engine
options["int8, dynamic"].scores(networks)    # for its accuracy
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from cachetools import TTLCache
from torch_geometric.data import Data

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize.inference import engines, guide_exports, pruning, quantization
from gnnlab.optimize.inference.engines import Engine
from gnnlab.optimize.inference.guide_exports import Exported
from gnnlab.optimize.inference.model_store import ModelStore
from gnnlab.optimize.inference.network_arrays import NetworkArrays, Topologies, Topology
from gnnlab.optimize.inference.prediction_cache import PredictionCache
from gnnlab.optimize.inference.predictor import Decision, OriginalPredictor, Predictor, build_graph
from gnnlab.optimize.inference.tracking import Tracker
from gnnlab.profiling.parity import RTOL_FLOAT32, relative_error
from gnnlab.workloads import edge_allocator
from gnnlab.workloads.edge_allocator import FEATURES, EdgeAllocator, State
from gnnlab.workloads.errors import one_line

ORIGINAL, GUIDE, GUIDE_KNOWN = "original", "guide's script", "guide's script, known state"
CACHED, CACHED_ARRAYS = "answer cache", "answer cache, by arrays"
PRUNED, SMALLER, INT8 = "pruned 30 %", "half the channels", "int8, dynamic"
SCRIPTED, TRACED, ONNX, ONNX_11 = "torchscript", "torchscript, traced", "onnx", "onnx, opset 11"
CALLS = {  # of the exports of the guide's model
    SCRIPTED: "torch.jit.script(model)",
    TRACED: "torch.jit.trace(model, ...)",
    ONNX: "torch.onnx.export(model, ..., dynamo=True)",
    ONNX_11: "torch.onnx.export(model, ..., dynamo=False, opset_version=11)",
}
CUDA, GUIDE_CUDA = "cuda", "guide's script, cuda"
REWRITTEN, PREDICTOR = "rewritten, ", "predictor, "
PREDICTOR_CACHED, PREDICTOR_CUDA = PREDICTOR + "cached", PREDICTOR + "cuda"
COMPILERS = ("compiled", "package")  # take tens of seconds each
ENGINES = ("fast", "torchscript", "onnx", "openvino")
KEPT_S, KEPT_ANSWERS = 3600.0, 1000
PRUNED_SHARE, KEPT_CHANNELS = 0.3, 0.5
SCORES_WITHIN = 5 * RTOL_FLOAT32  # three layers of sums in another order, of the largest score
CHECKED_NODES = (7, 40)  # of networks that an export was not made from


@dataclass(frozen=True)
class Option:
    """One form: `predict(state)` for its speed, `scores(networks)` -> (N,) for its accuracy.

    `scores` is None where another option computes them in the same way, which `decides_as` names. `exact`: it must give
    the scores of the original to float32 rounding; of the others changed decisions are counted. `runtime` computes,
    with `threads` of its own unless None.
    """

    predict: Callable[[State], Decision]
    scores: Callable[[NetworkArrays], np.ndarray] | None = None
    exact: bool = True
    precision: str = "float32"
    note: str = ""
    predictor: Predictor | None = None
    first_call_ms: float = math.nan
    decides_as: str = ORIGINAL
    runtime: str = engines.TORCH
    threads: int | None = None
    device: str = "cpu"


def make(
    model_type: str, *, store: ModelStore, compilers: Sequence[str] = (), device: str = "cpu", tuning_steps: int = 300
) -> tuple[dict[str, Option], dict[str, str]]:
    """(options by name, the original first; why others are not here). On the CPU, and some once more on `device`.

    Raises:
        OptimizeError: an unknown compiler, or a device that is not here. `ModelError`: an unknown model type.
    """
    for name in compilers:
        if name not in COMPILERS:
            raise OptimizeError(f"compiler {name!r}: one of {', '.join(COMPILERS)} is needed")
    model = edge_allocator.load(model_type)
    options = _on_the_path(model_type, engines.make("eager", model)) | _other_weights(model_type, model, tuning_steps)
    missing: dict[str, str] = {}
    for name, build in _builders(model_type, model, store, compilers).items():
        try:
            options |= build()
        except OptimizeError as error:
            missing[name] = str(error)
    for written, works in ((SCRIPTED, TRACED), (ONNX_11, ONNX)):
        if written in missing and works in options:
            options[works] = replace(options[works], note=f"{options[works].note}; {missing[written]}")
    cached = Predictor(model_type, "cpu", cache=PredictionCache(KEPT_ANSWERS, KEPT_S))
    options[PREDICTOR_CACHED] = Option(
        cached.predict, predictor=cached, note="every state is known", decides_as=REWRITTEN + "fast",
        runtime=cached.engine.runtime,
    )  # fmt: skip
    return options | (_on_device(model_type, device) if device != "cpu" else {}), missing


def _builders(
    model_type: str, model: EdgeAllocator, store: ModelStore, compilers: Sequence[str]
) -> dict[str, Callable[[], dict[str, Option]]]:
    """What may not work here, by the name under which it is missing then."""
    exports = {
        SCRIPTED: guide_exports.scripted,
        TRACED: guide_exports.traced,
        ONNX: partial(guide_exports.onnx, store=store),
        ONNX_11: partial(guide_exports.onnx_opset_11, store=store),
    }
    wanted = {name: partial(_exported, model_type, model, name, build) for name, build in exports.items()}
    for name in (*ENGINES, *compilers):
        wanted[REWRITTEN + name] = partial(_by_engine, model_type, model, name, store)
    wanted[INT8] = partial(_int8, model_type, model)
    for name, precision in (("openvino, bf16", "bfloat16"), ("openvino, int8", "int8")):
        wanted[REWRITTEN + name] = partial(_by_engine, model_type, model, "openvino", store, precision)
    return wanted


# ---- options that leave the model as it is ---------------------------------------------------------------------------


def _on_the_path(model_type: str, scores: Engine) -> dict[str, Option]:
    original = OriginalPredictor(model_type)
    known = "every state is known"
    return {
        ORIGINAL: Option(original.predict, scores),
        "no_grad": Option(torch.no_grad()(original.predict)),
        "inference mode": Option(torch.inference_mode()(original.predict)),
        "graph cache": Option(partial(_with_graph_cache, original, Topologies()), note="every topology is known"),
        CACHED: Option(partial(_with_answer_cache, original, _answers(KEPT_ANSWERS)), note=known),
        CACHED_ARRAYS: Option(
            partial(_with_cache_by_arrays, original, PredictionCache(KEPT_ANSWERS, KEPT_S)), note=known
        ),
        **_guides_scripts(original),
    }


def _guides_scripts(original: OriginalPredictor) -> dict[str, Option]:
    # one place, and states in turn: every look-up misses
    forms = {name: torch.no_grad()(partial(_guides_script, original, _answers(places), Tracker()))
             for name, places in ((GUIDE, 1), (GUIDE_KNOWN, KEPT_ANSWERS))}  # fmt: skip
    does = "validation, no_grad, cache and tracking together"
    notes = {GUIDE: f"{does}, no state is known", GUIDE_KNOWN: f"{does}, every state is known"}
    return {name: Option(form, note=notes[name]) for name, form in forms.items()}


def _answers(places: int) -> MutableMapping[str, Decision]:
    return TTLCache(maxsize=places, ttl=KEPT_S)


def _key(state: State) -> str:
    """As the guide writes it; numbers of Python print to their last bit, so states that differ have other texts."""
    return hashlib.md5(str(state).encode(), usedforsecurity=False).hexdigest()


def _with_graph_cache(original: OriginalPredictor, topologies: Topologies, state: State) -> Decision:
    x = [[float(node[name]) for name in FEATURES] for node in state["nodes"]]
    topology = topologies.of([node["node_id"] for node in state["nodes"]], state["links"])
    edge_index = torch.stack(topology.tensors[:2])
    return original.decide(state, Data(x=torch.tensor(x, dtype=torch.float32), edge_index=edge_index))


def _with_answer_cache(original: OriginalPredictor, cache: MutableMapping[str, Decision], state: State) -> Decision:
    key = _key(state)
    if key in cache:
        return cache[key]
    decision = cache[key] = original.predict(state)
    return decision


def _with_cache_by_arrays(original: OriginalPredictor, cache: PredictionCache, state: State) -> Decision:
    """Known by the bytes of the graph's arrays, which have to be built first; node ids may differ."""
    data = build_graph(state)
    key = cache.key(data.x.numpy(), data.edge_index.numpy(), ORIGINAL)
    known = cache.get(key)
    if known is None:
        decision = original.decide(state, data)
        cache.put(key, (decision.node, decision.score))
        return decision
    return Decision(state["nodes"][known[0]]["node_id"], *known)


def _guides_script(
    original: OriginalPredictor, cache: MutableMapping[str, Decision], tracker: Tracker, state: State
) -> Decision:
    """What the guide's optimized script adds to a prediction: the cache, validation, no_grad, tracking.

    It validates as the predictor does, which also reads the state; pydantic alone would take longer than all the rest.
    """
    start = time.perf_counter()
    key = _key(state)
    decision = cache.get(key)
    known = decision is not None
    if decision is None:
        networks = NetworkArrays.of([state])
        data = Data(x=networks.tensors[0], edge_index=torch.from_numpy(networks.edge_index))
        decision = cache[key] = original.decide(state, data)
    tracker.record((time.perf_counter() - start) * 1e3, cached=known)
    return decision


def _on_device(model_type: str, device: str) -> dict[str, Option]:
    """The original path, the guide's script and a predictor with their layers on `device`."""
    there = edge_allocator.load(model_type).to(device)
    path = OriginalPredictor(model_type, lambda data: there(data.x.to(device), data.edge_index.to(device)))
    predictor = Predictor(model_type, device)
    options = {
        CUDA: Option(path.predict, lambda networks: _scores(path.forward, networks)),
        GUIDE_CUDA: replace(_guides_scripts(path)[GUIDE], decides_as=CUDA),
        PREDICTOR_CUDA: Option(predictor.predict, predictor.engine, note=predictor.why_device, predictor=predictor,
                               first_call_ms=_first_call_ms(predictor)),
    }  # fmt: skip
    return {name: replace(option, device=device) for name, option in options.items()}


# ---- options that replace the model or its runtime -------------------------------------------------------------------


def _other_weights(model_type: str, model: EdgeAllocator, tuning_steps: int) -> dict[str, Option]:
    pruned = pruning.unstructured(model, PRUNED_SHARE)
    smaller = pruning.structured(model, KEPT_CHANNELS, steps=tuning_steps)
    of_pruned, tuned = f"{pruning.zeros(pruned):.0%} of its weights are 0", f"tuned for {tuning_steps} steps"
    bf16, small = engines.make("eager", model, precision="bfloat16"), Predictor(model_type, "cpu", model=smaller)
    return {
        PRUNED: _on_layers(model_type, pruned, engines.make("eager", pruned), note=of_pruned),
        SMALLER: _on_layers(model_type, smaller, engines.make("eager", smaller), note=tuned),
        PREDICTOR + SMALLER: Option(
            small.predict, exact=False, note=tuned, predictor=small, first_call_ms=_first_call_ms(small),
            decides_as=SMALLER, runtime=small.engine.runtime,
        ),
        "bf16": Option(_in_bf16(OriginalPredictor(model_type)), bf16, False, "bfloat16", bf16.note),
    }  # fmt: skip


def _in_bf16(original: OriginalPredictor) -> Callable[[State], Decision]:
    def predict(state: State) -> Decision:
        with torch.autocast("cpu", torch.bfloat16):
            return original.predict(state)

    return predict


def _int8(model_type: str, model: EdgeAllocator) -> dict[str, Option]:
    engine = engines.make("eager", model, precision="int8")
    return {INT8: _on_layers(model_type, quantization.dynamic(model), engine, precision="int8")}


def _on_layers(
    model_type: str, model: torch.nn.Module, engine: Engine, precision: str = "float32", note: str = ""
) -> Option:
    """The original path with other layers in it, gradients on as they are there."""
    path = OriginalPredictor(model_type, lambda data: model(data.x, data.edge_index))
    return Option(path.predict, engine, False, precision, note or engine.note)


def _exported(
    model_type: str, model: EdgeAllocator, name: str, build: Callable[[EdgeAllocator], Exported]
) -> dict[str, Option]:
    """The original path with the guide's model in another runtime, where it gives the scores of the model.

    Raises:
        OptimizeError: it cannot be exported, or it computes something else.
    """
    try:
        made = build(model)
    except Exception as error:  # whatever an exporter or a runtime raises: the others still race
        raise OptimizeError(f"{CALLS[name]} fails on this model: {one_line(error).rstrip(':')}") from error
    path = OriginalPredictor(model_type, lambda data: made.layers(data.x, data.edge_index))
    states = [edge_allocator.random_state(nodes, seed=1) for nodes in CHECKED_NODES]
    graphs = [build_graph(state) for state in states]
    expected = [model(graph.x, graph.edge_index) for graph in graphs]
    error = relative_error(expected, [path.forward(graph) for graph in graphs], name)
    if error > SCORES_WITHIN:
        raise OptimizeError(
            f"{CALLS[name]} computes something else on this model: its scores differ by {error:.1e} of the largest"
        )
    scores = partial(_scores, path.forward)
    return {name: Option(path.predict, scores, note=made.note, runtime=made.runtime, threads=made.threads)}


def _scores(forward: Callable[[Data], torch.Tensor], networks: NetworkArrays) -> np.ndarray:
    data = Data(x=torch.from_numpy(networks.x), edge_index=torch.from_numpy(networks.edge_index))
    return forward(data).detach().cpu().numpy()


def _by_engine(
    model_type: str, model: EdgeAllocator, name: str, store: ModelStore, precision: str = "float32"
) -> dict[str, Option]:
    """The original path with our rewrite of the model on this runtime in place of its layers, and a predictor on it."""
    predictor = Predictor(model_type, "cpu", precision, name, store=store, model=model)
    first_call_ms = _first_call_ms(predictor)
    engine, exact = predictor.engine, precision == "float32"
    path = OriginalPredictor(model_type, partial(_through, engine))
    label = name if exact else f"{name}, {'bf16' if precision == 'bfloat16' else precision}"
    shared: dict[str, Any] = {"exact": exact, "precision": precision, "note": engine.note}
    shared |= {"runtime": engine.runtime, "threads": engine.threads}
    of_predictor = {"predictor": predictor, "first_call_ms": first_call_ms, "decides_as": REWRITTEN + label}
    return {
        REWRITTEN + label: Option(path.predict, engine, **shared),
        PREDICTOR + label: Option(predictor.predict, **shared, **of_predictor),
    }


def _first_call_ms(predictor: Predictor) -> float:
    start = time.perf_counter()
    predictor.predict(edge_allocator.random_state(10, seed=0))
    return (time.perf_counter() - start) * 1e3


def _through(engine: Engine, data: Data) -> torch.Tensor:
    nodes = data.num_nodes
    edges = Topology.of(data.edge_index.numpy(), nodes)
    return torch.from_numpy(engine(NetworkArrays(data.x.numpy(), edges, np.array([0, nodes]), [])))


def predictors(options: dict[str, Option]) -> dict[str, Predictor]:
    """The predictors among the options by the names of their engines, without those that answer from a cache."""
    found = {name: option.predictor for name, option in options.items() if option.predictor is not None}
    return {name.removeprefix(PREDICTOR): p for name, p in found.items() if p.cache is None}
