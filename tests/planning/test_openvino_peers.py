"""OpenVINO's own ways to place the whole layer, as forms beside the plans."""

import numpy as np
import pytest

from gnnlab.campaign.cell_inputs import layer_of
from gnnlab.campaign.sizes import GraphSize
from gnnlab.errors import ParityError
from gnnlab.planning import openvino_peers
from gnnlab.planning.bench import _graphs
from gnnlab.planning.comparison import PEERS

FEATURES, COUNT = 8, 5


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    from gnnlab.export.export import export_all

    folder = tmp_path_factory.mktemp("models")
    made = export_all(layer_of("sage", FEATURES), [(30, 90)], folder, blocks=[(1, 7)])
    assert all(model.ready for model in made if model.stages == "1-7" and model.dynamic)
    return folder


def test_every_way_gives_the_last_graphs_result(models):
    layer, graphs = layer_of("sage", FEATURES), _graphs(GraphSize(30, 90), FEATURES)
    forms = openvino_peers.peer_forms(layer, graphs, models, COUNT)
    assert tuple(forms) == PEERS
    wanted = graphs[(COUNT - 1) % len(graphs)].through(layer)
    for form in forms.values():
        np.testing.assert_allclose(form(), wanted, rtol=1e-4, atol=1e-5)


def test_a_result_that_differs_is_not_raced(models, monkeypatch):
    layer, graphs = layer_of("sage", FEATURES), _graphs(GraphSize(30, 90), FEATURES)
    in_turn = openvino_peers._in_turn
    monkeypatch.setattr(openvino_peers, "_in_turn", lambda *given: in_turn(*given) + 0.1)
    with pytest.raises(ParityError, match="HETERO"):
        openvino_peers.peer_forms(layer, graphs, models, COUNT)


def test_without_the_whole_layer_there_are_none(tmp_path):
    layer, graphs = layer_of("sage", FEATURES), _graphs(GraphSize(30, 90), FEATURES)
    from gnnlab.export.export import export_all

    export_all(layer, [(30, 90)], tmp_path, blocks=[])
    assert openvino_peers.peer_forms(layer, graphs, tmp_path, COUNT) == {}
