"""Training, copies, and modes of torch that look at what a model does: the fast model gives what the original gives."""

import copy
import io
import threading
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric import nn as pyg
from uses import (
    ALL,
    IN,
    KINDS,
    LAYERS,
    E,
    N,
    Two,
    assert_same,
    assert_same_call,
    assert_same_use,
    copies,
    every,
    everything,
    gradients,
    graph,
    pair,
    trained,
)

from gnnswap import swap

pytestmark = pytest.mark.usefixtures("one_thread")


# training: modes, hooks of gradients, order of calls


def test_a_call_without_gradients_first_does_not_spoil_training():
    for first in (torch.no_grad, torch.inference_mode):
        for name in LAYERS:
            x, edge_index = graph()
            original, fast = pair(ALL[name]())
            with first():
                fast(x, edge_index), fast(x, edge_index)
            assert_same_call(original, fast, x, edge_index)


@every
def test_training_and_frozen_weights_follow_requires_grad(name):
    original, fast = copies(name)
    for wants in (False, True):
        for model in (original, fast):
            model.requires_grad_(wants)
        assert_same_call(original, fast, *graph())
    for model in (original, fast):
        next(model.parameters()).requires_grad_(False)
    assert_same_call(original, fast, *graph())


@everything
def test_two_backward_passes_of_one_call(name):
    x, edge_index = graph()
    original, fast = copies(name)

    def use(model):
        rows = x.clone().requires_grad_()
        loss = model(rows, edge_index).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return rows.grad, [p.grad for p in model.parameters()]

    assert_same_use(original, fast, use)

    def twice(model):
        loss = model(x.clone().requires_grad_(), edge_index).square().sum()
        loss.backward()
        loss.backward()

    for model in (original, fast):
        with pytest.raises(RuntimeError, match="second time"):
            twice(model)


@everything
def test_two_calls_before_one_backward_pass(name):
    original, fast = copies(name)

    def use(model):
        x, y = graph()[0].requires_grad_(), graph(4)[0].requires_grad_()
        out = model(x, graph()[1]).square().sum() + model(y, graph(4)[1]).sum() + model(x, graph(4)[1]).sum()
        return gradients(model, out, x, y)

    assert_same_use(original, fast, use)


def _written_between(model, what):
    """Gradients of a call whose input, or whose weights, were written before the backward pass; None: torch refuses."""
    x, edge_index = graph()
    out = model(x, edge_index).square().sum()
    with torch.no_grad():
        for tensor in {"x": [x], "weights": list(model.parameters()), "nothing": []}[what]:
            tensor.mul_(2)
    try:
        return gradients(model, out)
    except RuntimeError:
        return None


learned = pytest.mark.parametrize("name", [name for name in ALL if list(ALL[name]().parameters())])


@pytest.mark.parametrize("what", ["x", "weights"])
@learned
def test_what_is_written_between_forward_and_backward_gives_no_wrong_gradient(name, what):
    """Refused, as by torch; or right, as where nothing that was kept for the gradient was written."""
    original, fast = copies(name)
    expected, got = _written_between(original, "nothing"), _written_between(fast, what)
    if got is not None:
        assert_same(got, expected)


@learned
def test_an_input_may_be_written_before_backward_where_the_original_allows_it(name):
    original, fast = copies(name)
    if _written_between(original, "x") is not None:
        assert _written_between(fast, "x") is not None


@everything
def test_an_output_may_be_written_in_place_before_backward(name):
    original, fast = copies(name)

    def use(model, write):
        x, edge_index = graph()
        x.requires_grad_()
        return gradients(model, write(model(x, edge_index)), x)

    for write in (torch.Tensor.relu_, partial(F.dropout, p=0.5, inplace=True)):
        assert_same_use(original, fast, partial(use, write=write), may_raise=True)


