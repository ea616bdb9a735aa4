"""The symptom graph of study 1: symptoms are nodes, those of one condition are all joined with each other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

import torch
from torch_geometric.data import Data

from gnnlab.workloads.errors import GraphError, shown
from gnnlab.workloads.graph_checks import checked

FACTS = Path(__file__).parent / "data" / "symptom_cliques.json"


def load() -> Data:
    """The graph of the study: 58 nodes, 776 directed edges, degree 8..43, from the ten cliques of its conditions."""
    facts = json.loads(FACTS.read_text(encoding="utf-8"))
    return checked(co_occurrence(facts["cliques"], facts["nodes"]), "symptoms")


def from_conditions(conditions: Mapping[str, Iterable[str]]) -> Data:
    """The co-occurrence graph of any conditions; nodes are the symptoms in alphabetical order.

    >>> from_conditions({"cold": ["cough", "fever"], "flu": ["ache", "fever"]}).edge_index.tolist()
    [[0, 1, 2, 2], [2, 2, 0, 1]]

    Raises `GraphError` where symptoms are no strings, or no condition has two of them (a graph without edges).
    """
    if not isinstance(conditions, Mapping):
        raise GraphError(f"conditions: a mapping of conditions to their symptoms is needed, got {shown(conditions)}")
    named = {condition: _symptoms(condition, symptoms) for condition, symptoms in conditions.items()}
    number = {symptom: i for i, symptom in enumerate(sorted(set(chain.from_iterable(named.values()))))}
    if not number:
        raise GraphError("conditions: no symptom is given; at least two of one condition are needed")
    cliques = [[number[symptom] for symptom in symptoms] for symptoms in named.values()]
    return checked(co_occurrence(cliques, len(number)), "conditions")


def _symptoms(condition: str, symptoms: Iterable[str]) -> list[str]:
    listed = list(symptoms) if isinstance(symptoms, Iterable) and not isinstance(symptoms, (str, bytes)) else [None]
    if not all(isinstance(symptom, str) for symptom in listed):
        raise GraphError(f"conditions: {shown(condition)} must map to a list of symptom names, got {shown(symptoms)}")
    return listed


def co_occurrence(cliques: Iterable[Iterable[int]], num_nodes: int) -> Data:
    """Edges in both directions between the members of each clique, ordered by source, then target.

    `edge_weight` (E,) is the number of cliques that hold both ends, divided by the largest such number.
    """
    counts = torch.zeros(num_nodes, num_nodes)
    for clique in cliques:
        members = torch.tensor(sorted(set(clique)), dtype=torch.int64)
        counts[members[:, None], members] += 1
    counts.fill_diagonal_(0)
    edge_index = counts.nonzero().t().contiguous()  # (2, E)
    weight = counts[edge_index[0], edge_index[1]]
    return Data(edge_index=edge_index, edge_weight=weight / counts.max(), num_nodes=num_nodes)
