"""`build` gives a workload that runs, or one clear line."""

import random
import re
import sys
import textwrap

import numpy as np
import pytest
import torch
from refusals import refusal
from torch_geometric.data import Batch, Data
from torch_geometric.nn import Sequential

from gnnlab.workloads.graph_transformer import FIELDS, GraphTransformer
from gnnlab.workloads.models import build, build_each
from gnnlab.workloads.symptom_gat import SymptomGAT

MINE = """
    import random
    import numpy as np
    import torch
    from torch import nn
    from torch_geometric.data import Batch, Data, HeteroData
    from torch_geometric.nn import GCNConv, Sequential

    def module(forward):  # a factory of modules of this forward
        return type(forward.__name__, (nn.Module,), {"forward": forward})

    class Fields(nn.Module):
        def __init__(self, data, *, hidden_dim=4):
            super().__init__()
            self.conv = GCNConv(data.num_features, hidden_dim)
            self.dropout = nn.Dropout(0.5)
        def forward(self, x, edge_index, edge_weight=None, edge_attr=None, flag=True):
            assert not self.training
            return self.dropout(self.conv(x, edge_index, edge_weight))

    class Conv(nn.Module):
        def __init__(self, features=2):
            super().__init__()
            self.conv = GCNConv(features, 3)
        def forward(self, x, edge_index): return self.conv(x, edge_index)

    @module
    def Whole(self, data, verbose=False): return data.x
    @module
    def Batched(self, batch): return batch.x
    @module
    def Starred(self, *args): return args[0].x
    @module
    def Keywords(self, **fields): return fields["x"]
    @module
    def Nothing(self, x): return None
    @module
    def Yields(self, x): yield x
    @module
    async def Awaited(self, x): return x
    def compiled(): return torch.compile(Features(), backend="eager")
    def parallel(data): return nn.DataParallel(Fields(data))
    @module
    def First(self, *args): return args[0]
    @module
    def Features(self, x): return x.sum(dim=0)
    @module
    def Positions(self, x, pos, z): return x
    @module
    def Fails(self, x): return x @ torch.ones(999, 1)
    @module
    def Two(self, x_dict, edge_index_dict): return x_dict["user"] + len(edge_index_dict)
    @module
    def Pooled(self, x, batch, num_nodes):
        assert batch.shape == (num_nodes,)
        return x

    def one_layer(data):
        return Sequential("x, edge_index", [(GCNConv(data.num_features, 4), "x, edge_index -> x")])
    def two_layers(data):
        linear = nn.Linear(data.num_features, 4)
        return Sequential("x, edge_index", [(linear, "x -> x"), (GCNConv(4, 4), "x, edge_index -> x")])
    def make(data): return Fields(data)
    def plain(): return Features()
    def defaults(width=7): return nn.Linear(width, width) if width != 7 else Features()
    def raises(data): raise KeyError("no such\\nthing")
    def returns(data): return "a model"
    def needs(data, width): return Features()
    EDGES = 5
    def FromInputs(given): return Conv(given["x"].shape[1])
    def drawn(): return torch.rand(3, 2), torch.tensor(np.random.rand(1)), random.random()
    def as_tuple(): return torch.rand(3, 2), torch.tensor([[0, 1], [1, 2]])
    def as_list(): return list(as_tuple())
    def as_dict(): return dict(zip(("x", "edge_index"), as_tuple()))
    def as_data(): return Data(*as_tuple())
    def molecules(): return Batch.from_data_list([as_data(), as_data()])
    def nothing(): return None
    def hetero():
        data = HeteroData()
        data["user"].x = torch.rand(4, 2)
        data["user", "to", "user"].edge_index = torch.tensor([[0, 1], [1, 2]])
        return data
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The current folder holds a module `mine` of the reader's."""
    (tmp_path / "mine.py").write_text(textwrap.dedent(MINE))
    (tmp_path / "mine_lacking.py").write_text("import no_such_package_anywhere\n")
    monkeypatch.chdir(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition("_")[0] == "mine" or name == "mine"]:
        del sys.modules[name]