def test_hooks_of_parameters_and_tensors_act():
    def use(model):
        log, (x, edge_index) = [], graph()
        x.requires_grad_()
        x.register_hook(lambda gradient: 2 * gradient)
        handles = [p.register_hook(lambda gradient: 3 * gradient) for p in model.parameters()]
        handles += [p.register_post_accumulate_grad_hook(lambda p: log.append(p.shape)) for p in model.parameters()]
        out = model(x, edge_index)
        out.retain_grad()
        out.square().sum().backward()
        for handle in handles:
            handle.remove()
        return x.grad, out.grad, [p.grad for p in model.parameters()], torch.tensor(len(log))

    for kind in KINDS:
        assert_same_use(*copies(f"two {kind}"), use)


def test_an_output_of_one_call_and_another_of_the_next_do_not_mix_in_threads_of_backward():
    original, fast = pair(Two(pyg.GATConv), graph())

    def use(model):
        outs = [model(*graph(seed)).square().mean() for seed in range(3)]
        threads = [threading.Thread(target=out.backward) for out in outs]
        for thread in threads:
            thread.start()
            thread.join()
        return [p.grad for p in model.parameters()]

    assert_same_use(original, fast, use)


@every
@pytest.mark.parametrize("how", ["save_on_cpu", "saved_tensors_hooks", "anomaly", "deterministic"])
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_modes_of_autograd_change_nothing(name, how):
    original, fast = copies(name)
    modes = {
        "save_on_cpu": lambda: torch.autograd.graph.save_on_cpu(),
        "saved_tensors_hooks": lambda: torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda kept: kept),
        "anomaly": lambda: torch.autograd.detect_anomaly(),
        "deterministic": _deterministic,
    }

    def use(model):
        with modes[how]():
            x = graph()[0].requires_grad_()
            out = model(x, graph()[1])
            return out, gradients(model, out, x)

    assert_same_use(original, fast, use)


class _deterministic:
    def __enter__(self):
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *_):
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("when", ["before the first call", "in training"])
def test_copies_and_pickles_train_on(when):
    original, fast = pair(Two(pyg.GATConv))
    if when == "in training":
        for model in (original, fast):
            trained(model, *graph())
    buffer = io.BytesIO()
    torch.save(fast, buffer)
    buffer.seek(0)
    for model in (copy.deepcopy(fast), torch.load(buffer, weights_only=False), fast):
        assert_same_use(copy.deepcopy(original), model, lambda model: trained(model, *graph()))


def test_a_model_that_is_swapped_twice_stays_equal():
    (x, edge_index), model = graph(), Two(pyg.GATConv).double()
    original, fast = copy.deepcopy(model), swap(model, (x, edge_index), measure=False).model
    again = swap(fast, (x, edge_index), measure=False).model
    beside = swap(model, measure=False).model
    for one in (again, beside, fast):
        assert_same_call(original, one, x, edge_index)


class Shared(nn.Module):
    """One layer in two places, and another called twice."""

    def __init__(self):
        super().__init__()
        self.first = pyg.GCNConv(IN, IN)
        self.again, self.twice = self.first, nn.ModuleList([pyg.SAGEConv(IN, IN)] * 2)

    def forward(self, x, edge_index):
        x = self.again(self.first(x, edge_index).relu(), edge_index)
        for layer in self.twice:
            x = layer(x, edge_index).tanh()
        return x


def test_a_layer_in_two_places_stays_one():
    original, fast = pair(Shared(), graph())
    assert fast.first is fast.again and fast.twice[0] is fast.twice[1]
    assert_same_call(original, fast, *graph())


def test_weights_that_are_tied_after_swap_stay_tied():
    original, fast = pair(Two(lambda i, o: pyg.SAGEConv(i, i) if i == o else pyg.SAGEConv(i, o)), graph())
    for model in (original, fast):
        model.a.lin_r.weight = model.a.lin_l.weight
    assert_same_use(original, fast, lambda model: trained(model, *graph()))


# what is no plain tensor, and modes that look at operators


@everything
def test_tensors_of_other_classes_go_through_the_originals_code(name):
    class Marked(torch.Tensor):
        pass

    x, edge_index = graph()
    original, fast = copies(name, training=False)

    def use(model):
        out = model(x.as_subclass(Marked), edge_index)
        return torch.tensor(float(type(out) is Marked)), out.as_subclass(torch.Tensor)

    assert_same_use(original, fast, use)
    assert_same_use(original, fast, lambda model: model(nn.Parameter(x), edge_index))


