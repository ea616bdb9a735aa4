"""The tensors in what goes in and out of a model: which there are, how many bytes, on which device."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from gnnlab.errors import GnnlabError
from gnnswap.inputs import tensors_in


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The strided tensors that a tensor is made of: itself, or indices and values; none where torch does not tell."""
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes that a tensor's elements take in memory, each once: an expanded tensor is as small as its source."""
    if tensor.layout is not torch.strided:
        parts = parts_of(tensor)
        return sum(map(span_bytes, parts)) if parts else tensor.numel() * tensor.element_size()
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not size)
    return min(prod(sizes) * tensor.element_size(), tensor.untyped_storage().nbytes())


def device_of(*things: Any) -> torch.device:
    """Where models and batches compute: the device of the first parameter, buffer or tensor that is not on the CPU; the
    CPU if there is none."""
    devices = (tensor.device for tensor in tensors_in(things))
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def device_name(device: torch.device) -> str:
    """The name of the card, of a CUDA device; of any other what torch calls it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def cpu_or_cuda(device: Any, what: str) -> torch.device:
    """`device`, where `what` is measured. Raises `GnnlabError`: it is neither a CPU nor CUDA, or not here."""
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise GnnlabError(f"no device is called {device!r}; use cpu or cuda") from error
    if where.type not in ("cpu", "cuda"):
        raise GnnlabError(f"{what} is measured on cpu and cuda, not on {where.type}")
    if where.type == "cuda" and not torch.cuda.is_available():
        raise GnnlabError(f"device {where} was asked for, but torch sees no CUDA device here; use cpu")
    return where
