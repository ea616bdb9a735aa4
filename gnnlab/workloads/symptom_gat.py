"""Study 1: a graph attention network that embeds the symptom graph (seed 000), as it was, flaws included.

Embedding(N, 64) -> GATConv(64, 128, heads=4) -> ELU -> dropout 0.1 -> GATConv(512, 256, heads=1) -> mean over nodes
-> one row a batch entry. On the 58 symptoms: 169,856 parameters.

What a reader should notice, and the lab's detectors do: the edge weights are stored and never used; nothing goes in,
so in eval the output is a constant; and all rows of a batch are the same. These are left as they are, because the
claims of the study are measured against them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from gnnlab.workloads import symptoms
from gnnlab.workloads.errors import ModelError, one_line, shown

# what the study calls optimized; each option can be had alone, and all of them share one state_dict
SEED_OPTIMIZED = {"cached_ids": True, "expand": True, "use_compile": True}


class SymptomGAT(nn.Module):
    """`model(batch_size)` -> (batch_size, 256), the embedding of a fixed graph, once a row.

    Buffers: `edge_index` int64 (2, E) and `edge_weight` float32 (E,), ones where the graph has none.
    The study's optimizations, all off in its baseline:

    - `cached_ids`: node ids kept in a buffer instead of `torch.arange` at every call.
    - `expand`: `expand().contiguous()`, and nothing at batch 1, instead of `repeat()`. It copies all the same.
    - `use_compile`: the forward through `torch.compile(mode="reduce-overhead")`. Where that does not compile, the
      model warns once, runs uncompiled, and says why in `compile_error`. On CUDA the result lives until the next call
      only, as with every CUDA graph: clone what is kept.
    """

    def __init__(
        self,
        num_nodes: int,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        *,
        cached_ids: bool = False,
        expand: bool = False,
        use_compile: bool = False,
    ):
        super().__init__()
        self.num_nodes = num_nodes
        self.cached_ids, self.expand, self.use_compile = cached_ids, expand, use_compile
        self.compile_error: str | None = None
        self.node_embeddings = nn.Embedding(num_nodes, 64)
        self.gat1 = GATConv(64, 128, heads=4)
        self.dropout = nn.Dropout(0.1)
        self.gat2 = GATConv(4 * 128, 256, heads=1)
        weight = torch.ones(edge_index.size(1)) if edge_weight is None else edge_weight
        self.register_buffer("edge_index", edge_index.clone())
        self.register_buffer("edge_weight", weight.clone())
        ids = torch.arange(num_nodes) if cached_ids else None
        self.register_buffer("node_ids", ids, persistent=False)  # derived, so the forms load each other's weights

    @classmethod
    def from_graph(cls, data: Data, **options: bool) -> SymptomGAT:
        """The same network on any graph; of `data` only the edges and their weights are taken."""
        return cls(int(data.num_nodes), data.edge_index, data.get("edge_weight"), **options)

    @classmethod
    def from_conditions(cls, conditions: Mapping[str, Iterable[str]], **options: bool) -> SymptomGAT:
        """The network on the co-occurrence graph of conditions and their symptoms; `GraphError` if they give none.

        >>> SymptomGAT.from_conditions({"cold": ["cough", "fever"], "flu": ["ache", "fever"]})(batch_size=2).shape
        torch.Size([2, 256])
        """
        return cls.from_graph(symptoms.from_conditions(conditions), **options)

    def forward(self, batch_size: int = 1) -> Tensor:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ModelError(f"symptom_gat: batch_size must be an integer of 1 or more, got {shown(batch_size)}")
        if self.use_compile and self.compile_error is None:
            try:
                return _compiled()(self, batch_size)
            except Exception as error:
                return self._uncompiled(batch_size, error)
        return self._forward_impl(batch_size)

    def _forward_impl(self, batch_size: int) -> Tensor:
        ids = self.node_ids if self.cached_ids else torch.arange(self.num_nodes, device=self.edge_index.device)
        x = self.node_embeddings(ids)  # (N, 64)
        x = self.dropout(F.elu(self.gat1(x, self.edge_index)))  # (N, 512)
        x = self.gat2(x, self.edge_index)  # (N, 256)
        graph = x.mean(dim=0, keepdim=True)  # (1, 256)
        if self.expand:
            return graph.expand(batch_size, -1).contiguous() if batch_size > 1 else graph
        return graph.repeat(batch_size, 1)

    def _uncompiled(self, batch_size: int, error: Exception) -> Tensor:
        result = self._forward_impl(batch_size)  # raises by itself if it was not the compiler's fault
        self.compile_error = one_line(error)
        warnings.warn(f"symptom_gat runs uncompiled, torch.compile failed: {self.compile_error}", stacklevel=3)
        return result


@cache
def _compiled():
    """The compiled forward, as a function of the model: bound to one, a copy would run the weights of the original."""
    # every graph size, option and mode is a form of its own; beyond 8, torch runs the rest eagerly and only logs it
    return torch.compile(SymptomGAT._forward_impl, mode="reduce-overhead", recompile_limit=64)
