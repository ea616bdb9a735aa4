"""The glue of notebook 08: every option runs and agrees, and what is said follows from planted numbers."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from allocator_cases import usual_states

from gnnlab.kernels.errors import OptimizeError
from gnnlab.lab import claims
from gnnlab.optimize.inference import (
    engines,
    pruning,
)
from gnnlab.optimize.inference import (
    options as inference_options,
)
from gnnlab.optimize.inference import (
    study as inference_study,
)
from gnnlab.optimize.inference import (
    study_claims as inference_claims,
)
from gnnlab.optimize.inference import study_reading as reading
from gnnlab.optimize.inference.model_store import ModelStore
from gnnlab.optimize.inference.options import CACHED, GUIDE, ORIGINAL, PREDICTOR, PREDICTOR_CACHED, Option
from gnnlab.optimize.inference.predictor import Decision
from gnnlab.optimize.inference.study import BATCHED, GATHERED, ONE_BY_ONE
from gnnlab.optimize.study import BASELINE, CONTROL, Gain
from gnnlab.profiling.parity import ParityError
from gnnlab.workloads.edge_allocator import load


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The options of the smallest model, with OpenVINO named as missing."""
    patch = pytest.MonkeyPatch()

    def absent(*_):
        raise RuntimeError("no such library")

    for precision in ("float32", "bfloat16", "int8"):
        patch.setitem(engines.BUILDERS, ("openvino", precision), absent)
    with patch.context():
        yield inference_options.make("dqn", store=ModelStore(tmp_path_factory.mktemp("models")), tuning_steps=20)


@pytest.fixture(scope="module")
def tables(made):
    options, missing = made
    states = usual_states(12, nodes=5)
    accurate = inference_study.accuracy(options, states)
    raced = inference_study.latency(options, inference_study.pools([4, 6]), budget_s=0.01)
    batched = inference_study.throughput("dqn", options, states, [2, 12], engines=["fast"], budget_s=0.01)
    gathered = inference_study.concurrent("dqn", states, max_batch=4, budget_s=0.01)
    costs = inference_study.cache_costs("dqn", states[:4], budget_s=0.01)
    return SimpleNamespace(
        accurate=accurate, raced=raced, batched=batched, gathered=gathered, costs=costs, missing=missing,
        table=reading.summary(raced, accurate, 0.01),
    )  # fmt: skip


def test_every_option_decides_and_what_is_missing_is_named(made):
    options, missing = made
    assert set(missing) == {"openvino", "openvino, bf16", "openvino, int8"}
    assert all("no such library" in why for why in missing.values())
    state = usual_states(1)[0]
    expected = options[ORIGINAL].predict(state)
    for name, option in options.items():
        for _ in range(2):  # the second time from the caches
            decision = option.predict(state)
            assert decision.node_id == state["nodes"][decision.node]["node_id"]
            if option.exact:
                assert decision.node == expected.node and decision.score == pytest.approx(expected.score, abs=1e-4), (
                    name
                )
    assert "openvino is not here: " in reading.others(missing) and reading.others({}) == "Every option runs here."


def test_an_unknown_compiler_is_refused(tmp_path):
    with pytest.raises(OptimizeError, match="compiler 'tvm': one of compiled, package"):
        inference_options.make("dqn", store=ModelStore(tmp_path), compilers=["tvm"])


def test_exact_options_keep_every_decision_and_the_guides_pruning_does_not(made):
    accurate = inference_study.accuracy(made[0], usual_states(60, nodes=8)).set_index("option")
    assert (accurate.loc[accurate["exact"], "same_share"] == 1).all()
    assert accurate.loc["pruned 30 %", "same_share"] < 1
    assert (accurate["regret_ms"] >= 0).all() and (accurate["best_share"] <= 1).all()


def test_an_option_that_is_said_to_be_exact_and_is_not_stops_the_study(made):
    options = dict(made[0])
    options["no_grad"] = Option(options[ORIGINAL].predict, lambda networks: networks.x[:, 0])
    with pytest.raises(ParityError, match="no_grad"):
        inference_study.accuracy(options, usual_states(2))
    options["no_grad"] = Option(lambda state: Decision("x", 0, 99.0), options[ORIGINAL].scores)
    with pytest.raises(ParityError, match="no_grad, 4 nodes"):
        inference_study.latency(options, inference_study.pools([4]), budget_s=0.01)


def test_each_option_is_raced_at_each_size_with_a_control(made, tables):
    names = {BASELINE, CONTROL, *made[0]} - {ORIGINAL}
    for _, rows in tables.raced.groupby("nodes"):
        assert set(rows["form"]) == names and not rows["form"].duplicated().any()
    assert set(tables.table["option"]) == set(made[0]) - {ORIGINAL}


