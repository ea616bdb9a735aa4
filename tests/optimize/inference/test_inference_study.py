"""The glue of notebook 08: every option runs and agrees, and what is said follows from planted numbers."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from allocator_cases import node, usual_states
from hypothesis import given
from hypothesis import strategies as st

from gnnlab import Lab
from gnnlab.kernels.errors import OptimizeError
from gnnlab.lab import claims, parameters, rules, table
from gnnlab.optimize.inference import engines, guide_exports, pruning
from gnnlab.optimize.inference import options as inference_options
from gnnlab.optimize.inference import study as inference_study
from gnnlab.optimize.inference import study_reading as reading
from gnnlab.optimize.inference import study_rows as rows
from gnnlab.optimize.inference.model_store import ModelStore
from gnnlab.optimize.inference.options import (
    CACHED,
    CUDA,
    GUIDE,
    GUIDE_CUDA,
    GUIDE_KNOWN,
    ONNX,
    ONNX_11,
    ORIGINAL,
    PREDICTOR,
    PREDICTOR_CACHED,
    SCRIPTED,
    TRACED,
    Option,
)
from gnnlab.optimize.inference.predictor import Decision, OriginalPredictor
from gnnlab.optimize.inference.study import BATCHED, GATHERED, HIT, MISS, NO_CACHE, ONE_BY_ONE
from gnnlab.profiling.estimates import Estimate
from gnnlab.profiling.parity import ParityError
from gnnlab.profiling.races import CONTROL
from gnnlab.workloads.edge_allocator import load, random_state

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "08_optimize_inference.ipynb"
OF_08 = [claim for claim in claims.catalogue().values() if claim.notebook == "08"]


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
    raced = inference_study.latency(options, inference_study.pools([4, 10]), budget_s=0.01)
    batched = inference_study.throughput("dqn", options, states, [2, 12], engines=["fast"], budget_s=0.01)
    gathered = inference_study.concurrent("dqn", states, max_batch=4, budget_s=0.01)
    costs = inference_study.cache_costs("dqn", states[:4], budget_s=0.01)
    return SimpleNamespace(
        options=options, accurate=accurate, raced=raced, batched=batched, gathered=gathered, costs=costs,
        missing=missing, table=reading.summary(raced, accurate, options, 0.01),
    )  # fmt: skip


@pytest.fixture
def lab(tmp_path):
    """Of notebook 08, with its own parameters, writing to a folder of the test."""
    values = {name: declared.default for name, declared in parameters.declared(NOTEBOOK).items()}
    return Lab(NOTEBOOK.stem, {**values, "output_dir": str(tmp_path)})


def conditions(device, precision):
    """As `Lab.conditions` gives them."""
    return {"device": device.upper(), "runtime": "torch", "precision": precision, "threads": 1}


def test_every_option_decides_and_what_is_missing_is_named(made):
    options, missing = made
    absent = {f"rewritten, openvino{precision}" for precision in ("", ", bf16", ", int8")}
    assert set(missing) == {*absent, SCRIPTED} and all("no such library" in missing[name] for name in absent)
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
    assert "rewritten, openvino is not here: " in reading.others(missing)
    assert reading.others({}) == "Every option runs here."


def test_an_unknown_compiler_is_refused(tmp_path):
    with pytest.raises(OptimizeError, match="compiler 'tvm': one of compiled, package"):
        inference_options.make("dqn", store=ModelStore(tmp_path), compilers=["tvm"])


def test_exact_options_keep_every_decision_and_the_guides_pruning_does_not(made):
    accurate = inference_study.accuracy(made[0], usual_states(60, nodes=8)).set_index("option")
    assert (accurate.loc[accurate["exact"], "same_share"] == 1).all()
    assert accurate.loc["pruned 30 %", "same_share"] < 1 and set(accurate.loc["pruned 30 %", "same"]) == {0, 1}
    best = accurate.loc[ORIGINAL, "regret"] == 0
    assert accurate.loc[ORIGINAL, "best_share"] == pytest.approx(best.mean())


def test_decisions_are_counted_of_no_option_that_the_count_does_not_run(made):
    """A cache or no_grad has no scores of its own: counting the original's against themselves would say nothing."""
    counted = set(inference_study.accuracy(made[0], usual_states(3))["option"])
    assert not counted & {"no_grad", "graph cache", CACHED, GUIDE, GUIDE_KNOWN, PREDICTOR_CACHED, PREDICTOR + "fast"}
    assert {ORIGINAL, ONNX, TRACED, "rewritten, fast", "bf16"} <= counted
    assert {rows.decides_as(name, option) for name, option in made[0].items()} == counted


