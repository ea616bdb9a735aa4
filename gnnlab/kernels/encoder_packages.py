"""The fast symptom encoder through the compiler, still computed from the weights as they are at every call.

Weights and prepared edges are arguments of what is compiled, not constants in it: a step of an optimizer needs no
new compilation. Where a compiled form does not hold (training, gradients wanted, another precision or device than it
was made for), the encoder itself answers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from gnnlab.kernels.symptom_encoder import EncoderError, FastSymptomEncoder, Weights


class CompiledSymptomEncoder(nn.Module):
    """`encoder(batch_size)` -> (batch_size, 256), a view as `FastSymptomEncoder` gives, by a compiled function."""

    def __init__(self, encoder: FastSymptomEncoder, run: Callable[[list[Tensor]], Tensor]):
        super().__init__()
        self.encoder, self._run = encoder, run
        self._kind = _kind(encoder.weights().table, encoder.edge_index)
        self.train(encoder.training)

    def forward(self, batch_size: int = 1) -> Tensor:
        encoder = self._modules["encoder"]
        weights = encoder.weights()
        fits = _kind(weights.table, encoder.edge_index) == self._kind and not encoder.training
        if not fits or (torch.is_grad_enabled() and any(w.requires_grad for w in weights)):
            return encoder(batch_size)
        if type(batch_size) is not int or batch_size < 1:
            raise EncoderError(f"batch_size must be an integer of 1 or more, got {batch_size!r}")
        rows = self._run([*weights, *encoder.structure(weights.table)])
        return rows.expand(batch_size, -1)


def packages(
    encoder: FastSymptomEncoder, names: Sequence[str], folder: str | Path
) -> dict[str, CompiledSymptomEncoder]:
    """The encoder by each compiler named (compiled, packaged), as forms of a race; packages lie in `folder`."""
    made = {"compiled": lambda: compiled(encoder), "packaged": lambda: ahead_of_time(encoder, folder)}
    with torch.inference_mode():
        encoder(1)  # prepares its edges, which a compiler wants to find
        return {f"rewritten, {name}": made[name]() for name in names}


def compiled(encoder: FastSymptomEncoder, mode: str = "default") -> CompiledSymptomEncoder:
    """The encoder through `torch.compile`, compiled at its first call (tens of seconds, for the dense form)."""
    function = torch.compile(_Pure(encoder), fullgraph=True, dynamic=False, mode=mode)
    return CompiledSymptomEncoder(encoder, lambda inputs: function(*inputs))


def ahead_of_time(encoder: FastSymptomEncoder, folder: str | Path) -> CompiledSymptomEncoder:
    """The encoder as a library compiled now (tens of seconds) into `folder`/symptom_encoder.pt2.

    Without guards and Python between the kernels it is the fastest form that computes. Needs a C++ compiler;
    `EncoderError` where the package cannot be made.
    """
    path = Path(folder) / "symptom_encoder.pt2"
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = encoder.weights()
    inputs = tuple(t.detach() for t in (*weights, *encoder.structure(weights.table)))
    was_training = encoder.training
    encoder.eval()
    try:
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's own deprecations
            program = torch.export.export(_Pure(encoder), inputs)
            torch._inductor.aoti_compile_and_package(program, package_path=str(path))
            loader = torch._inductor.aoti_load_package(str(path)).loader
    except Exception as error:
        raise EncoderError(f"no package of the encoder could be made here: {error}") from error
    finally:
        encoder.train(was_training)
    return CompiledSymptomEncoder(encoder, lambda inputs: loader.boxed_run(inputs)[0])


class _Pure(nn.Module):
    """`compute` without parameters of its own: weights and structure come as arguments."""

    def __init__(self, encoder: FastSymptomEncoder):
        super().__init__()
        self._compute = encoder.compute  # a bound method is no submodule, so nothing is registered

    def forward(self, *inputs: Tensor) -> Tensor:
        count = len(Weights._fields)
        return self._compute(Weights(*inputs[:count]), inputs[count:])


def _kind(table: Tensor, edges: Tensor) -> tuple:
    return table.dtype, table.device, table.shape, edges.size(1)
