"""S2's first script, kept as it is: what everything else is measured against.

decide(load("dqn"), state).node_id
GuidePredictor("dqn").predict_batch(states)     # one PyG pass each, one after the other
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch_geometric.data import Data

from gnnlab.errors import GnnlabError
from gnnlab.inference import state_checks
from gnnlab.inference.predictor import Decision
from gnnlab.workloads import edge_allocator
from gnnlab.workloads.edge_allocator import EdgeAllocator
from gnnlab.workloads.edge_networks import FEATURES, State


def decide(model: EdgeAllocator, state: State, return_scores: bool = False) -> Decision:
    """Parse in Python, build a PyG graph, run with gradients on; links may be left out, as S2's benchmark does."""
    row_of = {node["node_id"]: row for row, node in enumerate(state["nodes"])}
    links = [(row_of[a], row_of[b]) for a, b in state.get("links", ())]
    edges = [ends for a, b in links for ends in ([a, b], [b, a])]
    x = torch.tensor([[float(node[name]) for name in FEATURES] for node in state["nodes"]])
    data = Data(x=x, edge_index=torch.tensor(edges, dtype=torch.int64).view(-1, 2).t().contiguous())
    scores = model(data.x, data.edge_index)
    node = int(scores.argmax())
    kept = scores.detach().numpy() if return_scores else None
    return Decision(state["nodes"][node]["node_id"], node, scores[node].item(), kept)


class GuidePredictor:
    """`decide` with the calls of a `Predictor`, behind S2's input validation: the baseline of a service.

    Raises:
        GnnlabError: an unknown model type.
    """

    def __init__(self, model_type: str) -> None:
        self._model = edge_allocator.load(model_type)

    def predict(self, state: State, return_scores: bool = False) -> Decision:
        """The node for the next task; `GnnlabError` where the state is none, naming node and field."""
        state_checks.check(state)
        return decide(self._model, state, return_scores)

    def predict_batch(self, states: Sequence[State], return_scores: bool = False) -> list[Decision | GnnlabError]:
        """A decision for each state, in their order; for a state that is none the error instead."""
        answers: list[Decision | GnnlabError] = []
        for state in states:
            try:
                answers.append(self.predict(state, return_scores))
            except GnnlabError as error:
                answers.append(error)
        return answers
