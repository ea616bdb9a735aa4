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
    spec = "random:nodes=2000,edges=20000,features=64"
    code, out, _ = swap("own_models:gcn", "--graph", spec, "--train")
    graph, model, title, *_ = out.splitlines()
    assert graph.startswith(f"{spec}: 20,000 edges, 2,000 nodes, no weights; x (2000, 64)")
    assert model == "own_models:gcn: GCN, 547 parameters in 4 tensors, float32"
    assert code == 0 and title.startswith("own_models:gcn on random:nodes=2000")
    assert "replaced convs.0 (GCNConv)" in out and "a forward pass on the example: " in out
    training = out.partition("forward and backward: ")[2]
    assert " ms before, " in training and "outputs and gradients: " in training and " MiB before, " in training


@pytest.mark.parametrize(
    ("model", "inputs", "read"),
    [
        ("own_models:pooled", "swap_inputs:molecules", "x=[45, 4], edge_index=[2, 150], batch=[45]"),
        ("own_models:Buys", "own_models:purchases", "x_dict={user=[6, 4], item=[5, 3]}, edge_index_dict={"),
    ],
)
def test_molecules_and_nodes_of_several_kinds_are_made_by_a_function(swap, model, inputs, read):
    code, out, _ = swap(model, "--inputs", inputs)
    assert code == 0 and out.startswith(f"{inputs}: {read}") and f"{model} on {inputs}; threads of torch: " in out


def test_a_list_of_edges_has_a_table_of_its_nodes_beside_it(swap, tmp_path):
    (tmp_path / "edges.csv").write_text("source,target\na,b\nb,c\nc,a\n")
    (tmp_path / "nodes.csv").write_text("id,age,height\na,1,2\nb,3,4\nc,5,7\n")
    code, out, _ = swap("own_models:gcn", "--graph", "edges.csv", "--nodes", "nodes.csv")
    line = out.splitlines()[0]
    assert code == 0 and line.startswith("edges.csv: ") and "3 edges, 3 named nodes" in line and "x (3, 2)" in line
    assert swap("own_models:gcn", "--nodes", "nodes.csv")[0] == 2  # beside a graph that is no list of edges


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
