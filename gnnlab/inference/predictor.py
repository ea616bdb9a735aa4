"""On which node should the next task run? Decisions of an edge allocator, checked, fast, one at a time or many.

    predictor = Predictor("hybrid")
    predictor.predict(state).node_id                    # 'node_3'
    predictor.predict_batch(states)                     # networks of any sizes together, decisions in their order
    Predictor("hybrid", engine="onnx", cache=PredictionCache(1000, 300))

Scores are those of the model to float32 rounding, so the decision is the same unless the two best nodes tie within
that. int8 changes scores; notebook 08 counts how many decisions.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import sub
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from cachetools import TTLCache
from torch import Tensor

from gnnlab.errors import GnnlabError
from gnnlab.inference import engines
from gnnlab.inference.states import CheckedState, NetworkArrays, check, check_or_error
from gnnlab.workloads import edge_allocator
from gnnlab.workloads.edge_networks import State
from gnnlab.workloads.staged import fingerprint

DEVICES = ("auto", "cuda", "mps", "cpu")
NETWORKS_A_PASS = 128  # more together leave the caches and are no faster
NODES_A_PASS = 2048  # hidden values of 512 KiB, which stay in the cache and are not mapped in again each time


class Decision(NamedTuple):
    """The chosen node: its id, its place in the state, its score; on request the scores of all nodes, (N,) float32.

    `confidence` is the chosen node's share of the softmax of all scores. Of ppo that is the probability that its policy
    gives the node, of dqn the inverse of its expected cost over the sum of all inverses, of hybrid the product of both
    over the sum of all products.
    """

    node_id: str
    node: int
    score: float
    confidence: float
    scores: np.ndarray | None = None


def key(x: np.ndarray, edge_index: np.ndarray, fingerprint: str) -> bytes:
    """32 bytes for features, edges and the model that answers: arrays of numbers in any layout, any fingerprint.

    The SHA-256 over type, shape and bytes, so states that differ in one bit of what the model reads never share an
    answer, however alike they print. The names of the nodes, which it does not read, are not in it.
    """
    digest = hashlib.sha256()
    for array in (x, edge_index):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array))
    digest.update(fingerprint.encode())
    return digest.digest()


class PredictionCache:
    """The scores used last, at most `max_entries` and none older than `ttl_s` seconds; safe to share among threads."""

    def __init__(self, max_entries: int, ttl_s: float) -> None:
        self._entries, self._lock = TTLCache(max_entries, ttl_s), Lock()

    def get_many(self, keys: Sequence[bytes]) -> list[np.ndarray | None]:
        """The scores under each key, or None."""
        with self._lock:
            return [self._entries.get(key) for key in keys]

    def put_many(self, scores: Mapping[bytes, np.ndarray]) -> None:
        """Keep copies of scores, which no reader can change, each under its key."""
        copies = {key: part.copy() for key, part in scores.items()}
        for part in copies.values():
            part.flags.writeable = False
        with self._lock:
            self._entries.update(copies)


class Predictor:
    """Decisions for states of edge networks, which are dicts or JSON as bytes: checked, and computed by one engine.

    `device`: auto|cuda|mps|cpu, `why_device` is the reason; `engine` as `engines.make` has them; `weights` replace
    the shipped ones. `cache` is a `PredictionCache`, or has its `get_many` and `put_many`: it answers states that were
    seen with the same numbers, `hits` and `misses` count; scores of another length are ignored.
    Raises `GnnlabError`: an unknown model type; engine and device do not go together, or are not here.
    """

    def __init__(
        self,
        model_type: str,
        device: str = "auto",
        engine: str = "fast",
        *,
        cache: Any = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.device, self.why_device = choose(device)
        weights = edge_allocator.weights(model_type) if weights is None else weights
        self.engine = engines.make(engine, weights, self.device)
        self.cache, self.hits, self.misses = cache, 0, 0
        self._fingerprint = f"{fingerprint(weights)} {engine} {self.device}"

    def __call__(self, state: State | bytes) -> np.ndarray:
        """(N,) float32 scores of a state's nodes, with all that `predict` does: a variant of a race."""
        return self.predict(state, return_scores=True).scores

    @property
    def row(self) -> dict[str, Any]:
        """What computes, as fields of a row."""
        return self.engine.row

    def predict(self, state: State | bytes, return_scores: bool = False) -> Decision:
        """The node for the next task. Raises `GnnlabError`: the state is invalid; the message names node and field."""
        return self.decide([check(state)], return_scores)[0]

    def predict_batch(
        self, states: Sequence[State | bytes], return_scores: bool = False
    ) -> list[Decision | GnnlabError]:
        """A decision for each state, in their order; for an invalid state its error instead."""
        checked = [check_or_error(state) for state in states]
        decisions = iter(self.decide([one for one in checked if isinstance(one, CheckedState)], return_scores))
        return [next(decisions) if isinstance(one, CheckedState) else one for one in checked]

    def decide(self, states: Sequence[CheckedState], return_scores: bool = False) -> list[Decision]:
        """A decision for each state that `check` has read, in their order; networks of any sizes share a pass, as many
        as stay in the processor's caches."""
        decisions: list[Decision] = []
        begin = nodes = 0
        for place, state in enumerate(states):
            nodes += len(state.nodes)
            if place > begin and (nodes > NODES_A_PASS or place - begin == NETWORKS_A_PASS):
                decisions += self._decisions(states[begin:place], return_scores)
                begin, nodes = place, len(state.nodes)
        return decisions + self._decisions(states[begin:], return_scores) if states else []

    def _decisions(self, states: Sequence[CheckedState], return_scores: bool) -> list[Decision]:
        """The decisions of one pass."""
        networks = NetworkArrays.of_checked(states)
        scores = self.engine(networks) if self.cache is None else self._through_cache(states, networks)
        rows = networks.decide(scores)
        best = scores[rows].tolist()
        if any(map(math.isnan, best)):
            raise GnnlabError("the engine gave scores that are not numbers; use another engine")
        ids, places = [networks.ids[row] for row in rows], map(sub, rows, networks.starts)
        parts = networks.split(scores) if return_scores else repeat(None)
        if len(best) == 1:
            shares = [1 / float(np.exp(scores - best[0]).sum())]  # in the softmax of the scores of a network
        else:
            powers = np.exp(scores - np.repeat(np.float32(best), np.diff(networks.starts)))
            shares = (1 / np.add.reduceat(powers, networks.starts[:-1])).tolist()
        return list(map(Decision, ids, places, best, shares, parts))

    def _through_cache(self, states: Sequence[CheckedState], networks: NetworkArrays) -> np.ndarray:
        """(N,) scores: those that the cache has, and the others computed in one pass, each once: a state that stands
        there twice is a hit the second time."""
        xs = networks.split(networks.x)
        pairs = zip(xs, states, strict=True)
        keys = [key(x, state.topology.edge_index, self._fingerprint) for x, state in pairs]
        stored = zip(keys, self.cache.get_many(keys), xs, strict=True)
        known = {key: scores for key, scores, x in stored if scores is not None and len(scores) == len(x)}
        missing = {key: place for place, key in enumerate(keys) if key not in known}
        self.hits, self.misses = self.hits + len(keys) - len(missing), self.misses + len(missing)
        if missing:
            some = len(missing) < len(keys)
            asked = NetworkArrays.of_checked([states[place] for place in missing.values()]) if some else networks
            fresh = dict(zip(missing, asked.split(self.engine(asked)), strict=True))
            self.cache.put_many(fresh)  # a copy
            known |= fresh
        return known[keys[0]] if len(keys) == 1 else np.concatenate([known[key] for key in keys])


def choose(device: str = "auto") -> tuple[torch.device, str]:
    """(device, reason): the one asked for, or with "auto" the first available one of CUDA, MPS and CPU.

    Raises `GnnlabError`: an unknown device, or one that is not available.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        first = next(name for name, usable in available.items() if usable)
        return torch.device(first), f"{first}: the first that torch {torch.__version__} sees of CUDA, MPS, CPU"
    kind, _, index = str(device).partition(":")
    if kind not in available or (index and not (kind == "cuda" and index.isdigit())):
        raise GnnlabError(f"device {device!r}: one of {', '.join(DEVICES)} is needed")
    if not available[kind] or (index and int(index) >= torch.cuda.device_count()):
        raise GnnlabError(f"device {device!r} is not here: torch {torch.__version__} does not see it; use cpu")
    return torch.device(device), f"{device}, as asked for"
