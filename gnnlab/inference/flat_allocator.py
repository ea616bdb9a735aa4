"""The edge allocator in as few tensor operations as compute the same.

    flat = FlatAllocator(weights("hybrid"))
    flat(x, source, target, starts)                 # (N,) scores; arrays as `NetworkArrays.tensors` has them

What makes it short: sums over neighbours by one segment sum over edges sorted by target; both products of a SAGE layer
as one, [sum of neighbours | x] [W_l ; W_r]; both heads of the hybrid as one, since their outputs are added.
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

    Without `starts` neighbours are added by `index_add`, edges in any order: ONNX has no segment sum. `weights` are
    those of an `EdgeAllocator`'s state_dict; what is held are copies on `device`, constants of what is exported.
    """

    def __init__(self, weights: Mapping[str, Tensor], device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.on_graph = "layers.0.lin_l.weight" in weights
        self.scale = torch.tensor(SCALE, device=device)
        self.kinds = torch.arange(len(NODE_TYPES), dtype=torch.float32, device=device)
        products = []
        for layer in sorted({".".join(name.split(".")[:2]) for name in weights if name.startswith("layers.")}):
            if self.on_graph:  # [neighbours | x] by [W_l ; W_r]
                both = torch.cat([weights[f"{layer}.lin_l.weight"], weights[f"{layer}.lin_r.weight"]], dim=1)
                products.append((both, weights[f"{layer}.lin_l.bias"]))
            else:
                products.append((weights[f"{layer}.weight"], weights[f"{layer}.bias"]))
        heads = [name for name in ("value", "policy") if f"{name}.weight" in weights]
        products.append(
            (sum(weights[f"{head}.weight"] for head in heads), sum(weights[f"{head}.bias"] for head in heads))
        )
        # a plain list: a ParameterList costs as much to walk as a layer to compute
        self.layers = [
            (weight.detach().t().to(device, copy=True).contiguous(), bias.detach().to(device, copy=True))
            for weight, bias in products
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
        parts = [x[:, :2], np.log1p(x[:, 2:6]) / self._scale, x[:, 6:] == self._kinds]
        out = np.concatenate(parts, axis=1, dtype=np.float32)  # (N, 9)
        for weight, bias in self._layers:
            if self._on_graph:
                out = np.concatenate([adjacency @ out, out], axis=1)
            out = np.maximum(out @ weight + bias, 0)
        return (out @ self._head)[:, 0] + self._head_bias
