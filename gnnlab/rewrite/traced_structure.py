"""What of a graph depends on the edges alone: found, taken out, computed once for each set of edges and kept.

Self-loops, degrees, the norm of a GCN and the order of the edges are the same in every call with the same edges. Here
"structure" is every node that depends on nothing but integer inputs, sizes and constants.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from gnnlab.kernels.kept import state_of
from gnnlab.rewrite.patterns import INDEX_TYPES, is_tensor, value

aten = torch.ops.aten

KEPT_GRAPHS = 8
HANDED_OUT = "gnnlab_handed_out"  # marks copies for the caller, which are made in each call
FILLS = {aten.new_zeros.default: 0, aten.new_ones.default: 1}
WHOLE_FILLS = {aten.zeros_like.default: 0, aten.ones_like.default: 1}


def structure_of(graph: Graph) -> set[Node]:
    """The nodes that depend on integer inputs, sizes and constants alone."""
    found: set[Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            made = node.meta.get("val")
            # scalars are counters (of batches, of steps), which change in each call
            belongs = isinstance(made, torch.SymInt | int) or (
                is_tensor(node) and made.dtype in (*INDEX_TYPES, torch.bool) and made.dim() > 0
            )
        else:
            belongs = node.op == "call_function" and _is_fixed(node) and all(n in found for n in node.all_input_nodes)
        if belongs:
            found.add(node)
    return found


def _is_fixed(node: Node) -> bool:
    if HANDED_OUT in node.meta:
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        tags = node.target.tags
        return torch.Tag.nondeterministic_seeded not in tags and not node.target._schema.is_mutable
    return not node.is_impure()


def on_edges(graph: Graph) -> set[Node]:
    """The nodes that depend on lists of edges that are sorted, and on no other tensors."""
    structure = structure_of(graph)
    lists = set(graph.find_nodes(op="call_function", target=torch.ops.gnnlab.sort_edges.default))
    for node in reversed(graph.nodes):
        if node in lists:
            lists.update(node.all_input_nodes)
    found: set[Node] = set()
    others: set[Node] = set()
    for node in graph.nodes:
        if node in structure:
            if node.op == "placeholder" and is_tensor(node):
                (found if node in lists else others).add(node)
            elif any(n in others for n in node.all_input_nodes):
                others.add(node)
            elif any(n in found for n in node.all_input_nodes):
                found.add(node)
    return found


def free_constants(graph: Graph) -> None:
    """Let tensors of zeros and ones depend on their sizes alone, not on the tensor whose type they take."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in FILLS | WHOLE_FILLS or not is_tensor(node):
            continue
        made, number = value(node), {**FILLS, **WHOLE_FILLS}[node.target]
        with graph.inserting_before(node):
            if node.target in FILLS:
                sizes = node.args[1]
            else:
                sizes = [s if type(s) is int else _size(graph, node.args[0], d) for d, s in enumerate(made.shape)]
            kind = {"dtype": made.dtype, "device": made.device}
            full = graph.call_function(aten.full.default, (list(sizes), number), kind)
        full.meta = dict(node.meta)
        node.replace_all_uses_with(full)
        graph.erase_node(node)


def _size(graph: Graph, node: Node, dim: int) -> Node:
    made = graph.call_function(aten.sym_size.int, (node, dim))
    made.meta = {**node.meta, "val": value(node).shape[dim]}
    return made


def share_sizes(graph: Graph) -> None:
    """Let each symbolic size be read from the structure where a tensor of it has that size, too."""
    structure, known = structure_of(graph), {}
    for node in list(graph.nodes):
        if isinstance(node.meta.get("val"), torch.SymInt):
            name = str(node.meta["val"].node.expr)
            if node in structure:
                known.setdefault(name, node)
            elif name in known and node.op == "call_function":
                node.replace_all_uses_with(known[name])
        elif node in structure and is_tensor(node):
            _learn_sizes(graph, node, known)


def _learn_sizes(graph: Graph, node: Node, known: dict[str, Node]) -> None:
    for dim, size in enumerate(value(node).shape):
        if isinstance(size, torch.SymInt) and str(size.node.expr) not in known:
            with graph.inserting_after(node):
                known[str(size.node.expr)] = _size(graph, node, dim)


def copy_returned(graph: Graph, outputs: int) -> None:
    """Put a copy between what is kept and the first `outputs` results, which belong to the caller."""
    kept = on_edges(graph)
    output = graph.output_node()
    returned = list(output.args[0])
    for place, node in enumerate(returned[:outputs]):
        if is_tensor(node) and _origin(node) in kept and _origin(node).op != "placeholder":
            with graph.inserting_before(output):
                returned[place] = graph.call_function(aten.clone.default, (node,))
            returned[place].meta = {**node.meta, HANDED_OUT: True}
    output.args = (tuple(returned) if isinstance(output.args[0], tuple) else returned,)


def _origin(node: Node) -> Node:
    """The node that a view, of a view, looks at."""
    while isinstance(node.target, torch._ops.OpOverload) and node.target.is_view:
        node = node.args[0]
    return node


