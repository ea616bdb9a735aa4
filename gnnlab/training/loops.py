"""Whole training loops raced to equal score: from the same weights, over the same batches, an epoch each in turns.

    def guide(model, optimizer, batches): ...            # an epoch, any code over batches of rows; gives its mean loss
    loops = {"guide": Loop(guide, make_model, AdamW), "ours": Loop(ours, make_model, AdamW)}     # the first: baseline
    raced = race_loops(loops, training, validation, seeds=3, epochs=2, batch_size=256, control="ours")
    raced.times(), raced.differences({"ours": "guide"}), raced.memory()                 # rows for `Lab.record`

Parity comes first: with dropout off, the first batches must give every loop the baseline's loss. A faster loop counts
only where its score is seen to be equal, and equal scores only where training got somewhere.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from gnnlab.errors import GnnlabError, ParityError, Unavailable
from gnnlab.measure import estimates
from gnnlab.measure.estimates import CONTROL
from gnnlab.measure.timing import stopwatch
from gnnlab.profile.memory import profile_memory_usage
from gnnlab.user_code import forked_random
from gnnlab.workloads.tables import FeatureTable, scores
from gnnswap.cost import quiet
from gnnswap.errors import one_line

warnings.filterwarnings("ignore", message="This DataLoader will create")  # S3's 4 workers, on fewer cores

MARGIN = 0.005  # of a validation score: what is closer is equal
TRAINED = 0.5  # of the way from a constant answer to the best possible; short of it, equal scores say little
TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 2e-2}  # of the loss over the first batches
STEP = "a step is the loop's epoch over one batch, from its input pipeline to the update, without worker processes"
VALIDATION_ROWS = 4096  # that are predicted at once
MEMORY_STEPS = 6  # of which the memory is measured on CUDA; on a CPU tensors are counted, once

Batches = Sequence[Tensor]  # int64 (B,) each: the rows of the table that make a batch


@dataclass(frozen=True)
class Loop:
    """A training loop: `epoch(model, optimizer, scaler, batches) -> mean loss`, and what it trains with what."""

    epoch: Callable[[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler, Batches], Tensor]
    model: Callable[[], nn.Module]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    low: torch.dtype | None = None  # that its forward pass runs in; None: float32

    @property
    def precision(self) -> str:
        """As rows of the table name it: float32|bfloat16|float16."""
        return str(self.low or torch.float32).removeprefix("torch.")

    def start(self, seed: int, device: str) -> tuple[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
        """A model, of the same seed with the same weights for all loops, its optimizer, and the scaler of its losses.

        What an epoch learns in them stays for the next one. The scaler does something in float16 alone.
        """
        torch.manual_seed(seed)
        model = self.model().to(device)
        scaler = torch.amp.GradScaler(torch.device(device).type, enabled=self.low is torch.float16)
        return model, self.optimizer(model.parameters()), scaler


def check(training: FeatureTable, validation: FeatureTable, batch_size: int) -> None:
    """Raises `GnnlabError` where these tables cannot be trained on, or a batch is larger: before anything is raced."""
    for name, table in {"training": training, "validation": validation}.items():
        for spec in table.specs:
            column = table.targets[spec.name]
            needed = name == "training" or spec.kind == "labels"  # no label that varies, no area under a curve
            if needed and (column == column[0]).all():
                rows = f"all {len(table)} rows of the {name} table"
                raise GnnlabError(f"target {spec.name!r} has one answer only in {rows}; leave it out or take more rows")
    if batch_size > len(training):
        rows = f"{len(training)} rows to train on ({len(validation)} more are for validation)"
        raise GnnlabError(f"batch_size {batch_size} is larger than the table: it has {rows}; take a smaller batch_size")


def race_loops(
    loops: Mapping[str, Loop],
    training: FeatureTable,
    validation: FeatureTable,
    *,
    seeds: int,
    epochs: int,
    batch_size: int,
    control: str,
    device: str = "cpu",
) -> RacedLoops:
    """Train every loop for `seeds` x `epochs` epochs, in random order within each; the loop `control` twice (A/A).

    A loop that fails or computes another loss is not timed, and its rows say why. What a loop prepares at its first
    steps (compiling, choosing) is done before. Raises `GnnlabError` where the baseline or the control fails, or the
    tables do not do (`check`).
    """
    check(training, validation, batch_size)
    rest = len(training) % batch_size or batch_size  # the last batch of an epoch, as large as it will be
    first = order(len(training), 0, 0)[: batch_size + rest].split(batch_size)
    base, expected, errors, missing = next(iter(loops)), None, {}, {}
    with forked_random():
        for name, loop in loops.items():
            try:
                loss = _first_loss(loop, first, device)
                expected = loss if name == base else expected
                errors[name] = abs(loss - expected) / abs(expected)
                if not errors[name] <= TOLERANCES[loop.precision]:
                    off = f"its loss over the same batches differs from that of {base} by {errors[name]:.1e} relative"
                    raise ParityError(f"{off}, allowed is {TOLERANCES[loop.precision]:.0e}; it is not timed")
            except Exception as error:  # whatever a loop of the reader raises: the others still race
                if name in (base, control):
                    role = "baseline" if name == base else "control"
                    raise GnnlabError(f"the {role} {name!r} cannot be raced: {one_line(error)}") from error
                missing[name] = "unavailable" if isinstance(error, Unavailable) else "failed", one_line(error)
        running = {name: loop for name, loop in loops.items() if name not in missing}
        rows = _epochs(running | {CONTROL: loops[control]}, training, validation, seeds, epochs, batch_size, device)
    known = _known_scores(training, validation)
    return RacedLoops(dict(loops), control, device, pd.DataFrame(rows), known, errors, missing, first[0])


def emulates_bf16() -> bool:
    """Is this an x86 processor without instructions for products in bf16?"""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return x86 and not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _first_loss(loop: Loop, batches: Batches, device: str) -> float:
    """The mean loss over some batches, dropout off. Raises `Unavailable` where bf16 would be emulated, `GnnlabError`
    for a loss that is nan or infinite."""
    if loop.low is torch.bfloat16 and device == "cpu" and emulates_bf16():
        processor = f"this processor ({torch.backends.cpu.get_cpu_capability()})"
        raise Unavailable(f"{processor} has no instructions for bf16 and would emulate it, many times slower")
    model, *state = loop.start(0, device)
    loss = float(loop.epoch(model.eval(), *state, batches))
    if not np.isfinite(loss):
        raise GnnlabError(f"its loss over the first batches is {loss} in {loop.precision}")
    return loss


def _epochs(
    loops: Mapping[str, Loop],
    training: FeatureTable,
    validation: FeatureTable,
    seeds: int,
    epochs: int,
    batch_size: int,
    device: str,
) -> list[dict[str, Any]]:
    random, rows = np.random.default_rng(0), []
    for seed in range(seeds):
        started = {name: loop.start(seed, device) for name, loop in loops.items()}
        for epoch in range(epochs):
            batches = order(len(training), seed, epoch).split(batch_size)
            for name in map(str, random.permutation(list(loops))):
                model, *state = started[name]
                torch.manual_seed(_seed_of(seed, epoch))  # of dropout
                with quiet(), stopwatch(device=device) as took:
                    loss = loops[name].epoch(model.train(), *state, batches)
                score = evaluate(model, validation, device) if epoch + 1 == epochs else np.nan
                row = {"variant": name, "seed": seed, "epoch": epoch + 1, "ms": took.ms, "loss": float(loss)}
                rows.append(row | {"score": score})
    return rows


def _seed_of(seed: int, epoch: int) -> int:
    return seed * 1_000_003 + epoch


def order(rows: int, seed: int, epoch: int) -> Tensor:
    """The order in which an epoch takes the rows, int64 (rows,); a function of these numbers."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(_seed_of(seed, epoch)))


