"""On which node should the next task run? The original path, and the same decisions faster.

    predictor = Predictor("hybrid")
    predictor.predict(state).node_id                    # 'node_3'
    predictor.predict_batch(states)                     # networks of any sizes together, decisions in their order
    Predictor("hybrid", engine="onnx", store=ModelStore(folder), cache=PredictionCache(1000, 300))

Scores are those of the original path to float32 rounding, so the decision is the same unless the two best nodes tie
within that. int8 and bfloat16 change scores, and `inference_study.accuracy` says how many decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch_geometric.data import Data

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize.inference import devices, engines, state_checks
from gnnlab.optimize.inference.engines import Engine
from gnnlab.optimize.inference.model_store import ModelStore
from gnnlab.optimize.inference.network_arrays import NetworkArrays, Topologies
from gnnlab.optimize.inference.prediction_cache import PredictionCache
from gnnlab.optimize.inference.state_checks import StateError
from gnnlab.workloads import edge_allocator
from gnnlab.workloads.edge_allocator import FEATURES, EdgeAllocator, State

KEPT_TOPOLOGIES = 256
NETWORKS_A_PASS = 128


class Decision(NamedTuple):
    """The chosen node: its id, its place in the state, its score; on request the scores of all nodes, (N,) float32."""

    node_id: str
    node: int
    score: float
    scores: np.ndarray | None = None


class OriginalPredictor:
    """A prediction as the guide's first script makes it: parse in Python, build a PyG graph, run with gradients on.

    `forward(data)` may replace the model's own forward pass, for measuring one option alone.
    """

    def __init__(self, model_type: str, forward: Callable[[Data], torch.Tensor] | None = None) -> None:
        self.model = edge_allocator.load(model_type)
        self.forward = forward or (lambda data: self.model(data.x, data.edge_index))

    def predict(self, state: State, return_scores: bool = False) -> Decision:
        """The node for the next task."""
        return self.decide(state, build_graph(state), return_scores)

    def decide(self, state: State, data: Data, return_scores: bool = False) -> Decision:
        """The same where the graph is there already."""
        scores = self.forward(data)
        node = int(scores.argmax())
        node_id = state["nodes"][node]["node_id"]
        return Decision(node_id, node, scores[node].item(), scores.detach().numpy() if return_scores else None)


def build_graph(state: State) -> Data:
    """The PyG graph of a state, built node by node and link by link."""
    x = [[float(node[name]) for name in FEATURES] for node in state["nodes"]]
    row_of = {node["node_id"]: row for row, node in enumerate(state["nodes"])}
    edges = []
    for a, b in state["links"]:
        edges.append([row_of[a], row_of[b]])
        edges.append([row_of[b], row_of[a]])
    edge_index = torch.tensor(edges, dtype=torch.int64).view(-1, 2).t().contiguous()  # (2, E)
    return Data(x=torch.tensor(x, dtype=torch.float32), edge_index=edge_index)


class Predictor:
    """Decisions for states of edge networks: checked, computed by one engine, kept in a cache where one is given.

    `device`: auto|cuda|mps|cpu, `why_device` says why; `engine` and `precision` as `engines.make` has them; `store` for
    engines that keep files; `cache` answers states that were seen with the same numbers; `topologies` is how many
    networks are known again by their links. `model` replaces the shipped weights.

    Raises:
        OptimizeError: engine, precision and device do not go together, or are not here.
        ModelError: an unknown model type.
    """

    def __init__(
        self,
        model_type: str,
        device: str = "auto",
        precision: str = "float32",
        engine: str = "fast",
        *,
        store: ModelStore | None = None,
        cache: PredictionCache | None = None,
        topologies: int = KEPT_TOPOLOGIES,
        model: EdgeAllocator | None = None,
    ) -> None:
        chosen, self.why_device = devices.choose(device)
        model = edge_allocator.load(model_type) if model is None else model
        self.engine: Engine = engines.make(engine, model, precision=precision, device=chosen, store=store)
        self.device, self.cache = chosen, cache
        self._topologies = Topologies(topologies)
        self._fingerprint = f"{engines.fingerprint(model)} {engine} {precision} {chosen}"

    def predict(self, state: State, return_scores: bool = False) -> Decision:
        """The node for the next task; `StateError` where the state is none, naming node and field."""
        networks = NetworkArrays.of([state], self._topologies)
        return self._decisions(networks, return_scores)[0]

    def predict_batch(self, states: Sequence[State], return_scores: bool = False) -> list[Decision | StateError]:
        """A decision for each state, in their order; for a state that is none the error instead.

        Up to 128 networks of any sizes are one pass: more together leave the caches and are no faster.
        """
        answers: list[Decision | StateError] = []
        for start in range(0, len(states), NETWORKS_A_PASS):
            answers += self._answers(states[start : start + NETWORKS_A_PASS], return_scores)
        return answers

    def _answers(self, states: Sequence[State], return_scores: bool) -> list[Decision | StateError]:
        try:
            return self._decisions(NetworkArrays.of(states), return_scores)
        except StateError:
            good, answers = state_checks.check_batch(states)
        if good:
            found = self._decisions(NetworkArrays.of_checked(list(good.values())), return_scores)
            answers = answers | dict(zip(good, found, strict=True))
        return [answers[place] for place in range(len(states))]

    def _decisions(self, networks: NetworkArrays, return_scores: bool) -> list[Decision]:
        scores = self.engine(networks) if self.cache is None else self._through_cache(networks)
        if np.isnan(scores).any():
            raise OptimizeError(f"engine {self.engine.name} gave scores that are no numbers; use another engine")
        rows = networks.decide(scores)
        best, first, starts = scores[rows].tolist(), rows.tolist(), networks.ptr.tolist()
        ids = networks.ids
        if not return_scores:
            return [Decision(ids[r], r - s, b) for r, s, b in zip(first, starts, best, strict=False)]
        rows_of = zip(first, starts, best, _split(scores, networks), strict=False)
        return [Decision(ids[r], r - s, b, part) for r, s, b, part in rows_of]

    def _through_cache(self, networks: NetworkArrays) -> np.ndarray:
        """(N,) scores: those that the cache has, and the others computed in one pass and kept."""
        keys = [self.cache.key(x, edges, self._fingerprint) for x, edges in networks.parts()]
        found = [self.cache.get(key) for key in keys]
        missing = [place for place, scores in enumerate(found) if scores is None]
        if missing:
            asked = networks if len(missing) == len(keys) else networks.take(missing)
            fresh = _split(self.engine(asked), asked)
            for place, scores in zip(missing, fresh, strict=True):
                found[place] = scores
                self.cache.put(keys[place], scores)  # a copy
        return found[0] if len(found) == 1 else np.concatenate(found)


def _split(scores: np.ndarray, networks: NetworkArrays) -> list[np.ndarray]:
    return [scores] if len(networks) == 1 else np.split(scores, networks.ptr[1:-1])
