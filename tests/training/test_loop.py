import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import killed_training
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from training_cases import SIZES, largest_difference, model, tables, weights

from gnnlab.errors import GnnlabError
from gnnlab.training import loop as training_module
from gnnlab.training.loop import TrainingRun, train
from gnnlab.training.process_group import RankShare
from gnnlab.training.recipe import TrainingRecipe, bf16_on_cpu
from gnnlab.training.steps import READ_STEPS, LossRecord, Objective, Stepper, mixed, order
from gnnlab.workloads import deepfm
from gnnlab.workloads.planted_table import planted
from gnnlab.workloads.tables import Target

SMALL = TrainingRecipe(batch_size=32, epochs=2, learning_rate=0.01)


def trained(recipe, *, dropout=0.1, double=False, rows=300, made=model, **options):
    training, validation = tables(rows)
    made = made(training, dropout=dropout)
    made = made.double() if double else made
    return train(made, training, validation, recipe, **options), weights(made)


def test_a_model_learns_what_was_planted():
    training, validation = planted(4000, cardinalities=SIZES, noise=0.2).split(0.25, 0)
    history = train(
        model(training, hidden=32), training, validation, TrainingRecipe(batch_size=100, epochs=8, learning_rate=0.01)
    )
    chance = train(
        model(training, hidden=32), training, validation, TrainingRecipe(batch_size=100, epochs=1, learning_rate=1e-9)
    )
    best = float(np.mean(list(validation.best_score.values())))
    assert chance.best["score"] + 0.1 < history.best["score"] < best + 0.02
    assert history.epochs[-1]["train_loss"] < history.epochs[0]["train_loss"]


@settings(max_examples=12)
@given(size=st.integers(1, 60), times=st.integers(2, 6), rows=st.integers(60, 90))
def test_accumulation_over_k_equals_one_batch_of_k_times_the_size(size, times, rows):
    training, validation = tables(200)
    training = training.rows(torch.arange(rows))
    size = min(size, rows // times)
    got = []
    for recipe in (
        TrainingRecipe(batch_size=size, accumulate=times, epochs=1),
        TrainingRecipe(batch_size=size * times, epochs=1),
    ):
        made = model(training, dropout=0).double()
        got.append((train(made, training, validation, recipe), weights(made)))
    (one, one_weights), (other, other_weights) = got
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-6)  # losses of float32 labels and of doubles
    assert len(one.losses) == -(-rows // (size * times)) and largest_difference(one_weights, other_weights) < 1e-9


def test_accumulation_is_close_in_float32_and_clips_the_whole_gradient():
    recipe = replace(SMALL, clip_norm=0.05)
    (_, one), (_, other) = (
        trained(replace(recipe, batch_size=size, accumulate=k), dropout=0) for size, k in ((64, 1), (16, 4))
    )
    _, unclipped = trained(replace(recipe, batch_size=64, clip_norm=0.0), dropout=0)
    assert largest_difference(one, other) < 1e-4 < largest_difference(one, unclipped)


def test_the_loop_is_the_plain_one_over_the_same_batches():
    training, _ = tables()
    made = model(training, dropout=0)
    optimizer = torch.optim.AdamW(made.parameters(), lr=SMALL.learning_rate, weight_decay=0.0)
    losses = []
    for epoch in range(SMALL.epochs):
        for rows in order(len(training), SMALL.seed, epoch).split(SMALL.batch_size):
            targets = {name: column[rows] for name, column in training.targets.items()}
            each = deepfm.target_losses(made(training.fields[rows]), targets, made.targets)
            loss = sum(torch.exp(-s) * one + s for s, one in zip(made.log_variances, each, strict=True))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    found, _ = trained(SMALL, dropout=0)
    np.testing.assert_allclose(found.losses, losses, rtol=1e-5)


def test_recomputed_activations_change_no_bit():
    (one, one_weights), (other, other_weights) = trained(SMALL), trained(replace(SMALL, checkpointing=True))
    assert one.losses == other.losses and largest_difference(one_weights, other_weights) == 0


def test_a_traced_training_is_within_rounding_of_eager(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager", fullgraph=True))
    recipe = replace(SMALL, epochs=1, batch_size=75)
    one, other = (trained(replace(recipe, compile=flag), dropout=0)[0] for flag in (False, True))
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-5)


@pytest.mark.slow
def test_compiled_training_is_within_rounding_of_eager():
    recipe = replace(SMALL, epochs=1, batch_size=75)
    one, other = (trained(replace(recipe, compile=flag), dropout=0)[0] for flag in (False, True))
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-4)


