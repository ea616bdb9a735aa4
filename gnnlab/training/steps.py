"""What training computes, by the switches of a recipe: the order of rows, losses, gradients, updates, and how well the
model predicts on a validation table."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gnnlab.errors import GnnlabError
from gnnlab.profiling.sampling import synchronizer
from gnnlab.training.process_group import RankShare, gathered, gradients_stay, parallel, share, summed
from gnnlab.training.recipe import TrainingRecipe, autocast
from gnnlab.workloads import deepfm
from gnnlab.workloads.tables import FeatureTable, scores

BATCH_ROWS = 4096  # of a validation
READ_STEPS = 64  # on a device whose losses have to be waited for


def mixed(*numbers: int) -> int:
    """A seed of 63 bits from several numbers (seed, epoch, step, ...): the same for the same, unlike for others."""
    digest = hashlib.blake2b("/".join(map(str, numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def order(rows: int, seed: int, epoch: int) -> Tensor:
    """The order in which an epoch takes the rows, int64 (rows,); a function of these numbers, so no state is kept."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(mixed(seed, epoch)))


def set_dropout(device: torch.device, *numbers: int) -> None:
    """Dropout from here on is a function of these numbers. (`torch.manual_seed` is 100 times slower.)"""
    torch.default_generator.manual_seed(mixed(*numbers))
    if device.type == "cuda":
        place = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[place].manual_seed(mixed(*numbers))


def untrainable(training: FeatureTable, validation: FeatureTable) -> Iterator[str]:
    """Why nothing can be learned from the one table, or told by the other; nothing where both do."""
    for spec in training.specs:
        if _one_answer(training.targets[spec.name]):
            rows = f"all {len(training)} rows of the training table, nothing to learn"
            yield f"target {spec.name!r} has one answer only in {rows}; leave it out or take more rows"
        if spec.kind == "labels" and _one_answer(validation.targets[spec.name]):
            rows = f"all {len(validation)} rows of the validation table"
            yield f"target {spec.name!r} has labels of one answer only in {rows}; take more rows"


def _one_answer(column: Tensor) -> bool:
    """Classes that are all the same, or labels none of which varies."""
    return bool((column == column[0]).all())