def test_an_option_that_is_said_to_be_exact_and_is_not_stops_the_study(made):
    options = dict(made[0])
    options["no_grad"] = Option(options[ORIGINAL].predict, lambda networks: networks.x[:, 0])
    with pytest.raises(ParityError, match="no_grad"):
        inference_study.accuracy(options, usual_states(2))
    options["no_grad"] = Option(lambda state: Decision("x", 0, 99.0), options[ORIGINAL].scores)
    with pytest.raises(ParityError, match="no_grad, 4 nodes"):
        inference_study.latency(options, inference_study.pools([4]), budget_s=0.01)


def test_each_option_is_raced_at_each_size_with_a_control(made, tables):
    for (race, _), cell in tables.raced.groupby(["race", "nodes"]):
        ours = {name for name in made[0] if name.startswith(PREDICTOR)}
        expected = ours if race == "predictors" else set(made[0]) - ours
        assert set(cell["form"]) == {ORIGINAL, CONTROL, *expected} and not cell["form"].duplicated().any()
    assert set(tables.table["option"]) == set(made[0]) - {ORIGINAL}


def test_every_cell_of_every_race_has_a_control_and_forms_of_the_same_rounds(tables):
    races = (tables.raced, ["race", "nodes"]), (tables.batched, ["batch"]), (tables.gathered, ["callers"])
    for table_, keys in (*races, (tables.costs, ["nodes"])):
        for _, cell in table_.groupby(keys):
            assert (cell["form"] == CONTROL).sum() == 1 and len({len(s) for s in cell["samples"]}) == 1
            assert cell["n"].iloc[0] >= 6


def test_batches_and_callers_are_measured_against_one_by_one(tables):
    assert set(tables.batched["form"]) == {ONE_BY_ONE, CONTROL, BATCHED, "predictor, fast"}
    rates = tables.batched
    assert (rates["rate_low"] <= rates["states_per_s"]).all() and (rates["states_per_s"] <= rates["rate_high"]).all()
    forms = [ONE_BY_ONE, CONTROL, GATHERED, PREDICTOR + "one by one", PREDICTOR + GATHERED]
    assert list(tables.gathered["form"]) == forms
    with pytest.raises(OptimizeError, match="a batch of 9 was asked for, there are 2 states"):
        inference_study.throughput("dqn", {}, usual_states(2), [9], engines=[], budget_s=0.01)


def test_engines_of_which_none_was_built_are_refused(made):
    with pytest.raises(
        OptimizeError, match="engines compiled: none of them was built; here are fast, torchscript, onnx"
    ):
        inference_study.throughput("dqn", made[0], usual_states(2), [2], engines=["compiled"], budget_s=0.01)


def test_a_missing_option_is_untestable_with_its_reason(tables):
    table_ = tables.table[tables.table["option"] != ONNX]
    guides = reading.guides_table(table_, tables.batched, tables.gathered, {ONNX: "too old"})
    guides = guides.set_index("guide's option")
    assert guides.loc["ONNX Export", "verdict"] == "untestable here: too old"
    assert "Redis server" in guides.loc["Redis Caching", "verdict"] and len(guides) == len(reading.GUIDES_TABLE)


# ---- rows of the one table and what is judged by them ----


@pytest.fixture
def recorded(lab, tables):
    """A lab with the rows that the notebook records of these tables."""
    described = rows.of_race(tables.raced, tables.options, tables.accurate, 0.01, lab.conditions)
    for race, part in described.groupby("race"):
        lab.record(race, part, keys=["nodes"])
    lab.record("one_state", rows.of_missing(tables.missing, [4, 10]), keys=["nodes"])
    batched = rows.of_race(tables.batched, tables.options, tables.accurate, 0.01, lab.conditions)
    lab.record("batches", batched.replace({"batch": {2: 16, 12: 1024}}), keys=["batch", "nodes"])
    shares, regrets = rows.of_decisions(tables.accurate, tables.options, "5 to 16", lab.conditions)
    lab.record("decisions_kept", shares, keys=["nodes"])
    lab.record("decision_regret", regrets, keys=["nodes"])
    return lab


