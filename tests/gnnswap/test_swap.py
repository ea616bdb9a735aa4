"""`swap` and its report: what is replaced, what is kept and why, what it says of time and memory."""

import random

import pytest
import torch
from layer_cases import assert_same, results
from refusals import refused
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import BatchNorm, GATConv, GCNConv, NNConv, SAGEConv, TAGConv

from gnnswap import cost, replace, swap
from gnnswap.cost import Ratio, compare_times
from gnnswap.equivalence import copied
from gnnswap.layer import DIRECT, SUM, TILES
from gnnswap.parity import error
from gnnswap.replace import NOT_REACHED, TO_COMPARE, Memory, TiledAttention


class Mine(GCNConv):
    """Of a user: PyG's layer with messages of its own, which are no weighted rows."""

    def message(self, x_j, edge_weight):
        return x_j.tanh() * edge_weight.view(-1, 1)


class Mixed(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.first = SAGEConv(6, 8)
        self.norm = BatchNorm(8)
        self.blocks = nn.ModuleList([GATConv(8, 4, heads=2), GATConv(8, 4, heads=2, edge_dim=3)])
        self.shared = SAGEConv(8, 8)
        self.again = self.shared
        self.last = TAGConv(8, 3)
        self.other, self.spare = Mine(3, 3), GCNConv(3, 3)

    def forward(self, x, edge_index):
        Mixed.calls += 1
        x = self.norm(self.first(x, edge_index)).relu()
        for block in self.blocks:
            x = block(x, edge_index).relu()
        x = self.again(self.shared(x, edge_index).relu(), edge_index)
        return self.other(self.last(x, edge_index), edge_index)


FAST = (("first", "SAGEConv", DIRECT), ("blocks.0", "GATConv", DIRECT), ("blocks.1", "GATConv", DIRECT),
        ("shared", "SAGEConv", DIRECT), ("last", "TAGConv", SUM))  # fmt: skip


def example(nodes=50, edges=220):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(nodes, 6, generator=generator)
    return x, torch.randint(nodes, (2, edges), generator=generator)


def test_layers_that_are_equal_are_replaced_and_the_others_kept_with_the_reason():
    model, (x, edge_index) = Mixed().eval(), example()
    before = Mixed.calls
    report = swap(model, (x, edge_index), measure=False)
    assert report.runs == Mixed.calls - before <= 5
    assert report.replaced == FAST
    assert {(path, kind) for path, kind, _ in report.kept} == {("spare", "GCNConv"), ("other", "Mine")}
    assert type(report.model.other) is Mine and type(report.model.spare) is GCNConv
    assert report.parity_error <= 1e-5 and report.time is None and report.memory is None
    fast = report.model
    torch.testing.assert_close(fast(x, edge_index), model(x, edge_index))
    assert fast.again is fast.shared  # one layer in two places stays one
    assert fast.first._fast.caches is fast.blocks[0]._fast.caches is fast.shared._fast.caches
    assert len(fast.first._fast.caches.graphs) == 1
    text = str(report)
    assert "replaced blocks.0 (GATConv): own kernel" in text and "kept other (Mine): " in text
    assert f"kept spare (GCNConv): {NOT_REACHED}" in text and f"the models ran {report.runs} times, on copies" in text
    assert "no kernel for meta: PyG's code runs there" in str(swap(Mixed().to("meta"), measure=False))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_swap_works_where_no_gradients_are_recorded_and_leaves_that_as_it_is(mode):
    model = pyg.GCN(6, 8, num_layers=2)
    with mode():
        given = example()
        report = swap(model, given, measure=False)
        assert not torch.is_grad_enabled() and torch.is_inference_mode_enabled() is (mode is torch.inference_mode)
        torch.testing.assert_close(report.model(*given), model(*given))
    assert [how for *_, how in report.replaced] == [DIRECT, DIRECT]
    assert_same(*(results(one, (), example()) for one in (report.model, model)), rtol=1e-5, atol=1e-6)


def test_without_an_example_layers_are_compared_at_their_first_call():
    model, batch = Mixed().eval(), example()
    report = swap(model)
    assert report.parity_error is None and "outputs not compared" in str(report) and report.runs == 0
    assert {how for _, _, how in report.replaced} == {TO_COMPARE}
    torch.testing.assert_close(report.model(*batch), model(*batch))
    assert report.replaced == (*FAST, ("spare", "GCNConv", TO_COMPARE))
    assert [path for path, _, _ in report.kept] == ["other"]


def test_a_layer_is_a_model_and_examples_may_be_mappings_and_data():
    x, edge_index = example()
    report = swap(SAGEConv(6, 3), {"x": x, "edge_index": edge_index}, measure=False)
    assert report.replaced == (("", "SAGEConv", DIRECT),) and "replaced the model (SAGEConv)" in str(report)
    assert swap(TAGConv(6, 3), Data(x=x, edge_index=edge_index), measure=False).parity_error <= 1e-5


@pytest.mark.parametrize("make", [lambda: GCNConv(-1, 4), lambda: pyg.GMMConv(-1, 4, 2, 3)])
def test_weights_without_a_shape_get_it_in_the_first_call_and_the_layer_its_kernel_after_that(make):
    (x, edge_index), model = example(), make().eval()
    batch = (x, edge_index, torch.rand(220, 2)) if isinstance(model, pyg.GMMConv) else (x, edge_index)
    report = swap(model, batch, measure=False)  # which calls the model
    torch.testing.assert_close(report.model(*batch), model(*batch))
    report = swap(make().eval())
    first = report.model(*batch)
    for _ in range(2):
        torch.testing.assert_close(report.model(*batch), first)
    if not isinstance(model, pyg.GMMConv):
        assert [how for _, _, how in report.replaced] == [DIRECT]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Linear(3, 3), "nothing to replace: no layers of PyG"),
        (GCNConv(6, 3, flow="target_to_source"), "kept the model (GCNConv): own kernel: its flow"),
        (NNConv(6, 3, nn.Sequential(nn.Linear(6, 18), nn.Tanh())), "kept the model (NNConv): own kernel: "),
    ],
)
def test_a_model_with_nothing_to_replace_says_why(model, expected):
    more = (torch.randn(220, 6),) if isinstance(model, NNConv) else ()
    report = swap(model, (*example(), *more), measure=False)
    assert report.replaced == () and expected in str(report) and report.model is not model
    assert str(report).splitlines()[-1].startswith(("nothing was replaced", "nothing to replace"))