def test_bf16_reaches_the_score_of_fp32_within_the_noise_of_seeds():
    if not bf16_on_cpu().native:
        pytest.skip(bf16_on_cpu().sentence)
    training, validation = planted(2400, cardinalities=SIZES, noise=0.2).split(0.5, 0)
    scores = {"fp32": [], "bf16": []}
    for seed in range(3):
        for precision, found in scores.items():
            recipe = TrainingRecipe(batch_size=100, epochs=4, learning_rate=0.01, seed=seed, precision=precision)
            found.append(train(model(training, seed=seed, hidden=32), training, validation, recipe).best["score"])
    differences = np.subtract(scores["bf16"], scores["fp32"])  # in pairs of a seed
    spread = np.std(scores["fp32"], ddof=1)
    assert abs(differences.mean()) < max(3 * spread, 0.01), scores
    assert np.mean(scores["fp32"]) > 0.55  # there was something to reach


def test_bf16_rounds_the_model_and_not_the_losses():
    if not bf16_on_cpu().native:
        pytest.skip(bf16_on_cpu().sentence)
    training, _ = tables()
    rows = training.fields[:8], {name: column[:8] for name, column in training.targets.items()}
    loss, outputs = Objective(model(training), precision="bf16")(*rows)
    assert loss.dtype == torch.float32 and all(logits.dtype == torch.float32 for logits in outputs.values())
    assert loss != Objective(model(training))(*rows)[0]


def test_the_same_seed_gives_the_same_bits_whatever_the_caller_drew_and_the_caller_keeps_its_generator():
    torch.manual_seed(1)
    one = trained(SMALL)[0]
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert trained(SMALL)[0].losses == one.losses
    assert torch.equal(torch.get_rng_state(), before)
    assert trained(replace(SMALL, seed=1))[0].losses != one.losses


def test_a_history_has_a_row_an_epoch_and_a_loss_a_step():
    seen = []
    history, _ = trained(replace(SMALL, accumulate=2), on_epoch=seen.append)
    assert tuple(seen) == history.epochs and len(history.losses) == 2 * 4
    row = history.table.iloc[0]
    assert row["epoch"] == 1 and row["seconds"] > 0 and row["peak_memory_mib"] > 1 and row["labels_left_out"] == 0
    assert row["samples_per_s"] == pytest.approx(225 / row["seconds"])
    by_target = row[[f"score.{name}" for name in ("outcome", "direction", "effect", "phenotypes")]]
    assert row["score"] == pytest.approx(by_target.mean())
    sizes = [64, 64, 64, 33]
    assert row["train_loss"] == pytest.approx(np.average(history.losses[:4], weights=sizes))
    assert history.stopped == "all 2 epochs done"


def test_an_epoch_is_timed_by_itself(monkeypatch):
    clock = iter(range(0, 1000, 5))
    monkeypatch.setattr(training_module.time, "perf_counter", lambda: next(clock))
    training, validation = tables()
    with TrainingRun(model(training), training, validation, SMALL) as trainer:
        for epoch in range(3):
            trainer.train_epoch()
            assert trainer.seconds == 5 and (trainer.epoch, trainer.step) == (epoch + 1, 0)


def test_training_stops_when_patience_is_over_and_says_so():
    history, _ = trained(replace(SMALL, epochs=50, learning_rate=1e-12, patience=2), dropout=0)
    assert (
        len(history.epochs) == 3 and history.stopped == "no better validation score than that of epoch 1 for 2 epochs"
    )
    assert history.best["epoch"] == 1


