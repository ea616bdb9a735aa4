"""The glue of notebook 03: what is raced is equal, what is read and recorded follows planted numbers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from gnnlab import Lab
from gnnlab.lab import parameters
from gnnlab.lab.claims import catalogue
from gnnlab.optimize import interactions
from gnnlab.optimize.interactions.choice import Choices
from gnnlab.optimize.study import BASELINE, CONTROL, Conditions, races
from gnnlab.optimize.training import study as cases
from gnnlab.optimize.training import study_reading as training_reading
from gnnlab.optimize.training import study_rows as to_rows
from gnnlab.optimize.training.recipe import Recipe
from gnnlab.optimize.training.study import AFTER, BEFORE, LOW, OURS, TABLE
from gnnlab.optimize.training.study_rows import CHOSEN, EQUAL, MARGIN, SIZE, KnownScores
from gnnlab.profiling import estimates
from gnnlab.profiling.estimates import Estimate
from gnnlab.profiling.parity import relative_error
from gnnlab.workloads.planted_table import planted
from gnnlab.workloads.vocabulary import TableError

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "03_fm_amp_training.ipynb"
CELL = {"fields": 4, "batch": 64, "dim": 8}


@pytest.fixture(scope="module", autouse=True)
def eager_forms():
    """Nothing is compiled here, and a choice is quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interactions, "FORMS", interactions.EAGER)
        patch.setattr(interactions, "CHOICES", Choices(interactions.EAGER, budget_s=0.01))
        yield


@pytest.fixture(scope="module")
def racing():
    return {"budget_s": 0.01, "installed": Conditions.now(), "ours": Conditions.now()}


@pytest.fixture(scope="module")
def data():
    return planted(300)


@pytest.fixture(scope="module")
def few(racing):
    return races(cases.fm(4, [8, 32], [6]), **racing)


@pytest.fixture(scope="module")
def loss(data, racing):
    return races([cases.loss_forms(data, 64)], **racing)


def rounds(baseline_ms, ms, n=12, seed=0):
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.02, (n, 2)))
    return np.array([baseline_ms, ms]) * noise


def epochs(seconds, scores, num_seeds=3, num_epochs=2):
    """A table of raced epochs: seconds of each loop, and its score in the last epoch of each seed."""
    rows = [
        {
            "loop": loop,
            "seed": seed,
            "epoch": epoch + 1,
            "seconds": time * (1 + 0.01 * seed),
            "score": scores[loop][seed],
        }
        for loop, time in seconds.items()
        for seed in range(num_seeds)
        for epoch in range(num_epochs)
    ]
    return pd.DataFrame(rows)


SCORES = {BEFORE: [0.5, 0.6, 0.7], AFTER: [0.5, 0.6, 0.7], OURS: [0.5, 0.6, 0.7], LOW: [0.51, 0.59, 0.7]}
SCORES[CONTROL] = SCORES[OURS]
SECONDS = {BEFORE: 4.0, AFTER: 3.0, OURS: 1.0, CONTROL: 1.0, LOW: 0.5}
MEMORY = pd.DataFrame({"loop": [OURS, LOW], "step": 0, "mib": [30.0, 20.0]})
KNOWN = KnownScores(constant=0.3, best=0.7)  # the mean of 0.6 is three quarters of the way


def loops_on(device):
    """Loops as they would be on a device, none of which is run. A CPU here may have no bf16, a machine no CUDA."""
    recipes = {name: Recipe() for name in SECONDS}
    for recipe in recipes.values():
        object.__setattr__(recipe, "device", device)
    object.__setattr__(recipes[LOW], "precision", "bf16")
    return {name: cases.Loop(recipe, interactions.pairs) for name, recipe in recipes.items()}


@pytest.fixture
def lab(tmp_path):
    """Of notebook 03, with its own parameters, writing to a folder of the test."""
    values = {name: declared.default for name, declared in parameters.declared(NOTEBOOK).items()}
    return Lab(NOTEBOOK.stem, {**values, "output_dir": str(tmp_path)})


def judged(lab):
    return {row.id: row for row in lab.judged()}


def test_every_form_is_raced_at_each_size_and_phase_and_the_choice_was_made_before(few):
    ran = few[few["form"] != "A/A"]
    assert set(ran["form"]) == {BASELINE, *interactions.EAGER} - {"pairwise loop"}
    assert len(ran) == 2 * 2 * len(interactions.EAGER) and (few["parity_error"].dropna() < 1e-5).all()
    assert set(few.loc[few["phase"] == cases.TRAINING, "chosen"]) <= set(interactions.EAGER)
    assert few.loc[few["phase"] == cases.FORWARD, "chosen"].isna().all()


