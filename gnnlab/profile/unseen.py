"""What runs where operators are not counted: on other threads, in numpy, in kernels of other libraries.

    with unseen(threads) as names: model(x)
    names        # {"numpy", "operators on other threads"}

What is named here was not counted, so a count beside it is "at least". The code of C++ extensions that are no operators
of torch leaves no trace and is not named.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._C._profiler import _ExperimentalConfig

from gnnlab.errors import GnnlabError
from gnnswap.cost import quiet_profiler

_WAYS_OUT = (  # by which numbers leave torch, or come from elsewhere
    (torch.Tensor, "numpy", "numpy"),
    (torch.Tensor, "__array__", "numpy"),
    (torch, "from_numpy", "numpy"),
    (torch.Tensor, "__dlpack__", "arrays of other libraries"),
    (torch.Tensor, "data_ptr", "kernels of other libraries"),
    (torch.cuda.CUDAGraph, "replay", "CUDA graphs"),
)
# who calls these and computes nothing there, or counts it: PyG only compares addresses
_KNOWN = ("gnnlab", "gnnswap", "torch", "torch_geometric.edge_index", "torch_geometric.index")
_WITHIN_KERNELS = ("aten::empty",)  # what kernels of torch themselves call on OpenMP's threads
_ONE_AT_A_TIME = threading.RLock()  # the profiler and the ways out are the process's


@contextmanager
def unseen(threads: Set[int]) -> Iterator[set[str]]:
    """The names of what ran inside and was not seen, complete when it ends.

    `threads`: native ids of the threads whose operators are seen, which may grow inside. Inside runs torch's profiler,
    which sees the operators of all threads.

    Raises:
        GnnlabError: it is running already, and there can be one only.
    """
    if torch.autograd.profiler._is_profiler_enabled:
        raise GnnlabError("torch's profiler is running, by which operators on other threads are found: end it first")
    names: set[str] = set()
    quiet_profiler()
    everywhere = _ExperimentalConfig(profile_all_threads=True)
    with _ONE_AT_A_TIME, ExitStack() as patches:
        for owner, name, label in _WAYS_OUT:
            patches.enter_context(patch.object(owner, name, _watched(getattr(owner, name), label, names)))
        with torch.autograd.profiler.profile(use_cpu=True, experimental_config=everywhere) as profile:
            yield names
    ran = [event for event in profile.kineto_results.events() if event.name() not in _WITHIN_KERNELS]
    if {event.device_resource_id() for event in ran} - threads - {threading.get_native_id()}:
        names.add("operators on other threads")


def _watched(function: Callable[..., Any], label: str, names: set[str]) -> Callable[..., Any]:
    def watched(*given: Any, **named: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller not in _KNOWN and caller.partition(".")[0] not in _KNOWN:
            names.add(label)
        return function(*given, **named)

    return watched