def test_a_model_that_was_swapped_is_already_fast():
    first = swap(Mixed(), example(), measure=False)
    second = swap(first.model, example(), measure=False)
    assert ("first", "SAGEConv", "already fast") in second.kept and "already fast" in str(second)


def test_what_is_no_model_or_does_not_run_is_refused_in_one_line():
    with refused(r"needs a torch\.nn\.Module, not str"):
        swap("model")
    with refused("Mixed does not run on the example: "):
        swap(Mixed(), (torch.randn(50, 5), example()[1]))


def test_a_model_that_gives_something_else_for_other_layers_stays_as_it_was():
    class Looks(Mixed):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index) * (1 if type(self.last) is TAGConv else 2)

    class Breaks(Mixed):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index if type(self.last) is TAGConv else None)

    for model, expected in ((Looks(), "outputs differ by 1.0e+00 relative"), (Breaks(), "with fast layers: ")):
        report = swap(model, example(), measure=False)
        assert report.replaced == () and expected in report.kept[-1][2], report
        assert not any(hasattr(one, "_fast") for one in report.model.modules())
    assert swap(Looks(), example(), tolerance=2.0, measure=False).replaced == FAST


def test_where_float32_disagrees_float64_and_the_rounding_of_the_model_itself_decide():
    class Coarse(nn.Module):
        def forward(self, x):
            return x if x.dtype is torch.float64 else x.bfloat16().float()

    class Off(nn.Module):
        def forward(self, x):
            return x * 1.1

    x = torch.linspace(-1, 1, 101)
    assert error(Coarse()(x), x) > 1e-5
    assert replace._beyond_rounding(Coarse(), nn.Identity(), lambda: (x,), 1e-5) <= 1e-5
    assert replace._beyond_rounding(Coarse(), Off(), lambda: (x,), 1e-5) > 1e-5
    assert replace._beyond_rounding(nn.Identity(), Coarse(), lambda: (x,), 1e-5) > 1e-5


