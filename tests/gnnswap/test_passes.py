"""Each compiled pass has a formula for what it computes and moves, with the arguments of the pass."""

import inspect
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from gnnswap import fused, fused_numba, passes
from gnnswap.neighbours import Neighbours
from gnnswap.passes import FORMULAS, Work, watched

N, E, F = 3, 5, 4
OF_EDGES = {"ptr", "col", "ids", "row", "block", "blocks"}  # what a pass by numba is given of the graph


def graph():
    return Neighbours.prepare(torch.tensor([[0, 1, 2, 0, 1], [1, 0, 1, 2, 2]]), N)


def names_of(formula):
    names = [*inspect.signature(formula).parameters]
    return [name for name in names if name not in ("rows", "summed")]


def test_every_pass_by_numba_has_a_formula_with_its_arguments():
    kernels = {name: one for name, one in vars(fused_numba).items() if isinstance(one, fused_numba._Kernel)}
    for name, kernel in kernels.items():
        code = kernel.alone.py_func.__code__
        given = [one for one in code.co_varnames[: code.co_argcount] if one not in OF_EDGES]
        assert given == names_of(FORMULAS[name]), name


def test_every_pass_by_triton_has_a_formula():
    module = pytest.importorskip("gnnswap.triton_passes", reason="triton is not installed")
    own = [name for name, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__]
    helpers = {"launch", "pieces", "takes_heads", "Pieces"}
    public = {name for name in own if not name.startswith("_")} - helpers
    assert public == set(FORMULAS)
    for name in ("weighted_sum", "weighted_sum_by_head", "edge_products", "log_sum_exp", "attend", "attend_back"):
        assert [*inspect.signature(getattr(module, name)).parameters] == names_of(FORMULAS[name]), name


def noted(call):
    """What was noted: [(pass, work)]."""
    notes = []
    with watched(lambda *note: notes.append(note)):
        call()
    return notes


x, edges = torch.ones(N, F), torch.ones(E, F)
NODE, EDGE, INDEX, ORDER = 4 * N * F, 4 * E * F, 4 * (N + 1 + E), 4 * E  # bytes of rows of nodes and edges, of numbers


def gradients(function, *tensors):
    """Of a function of tensors, by its backward pass."""
    leaves = [one.clone().requires_grad_() for one in tensors]
    out = function(*leaves)
    return partial(torch.autograd.grad, out, leaves, torch.ones_like(out))


def test_a_sum_of_messages_forward_and_backward():
    prepared = graph()
    one = partial(fused.multi_aggregate, x, prepared, ("sum", "squares", "max"))
    assert noted(one) == [("multi_aggregate", Work(E * F * (1 + 2 + 1), NODE + INDEX, 3 * NODE))]
    with_edges = partial(fused.multi_aggregate, x, prepared, ("sum",), edges, relu=True)
    assert noted(with_edges) == [("multi_aggregate", Work(E * F * 3, NODE + EDGE + INDEX + ORDER, NODE))]
    back = gradients(lambda y: fused.multi_aggregate(y, prepared, ("sum",), edges, relu=True)[0], x)
    work = Work(E * F * (2 + 1 + 1), 2 * NODE + EDGE + INDEX + ORDER, NODE)  # +, ReLU; held back where it is; summed
    assert noted(back) == [("multi_aggregate_back", work)]
    back = gradients(lambda y, e: fused.multi_aggregate(y, prepared, ("sum",), e, relu=True)[0], x, edges)
    work = Work(E * F * (2 + 1), 2 * NODE + EDGE + INDEX + ORDER, EDGE)
    assert noted(back) == [("multi_aggregate_back_to_edges", work)]
    plain = gradients(lambda y: fused.multi_aggregate(y, prepared, ("sum",))[0], x)
    assert noted(plain) == [("multi_aggregate_back", Work(E * F, NODE + INDEX, NODE))]


def test_gates_and_modulation_forward_and_backward():
    prepared, both = graph(), torch.ones(N, 2 * F)
    one = partial(fused.gated_sum, both, both, prepared, softplus=True)
    assert noted(one) == [("gated_sum", Work(E * F * (2 + 1 + 4 + 2), 4 * NODE + INDEX, NODE))]
    back = gradients(lambda source: fused.gated_sum(source, x, prepared), both)
    flops = E * F * (1 + 1 + 1 + 4 + 1 + 1)  # p, sigmoid, both gradients, both sums
    assert noted(back) == [("gated_sum_back", Work(flops, 2 * NODE + NODE + NODE + INDEX, 2 * NODE))]
    one = partial(fused.film_sum, x, both, prepared)
    assert noted(one) == [("film_sum", Work(E * F * 4, 3 * NODE + INDEX, NODE))]
    back = gradients(lambda y: fused.film_sum(y, both, prepared), x)
    assert noted(back) == [("film_sum_back", Work(E * F * 5, 4 * NODE + INDEX, NODE))]


def test_a_row_of_a_table_that_few_edges_name_is_all_that_is_read():
    few = Neighbours.prepare(torch.tensor([[0, 1], [1, 1]]), 100)
    ((_, work),) = noted(partial(fused.multi_aggregate, torch.ones(100, F), few, ("sum",)))
    assert work == Work(2 * F, 2 * 4 * F + 4 * (101 + 2), 100 * 4 * F)


def test_attention_by_triton_is_noted_forward_and_backward(monkeypatch):
    triton = pytest.importorskip("triton", reason="triton is not installed")
    if not torch.cuda.is_available() and isinstance(triton.language.sum, triton.runtime.JITFunction):
        pytest.skip("no CUDA device, and triton was imported without TRITON_INTERPRET=1")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    monkeypatch.setattr(passes.backends, "on_gpu", lambda x: True)
    prepared = Neighbours.prepare(graph().edges.to(device), N)
    heads, width = 2, F
    query, key = torch.ones(2, N, heads, device=device)
    values = torch.ones(N, heads, width, device=device)
    given, attended = (query, key, values, prepared), []
    forward = noted(lambda: attended.append(passes.triton_for(values).attend("gat", *given)))
    numbers, per_head = 4 * N * heads * width, 4 * N * heads
    flops = E * heads * (2 + 5 + 2 * width)
    read = 2 * per_head + numbers + INDEX
    assert forward == [("attend", Work(flops, read, numbers + per_head))]
    ((out, saved),) = attended
    ((name, back),) = noted(lambda: passes.triton_for(values).attend_back("gat", out, saved, *given))
    assert name == "attend_back"
    shares = heads * (2 + 4 + 2 * width + 2)  # scores, their softmax and its gradient, and the sums at both ends
    assert back.flops == E * (2 * shares + 2 * heads * width) + 2 * N * heads * width
    assert back.written == 2 * per_head + numbers + per_head


def test_passes_are_noted_on_every_thread_and_only_while_somebody_watches():
    prepared = graph()
    run = partial(fused.multi_aggregate, x, prepared, ("sum",))
    with ThreadPoolExecutor(1) as pool:
        assert [name for name, _ in noted(lambda: pool.submit(run).result())] == ["multi_aggregate"]
    assert noted(lambda: noted(run)) == noted(run)  # two may watch
    assert fused.passes_for(x) is fused_numba
