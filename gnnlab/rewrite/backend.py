"""`torch.compile(model, backend="gnnlab")`: the sums over edges of any model as the lab computes them.

    fast = torch.compile(model, backend="gnnlab")
    fast = torch.compile(model, backend="gnnlab", options={"then": "inductor"})   # the rest goes on to Inductor
    print(explain(model, x, edge_index))       # what is replaced, what stays and why, the graphs as Python

AOTAutograd makes a functional graph of the model, with its backward pass where gradients are wanted.
`traced_edges.py` rewrites the sums in it, forward and backward alike, `traced_structure.py` keeps what depends on the
edges alone, and the rest runs as it is. What is not known stays. AOTAutograd refuses a gradient of a gradient.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.compile_utils import fx_graph_cse
from torch._functorch.partitioners import default_partition
from torch._inductor.compile_fx import compile_fx
from torch.fx import GraphModule

from gnnlab.errors import GnnlabError
from gnnlab.rewrite.traced_edges import SortedEdges, TracedChange
from gnnlab.rewrite.traced_structure import copy_returned, free_constants, gather_first, share_sizes, split

THEN = ("eager", "inductor")
SIZES = 8  # of graphs that Inductor compiles for, each apart
log = logging.getLogger(__name__)


@dataclass
class Rewritten:
    """What became of a model: its changes, and its graphs behind them as Python, backward passes apart."""

    changes: list[TracedChange] = field(default_factory=list)
    graphs: list[str] = field(default_factory=list)

    @property
    def replaced(self) -> list[TracedChange]:
        return [change for change in self.changes if change.now]

    @property
    def kept(self) -> list[TracedChange]:
        return [change for change in self.changes if not change.now]

    def __str__(self) -> str:
        lines = [str(change) for change in (*self.replaced, *self.kept)]
        return "\n".join(lines or ["no sums over edges found"])


def backend(module: GraphModule, inputs: list[Any], options: dict[str, Any] | None = None) -> Callable:
    """The backend that `torch.compile` calls; `options`: {"then": "eager" | "inductor"}.

    Raises:
        GnnlabError: another option, or another value.
    """
    return _compiled(module, inputs, _then(options), Rewritten())


def explain(model: nn.Module, *inputs: Any, **named: Any) -> Rewritten:
    """What the backend makes of `model(*inputs, **named)`; gradients count where they are enabled and wanted.

    The model runs once, in the mode that it is in. `print(report)` says what was replaced; `report.graphs` show it.
    """
    report = Rewritten()
    with tracing_self_loops():
        torch.compile(_Called(model), backend=lambda gm, given: _compiled(gm, given, "eager", report))(*inputs, **named)
    return report


class _Called(nn.Module):
    """A model under another name, so that what was compiled of it before is not found."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.model(*inputs, **named)


def tracing_self_loops() -> Any:
    """A context in which models that add self-loops are traced in one piece: their number depends on the edges.

    Without it torch.compile breaks the graph there: results are the same, the edges are compared in each call. It is a
    setting of torch for all backends, and Inductor alone fails on some models with it, so nothing here leaves it on.
    """
    return torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True)


def _then(options: dict[str, Any] | None) -> str:
    options = options or {}
    then = options.get("then", "eager")
    if set(options) - {"then"} or then not in THEN:
        raise GnnlabError(f"backend gnnlab with options {options}: {{'then': one of {', '.join(THEN)}}} is allowed")
    return then


def _compiled(module: GraphModule, inputs: list[Any], then: str, report: Rewritten) -> Callable:
    def partition(joint: GraphModule, given: Any, *, num_fwd_outputs: int, **kept: Any) -> tuple:
        _rewrite(joint, num_fwd_outputs, then, report)
        return default_partition(joint, given, num_fwd_outputs=num_fwd_outputs, **kept)

    def alone(graph: GraphModule, given: Any) -> Callable:
        _rewrite(graph, None, then, report)
        return forward(graph, given)

    def forward(graph: GraphModule, given: Any) -> Callable:
        return make_boxed_func(split(graph, lambda rest: _finished(rest, then, report)))

    def backward(graph: GraphModule, given: Any) -> Callable:
        return make_boxed_func(_finished(graph, then, report))

    compiler = aot_autograd(fw_compiler=forward, bw_compiler=backward, inference_compiler=alone, partition_fn=partition)
    return compiler(module, inputs)


def _rewrite(module: GraphModule, outputs: int | None, then: str, report: Rewritten) -> None:
    """Rewrite the sums of a graph in place; the first `outputs` of its results, or all, belong to the caller."""
    given, graph = module.graph, fx_graph_cse(module.graph)
    free_constants(graph)
    share_sizes(graph)
    edges = SortedEdges(graph, fused=then == "inductor")
    edges.run()
    report.changes += edges.changes
    for change in edges.changes:
        log.info("%s", change)
    if not any(change.now for change in edges.changes):
        module.graph = given
        return
    copy_returned(graph, len(graph.output_node().args[0]) if outputs is None else outputs)
    gather_first(graph)
    graph.lint()
    module.graph = graph


def _finished(module: GraphModule, then: str, report: Rewritten) -> Callable:
    report.graphs.append(module.print_readable(print_output=False))
    return _Inductor(module) if then == "inductor" else module.forward


class _Inductor:
    """A graph that Inductor compiles when it is run: sizes that the edges decide are known only then.

    It is compiled for each set of sizes apart, and after `SIZES` of them runs as it is.
    """

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self._compiled: dict[tuple, Callable] = {}

    def __call__(self, *inputs: Any) -> Any:
        key = tuple((i.shape, i.stride(), i.dtype) if isinstance(i, torch.Tensor) else i for i in inputs)
        if key not in self._compiled and len(self._compiled) < SIZES:
            with ThreadPoolExecutor(1) as clean:  # what runs here has settings of its thread that compiling cannot bear
                self._compiled[key] = clean.submit(self._compile, list(inputs)).result()
        return self._compiled.get(key, self.module.forward)(*inputs)

    def _compile(self, inputs: list[Any]) -> Callable:
        with torch.no_grad():
            return compile_fx(copy.deepcopy(self.module), inputs)
