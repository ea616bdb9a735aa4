"""Where inference runs, and why there."""

from __future__ import annotations

import torch

from gnnlab.kernels.errors import OptimizeError

DEVICES = ("auto", "cuda", "mps", "cpu")


def choose(device: str = "auto") -> tuple[torch.device, str]:
    """(device, reason): the one asked for, or with "auto" the first that is here of CUDA, MPS and CPU.

    Raises:
        OptimizeError: it is none of these, or not here.
    """
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        found = next(name for name, is_here in here.items() if is_here)
        missing = [name.upper() for name in list(here)[: list(here).index(found)]]
        return torch.device(found), f"{found}: the first here of CUDA, MPS, CPU" + (
            f"; torch {torch.__version__} sees no {' and no '.join(missing)}" if missing else ""
        )
    kind, _, index = str(device).partition(":")
    if kind not in here or (index and not (kind == "cuda" and index.isdigit())):
        raise OptimizeError(f"device {device!r}: one of {', '.join(DEVICES)} is needed")
    if not here[kind] or (index and int(index) >= torch.cuda.device_count()):
        raise OptimizeError(f"device {device!r} is not here: torch {torch.__version__} does not see it; use cpu")
    return torch.device(device), f"{device}: asked for"