@torch.no_grad()
def evaluate(model: nn.Module, table: FeatureTable, device: str = "cpu") -> float:
    """The score on a table, in eval mode and float32. Raises `GnnlabError` where a prediction is nan."""
    model.eval()
    parts = [model(fields.to(device)) for fields in table.fields.split(VALIDATION_ROWS)]
    outputs = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return float(np.mean(list(scores(outputs, table.targets, table.specs).values())))


@dataclass(frozen=True)
class RacedLoops:
    """What became of each loop. `epochs`: a row for each loop, seed and epoch: variant, seed, epoch, ms, loss, and
    after the last epoch the score.

    `known` are scores that need no training: "chance" (every answer equally likely), "constant answer" (the most
    frequent one) and, where the table is synthetic, "truth". Frames are for `Lab.record`, named as a row's fields are.
    """

    loops: dict[str, Loop]
    control: str
    device: str
    epochs: pd.DataFrame
    known: dict[str, float]
    errors: dict[str, float]  # relative, of the loss over the first batches
    missing: dict[str, tuple[str, str]]  # loop -> status and reason
    batch: Tensor

    @property
    def baseline(self) -> str:
        return next(iter(self.loops))

    def times(self) -> pd.DataFrame:
        """ms of an epoch, a sample for each seed and epoch, over the baseline; the control over its own loop.

        "<control>, equal score" is that loop where its score is seen to be the baseline's.
        """
        wide = self.epochs.pivot(index=["seed", "epoch"], columns="variant", values="ms")
        samples = {variant: wide[variant].to_numpy() for variant in wide}
        floor = estimates.noise_floor(samples[self.control], samples[CONTROL])  # as the claims report recomputes it
        rows = {variant: self._row(variant, samples, "ms", floor) for variant in self._variants}
        equal = {**rows[self.control], "variant": f"{self.control}, equal score"}
        difference = estimates.summary(self.last(self.control) - self.last(self.baseline), "mean")
        text = f"validation score minus that of {self.baseline}: {difference} over {difference.n} seeds"
        within = difference.low is not None and max(-difference.low, difference.high) <= MARGIN
        reason = self._why_untrained() or (None if within else f"{text}, not within {MARGIN:g}")
        equal |= {"notes": text} if reason is None else {"status": "unavailable", "reason": reason}
        return pd.DataFrame([*rows.values(), equal])

    def memory(self) -> pd.DataFrame:
        """MiB that a step over one batch holds at its peak above model and optimizer, over the baseline.

        A step is the loop's epoch of that one batch, so what its input pipeline holds in this process counts.
        On CUDA the allocator's, measured for some steps; on a CPU the tensors alive, counted for one.
        """
        on_cpu = self.device == "cpu"
        held = {}
        with forked_random():
            for variant in self.epochs["variant"].unique():
                loop = self._loop(variant)
                started = loop.start(0, self.device)
                loop.epoch(*started, [self.batch])  # what is made once: state of the optimizer
                steps = range(1 if on_cpu else MEMORY_STEPS)
                used = [profile_memory_usage(loop.epoch, *started, [self.batch], device=self.device) for _ in steps]
                held[variant] = np.array([stats.rise_mb for stats in used])
        rows = pd.DataFrame([{**self._row(variant, held, "MiB"), "notes": STEP} for variant in self._variants])
        if not on_cpu:
            return rows
        rows["value"] = rows.pop("samples").str[0]
        return rows.assign(origin="counted", statistic="count", interval="exact", n=1)

    def differences(self, pairs: Mapping[str, str]) -> pd.DataFrame:
        """Score of a loop minus another's (`pairs`: loop -> other) after the last epoch, paired by seed; key: minus.

        Where training is too near a constant answer there is no difference, but the reason.
        """
        rows = []
        for variant, minus in {**pairs, CONTROL: self.control}.items():
            row = {"minus": minus, "variant": variant, "unit": "score", "better": "higher", "origin": "measured"}
            row |= {"statistic": "mean", "precision": self._loop(variant).precision, "notes": self.trained()}
            status, reason = self.missing.get(variant, ("unavailable", self._why_untrained()))
            if reason is not None:
                rows.append(row | {"status": status, "reason": reason})
            else:
                rows.append(row | {"samples": self.last(variant) - self.last(minus)})
        return pd.DataFrame(rows)

    def last(self, variant: str) -> np.ndarray:
        """The validation score of a loop after the last epoch, (seeds,)."""
        rows = self.epochs[(self.epochs["variant"] == variant) & (self.epochs["epoch"] == self.epochs["epoch"].max())]
        return rows.sort_values("seed")["score"].to_numpy()

    def trained(self) -> str:
        """The score that the control's loop reaches, and the known scores to compare it with."""
        mean, constant = float(self.last(self.control).mean()), self.known["constant answer"]
        known = ", ".join(f"{name} {score:.3f}" for name, score in self.known.items())
        text = f"training reaches a validation score of {mean:.3f} ({known})"
        if "truth" not in self.known:
            return text
        way = 100 * (mean - constant) / (self.known["truth"] - constant)
        return f"{text}: {way:.0f} % of the way from the constant answer to the truth"

    def _why_untrained(self) -> str | None:
        """The reason why equal scores say little: training is too near a constant answer. None where it is not.

        Where the best possible score is not known, the mean has to be ten margins above the constant answer.
        """
        constant = self.known["constant answer"]
        gain = TRAINED * (self.known["truth"] - constant) if "truth" in self.known else 10 * MARGIN
        if self.last(self.control).mean() >= constant + gain:
            return None
        return f"{self.trained()}; {constant + gain:.3f} is needed: more epochs or smaller batches train further"

    @property
    def _variants(self) -> list[str]:
        return [*self.loops, CONTROL]

    def _loop(self, variant: str) -> Loop:
        return self.loops[self.control if variant == CONTROL else variant]

    def _row(self, variant: str, samples: Mapping[str, np.ndarray], unit: str, noise: float = 1.0) -> dict[str, Any]:
        """A loop's samples and their ratio over the baseline's, whose interval is wider by the factor `noise`."""
        row = {"variant": variant, "status": "ok", "precision": self._loop(variant).precision, "unit": unit}
        row |= {"better": "lower", "origin": "measured", "statistic": "median"}
        if variant in self.missing:
            return row | dict(zip(("status", "reason"), self.missing[variant], strict=True))
        row["samples"] = samples[variant]
        if variant == self.baseline:
            return row
        base = self.control if variant == CONTROL else self.baseline
        ratio = estimates.ratio(samples[base], samples[variant])
        if variant != CONTROL and ratio.low is not None:
            ratio = replace(ratio, low=ratio.low / noise, high=ratio.high * noise)
        fields = {"baseline": base, "ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high}
        return row | fields | {"parity_error": self.errors.get(variant)}


def _known_scores(training: FeatureTable, validation: FeatureTable) -> dict[str, float]:
    """The scores on the validation table of chance, of the training table's most frequent class, and of the truth."""
    # of labels: the area under the curve of random scores, and of one answer for all rows
    chance = dict.fromkeys(training.targets, 0.5)
    constant = dict(chance)
    for spec in (spec for spec in training.specs if spec.kind == "classes"):
        frequent = torch.bincount(training.targets[spec.name], minlength=spec.size).argmax()
        chance[spec.name] = 1 / spec.size
        constant[spec.name] = float((validation.targets[spec.name] == frequent).double().mean())
    known = {"chance": float(np.mean([*chance.values()])), "constant answer": float(np.mean([*constant.values()]))}
    if validation.best_score is not None:
        known["truth"] = float(np.mean(list(validation.best_score.values())))
    return known
