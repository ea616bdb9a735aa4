"""Whole loops are raced only where they compute the same; what becomes a row follows planted times and scores."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from one_table import Recorder
from refusals import refused
from torch.nn import functional as F

from gnnlab.errors import Untestable
from gnnlab.lab.claims import catalogue
from gnnlab.measure.estimates import CONTROL
from gnnlab.training import loops as module
from gnnlab.training.interactions import DeepFM
from gnnlab.training.loops import MARGIN, Loop, RacedLoops, _known_scores, check, order, race_loops
from gnnlab.workloads.tables import synthetic

ADAM = partial(torch.optim.AdamW, lr=0.01)
BEFORE, AFTER, OURS, LOW = "S3, original", "S3, optimized", "ours", "ours, low precision"


@pytest.fixture(scope="module")
def data():
    return synthetic(300, cardinalities=(7, 5, 4, 6)).split(0.25, seed=0)


def model(table):
    return DeepFM(table.cardinalities, table.specs, embedding_dim=8, hidden=16)


def weighted_loss(outputs, answers, specs, log_variances):
    """sum of exp(-s) L + s over the targets (Kendall et al. 2018), L the cross entropy of classes or of labels."""
    criteria = {"classes": F.cross_entropy, "labels": F.binary_cross_entropy_with_logits}
    losses = [criteria[spec.kind](outputs[spec.name], answers[spec.name]) for spec in specs]
    return (torch.exp(-log_variances) * torch.stack(losses) + log_variances).sum()


def epoch(net, optimizer, scaler, batches, table, factor=1.0, low=None):
    losses = []
    for rows in batches:
        answers = {name: column[rows] for name, column in table.targets.items()}
        with torch.autocast("cpu", low, enabled=low is not None):
            loss = factor * weighted_loss(net(table.fields[rows]), answers, table.specs, net.log_variances)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses).mean()


def fails(net, optimizer, scaler, batches):
    raise RuntimeError("no kernel\nsecond line")


@pytest.fixture(scope="module")
def raced(data):
    training, validation = data
    loop = Loop(partial(epoch, table=training), partial(model, training), ADAM)
    loops = {
        BEFORE: loop,
        OURS: replace(loop, optimizer=partial(ADAM, fused=True)),
        "another loss": replace(loop, epoch=partial(epoch, table=training, factor=1.01)),
        "broken": replace(loop, epoch=fails),
        LOW: replace(loop, epoch=partial(epoch, table=training, low=torch.bfloat16), low=torch.bfloat16),
    }
    before = torch.get_rng_state()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "emulates_bf16", lambda: False)
        races = race_loops(loops, training, validation, seeds=2, epochs=2, batch_size=64, control=OURS)
    assert torch.equal(torch.get_rng_state(), before)
    return races


@pytest.fixture
def lab():
    return Recorder()


def test_all_loops_start_and_go_on_alike_and_the_control_gives_the_bits_of_its_own(raced):
    assert len(raced.epochs) == 2 * 2 * 4 and set(raced.epochs["variant"]) == {BEFORE, OURS, LOW, CONTROL}
    wide = raced.epochs.pivot(index=["seed", "epoch"], columns="variant", values="loss")
    assert (wide[OURS] == wide[CONTROL]).all() and wide.notna().all(axis=None)
    np.testing.assert_allclose(wide[OURS], wide[BEFORE], rtol=1e-3)
    assert wide.loc[(0, 2), OURS] < wide.loc[(0, 1), OURS] and raced.errors[OURS] < 1e-5


def test_what_computes_another_loss_or_fails_is_not_timed_and_says_why(raced, lab):
    lab.record("training_epoch", raced.times(), device="cpu")
    rows = {row.variant: row for row in lab.table}
    assert (rows["another loss"].status, rows["broken"].status) == ("failed", "failed")
    assert "differs from that of S3, original by 1.0e-02" in rows["another loss"].reason
    assert rows["broken"].reason == "RuntimeError: no kernel"
    assert rows[LOW].precision == "bfloat16" and 1e-5 < rows[LOW].parity_error < 2e-2
    assert rows[OURS].n == 4 and rows[OURS].parity_error < 1e-5


@pytest.mark.parametrize(
    ("of_baseline", "of_control", "message"),
    [
        ({"epoch": fails}, {}, "the baseline 'S3, original' cannot be raced: RuntimeError: no kernel"),
        ({"low": torch.bfloat16}, {}, "the baseline 'S3, original' cannot be raced: this processor .* would emulate"),
        ({"factor": torch.nan}, {}, "the baseline .* cannot be raced: its loss over the first batches is nan"),
        ({}, {"epoch": fails}, "the control 'ours' cannot be raced: RuntimeError: no kernel"),
        ({}, {"low": torch.bfloat16}, "the control 'ours' cannot be raced: this processor"),
        ({}, {"factor": 1.01}, "the control 'ours' cannot be raced: its loss .* differs from that of S3, original by"),
    ],
)
def test_a_baseline_or_control_that_fails_ends_the_race_and_is_named(
    data, of_baseline, of_control, message, monkeypatch
):
    monkeypatch.setattr(module, "emulates_bf16", lambda: True)

    def loop(factor=1.0, **changes):
        good = Loop(partial(epoch, table=data[0], factor=factor), partial(model, data[0]), ADAM)
        return replace(good, **changes)

    loops = {BEFORE: loop(**of_baseline), OURS: loop(**of_control)}
    with refused(message):
        race_loops(loops, *data, seeds=1, epochs=1, batch_size=64, control=OURS)


def test_a_ragged_last_batch_is_prepared_before_timing_and_each_seed_has_one_optimizer_and_scaler(data):
    calls = []

    def noted(net, optimizer, scaler, batches):
        calls.append(([len(rows) for rows in batches], optimizer, scaler))
        return epoch(net, optimizer, scaler, batches, data[0])

    loop = Loop(noted, partial(model, data[0]), ADAM)
    race_loops({OURS: loop}, *data, seeds=2, epochs=3, batch_size=64, control=OURS)
    (prepared, *_), *timed = calls
    assert set(prepared) == {size for sizes, *_ in timed for size in sizes} == {64, len(data[0]) % 64}
    pairs = {(id(scaler), id(optimizer)) for _, optimizer, scaler in timed}
    assert len(pairs) == len({scaler for scaler, _ in pairs}) == 2 * 2  # seeds, and the loop and its control
    assert replace(loop, low=torch.float16).start(0, "cpu")[2].is_enabled() and not calls[0][2].is_enabled()


def test_memory_of_a_step_is_counted_on_a_cpu(raced, lab):
    lab.record("step_memory", raced.memory(), device="cpu")
    rows = {row.variant: row for row in lab.table}
    assert rows[OURS].value > 0 and rows[OURS].value == rows[CONTROL].value
    assert (rows[OURS].origin, rows[OURS].n, rows[OURS].interval, rows[OURS].unit) == ("counted", 1, "exact", "MiB")
    assert rows["broken"].status == "failed" and rows["broken"].value is None
    assert "the loop's epoch over one batch" in rows[OURS].notes[0]


# ---- rows of planted races


SCORES = {BEFORE: [0.5, 0.6, 0.7], AFTER: [0.5, 0.6, 0.7], OURS: [0.5, 0.6, 0.7], LOW: [0.51, 0.59, 0.7]}
MS = {BEFORE: 4000.0, AFTER: 3000.0, OURS: 1000.0, LOW: 500.0}
KNOWN = {"chance": 0.2, "constant answer": 0.3, "truth": 0.7}


def synthetic_race(ms=None, scores=None, known=None, *, control_ms=1000.0, device="cpu", missing=None):
    """Six seeds and three epochs of each loop: ms of each, and scores after the last epoch, alike every three seeds."""
    ms, scores = {**MS, **(ms or {}), CONTROL: control_ms}, {**SCORES, **(scores or {})}
    scores[CONTROL] = scores[OURS]
    rows = [
        {
            "variant": variant,
            "seed": seed,
            "epoch": e + 1,
            "ms": time * (1 + 0.01 * seed),
            "score": scores[variant][seed % 3],
        }
        for variant, time in ms.items()
        if variant not in (missing or {})
        for seed in range(6)
        for e in range(3)
    ]
    loops = {variant: Loop(fails, None, None, torch.bfloat16 if variant == LOW else None) for variant in SCORES}
    return RacedLoops(loops, OURS, device, pd.DataFrame(rows), known or KNOWN, {}, missing or {}, torch.arange(2))


def judged(lab, id):
    """The figure and the verdict of a claim, or why there is none."""
    try:
        return lab.judge(id)
    except Untestable as error:
        return None, str(error)


def test_epochs_are_rows_with_a_sample_for_each_seed_and_epoch_whose_intervals_hold_what_the_control_shows(lab):
    table = synthetic_race(control_ms=1250.0).times().set_index("variant")
    assert table.loc[OURS, "ratio"] == pytest.approx(4)
    assert table.loc[OURS, "ratio_low"] == pytest.approx(4 / 1.25) and table.loc[OURS, "ratio_high"] == pytest.approx(5)
    lab.record("training_epoch", synthetic_race().times(), device="cpu")
    rows = {row.variant: row for row in lab.table}
    assert {row.n for row in rows.values()} == {18} and rows[BEFORE].unit == "ms"
    assert rows[OURS].ratio == pytest.approx(4) and rows[LOW].precision == "bfloat16"
    assert rows[CONTROL].baseline == OURS and rows[CONTROL].ratio == 1
    judgement, verdict = judged(lab, "goal.training_epoch")
    assert verdict == "met" and judgement.estimate.value == pytest.approx(4)
    assert "validation score minus that of S3, original: 0 (0 to 0)" in rows["ours, equal score"].notes[0]


@pytest.mark.parametrize(
    ("ours", "known", "reason"),
    [
        ([0.5, 0.6, 0.71], KNOWN, "not within 0.005"),
        (SCORES[OURS], {"constant answer": 0.55, "truth": 0.8}, "20 % of the way from .* the truth; 0.675 is needed"),
    ],
)
def test_a_faster_epoch_counts_only_at_an_equal_score_that_was_learned(lab, ours, known, reason):
    lab.record("training_epoch", synthetic_race(scores={OURS: ours}, known=known).times(), device="cpu")
    assert re.search(reason, judged(lab, "goal.training_epoch")[1])
    (row,) = lab.table.select("training_epoch", "ours, equal score")
    assert row.status == "unavailable" and row.value is None


def low_precision(lab, scores, known=None, missing=None):
    race = synthetic_race(scores={LOW: scores}, known=known, missing=missing)
    lab.record("score_difference", race.differences({OURS: BEFORE, LOW: OURS}), keys=["minus"], device="cpu")
    return judged(lab, "train.amp_accuracy")


@pytest.mark.parametrize(
    ("low", "verdict"), [([0.501, 0.601, 0.7005], "reproduced"), ([0.49, 0.59, 0.6905], "refuted")]
)
def test_accuracy_in_low_precision_is_a_mean_difference_over_seeds_within_a_margin(lab, low, verdict):
    judgement, got = low_precision(lab, low)
    expected = np.mean(np.subtract(low, SCORES[OURS]))
    assert (judgement.estimate.value, judgement.estimate.n) == (pytest.approx(expected), 6) and got == verdict
    (row,) = lab.table.select("score_difference", LOW)
    assert row.precision == "bfloat16"
    assert row.notes == [
        "training reaches a validation score of 0.600 (chance 0.200, constant answer 0.300, truth 0.700): "
        "75 % of the way from the constant answer to the truth"
    ]
    assert catalogue()["train.amp_accuracy"].margin == MARGIN


@pytest.mark.parametrize(
    ("known", "verdict"),
    [
        ({"constant answer": 0.448, "truth": 0.823}, "41 % of the way .* the truth; 0.635 is needed: more epochs"),
        ({"constant answer": 0.58}, r"0.600 \(constant answer 0.580\); 0.630 is needed: more epochs"),
        ({"constant answer": 0.3}, "reproduced"),
    ],
)
def test_equal_scores_of_hardly_trained_models_say_nothing_and_why_is_recorded(lab, known, verdict):
    assert re.search(verdict, low_precision(lab, SCORES[OURS], known)[1])


def test_bf16_is_not_raced_where_a_processor_emulates_it_and_untestable_there(data, monkeypatch, lab):
    monkeypatch.setattr(module, "emulates_bf16", lambda: True)
    loop = Loop(partial(epoch, table=data[0]), partial(model, data[0]), ADAM)
    loops = {OURS: loop, LOW: replace(loop, epoch=fails, low=torch.bfloat16)}
    missing = race_loops(loops, *data, seeds=1, epochs=1, batch_size=64, control=OURS).missing
    assert missing[LOW][0] == "unavailable"
    assert "no instructions for bf16" in low_precision(lab, SCORES[LOW], missing=missing)[1]


def test_the_constant_answer_is_the_most_frequent_class_of_what_is_trained_on():
    base = synthetic(40)
    name = base.specs[0].name
    few_ones = replace(base, targets={**base.targets, name: torch.tensor([1] * 30 + [2] * 10)})
    many_twos = replace(base, targets={**base.targets, name: torch.tensor([1] * 10 + [2] * 30)})
    only = {"specs": base.specs[:1], "truth": None}
    cut = [replace(table, targets={name: table.targets[name]}, **only) for table in (few_ones, many_twos)]
    assert _known_scores(*cut) == {"chance": 1 / base.specs[0].size, "constant answer": 0.25}


def test_what_cannot_be_trained_on_is_refused(data):
    training, validation = data
    rows, name = len(training), training.specs[0].name
    with refused(rf"^batch_size {rows + 1} is larger than the table: it has {rows} rows to"):
        check(training, validation, rows + 1)
    same = replace(training, targets={**training.targets, name: torch.zeros(rows, dtype=torch.int64)})
    with refused(f"'{name}' has one answer only in all {rows} rows of the training table"):
        check(same, validation, 64)


def test_an_order_holds_each_row_once_and_differs_by_seed_and_epoch():
    assert order(50, 1, 2).sort().values.tolist() == list(range(50))
    assert torch.equal(order(50, 1, 2), order(50, 1, 2))
    assert not torch.equal(order(50, 1, 2), order(50, 2, 1)) and not torch.equal(order(50, 1, 2), order(50, 1, 3))


# ---- who decides what


def race_of(values, rows, unit="ms"):
    base = next(iter(values))
    fields = {"rows": rows, "unit": unit, "better": "lower", "origin": "measured", "statistic": "median"}
    frames = []
    for variant, value in {**values, CONTROL: values[base]}.items():
        ratio = {} if variant == base else {"baseline": base, "ratio": values[base] / value}
        frames.append({**fields, "variant": variant, "samples": value * (1 + 0.001 * np.arange(12)), **ratio})
    return pd.DataFrame(frames)


def record_all(lab, device):
    """Planted rows of all that the claims for a CUDA device read, as if they had been had on `device`."""
    lab.record("training_epoch", synthetic_race(device=device).times(), device=device)
    memory = {BEFORE: 40.0, AFTER: 25.0, OURS: 30.0, LOW: 20.0}
    passes = {AFTER: 8.0, BEFORE: 10.0, "table on the device": 0.1}
    moves = {"one by one": 3.0, "dictionary": 2.0, "dictionary, pinned": 1.0}
    lab.record("step_memory", race_of(memory, 0, "MiB"), keys=["rows"], device=device)
    lab.record("input_pipeline", race_of(passes, 20_000), keys=["rows"], device=device)
    lab.record("transfer", race_of(moves, 256), keys=["rows"], device=device)


RATIOS = {"train.transfer": 1.5, "train.amp": 2.0, "train.amp_memory": 1.5, "train.loader": 1.25}
RATIOS |= {"train.total": 4 / 3, "train.total_memory": 1.6}


def test_rows_of_cuda_decide_the_claims_for_cuda_and_rows_of_a_cpu_never_do(lab):
    ids = {claim.id for claim in catalogue().values() if claim.notebook == "03" and claim.needs == "cuda"}
    assert ids == set(RATIOS)
    record_all(lab, "cpu")
    assert all("needs a CUDA device" in judged(lab, id)[1] for id in ids)
    record_all(lab, "cuda")
    for id, ratio in RATIOS.items():
        assert judged(lab, id)[0].estimate.value == pytest.approx(ratio, rel=0.05), id
    assert judged(lab, "goal.training_epoch")[0] is None  # of a CPU alone


@pytest.mark.parametrize(("before", "rows", "ratio"), [(10.0, 20_000, 80), (5.0, 20_000, 50), (5.0, 2000, None)])
def test_the_input_pipeline_is_judged_against_the_faster_of_the_guides_two_loaders_at_20000_rows(
    lab, before, rows, ratio
):
    passes = {AFTER: 8.0, BEFORE: before, "table on the device": 0.1}
    lab.record("input_pipeline", race_of(passes, rows), keys=["rows"], device="cpu")
    got = judged(lab, "goal.input_pipeline")[0]
    assert got is None if ratio is None else got.estimate.value == pytest.approx(ratio, rel=0.05)
