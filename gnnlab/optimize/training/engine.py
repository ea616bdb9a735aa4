"""What turns batches into better weights, by the switches of a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import torch
from torch import nn

from gnnlab.optimize.training.input_pipeline import Batch, mixed
from gnnlab.optimize.training.loss_record import LossRecord
from gnnlab.optimize.training.objective import Objective, checkpointed
from gnnlab.optimize.training.process_group import gradients_stay, parallel, share
from gnnlab.optimize.training.recipe import Recipe
from gnnlab.profiling.sampling import synchronizer


class Engine:
    """Model and optimizer of a training. Within `with`, torch's generators are the training's own.

    A step is `seed`, `backward` over its micro-batches, `update`.
    """

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        self.model, self.recipe, self.share = model.to(recipe.device), recipe, share()
        self.device = torch.device(recipe.device)
        self.objective = Objective(model, recipe)
        self.network = parallel(self.objective, recipe.device, recipe.sharded)
        self.compute = torch.compile(self.network, recompile_limit=64) if recipe.compile else self.network
        kernel = {"foreach": recipe.optimizer == "foreach", "fused": recipe.optimizer == "fused"}
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, **kernel
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=recipe.precision == "fp16")
        self.wait = synchronizer(recipe.device)

    def __enter__(self) -> Engine:
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
        """Dropout of a step is a function of these and of the process. (`torch.manual_seed` is 100 times slower.)"""
        number = mixed(self.recipe.seed, epoch, step, self.share.rank)
        torch.default_generator.manual_seed(number)
        if self.device.type == "cuda":
            place = torch.cuda.current_device() if self.device.index is None else self.device.index
            torch.cuda.default_generators[place].manual_seed(number)

    def backward(self, batches: Iterator[Batch], sizes: Sequence[int], record: LossRecord) -> None:
        """Gradients of the mean loss over the rows of a step: micro-batches of `sizes` rows over all processes."""
        rows = sum(sizes)
        for place, size in enumerate(sizes):
            fields, targets = next(batches)
            with gradients_stay(self.network, stay=place + 1 < len(sizes)):
                loss, _ = self.compute(fields, targets)
                loss = loss * (self.share.count(size) / rows)  # its part of the mean; a share without rows adds 0
                record.add(loss.detach())
                self.scaler.scale(loss * self.share.world).backward()  # gradients are averaged over the processes
        record.end_step()

    def update(self) -> None:
        """One step of the optimizer, with clipped gradients where the recipe says so."""
        if self.recipe.clip_norm:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
