"""`gnnlab swap` prints what was replaced, what it brings, or one line."""

from functools import partial

import pytest


@pytest.fixture
def swap(monkeypatch, tmp_path, command):
    """Runs the command beside a module of the reader's: code, what it printed, what it said beside."""
    (tmp_path / "swap_inputs.py").write_text(
        "import torch\nfrom torch_geometric.data import Batch, Data\n"
        "def one(): return Data(x=torch.rand(9, 4), edge_index=torch.randint(9, (2, 30)))\n"
        "def molecules(): return Batch.from_data_list([one() for _ in range(5)])\n"
        "def features(): return (one().x,)\n"
        "def text(): return 'cora'\n"
        "def boom(): raise OSError('no disk')\n"
    )
    monkeypatch.chdir(tmp_path)
    return partial(command, "swap")


def test_the_report_has_layers_times_and_memory(swap):
    code, out, _ = swap("own_models:gcn", "--graph", "random:nodes=2000,edges=20000,features=64", "--train")
    assert code == 0 and out.startswith("own_models:gcn on random:nodes=2000")
    assert "replaced convs.0 (GCNConv)" in out and "a forward pass on the example: " in out
    training = out.partition("forward and backward: ")[2]
    assert " ms before, " in training and "outputs and gradients: " in training and " MiB before, " in training


def test_a_batch_of_molecules_is_made_by_a_function(swap):
    code, out, _ = swap("own_models:pooled", "--inputs", "swap_inputs:molecules")
    assert code == 0 and out.startswith("own_models:pooled on swap_inputs:molecules")
    assert "conv (GCNConv)" in out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("no_such_module_at_all:make",), "there is no module no_such_module_at_all"),
        (("own_models:fails",), "own_models:fails raised RuntimeError: no such file"),
        (("own_models:gcn_with_weights",), "forward wants edge_weight, which the graph lacks; it has edge_index, x, y"),
        (("own_models:gcn", "--graph", "swap_inputs.py"), "is no graph"),
        (("own_models:gcn", "--graph", "none.pt"), "none.pt: there is no such file"),
        (("own_models:gcn", "--inputs", "swap_inputs:text"), "must return what forward takes"),
        (("own_models:gcn", "--inputs", "swap_inputs:boom"), "swap_inputs:boom raised OSError: no disk"),
        (("own_models:gcn", "--inputs", "swap_inputs:features"), "'tuple' object has no attribute 'num_features'"),
        (("own_models:gcn", "--graph", "karate", "--inputs", "swap_inputs:one"), "not allowed with argument"),
    ],
)
def test_what_does_not_fit_is_one_line(swap, arguments, line):
    code, out, err = swap(*arguments)
    assert code == 2 and out == "" and line in err and len(err.splitlines()) == 1