def run(workload):
    """A forward as everything that measures does it."""
    model, batch = workload.model.eval(), workload.batch
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


# --- built in --------------------------------------------------------------------------------------------------------


def test_built_in_models_are_given_rows_or_the_graph_with_its_encoding():
    rows = build("symptom_gat", "symptoms")
    assert isinstance(rows.model, SymptomGAT) and rows.batch == {"batch_size": 32}
    assert rows.label == "symptom_gat on symptoms" and run(rows).shape == (32, 256)
    assert build("symptom_gat", "karate", batch_size=4).batch == {"batch_size": 4}
    sizes = {"num_layers": None, "hidden_dim": 16, "num_heads": 2, "pe_type": "lap", "pe_dim": 5}  # None: not given
    whole = build("graph_transformer", "karate", **sizes)
    assert isinstance(whole.model, GraphTransformer) and isinstance(whole.batch, Data) and whole.model.num_layers == 6
    assert whole.batch[FIELDS["lap"]].shape == (34, 5) and run(whole).shape == (34, 1)
    first, same, other = (build("symptom_gat", "karate", seed=seed).model.gat1.lin.weight for seed in (0, 0, 1))
    assert torch.equal(first, same) and not torch.equal(first, other)


@pytest.mark.parametrize("spec", ["graph_transformer", "mine:Fields"])
def test_a_workload_moves_its_model_and_batch_and_leaves_the_graph_where_it_is(mine, spec):
    workload = build(spec, "symptoms")
    moved = workload.to("meta")
    batch = moved.batch.values() if isinstance(moved.batch, dict) else moved.batch
    batch = [value for _, value in moved.batch] if isinstance(moved.batch, Data) else batch
    tensors = [*moved.model.state_dict().values(), *(t for t in batch if isinstance(t, torch.Tensor))]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert moved.graph.x.device.type == "cpu" and moved.label == workload.label


def test_a_device_that_is_not_there_is_refused():
    for device in ("cuda:99", "toaster", 1.5):
        assert "cannot be used here" in refusal(build("symptom_gat", "symptoms").to, device)


# --- the reader's own ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "fields"),
    [
        ("Fields", ["x", "edge_index", "edge_weight"]),
        ("make", ["x", "edge_index", "edge_weight"]),
        *((name, ["x", "edge_index", "edge_weight"]) for name in ("Keywords", "parallel")),
        *((name, ["x"]) for name in ("Features", "plain", "defaults", "compiled")),
        ("Pooled", ["x", "batch", "num_nodes"]),
        *((name, Data) for name in ("Whole", "Batched", "Starred")),  # names no field: the whole graph
    ],
)
def test_forward_is_given_the_fields_that_it_names(mine, factory, fields):
    path = list(sys.path)
    workload = build(f"mine:{factory}", "symptoms")
    batch = workload.batch
    if fields is Data:
        assert isinstance(batch, Data)
    else:
        assert list(batch) == fields
    assert workload.name == f"mine:{factory}" and sys.path == path
    assert all(module.training for module in workload.model.modules()) and run(workload).numel()


def test_a_batch_of_graphs_keeps_its_own_assignment_and_options_reach_the_factory(mine):
    pair = Batch.from_data_list([Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))] * 2)
    assert build("mine:Pooled", pair).batch["batch"].tolist() == [0, 0, 1, 1]
    assert build("mine:Fields", "karate", hidden_dim=3).model.conv.out_channels == 3


def test_two_models_of_pygs_sequential_have_a_forward_each(mine):
    before = Sequential.forward
    assert [len(build(f"mine:{name}", "karate").model) for name in ("one_layer", "two_layers")] == [1, 2]
    assert Sequential.forward is before


