import copy
import random

import pytest
import torch
from refusals import refused
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import BatchNorm, GATConv, GCNConv, NNConv, SAGEConv
from zoo_cases import assert_same, results

import gnnswap
from gnnlab.profiling.races import relative_error
from gnnswap import replace as swap_module
from gnnswap.equivalence import copied
from gnnswap.layer import DIRECT, SUM, TILES
from gnnswap.replace import UNDECIDED, TiledAttention, swap


class Mine(GCNConv):
    """Of a user: PyG's layer with messages of its own, which are no weighted rows."""

    def message(self, x_j, edge_weight):
        return x_j.tanh() * edge_weight.view(-1, 1)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = SAGEConv(6, 8)
        self.norm = BatchNorm(8)
        self.blocks = nn.ModuleList([GATConv(8, 4, heads=2), GATConv(8, 4, heads=2, edge_dim=3)])
        self.shared = SAGEConv(8, 8)
        self.again = self.shared
        self.last = pyg.TAGConv(8, 3)
        self.other = Mine(3, 3)

    def forward(self, x, edge_index):
        x = self.norm(self.first(x, edge_index)).relu()
        for block in self.blocks:
            x = block(x, edge_index).relu()
        x = self.again(self.shared(x, edge_index).relu(), edge_index)
        return self.other(self.last(x, edge_index), edge_index)


@pytest.fixture(autouse=True)
def every_form_is_faster(monkeypatch):
    """What the clock of a busy machine says must not decide a test."""
    monkeypatch.setattr(swap_module, "_slower", lambda *_: "")
    monkeypatch.setattr(swap_module, "_whole_slower", lambda *_: "")


def example(nodes=50, edges=220):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(nodes, 6, generator=generator)
    return x, torch.randint(nodes, (2, edges), generator=generator)


def test_layers_that_a_trial_finds_equal_are_replaced_the_others_kept_with_the_reason():
    model, (x, edge_index) = Mixed().eval(), example()
    report = swap(model, (x, edge_index))
    assert report.replaced == (
        ("first", "SAGEConv", DIRECT),
        ("blocks.0", "GATConv", DIRECT),
        ("blocks.1", "GATConv", DIRECT),
        ("shared", "SAGEConv", DIRECT),
        ("last", "TAGConv", SUM),
    )
    assert [(path, kind) for path, kind, _ in report.kept] == [("other", "Mine")]
    assert type(report.model.other) is Mine
    assert report.parity_error <= 1e-5
    torch.testing.assert_close(report.model(x, edge_index), model(x, edge_index))
    assert report.model.again is report.model.shared  # one layer in two places stays one
    text = str(report)
    assert "replaced blocks.0 (GATConv): direct form" in text and "kept other (Mine): " in text
    assert "a forward pass on the example: " in text and "memory at its peak: " in text


def test_the_given_model_stays_as_it_is():
    model, batch = Mixed(), example()
    before = copy.deepcopy(model.state_dict())
    report = swap(model, batch)
    assert type(model.first) is SAGEConv and model.training and report.model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(torch.equal(before[name], value) for name, value in report.model.state_dict().items())
    assert report.model.first.lin_l.weight is not model.first.lin_l.weight
    report.model.load_state_dict(before)
    fast = report.model  # whose layers share the graphs that they prepared
    assert fast.first._fast.graphs is fast.blocks[0]._fast.graphs is fast.shared._fast.graphs
    assert len(fast.first._fast.graphs) == 1


def test_a_layer_is_a_model_and_examples_may_be_mappings_and_data():
    x, edge_index = example()
    report = gnnswap.swap(SAGEConv(6, 3), {"x": x, "edge_index": edge_index})
    assert report.replaced == (("", "SAGEConv", DIRECT),) and "replaced the model (SAGEConv)" in str(report)

    class OfData(Mixed):
        def forward(self, data):
            return super().forward(data.x, data.edge_index)

    for model in (OfData(), Mixed()):
        assert swap(model, Data(x=x, edge_index=edge_index)).parity_error <= 1e-5


