"""gnnlab: what a graph neural network costs on your machine, and what makes it faster.

from gnnlab import swap
print(swap(model, (x, edge_index)))    # faster layers in place of your own, proven equal
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
_MODULE_OF = {
    "Lab": "gnnlab.lab.session",
    "neighbour_sum": "gnnlab.rewrite.operators",
    "optimize": "gnnlab.rewrite.optimize",
    "profile_forward": "gnnlab.profiling.runtime",
    "profile_memory_usage": "gnnlab.profiling.memory",
    "profile_operators": "gnnlab.profiling.operators",
    "profile_training_step": "gnnlab.profiling.runtime",
    "race_forms": "gnnlab.profiling.races",
    "require_equal": "gnnlab.profiling.races",
    "swap": "gnnlab.rewrite.swap",
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Public names are loaded when they are first asked for: they need torch, or Jupyter."""
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
