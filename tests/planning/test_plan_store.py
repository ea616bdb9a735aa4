"""Compiled plans read back as they were written, and answer for sizes between those of their classes, no others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_costs import UNITS, Synthetic

from gnnlab.errors import GnnlabError
from gnnlab.files import read_sealed, write_json, write_sealed
from gnnlab.planning import store as plan_store
from gnnlab.planning.calibration import Calibration, Stream
from gnnlab.planning.costs import Model
from gnnlab.planning.planning import Planner
from gnnlab.planning.plans import Space
from gnnlab.planning.simulation import Machine
from gnnlab.prediction.measured import Hull
from gnnlab.workloads.graphsage import sage

LAYER = sage(16)
SIZES = [(1000, 1000), (1000, 10_000), (10_000, 10_000)]


def planner(streams=(), **costs):
    calibration = Calibration({"sums beside sums": 1.1}, streams)
    return Planner(
        Model(LAYER, Synthetic(layer=LAYER, **costs)),
        Space(UNITS, unable={"NPU": {3, 4}}),
        Machine(2, frozenset({"GPU", "NPU"}), calibration.contention),
        calibration=calibration,
        max_blocks=3,
        draws=50,
    )


@pytest.fixture(scope="module")
def compiled():
    made = planner()
    return plan_store.compile(made, SIZES, fingerprint=plan_store.fingerprint_of(made, "a"))


def test_what_is_written_reads_back_and_a_stale_file_is_not_used(compiled, tmp_path):
    path = tmp_path / "plans.json"
    plan_store.write(path, compiled)
    assert plan_store.read(path) == plan_store.read(path, plan_store.fingerprint_of(planner(), "a")) == compiled
    for other in (
        plan_store.fingerprint_of(planner(), "b"),
        plan_store.fingerprint_of(planner(streams=(Stream("9/9", "a plan", True, 0.5, True, 0.1),)), "a"),
    ):
        with pytest.raises(GnnlabError, match="compiled from other"):
            plan_store.read(path, other)


@pytest.mark.parametrize("size", SIZES)
def test_at_a_class_the_choice_is_that_of_the_ranking(compiled, size):
    ranking, choice = planner().rank(*size), compiled.choose(*size)
    assert choice.plan == ranking.chosen and choice.ms == pytest.approx(ranking.ms[ranking.place(choice.plan)])
    assert choice.low <= choice.ms <= choice.high and choice.table["chosen"].sum() == 1
    assert (choice.table["units"] == 1).any()


def test_between_classes_times_lie_between_theirs(compiled):
    ends = [compiled.choose(1000, edges).table.set_index("plan")["ms"] for edges in (1000, 10_000)]
    middle = compiled.choose(1000, 3162).table.set_index("plan")["ms"]
    both = np.sort(np.array([end.loc[middle.index] for end in ends]), axis=0)
    assert ((both[0] <= middle) & (middle <= both[1])).all()
    assert compiled.choose(1000, 3162).origin == compiled.choose(3000, 9000).origin == "interpolated"


@pytest.mark.parametrize("size", [(999, 1000), (10_000, 9000), (20_000, 20_000), (2000, 11_000), (0, 10), (1000, 0)])
def test_a_size_outside_the_classes_is_refused_in_one_line(compiled, size):
    with pytest.raises(GnnlabError, match="outside the sizes") as error:
        compiled.choose(*size)
    assert "\n" not in str(error.value)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=8, unique=True), st.data())
def test_linear_functions_are_interpolated_exactly_inside_any_points(points, data):
    points = np.array(points, float)
    share = np.array(data.draw(st.lists(st.floats(0.01, 1), min_size=len(points), max_size=len(points))))
    at = share / share.sum() @ points
    weights, beyond = Hull(np.exp(points)).weights(np.exp([at, points.max(axis=0) + 1]))
    assert weights.sum() == pytest.approx(1) and (weights >= 0).all()
    np.testing.assert_allclose(weights @ points, at, atol=1e-4)
    assert np.isnan(beyond).all()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data | {"schema_version": 2},
        lambda data: data | {"classes": []},
        lambda data: data | {"plans": data["plans"][:-1]},
        lambda data: data | {"plans": ["no plan", *data["plans"][1:]]},
        lambda data: data | {"classes": [data["classes"][0] | {"ms": [-1.0] * len(data["plans"])}]},
        lambda data: data | {"classes": [data["classes"][0] | {"ms": [1.0]}]},
        lambda data: data | {"more": 1},
        lambda data: {name: value for name, value in data.items() if name != "calibration"},
    ],
)
def test_a_file_that_holds_something_else_is_refused_in_one_line(compiled, tmp_path, spoil):
    path = tmp_path / "plans.json"
    plan_store.write(path, compiled)
    spoilt = spoil(read_sealed(path, ""))
    for write, words in ((write_sealed, "compile them anew"), (write_json, "not believed")):  # whoever spoilt it
        write(path, spoilt)
        with pytest.raises(GnnlabError, match=words) as error:
            plan_store.read(path)
        assert "\n" not in str(error.value)
    for text in ("{", "[]"):
        path.write_text(text)
        with pytest.raises(GnnlabError, match="is damaged"):
            plan_store.read(path)
    with pytest.raises(GnnlabError, match="could not read"):
        plan_store.read(tmp_path / "none.json")


def test_plans_are_compiled_once_for_what_they_were_made_from(tmp_path):
    path = tmp_path / "plans" / "compiled.json"
    first = plan_store.compiled(path, planner(), SIZES, "tables")
    written = path.stat().st_mtime_ns
    assert plan_store.compiled(path, planner(), SIZES, "tables") == first == plan_store.read(path)
    assert path.stat().st_mtime_ns == written
    assert plan_store.compiled(path, planner(), SIZES, "other tables").fingerprint != first.fingerprint
    assert len(plan_store.compiled(path, planner(), SIZES[:2], "other tables").classes) == 2


def test_nothing_is_compiled_for_no_sizes():
    with pytest.raises(GnnlabError, match="no sizes"):
        plan_store.compile(planner(), [])
