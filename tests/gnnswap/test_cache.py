import copy
import gc
import pickle
import random
import sys
import threading
import weakref
from collections import namedtuple
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gnnswap.cache import MIB, OBJECT_BYTES, BoundedDict, Snapshot, TensorCache, nbytes_of


@pytest.fixture
def eager_switches():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work, count=8):
    """Run `work(number)` in threads at once; what it raises is raised here."""
    raised = []

    def guarded(number):
        try:
            work(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def kept(cache, *tensors, key="a"):
    """Is there a value of these tensors?"""
    made = []
    cache.get(tensors, key, lambda: made.append(1))
    return not made


def test_what_was_computed_is_kept_until_a_tensor_is_written_to():
    cache, calls = TensorCache(), []
    tensor = torch.zeros(3)

    def compute():
        calls.append(1)
        return tensor.clone()

    first = cache.get((tensor,), "a", compute)
    assert cache.get((tensor,), "a", compute) is first and len(calls) == 1
    assert cache.get((tensor,), "b", compute) is not first and len(calls) == 2
    tensor.add_(1)
    assert torch.equal(cache.get((tensor,), "a", compute), tensor) and len(calls) == 3
    tensor.set_(torch.ones(2))
    assert torch.equal(cache.get((tensor,), "a", compute), tensor)
    other = torch.ones(2)  # all tensors that a value was computed from are looked at
    first = cache.get((tensor, other), "sum", lambda: tensor + other)
    assert cache.get((tensor, other), "sum", lambda: tensor + other) is first
    other.mul_(3)
    assert cache.get((tensor, other), "sum", lambda: tensor + other).tolist() == [4, 4]


def stepped_by_a_fused_optimizer(tensor):
    weight = nn.Parameter(tensor.data)  # the same memory
    weight.grad = torch.ones_like(weight)
    torch.optim.Adam([weight], lr=0.1, fused=True).step()


HIDDEN_WRITES = {
    "data.copy_": lambda tensor: tensor.data.copy_(torch.rand_like(tensor)),
    "a numpy view": lambda tensor: np.copyto(tensor.numpy(), np.random.rand(*tensor.shape)),
    "a fused optimizer": stepped_by_a_fused_optimizer,
}
LAYOUTS = {
    "contiguous": torch.rand(40, 50),
    "transposed": torch.rand(50, 40).t(),
    "columns": torch.rand(40, 90)[:, 7:57],
    "steps": torch.rand(80, 50)[1::2],
    "one number": torch.rand(1, 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("write", HIDDEN_WRITES.values(), ids=HIDDEN_WRITES)
def test_writes_behind_torchs_back_are_noticed(write, layout):
    cache, tensor = TensorCache(), LAYOUTS[layout].clone(memory_format=torch.preserve_format)
    for _ in range(3):
        assert not kept(cache, tensor) and kept(cache, tensor)
        version = tensor._version
        write(tensor)
        assert tensor._version == version or layout != "contiguous"


def test_a_change_of_a_share_of_the_numbers_is_missed_as_often_as_stated():
    tensor, missed, trials, share = torch.zeros(10_000), 0, 400, 1 / 64
    for _ in range(trials):
        seen = Snapshot(tensor)
        tensor.data[:: round(1 / share)] += 1
        missed += seen.is_of(tensor)
    expected = (1 - share) ** 64  # 0.365
    assert abs(missed / trials - expected) < 5 * (expected * (1 - expected) / trials) ** 0.5


def test_a_small_tensor_is_compared_whole():
    tensor = torch.zeros(8, 8)
    for place in range(64):
        seen = Snapshot(tensor)
        tensor.data.view(-1)[place] += 1
        assert not seen.is_of(tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.full((100,), torch.nan),
        torch.tensor([-0.0, torch.inf]),
        torch.zeros(0, 3),
        torch.tensor(1.0),
        torch.zeros(70, dtype=torch.bool),
        torch.ones(70, dtype=torch.bfloat16),
        torch.ones(70, dtype=torch.complex64).conj(),
        torch.ones(70, dtype=torch.complex128),
        torch.ones(1, 5).expand(90, 5),
        nn.Parameter(torch.ones(90)),
    ],
    ids=["nan", "signed zero", "empty", "a number", "bool", "bf16", "conjugate", "complex128", "expanded", "parameter"],
)
def test_tensors_of_any_kind_are_known_again(tensor):
    cache = TensorCache()
    assert not kept(cache, tensor) and kept(cache, tensor) and kept(cache, tensor)


def test_another_sign_of_zero_and_another_nan_are_changes():
    tensor = torch.zeros(3)
    seen = Snapshot(tensor)
    tensor.data.neg_()
    assert not seen.is_of(tensor)


def test_the_users_random_numbers_stay_as_they_are():
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    Snapshot(torch.rand(1000, generator=torch.Generator()))
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()


def test_a_cached_tensor_can_still_be_resized_and_its_memory_goes_with_it():
    cache, tensor = TensorCache(), torch.zeros(1000)
    assert not kept(cache, tensor)
    tensor.resize_(2000).zero_()
    assert not kept(cache, tensor) and kept(cache, tensor)
    tensor.untyped_storage().resize_(0)
    assert not kept(cache, torch.zeros(3))
    assert not Snapshot(torch.zeros(3)).is_of(tensor)


def test_an_entry_goes_with_its_tensor_and_a_cache_with_its_owner():
    cache = TensorCache()
    tensor, value = torch.zeros(3), torch.zeros(2)
    watched, watched_value, entries = weakref.ref(tensor), weakref.ref(value), weakref.ref(cache._entries)
    cache.get((tensor,), "a", lambda value=value: value)
    del value
    assert watched_value() is not None
    gc.disable()
    try:
        del tensor
        assert watched() is None and watched_value() is None and len(cache) == 0
        tensor = torch.zeros(3)
        cache.get((tensor,), "a", tensor.clone)
        del cache
        assert entries() is None  # nothing refers to itself
    finally:
        gc.enable()


def test_a_value_that_is_its_own_tensor_is_kept_without_it():
    cache, tensor, other = TensorCache(), torch.zeros(3), torch.ones(3)
    first = cache.get((other, tensor), "a", partial(lambda one: (one, [one * 2, (other, 5)]), tensor))
    again = cache.get((other, tensor), "a", lambda: None)
    assert again[0] is tensor and again[1][0] is first[1][0] and again[1][1][0] is other and again[1][1][1] == 5
    again[1].clear()  # each use has lists of its own
    assert len(cache.get((other, tensor), "a", lambda: None)[1]) == 2
    watched = weakref.ref(tensor)
    del tensor, first, again
    assert watched() is None and len(cache) == 0


Pair = namedtuple("Pair", "first second")
KEEPERS = {
    "itself": lambda tensor: tensor,
    "itself in a tuple": lambda tensor: (tensor, [1]),
    "itself in other containers": lambda tensor: {"a": [(1, Pair(None, tensor))]},
    "a view": lambda tensor: tensor[1:],
    "the same memory": lambda tensor: tensor.detach(),
    "a closure": lambda tensor: lambda: tensor,
    "a method": lambda tensor: tensor.add,
    "an attribute": lambda tensor: type("Kept", (), {"__init__": lambda self: setattr(self, "x", tensor)})(),
    "a gradient's history": lambda tensor: tensor.clone().requires_grad_() * tensor,
}


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("keeper", KEEPERS.values(), ids=KEEPERS)
def test_no_value_keeps_its_own_tensor_alive(keeper, size):
    cache, tensor = TensorCache(), torch.zeros(size)
    cache.get((tensor,), "a", partial(keeper, tensor))
    watched = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert watched() is None and len(cache) == 0


def test_entries_are_bounded_by_bytes_and_the_one_used_last_stays():
    cache, tensors = TensorCache(4 * MIB), [torch.zeros(1) for _ in range(20)]
    for tensor in tensors:
        cache.get((tensor,), "a", lambda: torch.zeros(MIB // 4))
        assert kept(cache, tensors[0])  # used last but one, always
    assert len(cache) == 3 and nbytes_of(cache) <= 4 * MIB
    assert not kept(cache, tensors[1]) and kept(cache, tensors[-1])
    large = torch.zeros(1)
    cache.get((large,), "a", lambda: torch.zeros(2 * MIB))
    assert kept(cache, large) and len(cache) == 1


def test_many_tiny_entries_are_bounded_too():
    cache, tensors = TensorCache(100 * 1024), [torch.zeros(1) for _ in range(1000)]
    for tensor in tensors:
        cache.get((tensor,), "a", dict)
    assert len(cache) <= 100 * 1024 / OBJECT_BYTES


def test_entries_that_grow_are_measured_again():
    cache, tensors = TensorCache(5 * MIB), [torch.zeros(1) for _ in range(4)]
    grown = [cache.get((tensor,), "a", list) for tensor in tensors]
    assert len(cache) == 4
    for tensor, one in zip(tensors, grown, strict=True):  # no other entry comes
        one.append(torch.zeros(MIB // 2))  # 2 MiB
        assert cache.get((tensor,), "a", list) is one
    assert kept(cache, tensors[3]) and len(cache) == 2


def test_what_a_value_holds_is_counted_once():
    tensor = torch.zeros(1000)
    once = nbytes_of([tensor, tensor, tensor[10:]])
    assert 4000 < once < 4000 + 10 * OBJECT_BYTES
    assert nbytes_of(nn.Linear(100, 100)) == 0  # modules belong to the user
    array = np.zeros(1000)
    assert 8000 <= nbytes_of({"a": array, "b": array[3:]}) < 8000 + 10 * OBJECT_BYTES
    cycle = [tensor]
    cycle.append(cycle)
    assert nbytes_of(cycle) < 4000 + 10 * OBJECT_BYTES
    assert nbytes_of([tensor], apart=(Tensor,)) == OBJECT_BYTES
    inner = TensorCache()
    inner.get((tensor,), "a", tensor.clone)
    assert nbytes_of(inner) > 4000


def test_nothing_is_kept_of_what_has_no_version_and_what_is_kept_serves_training():
    cache = TensorCache()
    weight = torch.ones(3)
    with torch.inference_mode():
        inside = torch.ones(3)
        assert cache.get((inside,), "a", inside.clone) is not cache.get((inside,), "a", inside.clone)
        value = cache.get((weight,), "a", lambda: weight * 2)
    assert not value.is_inference()
    assert not kept(cache, torch.eye(3).to_sparse()) and len(cache) == 1


def test_a_value_is_not_kept_when_its_tensor_is_written_to_while_it_is_computed():
    cache, tensor = TensorCache(), torch.zeros(3)
    cache.get((tensor,), "a", lambda: tensor.add_(1).clone())
    assert cache.get((tensor,), "a", tensor.clone).tolist() == [1, 1, 1]


def test_copies_and_pickles_are_empty():
    cache, tensor = TensorCache(3 * MIB), torch.zeros(3)
    cache.get((tensor,), "a", tensor.clone)
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert len(other) == 0 and other.max_bytes == 3 * MIB and not kept(other, tensor)
    cache.forget()
    assert len(cache) == 0


def test_threads_always_get_right_values(eager_switches):
    cache = TensorCache(40 * 1024)  # room for a few
    shared = [torch.full((300,), float(number)) for number in range(12)]

    def work(seed):
        drawn = random.Random(seed)
        for _ in range(300):
            tensor = drawn.choice(shared)
            if drawn.random() < 0.3:
                tensor = tensor.clone()  # which dies at once
            value = cache.get((tensor,), "a", lambda tensor=tensor: tensor * 2)
            assert torch.equal(value, tensor * 2)

    in_threads(work)
    gc.collect()
    assert nbytes_of([entry.value for entry in cache._entries.values()]) <= 40 * 1024


def test_a_dying_tensor_never_waits_for_a_lock():
    """The search for cycles may end a tensor while this thread changes the cache."""
    cache = TensorCache()
    first, second = torch.zeros(3), torch.zeros(3)
    for tensor in (first, second):
        cache.get((tensor,), "a", tensor.clone)
    del tensor
    with cache._entries._lock:
        del first
    assert kept(cache, second) and not kept(cache, torch.zeros(3))
    assert len(cache) == 1


def test_values_that_make_room_are_handed_over_once():
    gone = []
    values = BoundedDict(10, size=lambda value: value, dropped=gone.append)
    for key, value in enumerate((4, 5, 3, 12)):
        values.put(key, value)
    assert gone == [4, 5, 3] and values.values() == [12] and values.get(0) is None
    values.put(3, 7)
    values.discard(3)
    assert gone == [4, 5, 3, 12] and len(values) == 0
