"""The graph transformer of S1 and its encodings."""

import pytest
import torch
from refusals import refused
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from torch_geometric.data import Batch, Data

from gnnlab.workloads import graphs
from gnnlab.workloads.graph_transformer import FIELDS, GraphTransformer, encoded

SMALL = {"hidden_dim": 16, "num_layers": 2, "num_heads": 4, "ffn_dim": 24, "pe_dim": 4}


def path(nodes, features=3):
    """0 - 1 - 2 - ..., both ways."""
    steps = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])
    x = torch.randn(nodes, features, generator=torch.Generator().manual_seed(nodes))
    return Data(x=x, edge_index=torch.cat([steps, steps.flip(0)], dim=1))


def model_for(data, **options):
    torch.manual_seed(0)
    return GraphTransformer.from_graph(data, **(SMALL | options)).eval()


@pytest.mark.parametrize(("mpnn_type", "pe_type"), [("gin", "lap"), ("gat", "none"), ("gcn", "rwse")])
def test_graphs_of_a_batch_are_answered_as_they_are_alone_and_renumbered_nodes_alike(mpnn_type, pe_type):
    alone = [path(5), path(2), path(7)]
    model = model_for(alone[0], mpnn_type=mpnn_type, pe_type=pe_type, out_features=2)
    together = model(model.prepare(Batch.from_data_list(alone)))
    each = [model(model.prepare(data)) for data in alone]
    assert together.shape == (14, 2)
    torch.testing.assert_close(together, torch.cat(each), rtol=1e-5, atol=1e-5)
    if pe_type != "lap":  # the sign of an eigenvector of a symmetric graph depends on the numbers
        order = torch.tensor([3, 0, 1, 4, 2])
        moved = model.prepare(Data(x=alone[0].x[order], edge_index=order.argsort()[alone[0].edge_index]))
        torch.testing.assert_close(model(moved), each[0][order], rtol=1e-5, atol=1e-5)


def test_sizes_and_matrix_products_are_those_of_the_worked_example():
    model = GraphTransformer(256)
    sizes = {name: getattr(model, name) for name in ("hidden_dim", "num_layers", "num_heads", "ffn_dim", "mpnn_type")}
    assert sizes == {"hidden_dim": 256, "num_layers": 6, "num_heads": 8, "ffn_dim": 512, "mpnn_type": "gin"}
    n, h, f = 500, 256, 512
    gin, attention, ffn, norms = 2 * (h * h + h), 4 * (h * h + h), 2 * h * f + f + h, 3 * 2 * h
    assert sum(p.numel() for p in model.parameters()) == 6 * (gin + attention + ffn + norms) + h * h + h + h + 1
    data = Data(x=torch.ones(n, h), edge_index=torch.randint(0, n, (2, 2500)))
    # the plain variant of attention: torch's counter does not know the fused ones of a CPU
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.eval()(data)
    linear = 2 * n * h * h
    assert counter.get_total_flops() == linear + 6 * (6 * linear + 4 * n * n * h + 4 * n * h * f) + 2 * n * h


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"hidden_dim": 0}, "hidden_dim must be an integer"),
        ({"num_layers": 1.5}, "num_layers must be an integer"),
        ({"ffn_dim": True}, "ffn_dim must be an integer"),
        ({"mpnn_type": "sage"}, "gin, gat, gcn"),
        ({"pe_type": "laplace"}, "none, lap, rwse"),
        ({"pe_type": "lap"}, r"no lap encoding; call model\.prepare"),
    ],
)
def test_sizes_that_do_not_fit_and_data_without_its_encoding_are_refused(options, part):
    with refused(part):
        model_for(path(4), **options)(path(4))


# --- encodings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [30, 150])  # dense, and iterative
@pytest.mark.parametrize("kind", ["lap", "rwse"])
def test_encodings_are_deterministic_and_leave_the_random_state_alone(kind, nodes):
    data = graphs.load(f"random:nodes={nodes},edges={6 * nodes}")
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = encoded(data, kind, 4)[FIELDS[kind]]
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(12345)
    again = encoded(data, kind, 4)
    assert torch.equal(again[FIELDS[kind]], first) and FIELDS[kind] not in data
    assert first.shape == (nodes, 4) and first.dtype == torch.float32 and first.isfinite().all()


@pytest.mark.parametrize("nodes", [30, 150])
def test_laplacian_encodings_are_the_eigenvectors_with_the_largest_entry_positive(nodes):
    data = path(nodes)
    encoding = encoded(data, "lap", 3)[FIELDS["lap"]].double()
    adjacency = torch.zeros(nodes, nodes, dtype=torch.float64)
    adjacency[tuple(data.edge_index)] = 1
    scale = adjacency.sum(dim=1).rsqrt()
    laplacian = torch.eye(nodes) - scale[:, None] * adjacency * scale
    values = torch.linalg.eigvalsh(laplacian)[1:4]
    torch.testing.assert_close(laplacian @ encoding, encoding * values, rtol=0, atol=1e-4)
    torch.testing.assert_close(encoding.norm(dim=0), torch.ones(3).double(), rtol=0, atol=1e-4)
    assert (encoding.gather(0, encoding.abs().argmax(dim=0, keepdim=True)) > 0).all()


def test_random_walk_encodings_are_chances_of_return():
    encoding = encoded(path(3), "rwse", 4)[FIELDS["rwse"]]
    assert encoding.tolist() == [[0, 0.5, 0, 0.5], [0, 1, 0, 1], [0, 0.5, 0, 0.5]]


def test_encodings_do_not_depend_on_weights_or_repeated_edges():
    data = path(5)
    heavy = Data(edge_index=torch.cat([data.edge_index] * 2, dim=1), edge_weight=torch.rand(16) - 2, num_nodes=5)
    for kind, field in FIELDS.items():
        assert torch.equal(encoded(heavy, kind, 3)[field], encoded(data, kind, 3)[field])


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_graphs_smaller_than_the_encoding_get_an_answer(nodes):
    data = path(nodes) if nodes > 1 else Data(x=torch.ones(1, 3), edge_index=torch.zeros(2, 1, dtype=torch.int64))
    for kind in ("lap", "rwse"):
        model = model_for(data, pe_type=kind, pe_dim=16)
        prepared = model.prepare(data)
        assert prepared[FIELDS[kind]].shape == (nodes, 16) and model(prepared).isfinite().all()
    assert not encoded(data, "lap", 16)[FIELDS["lap"]][:, max(nodes - 1, 0) :].any()
