"""Every option of the guide's table as a form of one prediction: alone, put into the original path, and together.

options, missing = make("hybrid", store=ModelStore(folder), compilers=["package"])
options["no_grad"].predict(state)            # the original path with this alone changed
options["predictor, fast"].predict(state)    # all of ours together, on one engine
options["int8, dynamic"].scores(networks)    # for its accuracy
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch_geometric.data import Data

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize.inference import engines, pruning, quantization
from gnnlab.optimize.inference.engines import Engine
from gnnlab.optimize.inference.model_store import ModelStore
from gnnlab.optimize.inference.network_arrays import NetworkArrays, Topologies, Topology
from gnnlab.optimize.inference.prediction_cache import PredictionCache
from gnnlab.optimize.inference.predictor import Decision, OriginalPredictor, Predictor, build_graph
from gnnlab.optimize.inference.tracking import Tracker
from gnnlab.workloads import edge_allocator
from gnnlab.workloads.edge_allocator import FEATURES, EdgeAllocator, State

ORIGINAL, GUIDE, CACHED = "original", "guide's script", "answer cache"
PRUNED, SMALLER = "pruned 30 %", "half the channels"
PREDICTOR, PREDICTOR_CACHED, GPU = "predictor, ", "predictor, cached", "predictor, GPU"
COMPILERS = ("compiled", "package")  # take tens of seconds each
ENGINES = ("fast", "torchscript", "onnx", "openvino")
KEPT_S = 3600.0
PRUNED_SHARE, KEPT_CHANNELS = 0.3, 0.5


@dataclass(frozen=True)
class Option:
    """One form: `predict(state)` for its speed, `scores(networks)` -> (N,) for its accuracy.

    `exact`: it must give the scores of the original to float32 rounding; of the others changed decisions are counted.
    """

    predict: Callable[[State], Decision]
    scores: Callable[[NetworkArrays], np.ndarray]
    exact: bool = True
    precision: str = "float32"
    note: str = ""
    predictor: Predictor | None = None
    first_call_ms: float = float("nan")


def make(
    model_type: str, *, store: ModelStore, compilers: Sequence[str] = (), device: str = "cpu", tuning_steps: int = 300
) -> tuple[dict[str, Option], dict[str, str]]:
    """(options by name, the original first; why others are not here). On the CPU, and one predictor on `device`.

    Raises:
        OptimizeError: an unknown compiler, or a device that is not here. `ModelError`: an unknown model type.
    """
    for name in compilers:
        if name not in COMPILERS:
            raise OptimizeError(f"compiler {name!r}: one of {', '.join(COMPILERS)} is needed")
    model = edge_allocator.load(model_type)
    options = _on_the_path(model_type, engines.make("eager", model)) | _other_weights(model_type, model, tuning_steps)
    missing: dict[str, str] = {}
    wanted = {name: partial(_by_engine, model_type, model, name, store) for name in (*ENGINES, *compilers)}
    wanted["int8, dynamic"] = partial(_int8, model_type, model)
    for name, precision in (("openvino, bf16", "bfloat16"), ("openvino, int8", "int8")):
        wanted[name] = partial(_by_engine, model_type, model, "openvino", store, precision)
    for name, build in wanted.items():
        try:
            options |= build()
        except OptimizeError as error:
            missing[name] = str(error)
    cached = Predictor(model_type, "cpu", cache=PredictionCache(1000, KEPT_S))
    options[PREDICTOR_CACHED] = Option(cached.predict, cached.engine, predictor=cached)
    if device != "cpu":
        there = Predictor(model_type, device)
        options[GPU] = Option(there.predict, there.engine, predictor=there, note=there.why_device)
    return options, missing


# ---- options that leave the model as it is ---------------------------------------------------------------------------


def _on_the_path(model_type: str, scores: Engine) -> dict[str, Option]:
    original = OriginalPredictor(model_type)
    forms = {
        ORIGINAL: original.predict,
        "no_grad": torch.no_grad()(original.predict),
        "inference mode": torch.inference_mode()(original.predict),
        "graph cache": partial(_with_graph_cache, original, Topologies()),
        CACHED: partial(_with_answer_cache, original, PredictionCache(1000, KEPT_S)),
        # one place, and states in turn: every look-up misses
        GUIDE: torch.no_grad()(partial(_guides_script, original, PredictionCache(1, KEPT_S), Tracker())),
    }
    return {name: Option(form, scores) for name, form in forms.items()}


def _with_graph_cache(original: OriginalPredictor, topologies: Topologies, state: State) -> Decision:
    x = [[float(node[name]) for name in FEATURES] for node in state["nodes"]]
    topology = topologies.of([node["node_id"] for node in state["nodes"]], state["links"])
    edge_index = torch.stack(topology.tensors[:2])
    return original.decide(state, Data(x=torch.tensor(x, dtype=torch.float32), edge_index=edge_index))


def _with_answer_cache(original: OriginalPredictor, cache: PredictionCache, state: State) -> Decision:
    return _looked_up(original, cache, state, build_graph(state))


def _guides_script(original: OriginalPredictor, cache: PredictionCache, tracker: Tracker, state: State) -> Decision:
    """What the guide's optimized script adds to a prediction: validation, no_grad, the cache, tracking.

    It validates as the predictor does, which also reads the state; pydantic alone would take longer than all the rest.
    """
    start = time.perf_counter()
    networks = NetworkArrays.of([state])
    data = Data(x=networks.tensors[0], edge_index=torch.from_numpy(networks.edge_index))
    decision = _looked_up(original, cache, state, data)
    tracker.record((time.perf_counter() - start) * 1e3)
    return decision


def _looked_up(original: OriginalPredictor, cache: PredictionCache, state: State, data: Data) -> Decision:
    key = cache.key(data.x.numpy(), data.edge_index.numpy(), "original")
    known = cache.get(key)
    if known is None:
        decision = original.decide(state, data)
        cache.put(key, (decision.node, decision.score))
        return decision
    return Decision(state["nodes"][known[0]]["node_id"], *known)


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
            small.predict, small.engine, False, note=tuned, predictor=small, first_call_ms=_first_call_ms(small)
        ),
        "bf16": Option(_in_bf16(OriginalPredictor(model_type)), bf16, False, "bfloat16", bf16.note),
    }


def _in_bf16(original: OriginalPredictor) -> Callable[[State], Decision]:
    def predict(state: State) -> Decision:
        with torch.autocast("cpu", torch.bfloat16):
            return original.predict(state)

    return predict


def _int8(model_type: str, model: EdgeAllocator) -> dict[str, Option]:
    engine = engines.make("eager", model, precision="int8")
    return {"int8, dynamic": _on_layers(model_type, quantization.dynamic(model), engine, precision="int8")}


def _on_layers(
    model_type: str, model: torch.nn.Module, engine: Engine, precision: str = "float32", note: str = ""
) -> Option:
    """The original path with other layers in it, gradients on as they are there."""
    path = OriginalPredictor(model_type, lambda data: model(data.x, data.edge_index))
    return Option(path.predict, engine, False, precision, note or engine.note)


def _by_engine(
    model_type: str, model: EdgeAllocator, name: str, store: ModelStore, precision: str = "float32"
) -> dict[str, Option]:
    """The original path with this runtime in place of the model, and a predictor on it."""
    predictor = Predictor(model_type, "cpu", precision, name, store=store, model=model)
    first_call_ms = _first_call_ms(predictor)
    engine, exact = predictor.engine, precision == "float32"
    path = OriginalPredictor(model_type, partial(_through, engine))
    label = name if exact else f"{name}, {'bf16' if precision == 'bfloat16' else precision}"
    return {
        label: Option(path.predict, engine, exact, precision, engine.note),
        PREDICTOR + label: Option(predictor.predict, engine, exact, precision, engine.note, predictor, first_call_ms),
    }


def _first_call_ms(predictor: Predictor) -> float:
    start = time.perf_counter()
    predictor.predict(edge_allocator.random_state(10, seed=0))
    return (time.perf_counter() - start) * 1e3


def _through(engine: Engine, data: Data) -> torch.Tensor:
    nodes = data.num_nodes
    edges = Topology.of(data.edge_index.numpy(), nodes)
    return torch.from_numpy(engine(NetworkArrays(data.x.numpy(), edges, np.array([0, nodes]), [])))


def predictors(options: Mapping[str, Option]) -> dict[str, Predictor]:
    """The predictors among the options by the names of their engines, without those that answer from a cache."""
    found = {name: option.predictor for name, option in options.items() if option.predictor is not None}
    return {name.removeprefix(PREDICTOR): p for name, p in found.items() if p.cache is None}
