"""OpenVINO's own ways to place the whole layer, as forms beside the plans."""

import numpy as np
import pytest

from gnnlab.campaign.cells import layer_of
from gnnlab.errors import ParityError
from gnnlab.export.export import export
from gnnlab.planning import bench
from gnnlab.planning.bench import PEERS
from gnnlab.planning.execution import plain
from gnnlab.workloads.graphsage import random_inputs

FEATURES, COUNT = 8, 5
LAYER, GRAPHS = layer_of("sage", FEATURES), [random_inputs(30, 90, FEATURES, seed) for seed in range(3)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    assert export(LAYER, 1, 7, exporter="openvino", folder=folder).ready
    assert export(LAYER, 1, 7, exporter="handbuilt", form="bag", folder=folder).ready
    return folder


def test_every_way_gives_the_last_graphs_result(models):
    forms = bench.peer_forms(LAYER, GRAPHS, models, COUNT)
    assert [*forms] == [*PEERS]
    wanted = plain(LAYER, GRAPHS[(COUNT - 1) % len(GRAPHS)])
    for form in forms.values():
        np.testing.assert_allclose(form(), wanted, rtol=1e-4, atol=1e-5)


def test_a_result_that_differs_is_not_raced(models, monkeypatch):
    in_turn = bench._in_turn
    monkeypatch.setattr(bench, "_in_turn", lambda *given: in_turn(*given) + 0.1)
    with pytest.raises(ParityError, match="HETERO"):
        bench.peer_forms(LAYER, GRAPHS, models, COUNT)


def test_without_the_whole_layer_there_are_none(tmp_path):
    assert bench.peer_forms(LAYER, GRAPHS, tmp_path, COUNT) == {}