# ---- the clock ------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """Seconds of the fast kernel and of PyG's, (forward, in training) each."""

    def ticks(fast, own):
        def seconds(run, *_):
            run()
            return (own if getattr(run, "__name__", "") == "own" else fast)[torch.is_grad_enabled()]

        monkeypatch.setattr(cost, "_seconds", seconds)

    return ticks


@pytest.mark.parametrize(
    ("fast", "own", "expected"),
    [
        (
            (0.1, 0.2),
            (0.3, 0.1),
            "no faster here: forward 3.00x, 3 rounds from 3.00 to 3.00; in training 0.50x, 95 % interval 0.50 to 0.50",
        ),
        ((9.0, 9.0), (8.1, 1.0), "no faster here: forward 0.90x, 95 % interval 0.90 to 0.90"),  # a long call
        ((0.1, 0.1), (0.1, 0.2), ""),
        (
            (0.1, 0.1),
            (0.1, 0.1),
            "no faster here: forward 1.00x, 95 % interval 1.00 to 1.00; in training 1.00x, 95 % interval 1.00 to 1.00",
        ),
    ],
)
def test_a_layer_stays_unless_its_kernel_gains_forward_and_if_short_in_training(fast, own, expected, clock):
    x, edge_index = example()
    report = swap(SAGEConv(6, 8), (x, edge_index), measure=False)
    clock(fast, own)
    assert replace._slower(report.model, (x, edge_index), {}, torch.device("cpu"))[1] == expected


@pytest.mark.parametrize(
    ("gain", "expected"), [(0.5, ") the whole model is slower here: 0.50x"), (1.5, "(1.50x, 95 % ")]
)
def test_a_model_that_is_slower_as_a_whole_stays_as_it_was(gain, expected, monkeypatch):
    monkeypatch.setattr(replace, "_slower", lambda *_: (1.0, ""))
    monkeypatch.setattr(replace, "compare_times", lambda *_: Ratio(gain, gain - 0.01, gain + 0.01, 30, gain, 1.0))
    report = swap(Mixed().eval(), example())
    assert expected in str(report) and bool(report.replaced) == (report.time is not None) == (gain > 1)
    assert (report.memory is not None) == (gain > 1)


def test_what_the_report_says_of_memory_is_what_the_layers_keep():
    report = swap(GCNConv(6, 64), example(4000, 40_000), measure=False)
    assert report.memory is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replace, "_slower", lambda *_: (1.0, ""))
        patch.setattr(replace, "compare_times", lambda *_: Ratio(2.0, 1.9, 2.1, 30, 2.0, 1.0))
        model, batch = GCNConv(6, 64), example(4000, 40_000)
        report = swap(model, batch)
    held = report.memory
    assert held.before >= 40_000 * 64 * 4 > held.after > 0  # PyG makes a row an edge
    assert held.first_call >= held.after and held.kept_in_training >= held.kept >= 40_000 * 4
    assert "MiB before" in str(report) and "too little" in str(Memory(10, 10, 10, 1, 1))
    report.model(*batch)
    assert report.model._fast.caches.nbytes >= 40_000 * 4
    report.forget()
    assert report.model._fast.caches.nbytes < 10_000  # of empty caches


