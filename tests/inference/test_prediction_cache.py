"""The cache answers what was put there, within its size and time, and never another state."""

import math
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gnnlab.errors import GnnlabError
from gnnlab.inference.prediction_cache import PredictionCache, key

EDGES = np.array([[0], [0]])


def small_arrays():
    shapes = hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=3)
    return hnp.arrays(st.sampled_from([np.float32, np.float64, np.int64]), shapes, elements=st.integers(0, 2))


@settings(max_examples=300, deadline=None)
@given(*[small_arrays()] * 4, *[st.sampled_from(["", "a", "ab"])] * 2)
def test_keys_are_equal_only_where_type_shape_values_and_model_are(x, other_x, e, other_e, model, other_model):
    def identity(a):
        return a.dtype, a.shape, a.tolist()

    same = (identity(x), identity(e), model) == (identity(other_x), identity(other_e), other_model)
    assert (key(x, e, model) == key(other_x, other_e, other_model)) == same


def test_the_layout_in_memory_does_not_matter_but_the_order_of_links_does_and_objects_are_no_key():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert key(np.asfortranarray(x), EDGES, "m") == key(x, EDGES, "m") == key(np.repeat(x, 2, axis=0)[::2], EDGES, "m")
    links = np.array([[0, 1], [1, 0]])
    assert key(x, links, "m") != key(x, links[:, ::-1], "m")
    with pytest.raises(GnnlabError, match="an array of object cannot be a key"):
        key(np.array([[0.5, "a"]], dtype=object), EDGES, "m")


def test_scores_are_there_until_they_are_removed_and_cannot_be_changed():
    cache, scores = PredictionCache(2, 10), np.array([1.0, 2.0])
    cache.put_many({b"a": scores})
    scores[0] = 99
    cached, missing = cache.get_many([b"a", b"b"])
    assert cached.tolist() == [1.0, 2.0] and missing is None
    with pytest.raises(ValueError, match="read-only"):
        cached[0] = 5
    cache.clear()
    assert cache.get_many([b"a"]) == [None]


def test_many_threads_get_their_own_answers_within_the_size():
    cache, wrong = PredictionCache(50, 10), []

    def work(seed):
        for number in np.random.default_rng(seed).integers(0, 100, size=500).tolist():
            (cached,) = cache.get_many([b"%d" % number])
            if cached is None:
                cache.put_many({b"%d" % number: np.array(number)})
            elif cached != number:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sum(scores is not None for scores in cache.get_many([b"%d" % number for number in range(100)])) == 50


@pytest.mark.parametrize(("entries", "ttl"), [(0, 1), (1.5, 1), (True, 1), (1, 0), (1, math.nan), (1, "1"), (-1, 1)])
def test_invalid_limits_are_refused(entries, ttl):
    with pytest.raises(GnnlabError, match=r"max_entries must be an integer of 1 or more|ttl_s is .* is needed"):
        PredictionCache(entries, ttl)
