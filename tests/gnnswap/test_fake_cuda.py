"""Guards and devices, without a GPU: torch's fake tensors know their device, type and shape, and no values."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch_geometric.nn import GCNConv
from zoo_cases import IN, build

from gnnswap import backends, guards
from gnnswap.direct import form_of
from gnnswap.layer import Caches, _usual, make_fast

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def fakes_are_plain(monkeypatch):
    monkeypatch.setattr(guards, "PLAIN", (*guards.PLAIN, FakeTensor))


@pytest.mark.parametrize(
    ("x", "edge_index", "usual"),
    [
        ("cuda", "cuda", True),
        ("cpu", "cpu", True),
        ("cuda", "cpu", False),
        ("cpu", "cuda", False),
        ("cuda:0", "cuda:1", False),
        ("meta", "meta", False),
    ],
)
def test_a_form_is_asked_on_one_device_with_kernels(x, edge_index, usual):
    with FakeTensorMode():
        given = torch.empty(13, IN, device=x), torch.empty(2, 60, dtype=torch.int64, device=edge_index)
        assert _usual(*given, None) == usual


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32])
def test_low_precision_is_served_on_the_device_alone(kind):
    with FakeTensorMode():
        on_cpu, on_cuda, on_meta = (
            guards.computable(torch.empty(3, 3, dtype=kind, device=one)) for one in ("cpu", "cuda", "meta")
        )
    assert on_cpu == (kind in (torch.float32, torch.float64)) and on_cuda == kind.is_floating_point and not on_meta


def test_parameters_on_another_device_do_not_hold():
    layer = build("GCN plain").float()
    make_fast(layer, Caches())
    record = layer._fast.record.again(form_of(GCNConv).opened(layer))
    assert record.holds(torch.float32, CPU) and not record.holds(torch.float32, CUDA)


def test_what_was_compared_on_one_device_says_nothing_of_another():
    layer = build("GCN plain")
    make_fast(layer, Caches())
    layer._fast.direct = {(None, "cpu", ""): True}
    layer._fast.sums = {("cpu", ""): ""}
    assert layer._fast.mechanism("cpu") == "own kernel" and layer._fast.mechanism("cuda") is None


def test_kernels_of_a_sum_by_device():
    assert backends.sum_kernels(CPU) == (backends.BAG,)
    assert backends.sum_kernels(CUDA)[-2:] == (backends.BAG, backends.CUSPARSE)
    assert backends.CUSPARSE not in backends.sum_kernels(CUDA, torch.bfloat16)
    assert backends.triton_for(torch.ones(1)) is None