def test_without_an_example_layers_are_tried_at_their_first_call():
    model, batch = Mixed().eval(), example()
    report = swap(model)
    assert report.parity_error is None and "outputs not compared" in str(report)
    assert {how for _, _, how in report.replaced} == {UNDECIDED}
    torch.testing.assert_close(report.model(*batch), model(*batch))
    assert [path for path, _, _ in report.replaced] == ["first", "blocks.0", "blocks.1", "shared", "last"]
    assert [path for path, _, _ in report.kept] == ["other"]


def test_a_layer_whose_fast_form_is_no_faster_stays_as_it_was(monkeypatch):
    monkeypatch.setattr(swap_module, "_slower", lambda layer, *_: "no faster" * isinstance(layer, GATConv))
    model, batch = Mixed().eval(), example()
    report = swap(model, batch)
    assert [path for path, _, _ in report.replaced] == ["first", "shared", "last"]
    assert type(report.model.blocks[0]) is GATConv and ("blocks.0", "GATConv", "no faster") in report.kept


@pytest.mark.parametrize("make", [lambda: SAGEConv(-1, 4), lambda: GCNConv(-1, 4), lambda: pyg.GMMConv(-1, 4, 2, 3)])
def test_weights_without_a_shape_get_it_in_the_first_call_and_the_layer_its_form_after_that(make):
    (x, edge_index), model = example(), make().eval()
    batch = (x, edge_index, torch.rand(220, 2)) if isinstance(model, pyg.GMMConv) else (x, edge_index)
    report = swap(model, batch)  # which calls the model
    torch.testing.assert_close(report.model(*batch), model(*batch))
    report = swap(make().eval())
    first = report.model(*batch)
    for _ in range(2):
        torch.testing.assert_close(report.model(*batch), first)
    if not isinstance(model, pyg.GMMConv):
        assert [how for _, _, how in report.replaced] == [DIRECT]


@pytest.fixture
def clocked(monkeypatch):
    """A fast layer, what it is called with, and a clock: seconds of the fast form forward and in training, of PyG's."""
    monkeypatch.undo()
    layer, given = swap(SAGEConv(6, 8)).model, example()
    layer(*given)

    def why(fast, own):
        def seconds(run):
            run()
            return (own if type(layer) is SAGEConv else fast)[torch.is_grad_enabled()]

        monkeypatch.setattr(swap_module, "_seconds", seconds)
        return swap_module._slower(layer, given, {})

    return why


@pytest.mark.parametrize(
    ("fast", "own", "expected"),
    [
        ((0.1, 0.2), (0.3, 0.1), "its fast form is no faster here: 3.00x forward, 0.50x in training"),
        ((9.0, 9.0), (8.1, 1.0), "its fast form is no faster here: 0.90x forward, 0.90x in training"),  # once: long
        ((5.0, 9.0), (9.0, 1.0), ""),
        ((0.1, 0.1), (0.1, 0.2), ""),
        ((0.1, 0.1), (0.1, 0.1), "its fast form is no faster here: 1.00x forward, 1.00x in training"),
    ],
)
def test_the_clock_asks_both_forms_forward_and_unless_they_are_long_in_training(fast, own, expected, clocked):
    assert clocked(fast, own) == expected


