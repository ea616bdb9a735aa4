"""A DeepFM trained by several processes on Lightning Fabric: mixed precision, gradient accumulation, save and resume.

    pip install 'gnnlab[train]'
    python examples/train_distributed.py --processes 2 --epochs 4 --folder outputs/train

Each epoch ends with a checkpoint, `epoch-0004.ckpt`; the same command with more epochs goes on from the newest one.
Order and dropout are functions of the epoch and the process, so a resumed training gives the losses of one that was
not interrupted. `--batch-size` rows make a micro-batch of one process, `--accumulate` of them a step of the optimizer.
"""

import argparse
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch.nn import functional as F

from gnnlab.training.interactions import DeepFM
from gnnlab.workloads.tables import synthetic

parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
parser.add_argument("--processes", type=int, default=2)
parser.add_argument("--accelerator", default="auto", choices=["auto", "cpu", "cuda"])
parser.add_argument("--precision", default="bf16-mixed", choices=["32-true", "bf16-mixed", "16-mixed"])
parser.add_argument("--rows", type=int, default=20_000, help="of the synthetic table that is trained on")
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--folder", type=Path, required=True, help="for checkpoints; all processes must see it")


def weighted_loss(outputs, targets, specs, log_variances):
    """sum of exp(-s) L + s over the targets (Kendall et al. 2018), L the cross entropy of classes or of labels."""
    total = log_variances.sum()
    for spec, s in zip(specs, log_variances, strict=True):
        classes, target = spec.kind == "classes", targets[spec.name]
        loss = F.cross_entropy if classes else F.binary_cross_entropy_with_logits
        total = total + torch.exp(-s) * loss(outputs[spec.name], target if classes else target.float())
    return total


def train_epoch(fabric, model, optimizer, table, epoch, batch_size, accumulate):
    """One pass over this process's share of the rows; the mean loss over all processes."""
    torch.manual_seed(epoch)
    order, share = torch.randperm(len(table)), len(table) // fabric.world_size  # equal shares, none waits for another
    own = order[fabric.global_rank * share :][:share]
    torch.manual_seed(1000 * epoch + fabric.global_rank)  # dropout differs between processes
    batches, losses = own.split(batch_size), []
    for number, rows in enumerate(batches, start=1):
        fields, targets = fabric.to_device((table.fields[rows], {n: c[rows] for n, c in table.targets.items()}))
        last = number % accumulate == 0 or number == len(batches)
        with fabric.no_backward_sync(model, enabled=not last):  # gradients are exchanged once a step
            loss = weighted_loss(model(fields), targets, table.specs, model.log_variances)
            fabric.backward(loss / accumulate)
        losses.append(loss.detach())
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return float(fabric.all_reduce(torch.stack(losses).mean()))


def main():
    given = parser.parse_args()
    devices = {"accelerator": given.accelerator, "devices": given.processes}
    fabric = Fabric(**devices, strategy="ddp", precision=given.precision)
    fabric.launch()  # starts the other processes
    table = synthetic(given.rows)
    torch.manual_seed(0)
    model = DeepFM(table.cardinalities, table.specs, embedding_dim=16, hidden=64)
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    state = {"model": model, "optimizer": optimizer, "epoch": 0}
    if checkpoints := sorted(given.folder.glob("epoch-*.ckpt")):
        fabric.load(checkpoints[-1], state, weights_only=True)  # unpickles tensors and numbers, no code
    for epoch in range(state["epoch"] + 1, given.epochs + 1):
        loss = train_epoch(fabric, model, optimizer, table, epoch, given.batch_size, given.accumulate)
        state["epoch"] = epoch
        unfinished = given.folder / "unfinished"
        fabric.save(unfinished, state)
        if fabric.is_global_zero:  # whole under its name, or not there
            unfinished.replace(given.folder / f"epoch-{epoch:04}.ckpt")
        fabric.print(f"epoch {epoch}: loss {loss:.8f}", flush=True)


if __name__ == "__main__":
    main()
