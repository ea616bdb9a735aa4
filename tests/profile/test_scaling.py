import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gnnlab.errors import GnnlabError
from gnnlab.profile import scaling
from gnnlab.profile.runtime import RuntimeStats
from gnnlab.profile.scaling import ScalingExperiment, fit_power_law, generate_scaling_graphs, sweep


@settings(deadline=None, max_examples=30)
@given(st.floats(0.5, 3), st.floats(0, 2), st.floats(0.01, 10))
def test_the_exponent_of_an_exact_power_law_is_found(exponent, offset, scale):
    n = np.array([100, 200, 400, 800, 1600, 3200])
    fit = fit_power_law(n, offset + scale * (n / 100) ** exponent)
    assert fit.exponent == pytest.approx(exponent, rel=0.05)
    assert fit.predict(6400)[0] == pytest.approx(offset + scale * 64**exponent, rel=0.05)


def test_the_interval_of_the_exponent_holds_the_truth_95_times_in_100():
    random, n, held = np.random.default_rng(5), np.array([100, 200, 400, 800, 1600, 3200]), []
    for _ in range(300):
        fit = fit_power_law(n, (0.3 + 0.002 * n**1.5 / 30) * np.exp(random.normal(0, 0.03, n.size)))
        held.append(fit.exponent_ci[0] <= 1.5 <= fit.exponent_ci[1])
    assert np.mean(held) >= 0.95


def test_the_prediction_interval_of_the_held_out_size_holds_what_is_measured():
    random, n, held = np.random.default_rng(1), np.array([100, 200, 400, 800, 1600, 3200, 6400]), []
    for _ in range(100):
        t = (0.3 + 0.002 * n**1.5 / 30) * np.exp(random.normal(0, 0.03, n.size))
        low, high = fit_power_law(n[:-1], t[:-1]).predict(n[-1])[1]
        held.append(low <= t[-1] <= high)
    assert np.mean(held) >= 0.95


@pytest.fixture
def timed(monkeypatch):
    """Replace timing by a planted law of the value, and keep the order of what was asked."""
    asked = []

    def fake(build, value, budget_s):
        asked.append(value)
        build(value)
        law = 0.1 + 1e-4 * float(value) ** 2 if isinstance(value, (int, float)) else 1.0
        return RuntimeStats((law,) * 24)

    monkeypatch.setattr(scaling, "_time", fake)
    return asked


def test_the_largest_size_is_predicted_from_the_others_and_measured_last(timed):
    result = sweep("nodes", [800, 50, 100, 200, 400], lambda n: (nn.Identity(), n))
    assert timed == [50, 100, 200, 400, 800]
    assert result.parameter_values[-1] == 800 and result.inside
    assert result.prediction[0] == pytest.approx(result.runtime_stats[-1].median, rel=0.02)
    assert result.fit.exponent == pytest.approx(2, rel=0.02)
    assert "exponent" in result.sentences[0] and "inside the interval" in result.sentences[1]


def test_named_values_get_no_fit_and_few_sizes_say_why_there_is_none(timed):
    assert sweep("encoding", ["lap", "none"], lambda n: (nn.Identity(), n)).fit is None
    few = sweep("nodes", [1, 2, 3], lambda n: (nn.Identity(), n))
    assert few.fit is None and "four sizes" in few.notes[0]


@pytest.mark.parametrize("values", [[], [0, 1, 2], [5, 5], [-1, 2], ["a", "a"]])
def test_values_that_cannot_be_swept_are_refused(values):
    with pytest.raises(GnnlabError, match="scaling over nodes"):
        sweep("nodes", values, lambda n: (nn.Identity(), n))


def test_scaling_graphs_have_the_size_asked_for_and_are_the_same_for_a_seed():
    first, second = generate_scaling_graphs([10, 100], avg_degree=6, feature_dim=3, seed=7)
    assert first.x.shape == (10, 3) and second.edge_index.shape == (2, 600)
    assert second.edge_index.max() < 100 and second.edge_index.dtype == torch.int64
    assert torch.equal(generate_scaling_graphs([10], 6, 3, 7)[0].edge_index, first.edge_index)


class Tiny(nn.Module):
    def __init__(self, num_layers=1, pe_type="none", pe_dim=0):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(num_layers))
        self.pe_type, self.pe_dim = pe_type, pe_dim

    def forward(self, data):
        assert not self.training and not torch.is_grad_enabled()
        if self.pe_type != "none":
            field = {"lap": "laplacian_eigenvector_pe", "rwse": "random_walk_pe"}[self.pe_type]
            assert data[field].shape == (data.num_nodes, self.pe_dim)
        x = data.x
        for layer in self.layers:
            x = layer(x)
        return x


def test_an_experiment_runs_every_sweep_with_real_models(capsys):
    experiment = ScalingExperiment(Tiny, budget_s=0.01)
    experiment.run_node_scaling(num_nodes_list=[20, 40])
    experiment.run_layer_scaling(num_layers_list=[1, 2, 3, 4, 5], num_nodes=20)
    experiment.run_pe_scaling(num_nodes=30)
    assert list(experiment.results) == ["nodes", "layers", "encoding"]
    assert experiment.results["layers"].prediction is not None
    assert experiment.results["encoding"].parameter_values == ("lap 16", "rwse 16", "none 0")
    experiment.print_summary()
    printed = capsys.readouterr().out
    assert "layers:" in printed and "rwse" in printed
    assert experiment.results["nodes"].parameter_values == (20, 40)


def test_encodings_of_one_name_and_several_sizes_are_all_run_and_told_apart():
    configs = [{"name": "lap", "dim": 4}, {"name": "lap", "dim": 8}, {"name": "none"}]
    result = scaling.run_pe_scaling(Tiny, configs, num_nodes=30, budget_s=0.01)
    assert result.parameter_values == ("lap 4", "lap 8", "none 0") and len(result.runtime_stats) == 3
    with pytest.raises(GnnlabError, match=r"scaling over encoding.*rwse 4.*each once"):
        scaling.run_pe_scaling(Tiny, [{"name": "rwse", "dim": 4}] * 2)
    with pytest.raises(GnnlabError, match=r"\['fourier'\]: known are"):
        scaling.run_pe_scaling(Tiny, [{"name": "fourier", "dim": 4}])


@pytest.mark.parametrize(
    ("values", "in_time", "done", "left"),
    [([1, 2, 3, 4, 5, 6], [True, True, True, False], (1, 2, 3, 4), "5, 6"), ([1, 2], [False], (1,), "2")],
)
def test_no_size_is_begun_when_the_time_is_over_and_what_was_left_out_is_named(values, in_time, done, left):
    model, answers = nn.Linear(2, 2).train(), iter(in_time)
    build = lambda n: (model, torch.rand(n, 2))  # noqa: E731
    found = sweep("nodes", values, build, budget_s=0.01, in_time=lambda: next(answers))
    assert found.parameter_values == done and found.prediction is None and (found.fit is not None) is (len(done) > 3)
    assert found.notes[0] == f"left out, the time was over: {left}"
    assert model.training  # as it was