def test_the_model_is_as_it_was_set_and_its_branch_keeps_its_forward():
    training, validation = tables()
    made = model(training).eval()
    train(made, training, validation, replace(SMALL, epochs=1, checkpointing=True))
    assert not made.training and not made.deep.training and "forward" not in vars(made.deep)


def poisoned(after, value=float("nan")):
    """A model whose loss is `value` from its forward pass number `after` on."""

    def made(training, **options):
        found = model(training, **options)
        calls = iter(range(10**6))

        def spoil(module, arguments, outputs):
            if module.training and next(calls) >= after:
                return {name: logits * value for name, logits in outputs.items()}
            return None

        found.register_forward_hook(spoil)
        return found

    return made


def test_a_loss_that_is_not_finite_stops_with_epoch_step_and_batch_before_it_reaches_the_weights(tmp_path):
    training, validation = tables()
    made = poisoned(8 + 5)(training)
    recipe = replace(SMALL, accumulate=2)
    with pytest.raises(GnnlabError, match=r"loss is nan in epoch 2, step 3, batch 6 of the epoch; lower learning_rate"):
        train(made, training, validation, recipe, folder=tmp_path)
    assert all(torch.isfinite(tensor).all() for tensor in made.state_dict().values())
    with TrainingRun(model(training), training, validation, recipe, folder=tmp_path, resume=True) as trainer:
        assert trainer.epoch == 1  # the checkpoint before it stands


# -- checkpoints


class Stop(Exception):
    pass


def test_resume_gives_the_bits_of_an_uninterrupted_run_from_any_step(tmp_path, monkeypatch):
    recipe = replace(SMALL, accumulate=2, clip_norm=1.0)
    whole, whole_weights = trained(recipe)
    update, steps = Stepper.update, iter(range(10**6))

    def stopping(engine):
        if next(steps) % 3 == 2:
            raise Stop
        update(engine)

    monkeypatch.setattr(Stepper, "update", stopping)
    for _ in range(20):
        try:
            found, found_weights = trained(recipe, folder=tmp_path, resume=True, checkpoint_steps=1)
            break
        except Stop:
            continue
    assert found.losses == whole.losses and largest_difference(found_weights, whole_weights) == 0
    assert [row["score"] for row in found.epochs] == [row["score"] for row in whole.epochs]


def test_resume_is_exact_with_weight_decay(tmp_path):
    recipe = replace(SMALL, weight_decay=0.01)
    whole, whole_weights = trained(recipe)
    trained(replace(recipe, epochs=1), folder=tmp_path)
    found, found_weights = trained(recipe, folder=tmp_path, resume=True)
    assert found.losses == whole.losses and largest_difference(found_weights, whole_weights) == 0


def test_a_finished_training_is_only_told_again_and_can_be_prolonged(tmp_path):
    history, made = trained(SMALL, folder=tmp_path)
    again, made_again = trained(SMALL, folder=tmp_path, resume=True)
    assert again == history and largest_difference(made, made_again) == 0
    longer, _ = trained(replace(SMALL, epochs=3), folder=tmp_path, resume=True)
    assert longer.losses == trained(replace(SMALL, epochs=3))[0].losses