@pytest.mark.parametrize(("gain", "expected"), [(0.5, "the whole model is slower here: 0.50x forward"), (0.98, "")])
def test_a_model_that_is_slower_as_a_whole_stays_as_it_was(gain, expected, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(swap_module, "_slower", lambda *_: "")
    monkeypatch.setattr(swap_module, "SECONDS", 0.0)  # no more rounds
    model, timed = Mixed().eval(), swap_module._Timed.__call__

    def call(self):
        out = timed(self)
        self.seconds[-1] = gain if self.run.__wrapped__.args[0] is model else 1.0
        return out

    monkeypatch.setattr(swap_module._Timed, "__call__", call)
    report = swap(model, example())
    assert (report.model is model) == bool(expected) and (report.replaced == ()) == bool(expected)
    assert expected in str(report)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Linear(3, 3), "nothing to replace: no layers of PyG"),
        (GCNConv(6, 3, flow="target_to_source"), "kept the model (GCNConv): direct form: its flow"),
        (NNConv(6, 3, nn.Sequential(nn.Linear(6, 18), nn.Tanh())), "kept the model (NNConv): "),
    ],
)
def test_a_model_with_nothing_to_replace_says_why(model, expected):
    x, edge_index = example()
    more = (torch.randn(220, 6),) if isinstance(model, NNConv) else ()
    report = swap(model, (x, edge_index, *more))
    assert report.replaced == () and expected in str(report)
    assert str(report).splitlines()[-1].startswith("nothing to replace")


def test_a_model_that_was_swapped_is_already_fast():
    first = swap(Mixed(), example())
    second = swap(first.model, example())
    assert second.replaced == first.replaced and ("first", "SAGEConv", "already fast") in second.kept


def test_what_is_no_model_or_does_not_run_is_refused_in_one_line():
    with refused(r"needs a torch\.nn\.Module, not str"):
        swap("model")
    with refused("Mixed does not run on the example: "):
        swap(Mixed(), (torch.randn(50, 5), example()[1]))


def test_a_model_that_gives_something_else_for_other_layers_or_in_each_call_stays_as_it_was():
    class Looks(Mixed):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index) * (1 if type(self.last) is pyg.TAGConv else 2)

    class Breaks(Mixed):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index if type(self.last) is pyg.TAGConv else None)

    class Restless(Mixed):
        calls = 0

        def forward(self, x, edge_index):
            Restless.calls += 1
            return super().forward(x, edge_index) + Restless.calls

    reasons = "outputs differ", "with fast layers: ", "your model itself gave two results"
    for model, expected in zip((Looks(), Breaks(), Restless()), reasons, strict=True):
        report = swap(model, example())
        assert report.model is model and expected in report.kept[-1][2]


def test_where_float32_disagrees_float64_and_the_rounding_of_the_model_itself_decide():
    class Coarse(nn.Module):
        def forward(self, x):
            return x if x.dtype is torch.float64 else x.bfloat16().float()

    class Off(nn.Module):
        def forward(self, x):
            return x * 1.1

    x = torch.linspace(-1, 1, 101)
    assert relative_error(Coarse()(x), x) > 1e-5
    assert swap_module._beyond_rounding(Coarse(), nn.Identity(), (x,)) <= 1e-5
    assert swap_module._beyond_rounding(Coarse(), Off(), (x,)) > 1e-5
    assert swap_module._beyond_rounding(nn.Identity(), Coarse(), (x,)) > 1e-5


def test_the_zeros_of_bags_of_words_are_left_out_from_the_second_call_on():
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(400, 128, generator=generator) < 0.03).float()
    edge_index = torch.randint(400, (2, 1500), generator=generator)
    for kind in (GCNConv, SAGEConv, lambda i, o: pyg.GINConv(nn.Sequential(nn.Linear(i, o), nn.ReLU()))):
        model = kind(128, 8)
        fast = swap(model, (x, edge_index)).model
        assert fast._fast.direct
        for _ in range(3):
            assert_same(*(results(one, [], (x, edge_index)) for one in (fast, model)), rtol=1e-4, atol=1e-4)


def test_static_graphs_pairs_and_sparse_adjacencies_give_what_pyg_gives():
    x, edge_index = example()
    layer = SAGEConv(6, 3).eval()
    fast = swap(layer, (x, edge_index)).model
    several = torch.randn(4, 50, 6)
    torch.testing.assert_close(fast(several, edge_index), layer(several, edge_index))
    pair = (x, torch.randn(50, 6))
    torch.testing.assert_close(fast(pair, edge_index), layer(pair, edge_index))
    torch.testing.assert_close(fast((x, None), edge_index, size=(50, 50)), layer((x, None), edge_index, size=(50, 50)))


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