@pytest.mark.parametrize(
    ("spec", "options", "part"),
    [
        ("graph_transformr", {}, r"did you mean graph_transformer\?"),
        ("", {}, "symptom_gat, graph_transformer or module:factory"),
        ("graph_transformer", {"hiden_dim": 3}, "unexpected keyword argument 'hiden_dim'"),
        ("symptom_gat", {"batch_size": 0}, "batch_size"),
        ("graph_transformer", {"num_heads": 7}, "divisible"),
        ("mine:make", {"hidden_dim": 3}, "got an unexpected keyword argument 'hidden_dim'"),
        ("mine_lacking:make", {}, "mine_lacking needs no_such_package_anywhere, which is not installed"),
        ("mine:EDGES", {}, "EDGES is no function or class but 5"),
        ("mine:raises", {}, r"mine:raises raised KeyError: 'no such\\nthing'"),
        ("mine:returns", {}, "must return a torch.nn.Module, it returned 'a model'"),
        ("mine:needs", {}, "cannot be called with the graph: missing a required argument: 'width'"),
        ("mine:Positions", {}, "forward wants pos, z, which the graph lacks; it has edge_index, train_mask, x, y"),
        ("mine:Nothing", {}, "its forward must return tensors, it returned NoneType"),
        ("mine:Yields", {}, "its forward must return tensors, it returned generator"),
        ("mine:Awaited", {}, "its forward must return tensors, it returned coroutine"),
        ("mine:Fails", {}, "its forward raised RuntimeError: .*shapes cannot be multiplied"),
    ],
)
def test_what_is_wrong_with_a_model_or_its_options_is_one_line(mine, spec, options, part):
    assert re.search(part, refusal(build, spec, "karate", **options))


# --- given inputs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "function", "kind", "sizes"),
    [
        ("Conv", "as_list", tuple, (3, 2)),
        ("FromInputs", "as_dict", dict, (3, 2)),
        ("FromInputs", "as_data", dict, (3, 2)),
        ("Pooled", "molecules", dict, (6, 4)),
        ("Two", "hetero", dict, (4, 2)),
        ("Starred", "as_data", Data, (3, 2)),
    ],
)
def test_inputs_of_a_function_go_to_forward_as_they_are_or_by_its_names(mine, factory, function, kind, sizes):
    workload = build(f"mine:{factory}", f"inputs:mine:{function}")
    assert isinstance(workload.batch, kind) and workload.label == f"mine:{factory} on mine:{function}"
    assert (workload.graph.num_nodes, workload.graph.num_edges) == sizes
    assert workload.to("cpu").batch is not workload.batch


def test_inputs_are_the_same_in_each_call_and_leave_random_states_alone(mine):
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    first, again = (build("mine:First", "inputs:mine:drawn").batch for _ in range(2))
    assert torch.equal(first[0], again[0]) and first[1:] == again[1:]
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


@pytest.mark.parametrize(
    ("model", "inputs", "part"),
    [
        ("mine:Conv", "mine:nothing", "mine:nothing must return what forward takes, as a tuple, .* returned None"),
        ("mine:Conv", "mine:raises", "mine:raises cannot be called with nothing: missing a required argument: 'data'"),
        ("mine:Conv", "mine", "'mine' names no function; write module:function"),
        ("mine:Conv", "mine:hetero", "must be Tensor, not dict"),
        ("mine:Pooled", "mine:as_tuple", "forward raised TypeError: .* missing 1 required .* 'num_nodes'"),
        ("graph_transformer", "mine:as_data", "graph_transformer takes a graph"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_in_one_line(mine, model, inputs, part):
    assert re.search(part, refusal(build, model, f"inputs:{inputs}"))


def test_of_several_models_and_graphs_those_that_fail_cost_the_others_nothing(mine):
    models, inputs = ["mine:Fields", "mine:raises", "mine:Conv"], "inputs:mine:as_data"
    workloads, failed = build_each(models, ["karate", inputs])
    made = [(workload.name, workload.spec) for workload in workloads]
    assert made == [("mine:Fields", "karate"), ("mine:Fields", inputs), ("mine:Conv", inputs)]
    assert [(model, graph) for model, graph, _ in failed] == [
        ("mine:raises", "karate"),
        ("mine:raises", "mine:as_data"),
        ("mine:Conv", "karate"),  # of other features
    ]
    assert failed[0][2].startswith("mine:raises raised KeyError: 'no such")
    assert "no such" in refusal(build_each, ["mine:raises"], ["karate"])
