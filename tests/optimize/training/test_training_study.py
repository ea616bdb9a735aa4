"""The glue of notebook 03: what is raced is equal, what is read follows planted numbers, every claim gets a row."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from gnnlab.optimize import interactions
from gnnlab.optimize.interactions.choice import Choices
from gnnlab.optimize.study import BASELINE, Conditions, races
from gnnlab.optimize.training import study as cases
from gnnlab.optimize.training import study_claims as training_claims
from gnnlab.optimize.training import study_reading as training_reading
from gnnlab.optimize.training.recipe import Recipe
from gnnlab.optimize.training.study import AFTER, BEFORE, LOW, OURS, TABLE
from gnnlab.profiling.parity import relative_error
from gnnlab.workloads.planted_table import planted
from gnnlab.workloads.vocabulary import TableError

GOALS = {"goal.fm_4": 2, "goal.fm_26": 3, "goal.input_pipeline": 20, "goal.training_epoch": 3}
CATALOGUE = {id: SimpleNamespace(claimed=(least, None)) for id, least in GOALS.items()}


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


def passed(before, after, table):
    """A table of passes over 1000 rows, planted ms of each."""
    rows = [{"rows": 1000, "form": BASELINE, "ms": before, "ms_low": before, "ms_high": before, "rounds": np.nan}]
    for name, ms in ((AFTER, after), (TABLE, table)):
        rows.append({"rows": 1000, "form": name, "ms": ms, "ms_low": ms, "ms_high": ms, "rounds": rounds(before, ms)})
    return pd.DataFrame(rows)


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
SECONDS = {BEFORE: 4.0, AFTER: 3.0, OURS: 1.0, LOW: 0.5}
MEMORY = pd.DataFrame({"loop": [OURS, LOW], "mib": [30.0, 20.0]})


def test_every_form_is_raced_at_each_size_and_phase_and_the_choice_was_made_before(few):
    ran = few[few["form"] != "A/A"]
    assert set(ran["form"]) == {BASELINE, *interactions.EAGER} - {"pairwise loop"}
    assert len(ran) == 2 * 2 * len(interactions.EAGER) and (few["parity_error"].dropna() < 1e-5).all()
    assert set(few.loc[few["phase"] == cases.TRAINING, "chosen"]) <= set(interactions.EAGER)
    assert few.loc[few["phase"] == cases.FORWARD, "chosen"].isna().all()


def test_the_sum_of_pairs_is_the_sum(racing):
    table = races([cases.fm_sum(5, 16, 4)], **racing, control=False)
    assert table["parity_error"].dropna().tolist() == [pytest.approx(0, abs=1e-5)]


def test_loss_forms_agree_with_their_gradients(loss):
    assert {"preallocated", "weighted"} < set(loss["form"]) and (loss["parity_error"].dropna() < 1e-5).all()


def test_every_pipeline_delivers_the_same_batches(data):
    case = cases.input_pipelines(data, batch=128)
    expected = case.baseline()
    assert set(case.forms) == set(cases.pipelines()) - {BEFORE}
    assert [len(fields) for fields, _ in expected] == [128, 128, 44]
    assert all(relative_error(expected, form()) == 0 for form in case.forms.values())


def test_a_transfer_moves_all_columns(data):
    case = cases.transfer(data, 64, "cpu")
    expected = case.baseline()
    assert len(expected) == 4 + 4 and all(len(column) == 64 for column in expected.values())
    assert all(relative_error(expected, form()) == 0 for form in case.forms.values())
    assert cases.moved(data, 64, "cpu", {}) is None


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
    assert len(table) == 3 * 2 * 2 and (table["seconds"] > 0).all() and (memory["mib"] > 0).all()
    wide = table.pivot(index=["seed", "epoch"], columns="loop", values="train_loss")
    assert wide.nunique().min() == 4
    for loop in (AFTER, OURS):
        np.testing.assert_allclose(wide[loop], wide[BEFORE], rtol=1e-4)


def test_a_model_is_the_same_for_every_loop_of_a_seed_and_another_for_another(data):
    loops, reason = cases.loops(Recipe(64), "fp16")
    assert set(loops) == {BEFORE, AFTER, OURS} and "CUDA" in reason
    first, second, other = (
        loops[name].model(data, seed, 4, 8).state_dict() for name, seed in ((BEFORE, 0), (OURS, 0), (OURS, 1))
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["embeddings.0.weight"], other["embeddings.0.weight"])


def test_what_raced_reads_as_tables_and_sentences(raced, few):
    table, memory, validation = raced
    summary = training_reading.loops_table(table, memory)
    assert list(summary["loop"]) == [BEFORE, AFTER, OURS] and summary["ratio"].iloc[0] == 1
    assert "the same to four digits" in training_reading.loops(summary)
    assert "planted truth itself scores" in training_reading.best_possible(table, validation)
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


def test_where_the_loop_itself_is_chosen_its_gain_is_one():
    rows = [{"form": BASELINE, "chosen": "pairwise loop", "n": 9, "rounds": np.nan}]
    rows += [{"form": "Gram", "chosen": "pairwise loop", "n": 9, "rounds": rounds(2, 1)}]
    table = pd.DataFrame(rows).assign(phase=cases.TRAINING)
    (found,) = training_reading.chosen_rounds(table)
    assert found.shape == (9, 2) and (found == 1).all()


@pytest.mark.parametrize(("before", "after", "named", "ratio"), [(50, 100, BEFORE, 50), (100, 40, AFTER, 40)])
def test_an_input_pipeline_is_measured_against_the_faster_of_the_guides_two(before, after, named, ratio):
    table = passed(before, after, 1.0)
    (found,), name = training_reading.pipeline_rounds(table, TABLE)
    assert name == named and np.median(found[:, 0] / found[:, 1]) == pytest.approx(ratio, rel=0.1)
    rates = training_reading.rates(table).set_index("pipeline")["rows_per_s"]
    assert rates[BEFORE] == pytest.approx(1000 / before * 1e3)
    gain = np.median(found[:, 0] / found[:, 1])  # the figure of the claim, in the title too
    assert f"gives {gain:.3g} times" in training_reading.rates_title(table)


def test_scores_are_compared_by_seed():
    table = epochs(SECONDS, SCORES)
    found = cases.score_difference(table, OURS, LOW)
    assert found["n"] == 3 and found["value"] == pytest.approx(0) and found["ci"][0] < -0.02 < 0.02 < found["ci"][1]
    assert cases.score_difference(table, BEFORE, OURS)["ci"] == (0, 0)
    assert cases.score_difference(table, OURS, "absent") is None and cases.rounds_of_loops(table, OURS, "absent") == []
    assert np.isinf(cases.mean_of(np.array([0.5]))["ci"]).all()


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"value": 0.0, "ci": (-1e-5, 1e-5)}, "the same to four digits"),
        ({"value": 0.01, "ci": (-0.01, 0.03)}, "equal within noise: +0.0100"),
        ({"value": -0.02, "ci": (-0.03, -0.01)}, "different: -0.0200"),
    ],
)
def test_a_difference_of_scores_is_put_into_words(found, words):
    assert training_reading.difference_text(found).startswith(words)


def claimed(few, loss, device_is_cuda=False, seconds=SECONDS, table_ms=0.1, makers=None):
    table, passes = epochs(seconds, SCORES), passed(100, 40, table_ms)
    moved = None
    if device_is_cuda:
        moved = pd.DataFrame([{"form": "dictionary", "rounds": rounds(3, 2)}])
    rows = [*training_claims.guide(few, loss), training_claims.accuracy(table, "bf16", None)]
    rows += training_claims.on_cuda(moved, passes, table, MEMORY, "bf16")
    rows += training_claims.goals(few, few, passes, table, CATALOGUE, makers or {})
    return {row["id"]: row for row in rows}


def test_every_claim_of_the_notebook_gets_one_row(few, loss):
    from gnnlab.lab import claims

    found = claimed(few, loss)
    assert sorted(found) == sorted(e.id for e in claims.catalogue().values() if e.notebook == "03")
    for row in found.values():
        assert row["why"].strip() and "\n" not in row["why"]
        claims.record(
            row["id"], row["measured"], notebook="03", **{k: v for k, v in row.items() if k not in ("id", "measured")}
        )


def test_without_a_cuda_device_its_claims_are_not_measured(few, loss):
    found = claimed(few, loss)
    assert all(
        found[id]["measured"] is None and "needs a CUDA device" in found[id]["why"] for id in training_claims.CUDA_ONLY
    )


def test_with_a_cuda_device_its_claims_are_what_was_measured(few, loss):
    found = claimed(few, loss, device_is_cuda=True)
    planted = {
        "train.transfer": 1.5,
        "train.amp": 2.0,
        "train.amp_memory": 1.5,
        "train.loader": 2.5,
        "train.total": 4 / 3,
    }
    for id, ratio in planted.items():
        assert found[id]["measured"] == pytest.approx(ratio, rel=0.05), id


def test_goals_follow_the_planted_gain(few, loss):
    found = claimed(few, loss)
    assert found["goal.input_pipeline"]["measured"] == pytest.approx(400, rel=0.05)
    assert "the faster of the guide's two loaders here, its after" in found["goal.input_pipeline"]["why"]
    assert found["goal.training_epoch"]["measured"] == pytest.approx(4)
    assert found["goal.training_epoch"]["why"].startswith("met: 4 of 3; validation score over 3 seeds the same")


def test_a_missed_goal_says_by_how_much_and_what_holds_it(few, loss, data):
    recipe = Recipe(32)
    loop = cases.Loop(recipe, interactions.EAGER["pairwise loop"])
    makers = training_claims.makers(few, few, loop, data, {"embedding_dim": 4, "hidden": 8})
    found = claimed(few, loss, seconds=SECONDS | {OURS: 2.0}, table_ms=10.0, makers=makers)
    assert found["goal.training_epoch"]["why"].startswith("missed by 33%: 2 of 3")
    assert "of the fast form's operator time" in found["goal.training_epoch"]["why"]
    assert found["goal.input_pipeline"]["why"].startswith("missed by 80%: 4 of 20")


def test_low_precision_that_a_device_does_not_have_is_untestable():
    table = epochs({BEFORE: 4.0, OURS: 1.0}, SCORES)
    row = training_claims.accuracy(table, "bf16", "this processor shows no native bf16")
    assert row["measured"] is None and "no native bf16" in row["why"]


def test_a_users_table_trains_the_same_way_and_a_wrong_one_is_refused(tmp_path):
    path, random = tmp_path / "rows.csv", np.random.default_rng(0)
    drug, gene = random.integers(0, 5, 120), random.integers(0, 4, 120)
    pd.DataFrame({"drug": drug, "gene": gene, "outcome": (drug + gene) % 2}).to_csv(path, index=False)
    data = cases.table(str(path), 999, ["drug", "gene"], ["outcome"])
    training, validation = data.split(0.25, seed=0)
    loops = {OURS: cases.Loop(Recipe(32, epochs=1), interactions.pairs)}
    found = cases.epochs(loops, training, validation, seeds=1, embedding_dim=4, hidden=8)
    assert len(found) == 1 and "120 rows; fields" in training_reading.table(data)
    assert "not known for this table" in training_reading.best_possible(found, validation)
    with pytest.raises(TableError):
        cases.table(str(path), 999, ["dose"], ["outcome"])


def test_the_planted_table_has_the_rows_asked_for():
    assert len(cases.table("planted", 123)) == 123


def test_low_precision_reads_as_speed_memory_and_score():
    text = training_reading.precision(epochs(SECONDS, SCORES), MEMORY, None)
    assert "2 times as fast" in text and "20.0 MiB, in float32 30.0" in text and "equal within noise" in text
    title = training_reading.scores_title(epochs(SECONDS, SCORES))
    assert "equal within noise in low precision" in title
