"""What cannot be measured or compared is refused in one line, before anything is measured."""

import pytest
import torch

from gnnlab.errors import GnnlabError
from gnnlab.rewrite import subject


@pytest.fixture(autouse=True)
def dropout_again(monkeypatch):
    """A subject to be trained turns dropout off for its process, which here is that of all tests."""
    monkeypatch.setattr(torch, "dropout", torch.dropout)
    monkeypatch.setattr(torch.nn.functional, "dropout", torch.nn.functional.dropout)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("fails", "own_models:fails raised RuntimeError: no such file"),
        ("ends", "raised SystemExit: 3"),
        ("no_module", "must return a torch.nn.Module"),
        ("wants_more", "forward wants positions, which the graph lacks"),
        ("wants_other_sizes", "its forward raised"),
        ("always_drops", "is random in eval mode"),
        ("counts_its_calls", "changes its weight calls"),
        ("scales_its_weight", "changes its weight lin.weight"),
        ("writes_to_x", "changes its argument x"),
        ("gives_a_number", "returns float 3.0"),
        ("gives_nothing", "returns no tensor"),
        ("gives_nan", "NaN"),
        ("not_there", "no factory 'not_there'"),
    ],
)
def test_a_model_that_cannot_be_compared_is_refused_in_one_line(factory, words):
    with pytest.raises(GnnlabError) as caught:
        subject.check(subject.load(f"own_models:{factory}", "karate", False))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_name_without_a_factory_and_a_graph_that_is_none_are_refused():
    with pytest.raises(GnnlabError, match="no module:factory"):
        subject.load("symptom_gat", "karate", False)
    with pytest.raises(GnnlabError, match="is no graph"):
        subject.load("own_models:gcn", "no such graph", False)


@pytest.mark.parametrize("train", [False, True])
def test_tuples_and_dicts_of_tensors_are_fine_and_training_runs_without_dropout(train):
    found = subject.load("own_models:with_edges", "symptoms", train)
    subject.check(found)
    assert found.model.training is train
    outputs = [found.model(**found.batch)["classes"] for _ in range(2)]
    assert torch.equal(*outputs) or not train


def test_a_layer_that_keeps_the_first_graph_is_noticed(monkeypatch):
    import own_models

    monkeypatch.setattr(own_models, "gcn", lambda data: own_models.GCN(data.num_features, 8, 2, 3, cached=True))
    assert subject.load("own_models:gcn", "karate", False).keeps_its_graph