def test_the_sum_of_pairs_is_the_sum(racing):
    table = races([cases.fm_sum(5, 16, 4)], **racing)
    assert table["parity_error"].dropna().tolist() == [pytest.approx(0, abs=1e-5)]


def test_loss_forms_agree_with_their_gradients(loss):
    assert {"preallocated", "weighted"} < set(loss["form"]) and (loss["parity_error"].dropna() < 1e-5).all()


def test_every_pipeline_delivers_the_same_batches(data):
    passes = cases.input_pipelines(data, batch=128)
    assert set(passes) == set(cases.pipelines()) and next(iter(passes)) == AFTER
    expected = passes[AFTER]()
    assert [len(fields) for fields, _ in expected] == [128, 128, 44]
    assert all(relative_error(expected, one_pass()) == 0 for one_pass in passes.values())


def test_a_transfer_moves_all_columns(data):
    moves = cases.transfers(data, 64, "cpu")
    expected = moves["one by one"]()
    assert len(expected) == 4 + 4 and all(len(column) == 64 for column in expected.values())
    assert all(relative_error(expected, move()) == 0 for move in moves.values())


@pytest.fixture(scope="module")
def raced(data):
    """Two epochs of each loop, without worker processes, which take long to start."""
    training, validation = data.split(0.3, seed=0)
    loops, _ = cases.loops(Recipe(64, epochs=2), "fp16")
    loops = {name: replace(loop, recipe=replace(loop.recipe, workers=0)) for name, loop in loops.items()}
    table = cases.epochs(loops, training, validation, seeds=2, embedding_dim=4, hidden=8)
    return table, cases.step_memory(loops, training, embedding_dim=4, hidden=8), validation


def test_all_loops_learn_the_same_from_the_same_start(raced):
    table, memory, _ = raced
    assert len(table) == 4 * 2 * 2 and (table["seconds"] > 0).all() and (memory["mib"] > 0).all()
    wide = table.pivot(index=["seed", "epoch"], columns="loop", values="train_loss")
    assert wide.nunique().min() == 4
    assert (wide[CONTROL] == wide[OURS]).all()
    for loop in (AFTER, OURS):
        np.testing.assert_allclose(wide[loop], wide[BEFORE], rtol=1e-4)


def test_a_model_is_the_same_for_every_loop_of_a_seed_and_another_for_another(data):
    loops, reason = cases.loops(Recipe(64), "fp16")
    assert set(loops) == {BEFORE, AFTER, OURS, CONTROL} and "CUDA" in reason
    first, second, other = (
        loops[name].model(data, seed, 4, 8).state_dict() for name, seed in ((BEFORE, 0), (OURS, 0), (OURS, 1))
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["embeddings.0.weight"], other["embeddings.0.weight"])


def test_what_raced_reads_as_tables_and_sentences(raced, few):
    table, memory, _ = raced
    summary = training_reading.loops_table(table, memory)
    assert list(summary["loop"]) == [BEFORE, AFTER, OURS] and summary["ratio"].iloc[0] == 1
    assert "the same to four digits" in training_reading.loops(summary)
    assert "not measured here: no CUDA" in training_reading.precision(table, memory, "no CUDA")
    assert "score after 2 epochs" in training_reading.scores_title(table)
    assert list(dict.fromkeys(training_reading.score_lines(table)["loop"])) == [BEFORE, AFTER, OURS]
    text = training_reading.fm(few)
    assert "4 fields, forward: " in text and "4 fields, chosen: " in text and "the best of the race" in text


def test_a_title_says_which_form_is_fastest_where():
    rows = [(64, "Gram", 1.0), (64, "fused kernels", 2.0), (512, "Gram", 3.0), (512, "fused kernels", 2.0)]
    rows += [(4096, "Gram", 30.0), (4096, "fused kernels", 20.0)]
    table = pd.DataFrame(rows, columns=["batch", "form", "ms"]).assign(phase=cases.TRAINING, dim=8, fields=4)
    table["ratio"] = 60 / table["ms"]
    title = training_reading.fm_title(table, cases.TRAINING, 8)
    assert title == (
        "4 fields of width 8, forward + backward: Gram at 64, fused kernels at 512 to 4,096; "
        "of the forms without a compiler Gram fastest at every batch"
    )
    chosen = training_reading.chosen(table.assign(chosen="Gram"))
    assert chosen.startswith("Gram at 64 x 8, Gram at 512 x 8") and chosen.endswith(
        "at most 50% behind the best of the race"
    )


