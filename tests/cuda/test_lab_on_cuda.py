"""The lab on a CUDA device: clocks, memory, operators, ceilings, captured steps. Needs no papermill, no pydantic."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GCNConv, GraphSAGE, SAGEConv

from examples import growth
from examples.alternatives import variants_of
from gnnlab.errors import GnnlabError
from gnnlab.measure import race, restore, tensors, timing
from gnnlab.measure.versus import versus
from gnnlab.optimize import captured, equivalence, steps, written
from gnnlab.optimize import search as optimize
from gnnlab.profile import findings, memory, operators, roofline, runtime, scaling, survey
from gnnlab.training import interactions
from gnnlab.training.loops import Loop, race_loops
from gnnlab.user_code import forked_random
from gnnlab.workloads import models, tables
from gnnswap import parity, swap

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
GRAPH = "random:nodes=200,edges=1500,features=16"
MODULE = """
import torch
from torch_geometric.nn import GCN, GraphSAGE

class OnGraph(torch.nn.Module):
    def __init__(self, net, edge_index):
        super().__init__()
        self.net = net
        self.register_buffer("edge_index", edge_index)

    def forward(self, x):
        return self.net(x, self.edge_index)

def gcn(data):
    return GCN(data.num_features, 32, 2, 7)

def gcn_on_graph(data):
    return OnGraph(gcn(data), data.edge_index)