def test_batches_and_callers_are_measured_against_one_by_one(tables):
    assert set(tables.batched["form"]) == {ONE_BY_ONE, BATCHED, "predictor, fast"}
    rates = tables.batched
    assert (rates["rate_low"] <= rates["states_per_s"]).all() and (rates["states_per_s"] <= rates["rate_high"]).all()
    assert list(tables.gathered["form"]) == [BASELINE, GATHERED, PREDICTOR + "one by one", PREDICTOR + GATHERED]
    with pytest.raises(OptimizeError, match="a batch of 9 was asked for, there are 2 states"):
        inference_study.throughput("dqn", {}, usual_states(2), [9], engines=[], budget_s=0.01)


def test_engines_of_which_none_was_built_are_refused(made):
    with pytest.raises(
        OptimizeError, match="engines compiled: none of them was built; here are fast, torchscript, onnx"
    ):
        inference_study.throughput("dqn", made[0], usual_states(2), [2], engines=["compiled"], budget_s=0.01)


def test_every_claim_of_the_notebook_has_a_row(tables):
    rows = inference_claims.rows(
        tables.raced, tables.table, tables.accurate, tables.batched, tables.batched, tables.gathered, tables.missing,
        claims.catalogue(),
    )  # fmt: skip
    assert sorted(row["id"] for row in rows) == sorted(e.id for e in claims.catalogue().values() if e.notebook == "08")
    found = {row["id"]: claims.record(**row, notebook="08") for row in rows}
    assert found["infer.redis"].measured is found["infer.gpu"].measured is None
    assert "Redis server" in found["infer.redis"].why and "CUDA" in found["infer.gpu"].why
    assert found["infer.quantized"].precision == "int8" and "same decisions" in found["infer.pruned"].why
    assert "on networks of 4 nodes" in found["goal.infer_single"].why


def test_a_missing_option_is_untestable_with_its_reason(tables):
    table = tables.table[tables.table["option"] != "onnx"]
    rows = inference_claims.rows(
        tables.raced, table, tables.accurate, tables.batched, tables.batched, tables.gathered, {"onnx": "too old"},
        claims.catalogue(),
    )  # fmt: skip
    (row,) = (row for row in rows if row["id"] == "infer.onnx")
    assert row["measured"] is None and "too old" in row["why"]
    guides = reading.guides_table(table, tables.batched, tables.gathered, {"onnx": "too old"}).set_index(
        "guide's option"
    )
    assert guides.loc["ONNX Export", "verdict"] == "untestable here: too old"
    assert "Redis server" in guides.loc["Redis Caching", "verdict"] and len(guides) == len(reading.GUIDES_TABLE)


def test_everything_is_said_of_measured_tables(made, tables):
    parts = inference_study.anatomy("dqn", usual_states(2), budget_s=0.05)
    engine_costs = inference_study.engine_costs(made[0])
    used = inference_study.memory_use("dqn", usual_states(4))
    texts = [
        reading.anatomy(parts),
        reading.engine_costs(engine_costs),
        reading.memory(used),
        reading.cache(tables.costs, 5),
        reading.noise(tables.raced),
        reading.exact_same(tables.accurate),
        reading.options_title(tables.table, tables.accurate),
        reading.pareto_title(tables.table, tables.accurate),
        reading.throughput_title(tables.batched),
        reading.batches(tables.batched, tables.batched),
        reading.gathered(tables.gathered),
        reading.what_when(tables.table, tables.accurate, tables.batched, tables.costs, 5),
    ]
    assert all(texts) and not any("nan" in text for text in texts)
    assert (used["rise_mib"] > 0).all() and engine_costs["first_call_ms"].notna().all()
    assert len(reading.for_readers(tables.table)) == len(tables.table)


# ---- planted numbers ----


