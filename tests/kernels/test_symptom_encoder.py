"""The fast encoder is the seed's encoder: outputs, gradients, dropout masks, state; compiled it follows the weights."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnlab.errors import GnnlabError
from gnnlab.kernels import symptom_encoder
from gnnlab.kernels.symptom_encoder import CompiledSymptomEncoder, FastSymptomEncoder, Weights, ahead_of_time, compiled
from gnnlab.profiling.races import relative_error, require_equal
from gnnlab.workloads.symptom_gat import SymptomGAT

FORMS = ("dense", "bags")


def model(nodes=7, edges=((0, 1, 1, 2, 3, 3, 4), (1, 0, 0, 1, 3, 2, 0)), seed=0):
    """Isolated nodes, an edge twice, own loops: whatever a graph may hold."""
    torch.manual_seed(seed)
    made = SymptomGAT(nodes, torch.tensor(edges, dtype=torch.long).reshape(2, -1)).eval()
    torch.nn.init.normal_(made.gat1.bias)
    torch.nn.init.normal_(made.gat2.bias)
    return made


@st.composite
def graphs(draw):
    nodes = draw(st.integers(1, 12))
    node = st.integers(0, nodes - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=40))
    return nodes, [[a for a, _ in pairs], [b for _, b in pairs]]


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=15, deadline=None)
@given(graph=graphs(), seed=st.integers(0, 99))
def test_any_graph_gives_the_same_embedding(form, graph, seed):
    original = model(*graph, seed=seed)
    with torch.inference_mode():
        require_equal(original(3), FastSymptomEncoder(original, form)(3))


@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_the_originals(form):
    edges = torch.randint(0, 20, (2, 90), generator=torch.Generator().manual_seed(1))
    original = model(20, edges.tolist()).double()
    for layer in (original.gat1, original.gat2):  # scores on both sides of the leaky ReLU: gradients that are not zero
        torch.nn.init.normal_(layer.att_src)
        torch.nn.init.normal_(layer.att_dst)
    fast = FastSymptomEncoder(copy.deepcopy(original), form)
    weight = torch.randn(3, 256, dtype=torch.float64)
    (original(3) * weight).sum().backward()
    (fast(3) * weight).sum().backward()
    expected, got = dict(original.named_parameters()), dict(fast.named_parameters())
    assert expected.keys() == got.keys()
    for name in expected:
        assert expected[name].grad.abs().max() > 1e-6, name
        assert relative_error(expected[name].grad, got[name].grad) < 1e-11, name


@pytest.mark.parametrize("form", FORMS)
def test_training_draws_the_same_dropout_masks(form):
    original = model().train()
    fast = FastSymptomEncoder(original, form)
    torch.manual_seed(3)
    expected = original(2)
    torch.manual_seed(3)
    require_equal(expected, fast(2))
    assert not torch.equal(fast(1), fast(1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spread", [1e2, 1e4])
def test_softmax_holds_at_any_spread_of_scores(form, spread):
    original = model()
    with torch.no_grad():
        for layer in (original.gat1, original.gat2):
            layer.att_src.mul_(spread)
            layer.att_dst.mul_(-spread)
    with torch.inference_mode():
        got = FastSymptomEncoder(original, form)(1)
        assert torch.isfinite(got).all()
        require_equal(original.double()(1), FastSymptomEncoder(original, form)(1), 1e-9)


def test_the_state_is_shared_and_has_the_same_keys():
    original = model()
    fast = FastSymptomEncoder(original)
    assert list(fast.state_dict()) == list(original.state_dict())
    with torch.no_grad():
        original.gat2.bias.add_(1)
        require_equal(original(1), fast(1))
    fast.load_state_dict(model(seed=5).state_dict())
    require_equal(original(1), fast(1))


@pytest.mark.parametrize("form", FORMS)
def test_edges_that_change_in_place_are_prepared_again(form):
    original = model()
    fast = FastSymptomEncoder(original, form)
    before = fast(1)
    original.edge_index[:, 0] = torch.tensor([5, 6])
    require_equal(original(1), fast(1))
    assert relative_error(before, fast(1)) > 1e-4


@pytest.mark.parametrize("form", FORMS)
def test_precision_follows_the_weights_of_the_original(form):
    original = model()
    fast = FastSymptomEncoder(original, form)
    fast(1)
    original.double()
    got = fast(1)
    assert got.dtype == torch.float64
    assert relative_error(original(1), got) < 1e-13


@pytest.mark.parametrize("form", FORMS)
def test_what_was_prepared_in_inference_mode_still_trains(form):
    fast = FastSymptomEncoder(model(), form)
    with torch.inference_mode():
        fast(1)
    fast(1).sum().backward()
    assert fast.gat1.att_src.grad is not None


def test_the_output_is_one_row_seen_so_often():
    out = FastSymptomEncoder(model())(4)
    assert out.shape == (4, 256) and out.stride(0) == 0


def test_the_form_is_chosen_by_the_number_of_nodes():
    assert FastSymptomEncoder(model(58)).form == "dense"
    assert FastSymptomEncoder(model(1000)).form == "bags"


def test_a_parametrized_weight_is_computed_at_every_call():
    original = model()
    torch.nn.utils.parametrizations.weight_norm(original.gat2.lin)
    fast = FastSymptomEncoder(original)
    with torch.no_grad():
        original.gat2.lin.parametrizations.weight.original0.mul_(2)
    require_equal(original(1), fast(1))


def test_a_copy_has_weights_of_its_own():
    fast = FastSymptomEncoder(model())
    expected = fast(1)
    other = copy.deepcopy(fast)
    with torch.no_grad():
        other.gat2.bias.add_(1)
    assert torch.equal(fast(1), expected)
    assert not torch.equal(other(1), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.nn.Linear(1, 1),), "SymptomGAT is needed, got Linear"),
        ((model(), "sparse"), "auto, dense, bags, got 'sparse'"),
    ],
)
def test_what_cannot_be_rewritten_is_refused(arguments, message):
    with pytest.raises(GnnlabError, match=message):
        FastSymptomEncoder(*arguments)


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, "2"])
def test_a_batch_size_is_a_positive_integer(batch_size):
    with pytest.raises(GnnlabError, match="batch_size must be an integer of 1 or more"):
        FastSymptomEncoder(model())(batch_size)


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return FastSymptomEncoder(SymptomGAT(4, torch.tensor([[0, 1, 1], [1, 0, 2]])).eval())


@pytest.fixture
def interpreted(encoder):
    """A compiled encoder without the compiler: what runs is counted."""
    calls = []

    def run(inputs):
        calls.append(len(inputs))
        return encoder.compute(Weights(*inputs[:9]), tuple(inputs[9:]))

    made = CompiledSymptomEncoder(encoder, run)
    made.calls = calls
    return made


def test_weights_are_read_at_every_call(interpreted):
    with torch.inference_mode():
        require_equal(interpreted.encoder(3), interpreted(3))
        interpreted.encoder.gat2.bias.add_(1)
        require_equal(interpreted.encoder(3), interpreted(3))
    assert interpreted.calls == [10, 10]


def test_where_it_does_not_hold_the_encoder_answers(interpreted):
    assert interpreted(1).requires_grad
    with torch.no_grad():
        assert not torch.equal(interpreted.train()(1), interpreted(1))
        interpreted.eval().double()
        assert interpreted(1).dtype == torch.float64
    assert interpreted.calls == []


def test_a_compiler_that_fails_is_one_clear_error(encoder, tmp_path, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no compiler found")

    monkeypatch.setattr(symptom_encoder.torch.export, "export", fails)
    with pytest.raises(GnnlabError, match="made here: RuntimeError: no compiler"):
        ahead_of_time(encoder, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["compile", "package"])
def test_compiled_forms_agree_and_follow_the_weights(encoder, tmp_path, form):
    made = compiled(encoder) if form == "compile" else ahead_of_time(encoder, tmp_path)
    with torch.inference_mode():
        require_equal(encoder(3), made(3))
        encoder.gat2.bias.add_(1)
        require_equal(encoder(3), made(3))