def gather_first(graph: Graph) -> None:
    """Move what depends on the edges, and what it needs, to the front, where it belongs to the forward pass."""
    structure, wanted = structure_of(graph), on_edges(graph)
    for node in reversed(graph.nodes):
        if node in wanted:
            wanted.update(n for n in node.all_input_nodes if n in structure)
    last = list(graph.find_nodes(op="placeholder"))[-1]
    for node in [n for n in graph.nodes if n in wanted and n.op != "placeholder"]:
        last.append(node)
        node.meta["partitioner_tag"] = "is_forward"
        last = node


def split(module: GraphModule, compile_rest: Callable[[GraphModule], Callable]) -> Callable:
    """`module` as a function of the same arguments whose structure is computed once for each set of integer inputs.

    `compile_rest` makes a function of the rest, a graph that gets what is kept behind its own arguments.
    """
    structure, inside = structure_of(module.graph), on_edges(module.graph)
    wanted = [n for n in module.graph.nodes if n in inside and n.op != "placeholder" and not inside.issuperset(n.users)]
    if not any(is_tensor(node) for node in wanted):
        return compile_rest(module)
    first, inputs = _first_part(module, structure, wanted)
    return KeptStructure(first, inputs, compile_rest(_rest(module, inside, wanted)))


def _first_part(module: GraphModule, structure: set[Node], wanted: Sequence[Node]) -> tuple[GraphModule, list[int]]:
    """(the structure as a graph of its own, which of the module's arguments it takes)."""
    graph, at = Graph(), {}
    for node in module.graph.nodes:
        if node in structure:
            at[node] = graph.node_copy(node, at.__getitem__)
    graph.output([at[node] for node in wanted])
    graph.eliminate_dead_code()
    used = [node in at and bool(at[node].users) for node in module.graph.find_nodes(op="placeholder")]
    for node in list(graph.find_nodes(op="placeholder")):
        if not node.users:
            graph.erase_node(node)
    return GraphModule(module, graph), [place for place, taken in enumerate(used) if taken]


def _rest(module: GraphModule, inside: set[Node], wanted: Sequence[Node]) -> GraphModule:
    graph, at = Graph(), {}
    for node in module.graph.find_nodes(op="placeholder"):
        at[node] = graph.node_copy(node)
    for node in wanted:
        at[node] = graph.placeholder(node.name)
        at[node].meta = dict(node.meta)
    for node in module.graph.nodes:
        if node.op != "placeholder" and node not in inside:
            at[node] = graph.node_copy(node, at.__getitem__)
    graph.eliminate_dead_code()
    return GraphModule(module, graph)


class KeptStructure:
    """A graph in two parts: what the edges alone decide, kept for the sets of edges seen last, and the rest.

    The same tensor objects at the same versions are known without reading them; others are compared with copies. A
    change behind torch's back (`edge_index.data.copy_`, a numpy view) does not bump the version and is not noticed.
    """

    def __init__(self, first: Callable, places: Sequence[int], rest: Callable) -> None:
        self.first, self.places, self.rest = first, places, rest
        self.computed = 0  # how often, for whoever wants to know whether edges are known again
        self._entries: list[_Entry] = []

    def __call__(self, *args: Any) -> Any:
        return self.rest(*args, *self._kept([args[place] for place in self.places]))

    def _kept(self, inputs: list[Any]) -> list[Any]:
        entries = self._entries
        if entries and entries[0].is_of(inputs):
            return entries[0].results
        found = next((e for e in entries if e.is_of(inputs)), None) or next(
            (e for e in entries if e.equals(inputs)), None
        )
        if found is None:
            found = _Entry(inputs, self.first)
            self.computed += 1
        else:
            entries.remove(found)
            found.remember(inputs)
        self._entries = [found, *entries][:KEPT_GRAPHS]
        return found.results


class _Entry:
    """What the structure of one set of integer inputs is."""

    def __init__(self, inputs: list[Any], first: Callable) -> None:
        with torch.inference_mode(False), torch.no_grad():  # what is kept must serve training, too
            self._copies = [i.detach().clone() if isinstance(i, Tensor) else i for i in inputs]
            self.results = first(*self._copies)  # of copies, so that views of an input keep their values
        self.remember(inputs)

    def remember(self, inputs: list[Any]) -> None:
        self._states = [_state(i) for i in inputs]
        self._seen = [weakref.ref(i) if isinstance(i, Tensor) else i for i in inputs]

    def is_of(self, inputs: list[Any]) -> bool:
        for given, seen, state in zip(inputs, self._seen, self._states, strict=True):
            if not isinstance(given, Tensor):
                if given != seen:
                    return False
            elif seen() is not given or state is None or _state(given) != state:
                return False
        return True

    def equals(self, inputs: list[Any]) -> bool:
        def same(given: Any, copy: Any) -> bool:
            if not isinstance(given, Tensor):
                return given == copy
            return given.shape == copy.shape and given.dtype == copy.dtype and torch.equal(given, copy)

        return all(map(same, inputs, self._copies))


def _state(given: Any) -> tuple | None:
    if not isinstance(given, Tensor) or given.is_inference():  # has no version: what is in it must be read
        return None
    return state_of(given)