def test_scores_are_compared_by_seed():
    table = epochs(SECONDS, SCORES)
    found = cases.score_difference(table, OURS, LOW)
    assert found.n == 3 and found.value == pytest.approx(0) and found.low < -0.02 < 0.02 < found.high
    assert cases.score_difference(table, BEFORE, OURS).interval == (0, 0)
    assert cases.score_difference(table, OURS, "absent") is None and cases.rounds_of_loops(table, OURS, "absent") == []
    assert cases.score_difference(epochs(SECONDS, SCORES, num_seeds=1), OURS, LOW).interval is None


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Estimate(0.0, -1e-5, 1e-5, 3), "the same to four digits"),
        (Estimate(0.01, -0.01, 0.03, 3), "equal within noise: +0.0100"),
        (Estimate(-0.02, -0.03, -0.01, 3), "different: -0.0200"),
    ],
)
def test_a_difference_of_scores_is_put_into_words(found, words):
    assert training_reading.difference_text(found).startswith(words)


# ---- rows of the table ----------------------------------------------------------------------------------------------


def test_every_race_is_recorded_with_the_samples_of_each_round(lab, few, loss):
    back = few[few["phase"] == cases.TRAINING]
    lab.record("pair_terms", to_rows.pairs(back), keys=SIZE, device="cpu")
    for row in lab.table:
        assert len(lab.table.samples_of(row)) == row.n >= 6 and row.low <= row.value <= row.high
        assert (row.origin, row.unit, row.better, row.precision) == ("measured", "ms", "lower", "float32")
        assert row.device.startswith("CPU ") and row.threads == torch.get_num_threads()
    forms = {row.form for row in lab.table if row.keys["batch"] == 32}
    assert forms == {BASELINE, CONTROL, CHOSEN, *interactions.EAGER} - {"pairwise loop"}


def planted_race(chosen, **ms):
    """A race of the pair terms at one size; ms by form, the control as the loop itself."""
    rows = [{"form": BASELINE, "rounds": np.nan}]
    rows += [{"form": form.replace("_", " "), "rounds": rounds(2.0, time)} for form, time in ms.items()]
    rows.append({"form": CONTROL, "rounds": rounds(2.0, 2.0)})
    return pd.DataFrame(rows).assign(**CELL, phase=cases.TRAINING, chosen=chosen, parity_error=0.0, notes="")


def test_the_chosen_form_is_the_one_named_before_the_race_and_not_its_fastest():
    table = to_rows.pairs(planted_race("Gram", Gram=1.0, index_pairs=0.5)).set_index("form")
    assert table.loc[CHOSEN, "ratio"] == table.loc["Gram", "ratio"] == pytest.approx(2, rel=0.05)
    assert (table.loc[CHOSEN, "samples"] == table.loc["Gram", "samples"]).all()
    assert table.loc[CHOSEN, "notes"] == "Gram at 64 x 8"


def test_where_the_loop_itself_is_chosen_its_gain_is_one():
    table = to_rows.pairs(planted_race("pairwise loop", Gram=1.0)).set_index("form")
    assert table.loc[CHOSEN, "ratio"] == 1 and table.loc[CHOSEN, "baseline"] == BASELINE
    assert (table.loc[CHOSEN, "samples"] == table.loc[BASELINE, "samples"]).all()


def test_what_a_choice_rests_on_is_measured_before_and_not_in_the_race(monkeypatch):
    asked = []
    monkeypatch.setattr(interactions, "choose", lambda *size, **_: asked.append(size) or "Gram")
    (case,) = cases.fm(4, [8], [6], phases=[cases.TRAINING])
    assert asked == [(4, 8, 6, "cpu")] and case.label["chosen"] == "Gram"  # known though nothing was raced