@pytest.mark.filterwarnings("ignore")
def test_sparse_adjacencies_of_torch_are_taken():
    x, edge_index = graph()
    for name in ("GCN", "SAGE", "GIN", "Graph", "GAT", "own"):
        original, fast = copies(name, training=False)
        ones = torch.ones(E, dtype=torch.float64)
        adjacency = torch.sparse_coo_tensor(edge_index.flip(0), ones, (N, N)).coalesce()
        for layout in (adjacency, adjacency.to_sparse_csr()):
            assert_same_use(original, fast, lambda model, layout=layout: model(x, layout))


@pytest.mark.parametrize("name", ["GCN", "SAGE", "GIN", "Graph", "own"])
def test_static_graphs_with_a_batch_of_rows_are_taken(name):
    x, edge_index = graph()
    original, fast = copies(name)
    assert_same_call(original, fast, torch.stack([x, 2 * x, -x]), edge_index)


@pytest.mark.parametrize("name", ["SAGE", "Graph", "GIN"])
def test_bipartite_graphs_and_their_sizes_are_taken(name):
    (x, edge_index), y = graph(), graph(1, nodes=15)[0]
    edge_index = torch.stack([edge_index[0], edge_index[1] % 15])
    original, fast = copies(name)
    for use in (lambda m: m((x, y), edge_index), lambda m: m((x, None), edge_index, size=(N, 15))):
        assert_same_use(original, fast, lambda model, use=use: (use(model), gradients(model, use(model))))


@pytest.mark.filterwarnings("ignore")
@every
def test_modes_that_look_at_functions_and_operators_see_no_other_numbers(name):
    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    x, edge_index = graph()
    original, fast = copies(name)
    for mode in (Functions, Operators):

        def use(model, mode=mode):
            with mode():
                out = model(x, edge_index)
                return out, gradients(model, out)

        assert_same_use(original, fast, use)
    assert_same_call(original, fast, x, edge_index)


@pytest.mark.filterwarnings("ignore")
@every
def test_fake_tensors_and_the_meta_device_give_shapes(name):
    x, edge_index = graph()
    original, fast = copies(name, training=False)

    def faked(model):
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            shape = model(mode.from_tensor(x), mode.from_tensor(edge_index)).shape
        return torch.tensor(shape)

    def on_meta(model):
        return torch.tensor(copy.deepcopy(model).to("meta")(x.to("meta"), edge_index.to("meta")).shape)

    assert_same_use(original, fast, faked, may_raise=True)
    assert_same_use(original, fast, on_meta, may_raise=True)
    assert_same_call(original, fast, x, edge_index)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["SAGE", "Graph", "GIN", "GCN", "own"])
def test_a_graph_of_operators_runs_on_other_graphs(name):
    (x, edge_index), (x2, edge_index2) = graph(), graph(9)
    original, fast = copies(name, training=False)
    fast(x, edge_index)

    def use(model):
        return make_fx(lambda x, edges: model(x, edges))(x, edge_index)(x2, edge_index2)

    assert_same_use(original, fast, use, may_raise=True)


@pytest.mark.filterwarnings("ignore")
def test_a_forked_process_may_call_the_model(tmp_path):
    x, edge_index = graph()
    original, fast = pair(Two().eval(), (x, edge_index))
    with torch.no_grad():
        fast(x, edge_index)
        expected = original(x, edge_index)
    process = torch.multiprocessing.get_context("fork").Process(
        target=_in_child, args=(fast, x, edge_index, tmp_path / "out")
    )
    process.start()
    process.join(30)
    if process.is_alive():
        process.kill()
    assert process.exitcode == 0
    assert_same(torch.load(tmp_path / "out"), expected)


def _in_child(model, x, edge_index, path):
    torch.set_num_threads(1)
    with torch.no_grad():
        torch.save(model(x, edge_index), path)
