"""On which node should the next task run? Decisions of an edge allocator, checked, fast, one at a time or many.

    predictor = Predictor("hybrid")
    predictor.predict(state).node_id                    # 'node_3'
    predictor.predict_batch(states)                     # networks of any sizes together, decisions in their order
    Predictor("hybrid", engine="onnx", cache=PredictionCache(1000, 300))

Scores are those of the model to float32 rounding, so the decision is the same unless the two best nodes tie within
that. int8 changes scores, and `decisions.count` says how many decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError
from gnnlab.inference import engines
from gnnlab.inference.network_arrays import NetworkArrays
from gnnlab.inference.state_checks import CheckedState, check
from gnnlab.workloads import edge_allocator
from gnnlab.workloads.edge_allocator import EdgeAllocator
from gnnlab.workloads.edge_networks import FEATURES, State
from gnnlab.workloads.staged import fingerprint

DEVICES = ("auto", "cuda", "mps", "cpu")
NETWORKS_A_PASS = 128


class Cache(Protocol):
    """What a predictor asks of a cache; `PredictionCache` is one. Scores of another length are ignored."""

    def key(self, x: np.ndarray, edge_index: np.ndarray, fingerprint: str) -> bytes: ...

    def get_many(self, keys: Sequence[bytes]) -> list[np.ndarray | None]: ...

    def put_many(self, predictions: Mapping[bytes, np.ndarray]) -> None: ...


class Decision(NamedTuple):
    """The chosen node: its id, its place in the state, its score; on request the scores of all nodes, (N,) float32."""

    node_id: str
    node: int
    score: float
    scores: np.ndarray | None = None


class Predictor:
    """Decisions for states of edge networks, which are dicts or JSON as bytes: checked, and computed by one engine.

    `device`: auto|cuda|mps|cpu, `why_device` is the reason; `engine` and `precision` as `engines.make` has them;
    `cache` answers states that were seen with the same numbers; `model` replaces the shipped weights.
    Raises `GnnlabError`: an unknown model type; engine, precision and device do not go together, or are not here.
    """

    def __init__(
        self,
        model_type: str,
        device: str = "auto",
        precision: str = "float32",
        engine: str = "fast",
        *,
        cache: Cache | None = None,
        model: EdgeAllocator | None = None,
    ) -> None:
        chosen, self.why_device = choose(device)
        model = edge_allocator.load(model_type) if model is None else model
        self.engine = engines.make(engine, model, precision=precision, device=chosen)
        self.device, self.cache = chosen, cache
        self._fingerprint = f"{weights_digest(model)} {engine} {precision} {chosen}"

    def __call__(self, state: State | bytes) -> np.ndarray:
        """(N,) float32 scores of a state's nodes, with all that `predict` does: a form of a race."""
        return self.predict(state, return_scores=True).scores

    @property
    def row(self) -> dict[str, Any]:
        """What computes, as fields of a row."""
        return self.engine.row

    def predict(self, state: State | bytes, return_scores: bool = False) -> Decision:
        """The node for the next task. Raises `GnnlabError`: the state is invalid; the message names node and field."""
        return self._decisions(self.read(state), return_scores)[0]

    def read(self, state: State | bytes) -> NetworkArrays:
        """A state checked and turned into arrays."""
        return NetworkArrays.of([state])

    def predict_batch(
        self, states: Sequence[State | bytes], return_scores: bool = False
    ) -> list[Decision | GnnlabError]:
        """A decision for each state, in their order; for an invalid state its error instead.

        Up to 128 networks of any sizes are one pass: more together leave the caches and are no faster.
        """
        answers: list[Decision | GnnlabError] = []
        for start in range(0, len(states), NETWORKS_A_PASS):
            checked = [_checked(state) for state in states[start : start + NETWORKS_A_PASS]]
            valid = [one for one in checked if isinstance(one, CheckedState)]
            networks = NetworkArrays.of_checked(valid) if valid else None
            decisions = iter(() if networks is None else self._decisions(networks, return_scores))
            answers += [next(decisions) if isinstance(one, CheckedState) else one for one in checked]
        return answers

    def _decisions(self, networks: NetworkArrays, return_scores: bool) -> list[Decision]:
        scores = self.engine(networks) if self.cache is None else self._through_cache(networks)
        if np.isnan(scores).any():
            raise GnnlabError(f"engine {self.engine.name} gave scores that are not numbers; use another engine")
        rows = networks.decide(scores)
        best, first, starts = scores[rows].tolist(), rows.tolist(), networks.ptr.tolist()
        ids = networks.ids
        if not return_scores:
            return [Decision(ids[r], r - s, b) for r, s, b in zip(first, starts, best, strict=False)]
        rows_of = zip(first, starts, best, _split(scores, networks), strict=False)
        return [Decision(ids[r], r - s, b, part) for r, s, b, part in rows_of]

    def _through_cache(self, networks: NetworkArrays) -> np.ndarray:
        """(N,) scores: those that the cache has, and the others computed in one pass, each once."""
        keys = [self.cache.key(x, edges, self._fingerprint) for x, edges in networks.parts()]
        sizes = np.diff(networks.ptr).tolist()
        stored = zip(keys, self.cache.get_many(keys), sizes, strict=True)
        known = {key: scores for key, scores, size in stored if scores is not None and len(scores) == size}
        missing = {key: place for place, key in enumerate(keys) if key not in known}
        if missing:
            asked = networks if len(missing) == len(keys) else networks.take(list(missing.values()))
            fresh = dict(zip(missing, _split(self.engine(asked), asked), strict=True))
            self.cache.put_many(fresh)  # a copy
            known |= fresh
        return known[keys[0]] if len(keys) == 1 else np.concatenate([known[key] for key in keys])