def test_epochs_are_rows_with_a_sample_for_each_seed_and_epoch(lab):
    raced = epochs(SECONDS, SCORES, num_epochs=3)
    lab.record("training_epoch", to_rows.epochs(raced, loops_on("cpu"), KNOWN), device="cpu")
    rows = {row.form: row for row in lab.table}
    assert {row.n for row in rows.values()} == {9} and rows[BEFORE].unit == "ms"
    assert rows[OURS].ratio == pytest.approx(4) and rows[LOW].precision == "bfloat16"
    assert rows[CONTROL].baseline == OURS and rows[CONTROL].ratio == 1
    found = judged(lab)["goal.training_epoch"]
    assert found.verdict == "met" and found.value == pytest.approx(4)
    assert "validation score minus that of guide's before: +0.0000" in found.why


def test_what_the_control_shows_is_in_the_interval_of_every_loop():
    raced = epochs({**SECONDS, CONTROL: 1.25}, SCORES, num_epochs=3)
    table = to_rows.epochs(raced, loops_on("cpu"), KNOWN).set_index("form")
    assert table.loc[OURS, "ratio"] == pytest.approx(4)
    assert table.loc[OURS, "ratio_low"] == pytest.approx(4 / 1.25) and table.loc[OURS, "ratio_high"] == pytest.approx(5)


@pytest.mark.parametrize(
    ("ours", "known", "reason"),
    [
        ([0.5, 0.6, 0.71], KNOWN, "not within 0.005"),
        (SCORES[OURS], KnownScores(0.55, 0.8), "20% of the way, 50% are needed"),
    ],
)
def test_a_faster_epoch_counts_only_at_an_equal_score_that_was_learned(lab, ours, known, reason):
    raced = epochs(SECONDS, {**SCORES, OURS: ours}, num_epochs=3)
    lab.record("training_epoch", to_rows.epochs(raced, loops_on("cpu"), known), device="cpu")
    found = judged(lab)["goal.training_epoch"]
    assert found.verdict == "untestable here" and reason in found.why
    assert lab.study("training_epoch").frame.set_index("form").loc[EQUAL, "status"] == "unavailable"


def with_differences(lab, low, known=KNOWN, reason=None):
    raced = epochs(SECONDS, {**SCORES, LOW: low})
    if reason is not None:
        raced = raced[raced["loop"] != LOW]
    table = to_rows.differences(raced, loops_on("cpu"), known, "bf16", reason)
    lab.record("score_difference", table, keys=["minus"], device="cpu")
    return judged(lab)["train.amp_accuracy"]


@pytest.mark.parametrize(
    ("low", "verdict"),
    [
        ([0.501, 0.601, 0.7005], "reproduced"),
        ([0.49, 0.59, 0.6905], "refuted"),
        ([0.52, 0.58, 0.7], "inconclusive"),
    ],
)
def test_accuracy_in_low_precision_is_a_mean_difference_over_seeds_within_a_margin(lab, low, verdict):
    found = with_differences(lab, low)
    expected = estimates.summary(np.subtract(low, SCORES[OURS]), "mean")
    assert (found.value, found.low, found.high, found.n) == (*_close(expected), 3)
    assert found.verdict == verdict and "bfloat16" in found.conditions
    assert "0.600, a constant answer 0.300, the truth 0.700: 75% of the way" in found.why
    assert catalogue()["train.amp_accuracy"].margin == MARGIN


def _close(found):
    return tuple(pytest.approx(v) for v in (found.value, found.low, found.high))


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (KnownScores(0.448, 0.823), "0.600, a constant answer 0.448, the truth 0.823: 41% of the way, 50% are needed"),
        (KnownScores(0.58, None), "0.600, a constant answer 0.580: less than 0.05 above it"),
    ],
)
def test_equal_scores_of_hardly_trained_models_say_nothing_and_why_is_recorded(lab, known, said):
    found = with_differences(lab, SCORES[OURS], known)
    assert found.verdict == "untestable here" and said in found.why


def test_where_the_best_score_is_not_known_training_has_to_be_well_above_the_constant_answer(lab):
    assert with_differences(lab, SCORES[OURS], KnownScores(0.3, None)).verdict == "reproduced"


def test_low_precision_that_a_device_does_not_have_is_untestable(lab):
    found = with_differences(lab, SCORES[LOW], reason="this processor shows no native bf16")
    assert found.verdict == "untestable here" and "no native bf16" in found.why