def test_killed_at_any_moment_and_resumed_it_gives_the_bits_of_an_uninterrupted_run(tmp_path):
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parents[1]), str(here)])}
    for point, count in [("tensors", 3), ("pointer", 2)]:
        command = [sys.executable, killed_training.__file__, str(tmp_path / "run"), point, str(count)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode not in (0, 1), done.stderr
    training, validation = tables()
    whole_model, model_again = model(training), model(training)
    whole = train(whole_model, training, validation, killed_training.RECIPE)
    options = {"folder": tmp_path / "run", "resume": True}
    with TrainingRun(model_again, training, validation, killed_training.RECIPE, **options) as trainer:
        assert (trainer.epoch, trainer.step) == (1, 2)  # far from the start, within an epoch
        found = trainer.finish()
    assert found.losses == whole.losses
    assert largest_difference(weights(model_again), weights(whole_model)) == 0
    assert len([path for path in (tmp_path / "run").iterdir() if path.name != ".lock"]) == 2


def other_data(training, validation):
    targets = {**training.targets, "outcome": training.targets["outcome"].flip(0)}
    return replace(training, targets=targets), validation


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, v: (model(t, hidden=20), t, v, SMALL), r"another model: structure is \w+ there and \w+ here"),
        (
            lambda t, v: (model(t), t, v, replace(SMALL, batch_size=16)),
            "another recipe: batch_size is 32 there and 16 here",
        ),
        (lambda t, v: (model(t), *other_data(t, v), SMALL), "another training table: content is"),
        (
            lambda t, v: (model(t), t, v.rows(torch.arange(50)), SMALL),
            "another validation table: rows is 75 there and 50",
        ),
    ],
    ids=["model", "recipe", "training", "validation"],
)
def test_a_checkpoint_of_something_else_is_refused_with_what_differs_and_stays(tmp_path, change, words):
    trained(replace(SMALL, epochs=1), folder=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    made, training, validation, recipe = change(*tables())
    started = weights(made)
    with refused(words):
        train(made, training, validation, recipe, folder=tmp_path, resume=True)
    assert largest_difference(started, weights(made)) == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_checkpoint_is_not_overwritten_by_mistake(tmp_path):
    trained(replace(SMALL, epochs=1), folder=tmp_path)
    with pytest.raises(GnnlabError, match="resume=True"):
        trained(SMALL, folder=tmp_path)
    with pytest.raises(GnnlabError, match="give the folder"):
        trained(SMALL, resume=True)


def test_a_folder_that_cannot_be_is_told_before_anything_is_computed(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(Stepper, "backward", None)
    for resume in (False, True):
        with pytest.raises(GnnlabError, match="could not write to"):
            trained(SMALL, folder=tmp_path / "file", resume=resume)
    with pytest.raises(GnnlabError, match="checkpoint_steps must be an integer of 0 or more, got -1"):
        trained(SMALL, folder=tmp_path / "run", checkpoint_steps=-1)
    assert (tmp_path / "file").read_text() == "mine"


def test_another_environment_is_told(tmp_path, monkeypatch):
    trained(replace(SMALL, epochs=1), folder=tmp_path)
    monkeypatch.setattr(torch, "__version__", "9.9")
    with pytest.warns(UserWarning, match=r"torch .*, now 9\.9: losses may differ"):
        trained(SMALL, folder=tmp_path, resume=True)


# -- what does not go together


def changed(table, **targets):
    return replace(table, targets={**table.targets, **targets})


def without(model_, name):
    """The model with what it calls so under another name."""
    setattr(model_, f"own_{name}", getattr(model_, name))
    delattr(model_, name)
    return model_


def cure(table):
    """The table with one target that no model predicts."""
    specs = (Target("cure", "classes", 2),)
    return replace(table, targets={"cure": table.targets["outcome"] % 2}, specs=specs, truth=None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m, t, v: (m, t, v, TrainingRecipe(batch_size=500)), "= 500 rows, the training table has 225"),
        (lambda m, t, v: (m, t, v, TrainingRecipe(batch_size=100, accumulate=3)), "100 x accumulate 3 = 300 rows"),
        (lambda m, t, v: (m, changed(t, outcome=torch.ones(225).long()), v, SMALL), "'outcome' has one answer only"),
        (lambda m, t, v: (m, changed(t, phenotypes=torch.zeros(225, 12)), v, SMALL), "'phenotypes' has one answer"),
        (lambda m, t, v: (m, t, v.rows(torch.arange(1)), SMALL), "'phenotypes' has labels of one answer .* validation"),
        (lambda m, t, v: (m, planted(99, cardinalities=(4,) * 5), v, SMALL), "4 fields, the training table"),
        (lambda m, t, v: (m, t, planted(99, cardinalities=(7, 5, 9, 6)), SMALL), "'gene' has 9 categories in the"),
        (lambda m, t, v: (torch.nn.Linear(2, 2), t, v, SMALL), "Linear has no targets, cardinalities, log_variances"),
        (lambda m, t, v: (without(m, "log_variances"), t, v, SMALL), "DeepFM has no log_variances"),
        (lambda m, t, v: (without(m, "deep"), t, v, replace(SMALL, checkpointing=True)), "branch `deep`"),
        (lambda m, t, v: (m, cure(t), v, SMALL), r"predicts outcome \(4 classes\).*table holds cure \(2 classes\)"),
        (lambda m, t, v: (m, t, v, replace(SMALL, sharded=True)), "here is one; start several by torchrun"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_said_in_one_line_before_anything_is_computed(change, words):
    training, validation = tables()
    made, *others = change(model(training), training, validation)
    started = weights(made)
    with refused(words):
        train(made, *others)
    assert largest_difference(started, weights(made)) == 0


# -- order, shares and the losses that are read


def test_an_order_holds_each_row_once_and_differs_by_seed_and_epoch():
    assert order(50, 1, 2).sort().values.tolist() == list(range(50))
    assert torch.equal(order(50, 1, 2), order(50, 1, 2))
    assert not torch.equal(order(50, 1, 2), order(50, 2, 1)) and not torch.equal(order(50, 1, 2), order(50, 1, 3))


@given(st.lists(st.lists(st.integers(0, 10**6), min_size=1, max_size=4), min_size=2, max_size=8, unique_by=tuple))
def test_mixed_numbers_make_unlike_seeds(numbers):
    seeds = [mixed(*each) for each in numbers]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**63 for seed in seeds)


@given(st.integers(1, 40), st.integers(1, 9))
def test_shares_of_a_batch_make_the_batch(rows, world):
    batch = torch.randperm(rows)
    shares = [RankShare(rank, world) for rank in range(world)]
    own = [share.of(batch)[: share.count(rows)] for share in shares]
    assert torch.equal(torch.cat(own), batch)
    assert all(len(share.of(batch)) >= 1 for share in shares)  # every process has something to compute
    assert max(map(len, own)) - min(map(len, own)) <= 1


def test_steps_are_read_once_with_the_losses_of_their_micro_batches():
    record = LossRecord(7, torch.device("cpu"))
    record.steps += [[torch.tensor(1.0), torch.tensor(2.0)], [torch.tensor(3.0), torch.tensor(4.0)]]
    assert record.due and list(record.new()) == [(7, [1.0, 2.0]), (8, [3.0, 4.0])]
    assert not record.due and list(record.new()) == []
    record.steps.append([torch.tensor(5.0)])
    assert list(record.new()) == [(9, [5.0])]


def test_a_device_that_is_waited_for_is_read_seldom():
    record = LossRecord(0, torch.device("meta"))
    record.steps += [[]] * (READ_STEPS - 1)
    assert not record.due
    record.steps.append([])
    assert record.due


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@cuda
@pytest.mark.parametrize("switches", [{}, {"precision": "fp16"}, {"precision": "bf16"}], ids=str)
def test_training_on_cuda_follows_that_on_the_cpu(switches):
    on_cpu, _ = trained(SMALL, dropout=0)
    on_cuda, _ = trained(replace(SMALL, device="cuda", **switches), dropout=0)
    tolerance = 1e-4 if switches.get("precision", "fp32") == "fp32" else 3e-2
    np.testing.assert_allclose(on_cuda.losses, on_cpu.losses, rtol=tolerance)
    assert on_cuda.epochs[-1]["peak_memory_mib"] > 0


@cuda
def test_a_training_in_fp16_is_taken_up_with_its_loss_scale(tmp_path):
    recipe = replace(SMALL, device="cuda", precision="fp16")
    whole, _ = trained(recipe)
    trained(replace(recipe, epochs=1), folder=tmp_path)
    assert trained(recipe, folder=tmp_path, resume=True)[0].losses == whole.losses
