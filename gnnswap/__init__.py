"""gnnswap: faster message passing for the layers of PyTorch Geometric and for your own.

from gnnswap import swap
print(swap(model, (x, edge_index)))     # faster layers in place of the model's, each tested beside the original

swap             a model with faster layers: the same outputs and gradients, the same parameters
SwapReport       what `swap` returns: the model, what was replaced, what was kept and why
neighbour_sum    a weighted sum over neighbours for layers of your own
Neighbours       a graph sorted by target, for repeated calls of `neighbour_sum`
"""

from importlib import import_module
from typing import Any

_MODULE_OF = {
    "Neighbours": "gnnswap.neighbours",
    "SwapReport": "gnnswap.replace",
    "neighbour_sum": "gnnswap.compile_ops",
    "swap": "gnnswap.replace",
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Public names are imported at their first use: they need torch and PyG."""
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
