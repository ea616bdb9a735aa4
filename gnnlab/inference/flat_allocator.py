"""The edge allocator in as few tensor operations as compute the same.

    flat = FlatAllocator(weights("hybrid"))
    flat(x, source, target, starts)                 # (N,) scores; arrays as `NetworkArrays.tensors` has them

What makes it short: sums over neighbours by one bag over edges sorted by target; both products of a SAGE layer as one,
[sum of neighbours | x] [W_l ; W_r]; both heads of the hybrid as one, since their outputs are added.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from gnnlab.workloads.edge_allocator import SCALE
from gnnlab.workloads.edge_networks import NODE_TYPES


class FlatAllocator(nn.Module):
    """`forward(x, source, target, starts)` -> (N,) scores; x (N, 7), source and target (E,), starts (N,) int64.

    Without `starts` neighbours are added by `index_add`, edges in any order: ONNX has no bag. `weights` are those of an
    `EdgeAllocator`'s state_dict; what is held are copies on `device`, constants of what is exported.
    """

    def __init__(self, weights: Mapping[str, Tensor], device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.on_graph = "layers.0.lin_l.weight" in weights
        self.scale = torch.tensor(SCALE, device=device)
        self.kinds = torch.arange(len(NODE_TYPES), dtype=torch.float32, device=device)
        heads = [name for name in ("value", "policy") if f"{name}.weight" in weights]
        layers = []
        for layer in sorted({".".join(name.split(".")[:2]) for name in weights if name.startswith("layers.")}):
            if self.on_graph:  # [neighbours | x] by [W_l ; W_r]
                both = torch.cat([weights[f"{layer}.lin_l.weight"], weights[f"{layer}.lin_r.weight"]], dim=1)
                layers.append((both.t(), weights[f"{layer}.lin_l.bias"]))
            else:
                layers.append((weights[f"{layer}.weight"].t(), weights[f"{layer}.bias"]))
        layers.append(
            (sum(weights[f"{head}.weight"] for head in heads).t(), sum(weights[f"{head}.bias"] for head in heads))
        )
        # a plain list: a ParameterList costs as much to walk as a layer to compute
        self.layers = [
            (weight.detach().to(device, copy=True).contiguous(), bias.detach().to(device, copy=True))
            for weight, bias in layers
        ]
        self.eval()

    def forward(self, x: Tensor, source: Tensor, target: Tensor, starts: Tensor | None = None) -> Tensor:
        kinds = (x[:, 6:] == self.kinds).to(x.dtype)
        out = torch.cat([x[:, :2], x[:, 2:6].log1p() / self.scale, kinds], dim=1)  # (N, 9)
        *layers, (head, head_bias) = self.layers
        for weight, bias in layers:
            if self.on_graph:
                if starts is None:
                    around = torch.zeros_like(out).index_add(0, target, out.index_select(0, source))
                else:
                    around = torch.embedding_bag(out, source, starts, False, 0, False, None, False)[0]
                out = torch.cat([around, out], dim=1)
            out = torch.addmm(bias, out, weight).relu_()
        return torch.addmm(head_bias, out, head).squeeze(1)


class DenseAllocator:
    """A flat allocator in numpy on a dense adjacency matrix, for networks of a few dozen nodes.

    `allocator(x, adjacency)` -> (N,) scores; x (N, 7) float32, adjacency (N, N) float32, [i, j] the edges from j to i.
    On so few nodes a call costs more than what it computes, and numpy's calls cost less than torch's.
    """

    def __init__(self, flat: FlatAllocator) -> None:
        arrays = [(weight.cpu().numpy(), bias.cpu().numpy()) for weight, bias in flat.layers]
        *self._layers, (self._head, self._head_bias) = arrays
        self._scale, self._kinds, self._on_graph = flat.scale.cpu().numpy(), flat.kinds.cpu().numpy(), flat.on_graph

    def __call__(self, x: np.ndarray, adjacency: np.ndarray) -> np.ndarray:
        out, own = self._inputs(len(x), 6 + len(self._kinds))
        own[:, :2] = x[:, :2]
        np.log1p(x[:, 2:6], out=own[:, 2:6])
        own[:, 2:6] /= self._scale
        own[:, 6:] = x[:, 6:] == self._kinds
        for place, (weight, bias) in enumerate(self._layers):
            if place:
                before, (out, own) = out, self._inputs(*out.shape)
                np.maximum(before, 0, out=own)
            if self._on_graph:
                np.matmul(adjacency, own, out=out[:, : own.shape[1]])
            out = out @ weight
            out += bias
        return (np.maximum(out, 0, out=out) @ self._head)[:, 0] + self._head_bias

    def _inputs(self, nodes: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """(what a layer's weights are multiplied by, the part of it that is each node's own)."""
        joined = np.empty((nodes, width * (1 + self._on_graph)), dtype=np.float32)
        return joined, joined[:, -width:]