def sage_on_graph(data):
    return OnGraph(GraphSAGE(data.num_features, 32, 2, 7), data.edge_index)
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """A module of models of a user's, importable here and in processes of their own."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "models_on_cuda.py").write_text(MODULE)
    sys.path.insert(0, str(folder))
    yield "models_on_cuda"
    sys.path.remove(str(folder))


@pytest.fixture
def dropout_again(monkeypatch):
    """A model to be trained turns dropout off for its process, which here is that of all tests."""
    monkeypatch.setattr(torch, "dropout", torch.dropout)
    monkeypatch.setattr(torch.nn.functional, "dropout", torch.nn.functional.dropout)


class Own(nn.Module):
    """A network on edges of its own: `forward(x)`."""

    def __init__(self, net, edge_index):
        super().__init__()
        self.net = net
        self.register_buffer("edge_index", edge_index)

    def forward(self, x):
        return self.net(x, self.edge_index)


def drawn(seed=0, nodes=200, edges=1500):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, 16, generator=generator)
    return x.cuda(), torch.randint(nodes, (2, edges), generator=generator).cuda()


def swapped(make, *arguments):
    """(the net on its own edges, the same swapped), both on CUDA in eval mode."""
    torch.manual_seed(0)
    x, edge_index = drawn()
    net = make(16, *arguments).cuda().eval()
    return Own(net, edge_index), Own(swap(net, (x, edge_index), measure=False).model, edge_index)


NETS = {"GCN": (GCN, 32, 2, 7), "SAGE": (GraphSAGE, 32, 2, 7), "one GCN": (GCNConv, 8), "one SAGE": (SAGEConv, 8)}


# ---- clocks, memory, operators --------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [None, "cpu", "cuda", "cuda:0"])
def test_a_clock_has_the_time_of_the_work_whatever_device_it_is_told_of(named):
    a = torch.randn(4096, 4096, device="cuda")
    once = timing.sample(lambda: torch.mm(a, a), runs=8, warm_up=2, device=named)
    least_ms = 1e3 * 2 * 4096**3 / 1e15  # no card has 1000 TFLOP/s in float32
    assert min(once) > least_ms
    ten = timing.sample(lambda: [torch.mm(a, a) for _ in range(10)], runs=5, warm_up=1, device=named)
    assert 7 < sorted(ten)[2] / sorted(once)[4] < 13
    with timing.stopwatch(device=named) as took:
        for _ in range(10):
            torch.mm(a, a)
    assert took.ms > 5 * min(once)


def test_a_profile_of_a_model_is_that_of_the_card():
    model, x = GCN(16, 64, 2, 7).cuda().eval(), drawn()
    few = {"num_runs": 6, "warmup_runs": 2}
    assert runtime.profile_forward(model, x, **few).min > 0.01
    stats = runtime.RuntimeProfiler(model, **few).profile_all(x)
    assert stats["training_step"].median > stats["forward"].min
    used = memory.MemoryProfiler(model).profile_forward(x)
    assert used.device.startswith("cuda") and used.rise_mb > 0 and used.reserved_mb >= used.peak_mb >= used.allocated_mb
    parts = memory.get_memory_breakdown(model, x)
    assert all(parts[name] > 0 for name in ("parameters", "input", "forward_activations", "peak_training", "gradients"))
    counted = roofline.count(model, x)
    on_cpu = roofline.count(copy.deepcopy(model).cpu(), tuple(part.cpu() for part in x))
    assert counted.matrix_flops == on_cpu.matrix_flops > 0


def test_operators_have_the_time_of_their_kernels_and_what_a_graph_replays_is_not_lost():
    a, out = torch.randn(2048, 2048, device="cuda"), torch.empty(2048, 2048, device="cuda")
    plain = operators.profile_operators(lambda a: torch.mm(a, a, out=out), (a,), runs=6)
    assert plain.device.startswith("cuda") and plain.top(1)["operator"].item() == "aten::mm"
    assert operators.OUTSIDE not in set(plain.frame["operator"])
    wall = max(timing.sample(lambda: torch.mm(a, a, out=out), runs=9, warm_up=2))
    least_ms = 1e3 * 2 * 2048**3 / 1e15  # no card has 1000 TFLOP/s in float32
    assert least_ms < plain.frame["self_ms_per_forward"].sum() < 1.5 * wall
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mm(a, a, out=out)
    replayed = operators.profile_operators(lambda a: graph.replay(), (a,), runs=6)
    assert replayed.top(1)["operator"].item() == operators.OUTSIDE
    assert least_ms < replayed.frame["self_ms_per_forward"].sum() < 1.5 * wall


def test_ceilings_are_those_of_the_card_and_named_by_it():
    limits = roofline.ceilings("cuda", budget_s=1.0)
    assert limits.device == torch.cuda.get_device_name() == tensors.device_name(torch.device("cuda"))
    assert limits.copy_gb_s[-1][1] > 100 and limits.gemm_gflop_s > 1000  # beyond any CPU's
    assert roofline.last_cache_bytes("cuda") > 2**20


def test_notebook_01_profiles_a_small_model():
    sizes = {"hidden_dim": 32, "num_layers": 1, "num_heads": 2, "ffn_dim": 64}
    workloads = [models.build("graph_transformer", GRAPH, **sizes).to("cuda")]
    workloads += [models.build("symptom_gat", "symptoms").to("cuda")]
    timed = survey.times(workloads, num_runs=8)
    assert (timed["samples"].map(min) > 0).all()
    assert (survey.memory(workloads)["value"] >= 0).all()
    assert len(survey.operators(workloads, runs=6)) == 10
    for workload in workloads:
        workload.model.eval()
        assert roofline.count(workload.model, workload.batch).coverage_bytes > 0.95
    gat = workloads[1]
    assert findings.inspect(gat.model, gat.batch)  # sums by atomics may differ
    build = lambda n: (models.build("symptom_gat", f"random:nodes={n},edges={5 * n}").to("cuda").model, 32)  # noqa: E731
    assert len(scaling.sweep("nodes", [20, 40], build, budget_s=0.05).rows()) == 2


def test_random_states_of_the_card_are_as_before():
    torch.manual_seed(3)
    expected = torch.rand(4, device="cuda")
    torch.manual_seed(3)
    with forked_random(5):
        first = torch.rand(4, device="cuda")
    with restore.ProfilingContext(nn.Linear(2, 2).cuda(), seed=5):
        assert torch.equal(torch.rand(4, device="cuda"), first)
    assert torch.equal(torch.rand(4, device="cuda"), expected)


def test_a_race_names_the_card_and_what_was_off_is_not_timed():
    model, (x, edge_index) = GCN(16, 32, 2, 7).cuda().eval(), drawn()
    variants = {
        "PyG": model,
        "gnnlab": swap(model, (x, edge_index), measure=False).model,
        "off": lambda x, e: model(x, e) + 1,
    }
    raced = race.race_variants(variants, (x, edge_index), tolerance=1e-4, budget_s=0.1)
    assert {each.device for each in raced.values()} == {"cuda:0"} and "differs" in raced["off"].reason
    assert (raced["gnnlab"].times_ms > 0).all() and raced["gnnlab"].reason is None


# ---- captured steps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("gradients", [False, True])
def test_a_captured_step_equals_the_uncaptured_one_on_every_call(name, gradients):
    plain, fast = swapped(*NETS[name])
    replayed = steps.captured(Own(copy.deepcopy(fast.net), fast.edge_index), (drawn(1)[0],))
    weights = [list(model.parameters()) for model in (plain, replayed)]
    for seed in range(2, 6):
        x = drawn(seed)[0].requires_grad_(gradients)
        with torch.set_grad_enabled(gradients):
            expected, got = plain(x), replayed(x)
        assert parity.error(got, expected) <= 1e-5
        if gradients:
            direction = torch.randn_like(expected)
            grads = [
                torch.autograd.grad(out, [x, *of], direction) for out, of in zip((expected, got), weights, strict=True)
            ]
            assert parity.error(grads[1], grads[0], floor=1e-3 * parity.largest(grads[0])) <= 1e-4
            with torch.no_grad():
                for of in weights:
                    for weight, grad in zip(of, grads[0][1:], strict=True):
                        weight.sub_(0.01 * grad)


def test_a_captured_step_is_faster_on_a_small_graph():
    plain, fast = swapped(*NETS["SAGE"])
    x = drawn()[0]
    variants = {"PyG": plain, "captured": steps.captured(fast, (x,))}
    raced = race.race_variants(variants, (x,), mode="plain", tolerance=1e-4, budget_s=0.5)
    assert raced["captured"].ratio.low > 1


def test_what_was_prepared_for_the_edges_outlives_the_caches():
    _, fast = swapped(*NETS["GCN"])
    x = drawn()[0]
    with torch.no_grad():
        replayed = steps.captured(copy.deepcopy(fast), (x,))
        before = replayed(x)
        for layer in replayed.modules():
            if hasattr(layer, "_fast"):
                layer._fast.caches.forget()
        _ = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(64)]  # over what may have been freed
        assert torch.equal(replayed(x), before)


def test_layers_of_pyg_that_ask_the_device_say_where_and_cuda_goes_on():
    plain, _ = swapped(GCNConv, 8)
    with pytest.raises(
        GnnlabError, match=r"it asks the device for a value in each call, and waits for it: \w+\.py, line"
    ):
        steps.captured(plain, (drawn()[0],))
    assert float(torch.ones(3, device="cuda").sum()) == 3
    steps.captured(Own(SAGEConv(16, 8).cuda().eval(), drawn()[1]), (drawn()[0],))  # this one does not ask


def test_edges_that_may_change_are_refused():
    model, (x, edge_index) = GraphSAGE(16, 32, 2, 7).cuda().eval(), drawn()
    for batch in ((x, edge_index), {"x": x, "edge_index": edge_index}, Data(x=x, edge_index=edge_index)):
        assert steps.applies_to(steps.CAPTURED, model, batch) == (False, captured.EDGES)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_a_captured_training_step_trains_as_the_uncaptured_one(optimizer):
    options = {"lr": 0.01} | ({"capturable": True} if optimizer is torch.optim.Adam else {})
    _, fast = swapped(*NETS["SAGE"])
    nets = [Own(copy.deepcopy(fast.net), fast.edge_index).train() for _ in range(2)]
    labels, x = torch.arange(200, device="cuda") % 7, drawn(1)[0]

    def loss(model, x):
        return nn.functional.cross_entropy(model(x), labels)

    ones = [optimizer(net.parameters(), **options) for net in nets]
    step = captured.training_step(nets[0], ones[0], loss, (x,))
    inputs = [x] * captured.WARM_UP + [drawn(seed)[0] for seed in range(2, 8)]
    for number, given in enumerate(inputs):
        ones[1].zero_grad()
        value = loss(nets[1], given)
        value.backward()
        ones[1].step()
        if number >= captured.WARM_UP:
            assert parity.error(step(given), value) <= 1e-4
    assert parity.error(list(nets[0].parameters()), list(nets[1].parameters())) <= 1e-3


def test_an_optimizer_that_cannot_be_captured_says_so():
    _, fast = swapped(*NETS["SAGE"])
    adam = torch.optim.Adam(fast.parameters())
    with pytest.raises(GnnlabError, match=r"captur|value"):
        captured.training_step(fast, adam, lambda model, x: model(x).square().mean(), (drawn()[0],))
    assert float(torch.ones(3, device="cuda").sum()) == 3


# ---- optimize, notebooks 03 and 09 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("train", [False, True])
def test_captured_is_proven_and_raced_after_the_fast_layers(module, train, dropout_again):
    of = (f"{module}:gcn_on_graph", GRAPH, train, "cuda")
    looked = optimize.examine(of=of, names=[steps.FAST_LAYERS, steps.CAPTURED, "1 thread", steps.ALLOCATOR])
    assert {steps.FAST_LAYERS, steps.CAPTURED} == set(looked["applicable"]), looked
    assert looked["facts"]["device"] == torch.cuda.get_device_name() and looked["held_mib"] > 0
    alone = optimize.attempt(of=of, plan=(steps.CAPTURED,))
    assert alone["why"].startswith("it asks the device for a value")  # GCN of PyG
    both = (steps.FAST_LAYERS, steps.CAPTURED)
    attempted = optimize.attempt(of=of, plan=both)
    assert attempted["why"] is None
    assert {equivalence.YOUR_GRAPH, equivalence.SAME_SIZE} <= {*attempted["checked"]["passed"]}
    assert optimize._race(of, (), both, processes=1, seconds=0.3, memory=True).memory.ratio.value > 0


def test_edges_that_go_in_are_a_reason_in_the_report_of_optimize(module):
    of = (f"{module}:gcn", GRAPH, False, "cuda")
    assert optimize.examine(of=of, names=[steps.CAPTURED])["inapplicable"] == {steps.CAPTURED: captured.EDGES}


def test_optimize_finds_and_writes_a_captured_model(module, tmp_path, monkeypatch):
    names = [steps.FAST_LAYERS, "inference mode", steps.CAPTURED]
    report = optimize.optimize(f"{module}:sage_on_graph", GRAPH, device="cuda", processes=1, only=names)
    assert steps.CAPTURED in report.plan and report.gain.value > 1, report.tried
    assert report.facts["device"] in "\n".join(written._head(report))
    Path(tmp_path / "fast_on_cuda.py").write_text(written.module_text(report))
    monkeypatch.syspath_prepend(str(tmp_path))
    fast, own = (models.build(f"{name}", GRAPH) for name in ("fast_on_cuda:make", f"{module}:sage_on_graph"))
    with torch.no_grad():
        out = fast.model.eval()(fast.batch["x"].cuda())
        assert parity.error(out, own.model.eval()(own.batch["x"])) <= 1e-4


def test_growth_and_what_others_write_run_on_the_card():
    for phase in growth.PHASES:
        variants = growth.variants("SAGE", 300, 1200, phase, "cuda")
        raced = versus(*variants, processes=1, seconds=0.1, mode="plain", tolerance=1e-4, memory=True)
        assert raced.device == "cuda:0" and raced.memory.ratio.value > 0
    x, edge_index = drawn()
    variants = variants_of(SAGEConv(16, 8).cuda().eval(), edge_index, 200, ["EdgeIndex", "sparse CSR", "captured"], x=x)
    raced = race.race_variants(variants, {"x": x}, mode="plain", tolerance=1e-4, budget_s=0.1)
    assert {name: raced[name].reason for name in ("gnnlab", "gnnlab, captured")} == {
        "gnnlab": None,
        "gnnlab, captured": None,
    }


def test_training_loops_of_notebook_03_run_in_float32_and_in_float16():
    data = tables.synthetic(2000)
    training, validation = data.split(0.25, seed=0)
    fields, targets = training.fields.cuda(), {name: column.cuda() for name, column in training.targets.items()}
    criteria = {"classes": nn.functional.cross_entropy, "labels": nn.functional.binary_cross_entropy_with_logits}

    def epoch(model, optimizer, scaler, batches, low=None):
        losses = []
        for rows in (rows.cuda() for rows in batches):
            with torch.autocast("cuda", low, enabled=low is not None):
                outputs = model(fields[rows])
                loss = sum(criteria[spec.kind](outputs[spec.name], targets[spec.name][rows]) for spec in data.specs)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def model():
        return interactions.DeepFM(
            data.cardinalities, data.specs, interactions=interactions.symmetric_gram, embedding_dim=8
        )

    half = torch.float16
    loops = {"full": Loop(epoch, model, torch.optim.AdamW)}
    loops["half"] = Loop(lambda *given: epoch(*given, low=half), model, torch.optim.AdamW, half)
    raced = race_loops(loops, training, validation, seeds=2, epochs=1, batch_size=256, control="full", device="cuda")
    assert not raced.missing and (raced.epochs["ms"] > 0.1).all()
    assert (raced.memory()["samples"].map(min) > 0).all()
