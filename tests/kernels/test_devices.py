"""Every kernel on every device that is there, and sums in half precision over a hub whose rounding would show."""

import pytest
import torch

from gnnlab.kernels import attention
from gnnlab.kernels.aggregation import edge_products, mean, segment_sum, weighted_sum
from gnnlab.kernels.neighbours import GraphCache, Neighbours

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"))
DEVICES = pytest.mark.parametrize("device", ["cpu", CUDA])
HALVES = pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
EDGES = 4096  # adding 4,096 numbers of 0 to 1 in bf16 ends at 256


def hub(device, backwards=False):
    """4,096 edges into node 0 of 2, from a node each; backwards: out of it."""
    edges = torch.stack([torch.arange(EDGES), torch.zeros(EDGES, dtype=torch.int64)]).to(device)
    if backwards:
        return Neighbours.prepare(edges.flip(0), EDGES, num_sources=2)
    return Neighbours.prepare(edges, 2, num_sources=EDGES)


def close(got, expected, kind):
    """Within the rounding of inputs, weights and results, once each."""
    assert got.dtype is kind
    assert (got.double() - expected).abs().max() <= 2 * torch.finfo(kind).eps * expected.abs().max()


def halves(device, kind, *shapes):
    return [torch.rand(shape, device=device).to(kind) for shape in shapes]


@DEVICES
@HALVES
def test_half_precision_sums_over_a_hub_are_added_in_float32_forward_and_backward(device, kind):
    graph, back = hub(device), hub(device, backwards=True)
    x, weight, sent, long, row = halves(device, kind, (EDGES, 6), EDGES, (2, 6), (EDGES, 2048), (2, 2048))
    close(weighted_sum(x, graph)[0], x.double().sum(0), kind)
    close(weighted_sum(x, graph, weight)[0], (x.double() * weight.double()[:, None]).sum(0), kind)
    close(mean(x, graph)[0], x.double().mean(0), kind)
    for values in (weight, weight[:, None], x):
        close(segment_sum(values, graph)[0], values.double().sum(0), kind)
    sent.requires_grad_()
    close(torch.autograd.grad(weighted_sum(sent, back), sent, x)[0][0], x.double().sum(0), kind)
    close(edge_products(long, row, back), (long.double() * row.double()[:1]).sum(1), kind)
    for heads in (1, 2):
        scores, values = halves(device, kind, (EDGES, heads), (EDGES, heads, 4))
        expected = (scores.double().softmax(0)[:, :, None] * values.double()).sum(0)
        close(attention.attend(scores, values, graph)[0], expected, kind)


def results(device, edge_index, inputs):
    """What each kernel gives, and the gradients of its inputs."""
    x, weight, scores, vector = (i.to(device).detach().requires_grad_() for i in inputs)
    graph = GraphCache().get(edge_index.to(device), 30)
    by_head = x.view(30, 2, 4)
    outs = [
        weighted_sum(x, graph, weight),
        weighted_sum(x, graph.looped),
        mean(x, graph),
        attention.segment_softmax(scores, graph),
        attention.attend(scores, by_head, graph),
        attention.pair_scores(x, x, graph, 0.2),
        attention.additive_scores(by_head, by_head, vector, graph, 0.2),
        attention.head_products(by_head, by_head, graph),
        attention.head_sum(by_head, graph, scores),
    ]
    grads = torch.autograd.grad(sum(out.sin().sum() for out in outs), (x, weight, scores, vector))
    return [t.cpu() for t in (*outs, *grads)]


def test_every_kernel_gives_the_same_on_a_cuda_device():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(29, (2, 120), generator=generator)
    shapes = [(30, 8), (120,), (120, 2), (2, 4)]
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    for ours, theirs in zip(results("cuda", edge_index, inputs), results("cpu", edge_index, inputs), strict=True):
        torch.testing.assert_close(ours, theirs)
