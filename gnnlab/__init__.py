"""gnnlab: what a graph neural network costs on your machine, and what makes it faster.

race_variants              two or more functions: equal results first, then times, ratios and intervals
require_equal           raises where results differ by more than a tolerance
profile_forward         time of a forward pass
profile_training_step   time of a forward and backward pass
profile_memory_usage    peak memory of a call
profile_operators       which operators take the time
optimize.search         every step that makes a model faster, proven and raced in several processes
measure.estimates       intervals: median, ratio, share
profile.roofline        FLOPs and bytes of a model, and the least time they take on this machine
Lab                     rows, figures and claims of a notebook; needs pip install 'gnnlab[lab]'
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

__version__ = "0.1.0"
_MODULE_OF = {
    "Lab": "gnnlab.lab.session",
    "profile_forward": "gnnlab.profile.runtime",
    "profile_memory_usage": "gnnlab.profile.memory",
    "profile_operators": "gnnlab.profile.operators",
    "profile_training_step": "gnnlab.profile.runtime",
    "race_variants": "gnnlab.measure.race",
    "require_equal": "gnnlab.measure.race",
}
__all__ = sorted(name for name in _MODULE_OF if name != "Lab" or find_spec("IPython"))


def __getattr__(name: str) -> Any:
    """Public names are loaded when they are first asked for: they need torch, or Jupyter."""
    if name == "Lab" and name not in __all__:
        raise ImportError("gnnlab.Lab is for notebooks: pip install 'gnnlab[lab]'")
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