def test_a_ratio_of_times_has_an_interval_from_six_rounds_on():
    order, seconds = [], iter([2.0, 1.0] * 50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost, "_seconds", lambda run, *_: run() or next(seconds))
        few = compare_times(lambda: order.append("before"), lambda: order.append("after"), 0.0, lambda r: True)
        assert (few.n, str(few)) == (1, "0.50x, one round") and order == ["after", "before"]  # of a long call
        order.clear()
        ratio = compare_times(lambda: order.append("before"), lambda: order.append("after"), 60.0, lambda r: r.n >= 8)
    assert order[:4] == ["after", "before", "before", "after"]  # in turns
    assert ratio.n == 8 and ratio.low == 0.5 and ratio.high == 2.0 and "95 % interval 0.50 to 2.00" in str(ratio)


def test_one_disturbed_round_decides_nothing(monkeypatch):
    own = iter([127.0] + 50 * [0.9])
    monkeypatch.setattr(cost, "_seconds", lambda run, *_: 1e-3 * (1.0 if run() else next(own)))
    ratio = compare_times(lambda: False, lambda: True, 60.0, replace._decided)
    assert ratio.n > 6 and ratio.high < 1


# ---- attention of all nodes, and copies -----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [None, torch.tensor([0, 0, 0, 0, 1, 1])], ids=["one graph", "a padded one"])
def test_gps_with_tiles_gives_outputs_and_gradients_of_pyg(batch):
    model = pyg.GPSConv(8, pyg.GINConv(nn.Linear(8, 8)), heads=2).double().eval()
    report = swap(model)
    assert ("attn", "MultiheadAttention", TILES) in report.replaced
    assert type(report.model.attn) is TiledAttention
    x, edge_index = torch.randn(6, 8, dtype=torch.double), torch.tensor([[0, 1, 2, 3, 4, 5, 0], [1, 2, 0, 4, 3, 3, 3]])
    with torch.no_grad():
        torch.testing.assert_close(report.model(x, edge_index, batch), model(x, edge_index, batch))
    called = x.requires_grad_(), edge_index, batch
    assert_same(results(report.model, [x], called), results(model, [x], called))


def test_no_matrix_of_nodes_by_nodes_is_made_in_inference():
    x = torch.randn(1, 3000, 8)
    model = swap(nn.MultiheadAttention(8, 2, batch_first=True).eval()).model
    mask = torch.zeros(1, 3000, dtype=torch.bool)
    with torch.no_grad(), torch.profiler.profile(profile_memory=True) as profile:
        model(x, x, x, key_padding_mask=mask, need_weights=False)
    assert sum(event.self_cpu_memory_usage > 4 * 3000 * 3000 for event in profile.events()) == 0
    own = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    assert_same(swap(own).model(x[:, :5], x[:, :5], x[:, :5]), own(x[:, :5], x[:, :5], x[:, :5]))  # and its weights


def test_copies_of_two_models_of_pygs_sequential_under_one_seed_have_a_forward_each(monkeypatch):
    monkeypatch.setattr(pyg.Sequential, "forward", pyg.Sequential.forward)  # into which each model writes its own
    layer, x, edge_index = [(pyg.GCNConv(4, 4), "x, edge_index -> x")], torch.eye(4), torch.tensor([[0, 1], [1, 2]])
    models = []
    for seed in (None, None, 42):  # the last one has the name that copies would have
        random.seed(seed)
        models.append(pyg.Sequential("x, edge_index", layer * (1 + len(models))))
    before = pyg.Sequential.forward
    for model in models:
        random.seed(42)
        torch.testing.assert_close(copied(model)(x, edge_index), model(x, edge_index))
    assert pyg.Sequential.forward is before
    random.seed()


class WritesToInput(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.conv, self.factor = GCNConv(5, 4), factor

    def forward(self, x, edge_index):
        x.mul_(2)
        return self.conv(x, edge_index) * (1 if type(self.conv) is GCNConv else self.factor)


@pytest.mark.parametrize(("factor", "replaced"), [(1, 1), (3, 0)])
def test_a_model_that_writes_to_its_inputs_is_compared_on_equal_ones(factor, replaced):
    x, edge_index = torch.randn(9, 5), torch.randint(9, (2, 30))
    before = x.clone()
    report = swap(WritesToInput(factor), (x, edge_index), measure=False)
    assert len(report.replaced) == replaced and torch.equal(x, before)
