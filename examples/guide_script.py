"""S2's script of one decision, as it was and with what S2 adds to it: what notebook 08 measures everything against.

    model = edge_allocator.load("hybrid")
    original(state, model)                     # (N,) scores of the nodes, the highest is the decision
    optimized(model, answers())(state)         # the same with a cache, validation, no_grad and tracking

A state is a dict of nodes, with their load, and links. `layers` is the model, or what takes its place: x (N, 7) and
edge_index (2, E) to scores. S2's service reads a state in the same way (`guide_service.py`).
"""

import copy
import hashlib
from functools import lru_cache, partial

import torch
from cachetools import TTLCache, cached
from prometheus_client import CollectorRegistry, Histogram
from torch import nn
from torch.nn.utils import prune
from torch_geometric.data import Batch, Data

from gnnlab.inference.states import NetworkArrays
from gnnlab.workloads.edge_networks import FEATURES

# ---- as it was: a state is read in Python and built into a PyG graph, the model runs with gradients on


def edges_of(state):  # (2, E), each link in both directions
    row = {node["node_id"]: place for place, node in enumerate(state["nodes"])}
    edges = [ends for a, b in state.get("links", ()) for ends in ([row[a], row[b]], [row[b], row[a]])]
    return torch.tensor(edges, dtype=torch.int64).view(-1, 2).t().contiguous()


def parsed(state, edges=edges_of):
    x = [[float(node[name]) for name in FEATURES] for node in state["nodes"]]
    return Data(x=torch.tensor(x), edge_index=edges(state))


def original(state, layers, edges=edges_of):
    data = parsed(state, edges)
    scores = layers(data.x, data.edge_index)  # (N,)
    _ = state["nodes"][int(scores.argmax())]["node_id"]  # the decision
    return scores


def batched(states, layers):  # a list of states as one PyG batch
    batch = Batch.from_data_list([parsed(state) for state in states])
    scores = layers(batch.x, batch.edge_index).split(batch.ptr.diff().tolist())
    _ = [state["nodes"][int(s.argmax())]["node_id"] for state, s in zip(states, scores, strict=True)]
    return list(scores)


# ---- answers that are known: S2's key is the text of a state; the arrays made of it are the same if only names differ

answers = partial(TTLCache, maxsize=1000, ttl=3600)


def by_text(state):
    return hashlib.md5(str(state).encode()).hexdigest()


def by_arrays(state):
    data = parsed(state)
    return hashlib.sha256(data.x.numpy().tobytes() + data.edge_index.numpy().tobytes()).digest()


# ---- graphs that are known, by node ids and links


@lru_cache(maxsize=256)
def known_edges(ids, links):
    return edges_of({"nodes": [{"node_id": node_id} for node_id in ids], "links": links})


def edges_from_cache(state):
    return known_edges(tuple(node["node_id"] for node in state["nodes"]), tuple(map(tuple, state.get("links", ()))))


# ---- S2's optimized script; its validation is the lab's, which reads a state as it checks it: nothing is parsed twice

latency = Histogram("prediction_latency_seconds", "Prediction latency", registry=CollectorRegistry())


def optimized(layers, cache):
    @latency.time()
    @torch.no_grad()
    @cached(cache, key=by_text)
    def scores(state):
        networks = NetworkArrays.of([state])
        scores = layers(torch.from_numpy(networks.x), torch.from_numpy(networks.edge_index))
        _ = networks.ids[int(scores.argmax())]
        return scores

    return scores


# ---- a smaller model


def pruned(model, amount):  # without this share of the weights of each of torch's linear layers
    sparse = copy.deepcopy(model)
    for layer in (layer for layer in sparse.modules() if isinstance(layer, nn.Linear)):
        prune.l1_unstructured(layer, "weight", amount=amount)
        prune.remove(layer, "weight")
    return sparse