def test_every_claim_is_judged_by_rows_that_are_there_but_for_those_of_a_gpu(recorded):
    judged = {row.id: row for row in recorded.judged()}
    assert judged.keys() == {claim.id for claim in OF_08}
    for id, row in judged.items():
        if id in ("infer.gpu", "infer.gpu_headline"):
            assert row.value is None and "CUDA" in row.why
        else:
            assert row.value is not None and row.low <= row.value <= row.high, (id, row.why)
    assert "int8" in judged["infer.quantized"].conditions
    assert judged["infer.cached"].value != judged["infer.cache_headline"].value


def test_what_is_said_is_what_is_judged(recorded, tables):
    judged = {row.id: row for row in recorded.judged()}
    assert judged["infer.onnx"].value == pytest.approx(reading.gains(tables.raced)[ONNX].value)
    assert judged["infer.batch"].value == pytest.approx(reading.gains(tables.batched, "gain")[BATCHED].value)


def test_kept_decisions_are_a_share_of_the_states_and_regret_is_a_row_of_its_own(recorded, tables):
    for row in recorded.study("decisions_kept").rows:
        samples = recorded.table.samples_of(row)
        assert row.statistic == "share" and row.unit == "share" and row.n == len(samples) == 12
        assert set(samples) <= {0, 1} and row.value == samples.mean() and row.ratio is None
        assert 0 <= row.low <= row.value <= row.high <= 1 and row.high - row.low > 0.2
    regrets = {row.form: row for row in recorded.study("decision_regret").rows}
    assert all(row.origin == "simulated" and row.unit == "ms" and row.n == 12 for row in regrets.values())
    assert regrets[ORIGINAL].value == tables.accurate.set_index("option").loc[ORIGINAL, "regret_ms"]


def test_rows_name_the_runtime_and_threads_that_compute(recorded):
    forms = {row.form: row for row in recorded.study("one_state").rows if row.keys["nodes"] == 4}
    assert forms[ONNX].runtime.startswith("onnxruntime") and forms[ONNX].threads == 1
    assert forms["rewritten, fast"].runtime.startswith("numpy") and forms[ORIGINAL].runtime.startswith("torch")
    assert forms["bf16"].precision == "bfloat16" and forms["int8, dynamic"].precision == "int8"


def test_what_fails_is_a_row_of_its_own_with_the_error_in_one_line(recorded):
    row = next(row for row in recorded.study("one_state").rows if row.form == SCRIPTED)
    assert row.status == "failed" and row.n == 0 and "\n" not in row.reason
    assert row.reason.startswith("torch.jit.script(model) fails on this model: NotSupportedError")
    traced = next(row for row in recorded.study("one_state").rows if row.form == TRACED)
    assert row.reason in traced.notes  # and so in the ledger


def test_an_option_that_changes_more_decisions_than_the_bound_says_so_in_its_row(tables):
    planted = tables.accurate.copy()
    pruned = planted["option"] == "pruned 30 %"
    planted.loc[pruned, ["same_share", "same_low", "same_high"]] = [0.8, 0.75, 0.85]
    found = rows.of_race(tables.raced, tables.options, planted, 0.01, conditions).set_index("form")["notes"]
    assert "changes 20.0% of the decisions (15.0% to 25.0%), the bound is 1%" in found["pruned 30 %"].iloc[0]
    within = rows.of_race(tables.raced, tables.options, planted, 0.25, conditions).set_index("form")["notes"]
    assert not any("decisions" in note for note in within["pruned 30 %"].iloc[0])
    assert not any("decisions" in note for note in found["no_grad"].iloc[0])


def test_the_rules_name_forms_that_exist_and_goals_choose_among_the_exact_predictors(tables):
    known = {*tables.options, *tables.missing, BATCHED, CUDA, GUIDE_CUDA}
    known |= {PREDICTOR + name for name in ("openvino", "compiled", "package")}
    for claim in OF_08:
        forms = claim.of.form if isinstance(claim.of.form, list) else [claim.of.form]
        assert set(forms) <= known, claim.id
        if claim.is_goal:
            assert set(forms) == {PREDICTOR + name for name in ("fast", "onnx", "openvino", "compiled", "package")}


