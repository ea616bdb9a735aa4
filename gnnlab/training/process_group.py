"""The processes that torchrun started, as far as training needs them: who am I, data-parallel, sharded, sums.

    with processes("cpu"):                 # joins them; alone, it does nothing
        train(model, ...)

Outside a group every function here is that of a single process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gnnlab.errors import GnnlabError
from gnnlab.worker_process import end_with_parent


@dataclass(frozen=True)
class RankShare:
    """What one of `world` processes takes of every batch: rows beside each other, in order of `rank`."""

    rank: int = 0
    world: int = 1

    def count(self, rows: int) -> int:
        """How many of so many rows; 0 for some processes where there are fewer rows than processes."""
        return (self.rank + 1) * rows // self.world - self.rank * rows // self.world

    def of(self, batch: Tensor) -> Tensor:
        """Its indices. A process with none computes the first row, for nothing: collective work needs all processes."""
        if self.world == 1:
            return batch
        first = self.rank * len(batch) // self.world
        return batch[first : first + self.count(len(batch))] if self.count(len(batch)) else batch[:1]


@contextmanager
def processes(device: str = "cpu") -> Iterator[str]:
    """Join the group that torchrun prepared (gloo on a CPU, nccl on CUDA); gives the device of this process.

    A process of a group ends when torchrun is gone: nobody else would end it, and a restart would find it at work.
    Raises `GnnlabError`: there are more processes on this machine than it has CUDA devices.
    """
    if "WORLD_SIZE" not in os.environ:
        yield device
        return
    end_with_parent()
    on_cuda = torch.device(device).type == "cuda"
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if on_cuda and local >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise GnnlabError(f"process {local} of this machine needs a CUDA device of its own, there are {count}; "
                            f"start torchrun with --nproc-per-node {max(count, 1)}")  # fmt: skip
    own = f"cuda:{local}" if on_cuda else "cpu"
    if on_cuda:
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if on_cuda else "gloo", device_id=torch.device(own) if on_cuda else None)
    try:
        yield own
    finally:
        dist.destroy_process_group()


def share() -> RankShare:
    """The place of this process among all."""
    return RankShare(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else RankShare()


def parallel(objective: nn.Module, device: str, sharded: bool) -> nn.Module:
    """What computes the objective on all processes: itself, DistributedDataParallel around it, or itself sharded.

    All start from the weights of process 0. Sharded, the weights of a layer are gathered for its own use only.
    """
    if share().world == 1:
        return objective
    if sharded:
        return _sharded(objective, device)
    devices = None if device == "cpu" else [torch.device(device)]
    return DistributedDataParallel(objective, device_ids=devices, gradient_as_bucket_view=True)


def _sharded(objective: nn.Module, device: str) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh  # a second of imports, for those who shard
    from torch.distributed.fsdp import fully_shard

    for tensor in [*objective.parameters(), *objective.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    mesh = init_device_mesh(torch.device(device).type, (share().world,))
    for part in objective.modules():  # what holds weights and no further modules: containers need not be called
        if not list(part.children()) and list(part.parameters()):
            fully_shard(part, mesh=mesh)
    return fully_shard(objective, mesh=mesh)


def gradients_stay(network: nn.Module, stay: bool) -> AbstractContextManager[Any]:
    """The context of a backward pass; with `stay` its gradients are summed up here and not yet over the processes."""
    if isinstance(network, DistributedDataParallel):
        return network.no_sync() if stay else nullcontext()
    if hasattr(network, "set_requires_gradient_sync"):
        network.set_requires_gradient_sync(not stay)
    return nullcontext()


def summed(values: Tensor) -> Tensor:
    """The sum over the processes, in each of them; in place."""
    if share().world > 1:
        dist.all_reduce(values)
    return values


def all_agree(number: int) -> bool:
    """Has every process the same number (below 2**53)?"""
    if share().world == 1:
        return True
    own = torch.tensor([number], dtype=torch.int64, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    parts = [torch.empty_like(own) for _ in range(share().world)]
    dist.all_gather(parts, own)
    return all(part.item() == number for part in parts)


def gathered(rows: Tensor, counts: Sequence[int]) -> Tensor:
    """Rows (R, ...) of all processes below each other, in each of them; `counts`: how many each has."""
    if len(counts) == 1:
        return rows
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
