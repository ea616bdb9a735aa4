"""Every clock waits for the device, whatever device it was told of; a device of a test works through its calls late."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gnnlab.measure import conditions, race, restore, timing
from gnnlab.measure.tensors import device_of
from gnnlab.profile import runtime
from gnnlab.user_code import forked_random

WORK_S = 0.02


class LateDevice:
    """Calls only queue their work; whoever waits, waits until it is done. `now` is the time on its clock, s."""

    def __init__(self):
        self.now, self.queued = 0.0, 0.0

    def clock(self):
        return self.now

    def work(self, *_):
        self.now += 1e-5  # for the launch
        self.queued += WORK_S

    def synchronize(self, device=None):
        self.now += self.queued
        self.queued = 0.0


@pytest.fixture
def device(monkeypatch):
    late = LateDevice()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", late.synchronize)
    return late


@pytest.mark.parametrize("named", [None, "cpu", "cuda"])
def test_every_clock_has_the_time_of_the_work_and_not_that_of_the_launch_nor_of_the_set_up(device, named):
    options = {"device": named, "clock": device.clock}
    one = timing.measure(device.work, budget_s=1.0, **options).median_ms
    prepared = timing.measure(device.work, setup=device.work, budget_s=0.5, **options).median_ms
    several = timing.sample(device.work, runs=3, **options)
    raced = timing.race({"a": device.work, "b": device.work}, budget_s=1.0, **options)
    for ms in (one, prepared, *several, raced["a"].median_ms, raced["b"].median_ms):
        assert ms == pytest.approx(1e3 * WORK_S, rel=0.01)
    assert timing.control_differences(device.work, repeats=1, budget_s=0.5, **options)[0] < 1


def test_a_stopwatch_counts_neither_earlier_work_nor_leaves_out_its_own(device):
    device.work()
    with timing.stopwatch(device.clock) as took:
        device.work()
        assert took.s == pytest.approx(WORK_S, rel=0.01)
        device.work()
    device.work()
    assert took.s == pytest.approx(2 * WORK_S, rel=0.01)


def test_a_process_that_has_not_used_cuda_never_starts_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("CUDA was started"))
    assert timing.measure(lambda: None, budget_s=0.01).n >= 6


def test_the_functions_of_s1_and_the_race_of_variants_wait_too(device, monkeypatch):
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: waits.append(1))
    model, x = torch.nn.Linear(3, 2), torch.ones(4, 3)
    runtime.profile_training_step(model, (x,), num_runs=2, warmup_runs=0)
    assert len(waits) == 4  # before and after each
    raced = race.race_variants({"a": model, "b": model}, (x,), budget_s=0.01)
    assert len(waits) > 4 + 2 * 3 * len(raced["a"].times_ms) and raced["b"].device == "cpu"


def test_models_batches_and_races_are_where_any_of_their_tensors_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(race, "_error", lambda *_: race.Deviation(0.0))  # these have no values to compare
    on_cpu = torch.ones(2)
    assert device_of(torch.nn.Linear(2, 2), [on_cpu]).type == device_of().type == "cpu"
    assert device_of(on_cpu, torch.nn.Linear(2, 2, device="meta")).type == "meta"
    with FakeTensorMode():
        on_card = torch.ones(2, device="cuda")
        assert device_of({"ptr": on_cpu, "x": on_card}).type == device_of(on_cpu, [(on_card,)]).type == "cuda"
        raced = race.race_variants({"a": lambda: on_card + 1, "b": lambda: 1 + on_card}, (), budget_s=0.01)
    assert {each.device for each in raced.values()} == {"cuda:0"}


@pytest.fixture
def own_precision():
    before = conditions.products()
    yield
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.set_float32_matmul_precision(before)


def test_tf32_is_seen_whichever_way_it_was_switched_on(own_precision):
    torch.backends.cuda.matmul.allow_tf32 = True
    assert conditions.products() == "high"
    torch.set_float32_matmul_precision("highest")
    assert conditions.products() == "highest"
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # after which torch refuses to tell the precision of all
    assert conditions.products() == conditions.Conditions.now().precision == "high"


def test_random_states_of_a_cuda_that_is_in_use_are_put_back(monkeypatch):
    states, put_back = [torch.zeros(3, dtype=torch.uint8), torch.ones(3, dtype=torch.uint8)], {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: put_back.update({device: state}))
    with restore.ProfilingContext(torch.nn.Linear(1, 1)):
        assert not put_back
    assert put_back == {0: states[0], 1: states[1]}


def test_what_was_asked_of_a_cuda_that_is_not_in_use_yet_is_asked_again(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", asked.append)
    torch.manual_seed(7)
    with forked_random(3):
        first = torch.rand(2)
    assert asked == [7, 3, 7] and torch.initial_seed() == 7
    with forked_random(3):
        assert torch.equal(torch.rand(2), first)