def test_scores_of_loops_of_a_constant_answer_and_of_the_truth_are_rows(lab, raced, data):
    table, _, validation = raced
    loops, _ = cases.loops(Recipe(64), "fp16")
    found = to_rows.known_scores(data, validation)
    lab.record("scores", to_rows.scores(table, loops), keys=["epoch"], device="cpu")
    lab.record("scores", to_rows.known(found))
    rows = {(row.form, row.keys.get("epoch")): row for row in lab.table}
    assert len(rows) == 4 * 2 + 2 and rows[OURS, 2].n == 2 and rows[OURS, 2].statistic == "mean"
    assert rows["constant answer", None].interval == "exact" and rows["truth", None].origin == "counted"
    assert 0 < found.constant < found.best == pytest.approx(np.mean(list(validation.best_score.values())))


def test_the_constant_answer_is_the_most_frequent_class_of_what_is_trained_on():
    base = planted(40)
    name = base.specs[0].name
    few_ones = replace(base, targets={**base.targets, name: torch.tensor([1] * 30 + [2] * 10)})
    many_twos = replace(base, targets={**base.targets, name: torch.tensor([1] * 10 + [2] * 30)})
    only = {"specs": base.specs[:1], "truth": None}
    cut = [replace(table, targets={name: table.targets[name]}, **only) for table in (few_ones, many_twos)]
    assert to_rows.known_scores(*cut) == KnownScores(0.25, None)


def test_the_truth_of_a_users_table_is_unavailable(lab):
    lab.record("scores", to_rows.known(KnownScores(0.4, None)))
    frame = lab.study("scores").frame.set_index("form")
    assert frame.loc["truth", "status"] == "unavailable" and "not known" in frame.loc["truth", "reason"]


def held(steps):
    return pd.DataFrame(
        [
            {"loop": loop, "step": step, "mib": mib}
            for step in range(steps)
            for loop, mib in {BEFORE: 40.0, AFTER: 25.0, OURS: 30.0, CONTROL: 30.0, LOW: 20.0}.items()
        ]
    )


def test_memory_is_counted_on_a_cpu_and_measured_step_by_step_on_cuda(lab):
    lab.record("step_memory", to_rows.memory(held(1), loops_on("cpu")), device="cpu")
    assert {(r.origin, r.n, r.interval, r.unit) for r in lab.table} == {("counted", 1, "exact", "MiB")}
    lab.record("step_memory", to_rows.memory(held(6), loops_on("cuda")), device="cuda")
    assert {(r.origin, r.n, r.interval) for r in lab.table} == {("measured", 6, "95 % confidence")}


CUDA_ONLY = [claim for claim in catalogue().values() if claim.notebook == "03" and claim.needs == "cuda"]


def record_all(lab, device):
    """Planted rows of all that the claims for a CUDA device read, as if they had been had on `device`."""
    raced, loops = epochs(SECONDS, SCORES, num_epochs=3), loops_on(device)
    lab.record("training_epoch", to_rows.epochs(raced, loops, KNOWN), device=device)
    lab.record("step_memory", to_rows.memory(held(6), loops), device=device)
    passes = {AFTER: 8.0, CONTROL: 8.0, BEFORE: 10.0, TABLE: 0.1}
    moves = {"one by one": 3.0, CONTROL: 3.0, "dictionary": 2.0, "dictionary, pinned": 1.0}
    for study, key, times in (("input_pipeline", 20_000, passes), ("transfer", 256, moves)):
        lab.record(study, race_of(times, key), keys=["rows"], device=device)


def race_of(ms, rows):
    base = next(iter(ms))
    fields = {"unit": "ms", "better": "lower", "origin": "measured", "statistic": "median", "precision": "none"}
    samples = {form: time * (1 + 0.001 * np.arange(12)) for form, time in ms.items()}
    over = {form: {"baseline": base, "ratio": ms[base] / ms[form]} for form in ms if form != base}
    return pd.DataFrame(
        {"rows": rows, "form": form, "samples": samples[form], **fields, **over.get(form, {})} for form in ms
    )


def test_rows_of_a_cpu_never_decide_a_claim_for_cuda(lab):
    record_all(lab, "cpu")
    found = judged(lab)
    assert all(row.device.startswith("CPU ") for row in lab.table)
    assert {found[claim.id].verdict for claim in CUDA_ONLY} == {"untestable here"}
    assert all("needs a CUDA device" in found[claim.id].why for claim in CUDA_ONLY)


