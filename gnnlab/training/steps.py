"""What turns batches into better weights, by the switches of a recipe: order of rows, gradients, updates, losses."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from gnnlab.profiling.sampling import synchronizer
from gnnlab.training.objective import Objective, checkpointed
from gnnlab.training.process_group import gradients_stay, parallel, share, summed
from gnnlab.training.recipe import TrainingRecipe
from gnnlab.workloads.tables import FeatureTable

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