def test_a_form_on_a_gpu_is_judged_over_the_original_on_the_cpu():
    shared = {"study": "one_state", "keys": {"nodes": 10}, "unit": "ms", "better": "lower", "origin": "measured",
              "statistic": "median", "interval": "95 % confidence", "n": 12, "runtime": "torch", "precision": "float32",
              "threads": 1}  # fmt: skip
    rng, rows_ = np.random.default_rng(0), table.Table()
    for form, device, ms in ((ORIGINAL, "CPU x", 10.0), (CONTROL, "CPU x", 10.0), (CUDA, "CUDA y", 2.0)):
        over = {} if form == ORIGINAL else {"baseline": ORIGINAL, "ratio": 10.0 / ms}
        samples = ms * rng.uniform(0.99, 1.01, 12)
        row = table.row(**shared, **over, form=form, device=device, value=ms, low=0.9 * ms, high=1.1 * ms)
        rows_.put(row, samples)
    found = rules.evaluate(claims.catalogue()["infer.gpu"], rows_)
    assert found.estimate.value == pytest.approx(5, rel=0.02) and found.rows[0].device == "CUDA y"


@given(st.lists(st.tuples(*[st.floats(0.1, 100)] * 3), min_size=6, max_size=20))
def test_the_ratio_of_throughputs_is_that_of_the_means_and_lies_in_its_interval(times):
    names = (ONE_BY_ONE, CONTROL, BATCHED)
    raced = pd.DataFrame({"batch": 8, "form": names, "samples": list(np.array(times).T)})
    raced["baseline"] = [None, ONE_BY_ONE, ONE_BY_ONE]
    found = inference_study.with_gains(raced, "batch").set_index("form")
    row = found.loc[BATCHED]
    base, batched = found.loc[ONE_BY_ONE, "samples"], row["samples"]
    assert row["gain"] == pytest.approx(base.mean() / batched.mean())
    assert row["gain_low"] <= row["gain"] <= row["gain_high"]