def test_rows_of_cuda_decide_the_claims_for_cuda_and_not_the_goal_on_a_cpu(lab):
    record_all(lab, "cuda")
    found = judged(lab)
    planted_ratios = {
        "train.transfer": 1.5,
        "train.amp": 2.0,
        "train.amp_memory": 1.5,
        "train.loader": 1.25,
        "train.total": 4 / 3,
        "train.total_memory": 1.6,
    }
    assert set(planted_ratios) == {claim.id for claim in CUDA_ONLY}
    for id, ratio in planted_ratios.items():
        assert found[id].value == pytest.approx(ratio, rel=0.05), id
        assert found[id].conditions.startswith("CUDA")
    assert found["goal.training_epoch"].verdict == "untestable here"


def test_the_input_pipeline_is_judged_against_the_faster_of_the_guides_two_loaders(lab):
    record_all(lab, "cpu")
    found = judged(lab)["goal.input_pipeline"]
    assert found.value == pytest.approx(80, rel=0.05)
    assert "chosen on every other round and judged on the rest" in found.why
    swapped = {AFTER: 8.0, CONTROL: 8.0, BEFORE: 5.0, TABLE: 0.1}
    lab.record("input_pipeline", race_of(swapped, 20_000), keys=["rows"], device="cpu")
    assert judged(lab)["goal.input_pipeline"].value == pytest.approx(50, rel=0.05)


def test_a_pass_over_fewer_rows_than_the_goal_names_does_not_decide_it(lab):
    lab.record("input_pipeline", race_of({AFTER: 8.0, CONTROL: 8.0, BEFORE: 9.0, TABLE: 0.1}, 2000), keys=["rows"])
    assert judged(lab)["goal.input_pipeline"].verdict == "untestable here"


def test_every_rule_of_the_notebook_names_rows_that_it_records(lab, few):
    record_all(lab, "cuda")
    record_all(lab, "cpu")
    raced = epochs(SECONDS, SCORES)
    lab.record("score_difference", to_rows.differences(raced, loops_on("cpu"), KNOWN, "bf16", None), keys=["minus"])
    for study in ("pair_terms", "pair_terms_forward", "pair_terms_26"):
        lab.record(study, to_rows.pairs(planted_race("Gram", Gram=1.0, stacked_loop=3.0)), keys=SIZE, device="cpu")
    lab.record("loss", race_of({"baseline": 2.0, CONTROL: 2.0, "preallocated": 1.0}, 1), keys=["rows"])
    for claim in (claim for claim in catalogue().values() if claim.notebook == "03"):
        forms = [claim.of.form] if isinstance(claim.of.form, str) else claim.of.form
        over = claim.of.over or []
        for form in [*forms, *([over] if isinstance(over, str) else over)]:
            assert lab.table.select(claim.of.study, form), (claim.id, form)


def test_a_users_table_trains_the_same_way_and_a_wrong_one_is_refused(tmp_path):
    path, random = tmp_path / "rows.csv", np.random.default_rng(0)
    drug, gene = random.integers(0, 5, 120), random.integers(0, 4, 120)
    pd.DataFrame({"drug": drug, "gene": gene, "outcome": (drug + gene) % 2}).to_csv(path, index=False)
    data = cases.table(str(path), 999, ["drug", "gene"], ["outcome"])
    training, validation = data.split(0.25, seed=0)
    loops = {OURS: cases.Loop(Recipe(32, epochs=1), interactions.pairs)}
    found = cases.epochs(loops, training, validation, seeds=1, embedding_dim=4, hidden=8)
    assert len(found) == 1 and "120 rows; fields" in training_reading.table(data)
    assert "not known for this table" in training_reading.trained(found, to_rows.known_scores(training, validation))
    with pytest.raises(TableError):
        cases.table(str(path), 999, ["dose"], ["outcome"])


def test_the_planted_table_has_the_rows_asked_for():
    assert len(cases.table("planted", 123)) == 123


def test_low_precision_reads_as_speed_memory_and_score():
    text = training_reading.precision(epochs(SECONDS, SCORES), MEMORY, None)
    assert "2 times as fast" in text and "20.0 MiB, in float32 30.0" in text and "equal within noise" in text
    title = training_reading.scores_title(epochs(SECONDS, SCORES))
    assert "equal within noise in low precision" in title


def test_how_far_training_got_is_said_from_the_constant_answer_to_the_truth():
    text = training_reading.trained(epochs(SECONDS, SCORES), KNOWN)
    assert text.endswith("0.600, a constant answer 0.300, the planted truth itself 0.700: it gets 75% of the way.")