def _checked(state: State | bytes) -> CheckedState | GnnlabError:
    try:
        return check(state)
    except GnnlabError as error:
        return error


def weights_digest(model: nn.Module) -> str:
    """A digest of the names, types, shapes and bytes of all weights and buffers."""
    return fingerprint(dict(model.named_parameters()) | dict(model.named_buffers()))


def _split(scores: np.ndarray, networks: NetworkArrays) -> list[np.ndarray]:
    return [scores] if len(networks) == 1 else np.split(scores, networks.ptr[1:-1])


def choose(device: str = "auto") -> tuple[torch.device, str]:
    """(device, reason): the one asked for, or with "auto" the first available one of CUDA, MPS and CPU.

    Raises `GnnlabError`: an unknown device, or one that is not available.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        chosen = next(name for name, usable in available.items() if usable)
        missing = [name.upper() for name in list(available)[: list(available).index(chosen)]]
        return torch.device(chosen), f"{chosen}: the first here of CUDA, MPS, CPU" + (
            f"; torch {torch.__version__} sees no {' and no '.join(missing)}" if missing else ""
        )
    kind, _, index = str(device).partition(":")
    if kind not in available or (index and not (kind == "cuda" and index.isdigit())):
        raise GnnlabError(f"device {device!r}: one of {', '.join(DEVICES)} is needed")
    if not available[kind] or (index and int(index) >= torch.cuda.device_count()):
        raise GnnlabError(f"device {device!r} is not here: torch {torch.__version__} does not see it; use cpu")
    return torch.device(device), f"{device}, as asked for"


# ---- S2's first script, kept as it is: what everything else is measured against ------------------------------------


def guide_decide(model: EdgeAllocator, state: State, return_scores: bool = False) -> Decision:
    """Parse in Python, build a PyG graph, run with gradients on; links may be left out, as S2's benchmark does."""
    data = parsed(state)
    return _best(state, model(data.x, data.edge_index).detach().numpy(), return_scores)


def parsed(state: State) -> Data:
    """The PyG graph of a state."""
    row_of = {node["node_id"]: row for row, node in enumerate(state["nodes"])}
    links = [(row_of[a], row_of[b]) for a, b in state.get("links", ())]
    edges = [ends for a, b in links for ends in ([a, b], [b, a])]
    x = torch.tensor([[float(node[name]) for name in FEATURES] for node in state["nodes"]])
    return Data(x=x, edge_index=torch.tensor(edges, dtype=torch.int64).view(-1, 2).t().contiguous())


def _best(state: State, scores: np.ndarray, return_scores: bool) -> Decision:
    node = int(scores.argmax())
    return Decision(state["nodes"][node]["node_id"], node, float(scores[node]), scores if return_scores else None)


class GuidePredictor:
    """`guide_decide` with the calls of a `Predictor`, behind S2's input validation: the baseline of a service.

    A `cache` is asked before the model as S2's are, by the arrays that a state is parsed to.
    Raises `GnnlabError`: an unknown model type.
    """

    def __init__(self, model_type: str, cache: Cache | None = None) -> None:
        self._model, self.cache = edge_allocator.load(model_type), cache
        self._fingerprint = f"{weights_digest(self._model)} guide"

    def predict(self, state: State, return_scores: bool = False) -> Decision:
        """The node for the next task. Raises `GnnlabError`: the state is invalid; the message names node and field."""
        check(state)
        if self.cache is None:
            return guide_decide(self._model, state, return_scores)
        data = parsed(state)
        key = self.cache.key(data.x.numpy(), data.edge_index.numpy(), self._fingerprint)
        scores = self.cache.get_many([key])[0]
        if scores is None or len(scores) != len(data.x):
            scores = self._model(data.x, data.edge_index).detach().numpy()
            self.cache.put_many({key: scores})
        return _best(state, scores, return_scores)

    def predict_batch(self, states: Sequence[State], return_scores: bool = False) -> list[Decision | GnnlabError]:
        """A decision for each state, in their order; for an invalid state its error instead."""
        answers: list[Decision | GnnlabError] = []
        for state in states:
            try:
                answers.append(self.predict(state, return_scores))
            except GnnlabError as error:
                answers.append(error)
        return answers