class Objective(nn.Module):
    """`objective(fields, targets)` -> (loss, outputs): a scalar, and logits (B, size) by target name."""

    def __init__(self, model: nn.Module, device: str = "cpu", precision: str = "fp32") -> None:
        super().__init__()
        self.model, self.device, self.precision = model, device, precision

    def forward(self, fields: Tensor, targets: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        with autocast(self.precision, self.device):
            outputs = self.model(fields)
        if self.precision != "fp32":  # losses are sums over many rows: float32
            outputs = {name: logits.float() for name, logits in outputs.items()}
        losses = deepfm.target_losses(outputs, targets, self.model.targets)
        return deepfm.weighted(torch.stack(losses), self.model.log_variances), outputs


@contextmanager
def checkpointed(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Within it the branch `deep` keeps no activations: its forward pass runs again where the backward needs them."""
    if not wanted:
        yield
        return
    forward = model.deep.forward
    model.deep.forward = partial(checkpoint, forward, use_reentrant=False)
    try:
        yield
    finally:
        del model.deep.forward  # the attribute of this instance; that of its class shows again


@torch.no_grad()
def evaluate(objective: Objective, table: FeatureTable, share: RankShare) -> dict[str, Any]:
    """validation_loss, score, score.<target> and labels_left_out, the same in every process, each predicting its share.

    Raises `GnnlabError`: the predictions are not finite.
    """
    batches = torch.arange(len(table)).split(BATCH_ROWS)
    training = objective.training
    objective.eval()
    try:
        predicted = [_predicted(objective, table, share.of(rows), share.count(len(rows))) for rows in batches]
    finally:
        objective.train(training)
    loss = summed(torch.stack([loss for loss, _, _ in predicted]).sum()).item() / len(table)
    counts = [sum(RankShare(rank, share.world).count(len(rows)) for rows in batches) for rank in range(share.world)]
    outputs, targets = ({name: gathered(torch.cat([part[place][name] for part in predicted]), counts)
                         for name in table.targets} for place in (1, 2))  # fmt: skip
    if not all(torch.isfinite(logits).all() for logits in outputs.values()):
        raise GnnlabError(
            "the model predicts numbers that are not finite on the validation table; "
            "lower learning_rate, set clip_norm or train in fp32"
        )
    found = scores(outputs, targets, table.specs)
    by_target = {f"score.{name}": value for name, value in found.by_target.items()}
    return {"validation_loss": loss, "score": found.score, **by_target, "labels_left_out": found.left_out}


def _predicted(
    objective: Objective, table: FeatureTable, rows: Tensor, count: int
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """(sum of the loss, outputs, targets) of the first `count` of some rows; any others are there for nothing."""
    targets = {name: column[rows].to(objective.device) for name, column in table.targets.items()}
    loss, outputs = objective(table.fields[rows].to(objective.device), targets)
    cut = ({name: column[:count] for name, column in columns.items()} for columns in (outputs, targets))
    return loss * count, *cut


class LossRecord:
    """What each micro-batch adds to the loss of its step, step after step, summed over the processes when read.

    On a CPU a step is read before its gradients are used, so that a bad loss leaves the weights as they were; elsewhere
    reading waits for the device, and is done for many steps at once.
    """

    def __init__(self, first_step: int, device: torch.device) -> None:
        self.on_cpu = device.type == "cpu"
        self.next_step = first_step
        self.steps: list[list[Tensor]] = []  # not read yet

    @property
    def due(self) -> bool:
        return len(self.steps) >= (1 if self.on_cpu else READ_STEPS)

    def new(self) -> Iterator[tuple[int, list[float]]]:
        """(step, what each of its micro-batches adds) for the steps that ended since the last time."""
        steps, self.steps = self.steps, []
        if not steps:
            return
        losses = torch.stack(list(itertools.chain.from_iterable(steps)))
        values = iter(summed(losses.double() if self.on_cpu else losses.float()).tolist())
        for step in steps:
            yield self.next_step, list(itertools.islice(values, len(step)))
            self.next_step += 1


class Stepper:
    """Model, optimizer and rows to train on, on the device of a recipe. Within `with`, torch's generators are its own.

    A step is `seed`, `backward` over its micro-batches, `update`.
    """

    def __init__(self, model: nn.Module, training: FeatureTable, recipe: TrainingRecipe) -> None:
        self.model, self.recipe, self.share = model.to(recipe.device), recipe, share()
        self.device = torch.device(recipe.device)
        self.fields = training.fields.to(self.device)
        self.targets = {name: column.to(self.device) for name, column in training.targets.items()}
        self.objective = Objective(model, recipe.device, recipe.precision)
        self.network = parallel(self.objective, recipe.device, recipe.sharded)
        self.compute = torch.compile(self.network, recompile_limit=64) if recipe.compile else self.network
        rates = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=True, **rates)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=recipe.precision == "fp16")
        self.wait = synchronizer(recipe.device)

    def __enter__(self) -> Stepper:
        with ExitStack() as stack:
            on_cuda = self.device.type == "cuda"
            stack.enter_context(torch.random.fork_rng(devices=[self.device] if on_cuda else []))
            stack.enter_context(checkpointed(self.model, self.recipe.checkpointing))
            stack.callback(self.model.train, self.model.training)
            self.network.train()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def seed(self, epoch: int, step: int) -> None:
        """Dropout of a step is a function of these and of the process."""
        set_dropout(self.device, self.recipe.seed, epoch, step, self.share.rank)

    def backward(self, batches: Sequence[Tensor], record: LossRecord) -> None:
        """Gradients of the mean loss over the rows of a step: micro-batches of rows, those of all processes."""
        losses, rows = [], sum(map(len, batches))
        for place, batch in enumerate(batches):
            own = self.share.of(batch).to(self.device)
            targets = {name: column.index_select(0, own) for name, column in self.targets.items()}
            with gradients_stay(self.network, stay=place + 1 < len(batches)):
                loss, _ = self.compute(self.fields.index_select(0, own), targets)
                loss = loss * (self.share.count(len(batch)) / rows)  # its part; a share without rows adds 0
                losses.append(loss.detach())
                self.scaler.scale(loss * self.share.world).backward()  # gradients are averaged over the processes
        record.steps.append(losses)

    def update(self) -> None:
        """One step of the optimizer, with clipped gradients where the recipe says so."""
        if self.recipe.clip_norm:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