# ---- the guide's model as the guide exports it ----


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Each export of the hybrid, which has a graph: options by name, and what does not work."""
    model, store = load("hybrid"), ModelStore(tmp_path_factory.mktemp("exports"))
    found, failed = {}, {}
    for name, build in inference_options._builders("hybrid", model, store, []).items():
        if name in inference_options.CALLS:
            try:
                found |= build()
            except OptimizeError as error:
                failed[name] = str(error)
    return found, failed


@pytest.mark.parametrize("name", [TRACED, ONNX])
def test_an_export_of_the_guides_model_scores_networks_of_sizes_it_was_not_made_from(exports, name):
    original = OriginalPredictor("hybrid")
    alone = {"nodes": [node()], "links": []}
    for state in (alone, random_state(2, 0), random_state(10, 1), random_state(200, 2)):
        expected, got = original.predict(state), exports[0][name].predict(state)
        assert got.node == expected.node and got.score == pytest.approx(expected.score, rel=1e-4)


def test_the_export_at_the_guides_opset_is_refused_as_it_computes_something_else(exports):
    """Opset 11 has no scatter that adds: no error, and other scores."""
    assert "computes something else on this model" in exports[1][ONNX_11]
    assert exports[1][SCRIPTED].startswith("torch.jit.script(model) fails on this model")


def test_the_guides_rows_hold_no_rewrite_of_the_model(monkeypatch, tmp_path):
    def rewritten(*_, **__):
        raise AssertionError("the guide's model was rewritten")

    monkeypatch.setattr(engines, "FlatAllocator", rewritten)
    model, x, edges = load("dqn"), torch.rand(5, 7), torch.tensor([[0, 1], [1, 0]])
    for made in (guide_exports.traced(model), guide_exports.onnx(model, ModelStore(tmp_path))):
        assert torch.allclose(made.layers(x, edges), model(x, edges), atol=1e-5)


def test_a_known_state_is_answered_without_computing_and_another_is_not():
    original, calls = OriginalPredictor("dqn"), []
    forward = original.forward
    original.forward = lambda data: calls.append(1) or forward(data)
    state = random_state(6, 0)
    other = {**state, "nodes": [{**state["nodes"][0], "cpu_util": np.nextafter(state["nodes"][0]["cpu_util"], 1)}]}
    other["nodes"] += state["nodes"][1:]
    cache = inference_options._answers(10)
    scripts = inference_options._guides_scripts(original)
    for predict in (lambda s: inference_options._with_answer_cache(original, cache, s), scripts[GUIDE_KNOWN].predict):
        calls.clear()
        first = predict(state)
        assert predict(state) == first and len(calls) == 1
        predict(other)
        assert len(calls) == 2
    calls.clear()
    for asked in (state, other, state):
        scripts[GUIDE].predict(asked)
    assert len(calls) == 3  # it has room for one


def test_the_options_of_a_device_decide_as_the_original():
    state = random_state(8, 3)
    expected = OriginalPredictor("dqn").predict(state)
    for name, option in inference_options._on_device("dqn", "cpu").items():
        assert option.predict(state).node == expected.node, name


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
        reading.options_title(tables.table),
        reading.predictors_title(tables.table),
        reading.pareto_title(tables.table),
        reading.throughput_title(tables.batched),
        reading.batches(tables.batched, tables.batched),
        reading.gathered(tables.gathered),
        reading.what_when(tables.table, tables.batched, tables.costs, 5),
    ]
    assert all(texts) and not any("nan" in text for text in texts)
    assert (used["rise_mib"] > 0).all() and engine_costs["first_call_ms"].notna().all()
    assert len(reading.for_readers(tables.table)) == len(tables.table)


# ---- planted numbers ----


def planted(**options):
    """A summary: option -> (ratio, share of equal decisions); exact where that share is 1."""
    rows = [
        {"option": name.replace("__", ", ").replace("_", " "), "ratio": ratio, "ci_low": ratio * 0.9,
         "ci_high": ratio * 1.1, "same_share": same, "same_low": same, "same_high": same, "exact": same == 1}
        for name, (ratio, same) in options.items()
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_the_front_holds_what_nothing_beats_in_both():
    table = planted(
        predictor__fast=(6.0, 1.0), predictor__onnx=(4.0, 1.0), half_the_channels=(8.0, 0.99), bf16=(0.7, 0.99)
    )
    points = reading.trade(table).set_index("option")
    assert points.index[points["front"]].tolist() == ["predictor, fast", "half the channels"]
    assert reading.best_exact(table) == "predictor, fast"
    title = reading.pareto_title(table)
    assert (
        title.startswith("“predictor, fast” is 6.0 times as fast")
        and "“half the channels” is faster and changes 1.0 %" in title
    )
    near = planted(predictor__fast=(6.0, 1.0), half_the_channels=(6.5, 0.99))  # their intervals overlap
    slower = planted(predictor__fast=(6, 1), bf16=(5, 0.9))
    for other in (near, slower):
        assert "nothing that changes some is seen to be faster" in reading.pareto_title(other)


def test_torchscript_and_caches_are_never_the_advice():
    table = planted(predictor__torchscript=(9.0, 1.0), predictor__cached=(20.0, 1.0), predictor__fast=(6.0, 1.0))
    assert reading.best_exact(table) == "predictor, fast"
    assert PREDICTOR_CACHED not in set(reading.trade(table)["option"])


@pytest.mark.parametrize(
    ("ci", "same", "exact", "expected"),
    [
        ((1.1, 1.3), (1.0, 1.0), True, "faster"),
        ((0.9, 1.1), (1.0, 1.0), True, "no difference seen"),
        ((0.5, 0.9), (0.995, 0.999), False, "slower"),
        ((0.5, 0.9), (0.99, 0.999), False, "slower"),
        ((1.1, 1.3), (0.985, 0.995), False, "faster; may change 1.5% of the decisions (0.5% to 3.0%), the bound is 1%"),
        ((1.1, 1.3), (0.9, 0.95), False, "faster; changes 10.0% of the decisions (5.0% to 20.0%), the bound is 1%"),
    ],
)
def test_a_verdict_names_changed_decisions_beyond_the_bound(ci, same, exact, expected):
    row = {"exact": exact, "same_share": same[0], "same_high": same[1], "same_low": 2 * same[0] - 1}
    assert reading.verdict(Estimate(sum(ci) / 2, *ci, 9), row, 0.01) == expected


@pytest.mark.parametrize(
    ("hit", "miss", "share"), [(50, 110, 1 / 6), (50, 95, 0.0), (120, 130, np.nan), (50, 100, 0.0)]
)
def test_a_cache_pays_from_the_share_at_which_hits_make_up_for_misses(hit, miss, share):
    costs = pd.DataFrame({"form": [NO_CACHE, HIT, MISS], "value": [0.1, hit / 1e3, miss / 1e3]})
    assert reading.breaks_even(costs) == pytest.approx(share, nan_ok=True)
    assert ("at no share" in reading.cache(costs, 10)) == bool(np.isnan(share))


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
    ours = set(made[0]) | {BATCHED, GATHERED, None, CUDA, GUIDE_CUDA}
    assert {option for *_, option in reading.GUIDES_TABLE} <= ours
    assert {GUIDE, CACHED, PREDICTOR + "fast"} <= set(made[0])