def planted(**options):
    """A summary: option -> (ratio, share of equal decisions)."""
    rows = [
        {"option": name.replace("__", ", ").replace("_", " "), "ratio": ratio, "ci_low": ratio * 0.9,
         "ci_high": ratio * 1.1, "same_share": same, "same_low": same, "same_high": same}
        for name, (ratio, same) in options.items()
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    return table, pd.DataFrame({"option": table["option"], "exact": table["same_share"] == 1})


def test_the_front_holds_what_nothing_beats_in_both():
    table, accurate = planted(
        predictor__fast=(6.0, 1.0), predictor__onnx=(4.0, 1.0), half_the_channels=(8.0, 0.99), bf16=(0.7, 0.99)
    )
    points = reading.trade(table, accurate).set_index("option")
    assert points.index[points["front"]].tolist() == ["predictor, fast", "half the channels"]
    assert reading.best_exact(table, accurate) == "predictor, fast"
    title = reading.pareto_title(table, accurate)
    assert (
        title.startswith("“predictor, fast” is 6.0 times as fast")
        and "“half the channels” is faster and changes 1.0 %" in title
    )
    near = planted(predictor__fast=(6.0, 1.0), half_the_channels=(6.5, 0.99))  # their intervals overlap
    slower = planted(predictor__fast=(6, 1), bf16=(5, 0.9))
    for tables in (near, slower):
        assert "nothing that changes some is seen to be faster" in reading.pareto_title(*tables)


def test_torchscript_and_caches_are_never_the_advice():
    table, accurate = planted(
        predictor__torchscript=(9.0, 1.0), predictor__cached=(20.0, 1.0), predictor__fast=(6.0, 1.0)
    )
    assert reading.best_exact(table, accurate) == "predictor, fast"
    assert PREDICTOR_CACHED not in set(reading.trade(table, accurate)["option"])


@pytest.mark.parametrize(
    ("ci", "same", "exact", "expected"),
    [
        ((1.1, 1.3), (1.0, 1.0), True, "faster"),
        ((0.9, 1.1), (1.0, 1.0), True, "no difference seen"),
        ((0.5, 0.9), (0.995, 0.999), False, "slower"),
        ((0.5, 0.9), (0.99, 0.999), False, "slower"),
        ((1.1, 1.3), (0.985, 0.995), False, "faster; may change 1.5% (bound 1.0%)"),
        ((1.1, 1.3), (0.9, 0.95), False, "faster; changes 10.0% (bound 1.0%)"),
    ],
)
def test_a_verdict_names_changed_decisions_beyond_the_bound(ci, same, exact, expected):
    row = {"exact": exact, "same_share": same[0], "same_high": same[1]}
    assert reading.verdict(Gain(sum(ci) / 2, ci, 9, 1), row, 0.01) == expected


@pytest.mark.parametrize(
    ("hit", "miss", "share"), [(50, 110, 1 / 6), (50, 95, 0.0), (120, 130, np.nan), (50, 100, 0.0)]
)
def test_a_cache_pays_from_the_share_at_which_hits_make_up_for_misses(hit, miss, share):
    costs = pd.DataFrame({"form": [BASELINE, "hit", "miss"], "ms": [0.1, hit / 1e3, miss / 1e3]})
    assert reading.breaks_even(costs) == pytest.approx(share, nan_ok=True)
    assert ("at no share" in reading.cache(costs, 10)) == bool(np.isnan(share))


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (10, 10), (5, 10), (999, 1000)])
def test_the_interval_of_a_share_holds_it_and_stays_a_share(hits, trials):
    low, high = inference_study.share_interval(hits, trials)
    assert 0 <= low <= hits / trials <= high <= 1 and high - low > 0


def test_nineteen_of_twenty_intervals_of_a_share_hold_the_truth():
    hits = np.random.default_rng(0).binomial(200, 0.97, 400)
    held = [low <= 0.97 <= high for low, high in (inference_study.share_interval(int(h), 200) for h in hits)]
    assert np.mean(held) > 0.92


# ---- pruning ----


def test_pruning_single_weights_sets_the_smallest_to_zero_and_leaves_the_model():
    model = load("hybrid")
    before = engines.fingerprint(model)
    pruned = pruning.unstructured(model, 0.3)
    assert pruning.zeros(pruned) == pytest.approx(0.3, abs=0.01) and engines.fingerprint(model) == before
    weight, kept = model.layers[0].lin_l.weight.detach(), pruned.layers[0].lin_l.weight.detach() != 0
    assert weight[~kept].abs().max() <= weight[kept].abs().min()


def test_pruning_channels_leaves_a_smaller_model_and_tuning_brings_its_scores_nearer():
    model, networks = load("hybrid"), inference_study.NetworkArrays.of(usual_states(30))
    made = [
        pruning.structured(model, keep, steps=steps) for keep, steps in ((1.0, 0), (0.5, 40), (0.125, 0), (0.125, 40))
    ]
    expected, whole, half, rough, tuned = (engines.make("eager", m)(networks) for m in (model, *made))
    assert np.array_equal(whole, expected)
    sizes = [sum(p.numel() for p in m.parameters()) for m in (model, *made)]
    assert sizes[2] < 0.35 * sizes[0] and sizes[3] < 0.1 * sizes[0]
    assert (networks.decide(half) == networks.decide(expected)).mean() > 0.8
    assert np.abs(tuned - expected).mean() < np.abs(rough - expected).mean()


def test_tuning_is_the_same_every_time_and_leaves_random_numbers_alone():
    model = load("dqn")
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    made = [pruning.structured(model, 0.25, steps=5) for _ in range(2)]
    assert torch.equal(torch.rand(1), expected)
    assert engines.fingerprint(made[0]) == engines.fingerprint(made[1])


@pytest.mark.parametrize("share", [0, -1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    for prune in (pruning.unstructured, pruning.structured):
        with pytest.raises(OptimizeError, match="above 0 and up to 1"):
            prune(load("dqn"), share)


def test_the_guides_names_are_options_of_ours(made):
    ours = set(made[0]) | {BATCHED, GATHERED, None, inference_options.GPU}
    assert {option for *_, option in reading.GUIDES_TABLE} <= ours
    assert {GUIDE, CACHED, PREDICTOR + "fast"} <= set(made[0])
