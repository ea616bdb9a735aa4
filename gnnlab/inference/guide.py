"""S2's first script, kept as it is: what everything else is measured against.

decide(load("dqn"), state).node_id
GuidePredictor("dqn").predict_batch(states)     # one PyG pass each, one after the other
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError
from gnnlab.inference import engines, state_checks
from gnnlab.inference.predictor import Cache, Decision
from gnnlab.workloads import edge_allocator
from gnnlab.workloads.edge_allocator import EdgeAllocator
from gnnlab.workloads.edge_networks import FEATURES, State


def decide(model: EdgeAllocator, state: State, return_scores: bool = False) -> Decision:
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
    """`decide` with the calls of a `Predictor`, behind S2's input validation: the baseline of a service.

    With a `cache`, asked before the model as S2's are, by the arrays that a state is parsed to.

    Raises:
        GnnlabError: an unknown model type.
    """

    def __init__(self, model_type: str, cache: Cache | None = None) -> None:
        self._model, self.cache = edge_allocator.load(model_type), cache
        self._fingerprint = f"{engines.fingerprint(self._model)} guide"

    def predict(self, state: State, return_scores: bool = False) -> Decision:
        """The node for the next task; `GnnlabError` where the state is none, naming node and field."""
        state_checks.check(state)
        if self.cache is None:
            return decide(self._model, state, return_scores)
        data = parsed(state)
        key = self.cache.key(data.x.numpy(), data.edge_index.numpy(), self._fingerprint)
        scores = self.cache.get_many([key])[0]
        if scores is None or len(scores) != len(data.x):
            scores = self._model(data.x, data.edge_index).detach().numpy()
            self.cache.put_many({key: scores})
        return _best(state, scores, return_scores)

    def predict_batch(self, states: Sequence[State], return_scores: bool = False) -> list[Decision | GnnlabError]:
        """A decision for each state, in their order; for a state that is none the error instead."""
        answers: list[Decision | GnnlabError] = []
        for state in states:
            try:
                answers.append(self.predict(state, return_scores))
            except GnnlabError as error:
                answers.append(error)
        return answers
