"""Linear layers in another form: without the zeros of an input such as bags of words, as torch's own, in int8.

layer = SparseLinear(conv.lin)     # the same weight and bias, under the same names
layer(x)                           # from the second call with the same x on, its zeros are left out

features = SparseFeatures.prepare(x)
features.product(weight)           # x @ weight.T, and the gradient of weight, by hand

sparse_inputs(model, batch)        # a model whose layers that multiply a sparse argument are such layers
int8_weights(model)                # a copy with all of its linear layers in int8, those of PyG, too
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gnnlab.errors import GnnlabError
from gnnlab.kernels.aggregation import bag
from gnnlab.kernels.kept import Kept
from gnnlab.kernels.neighbours import Neighbours
from gnnlab.kernels.sorting import index_type
from gnnlab.profiling.context import call
from gnnlab.profiling.dispatch import tensors_in

# up to this share of nonzeros the sum is taken; measured with one AVX-512 core at 64 columns of weight: 10 to 17 times
# as fast as the dense product at 1.3 %, 3 to 4 times at 10 %, 2 times at 20 %, less where the weights are wide
MOST_NONZEROS = 0.1
FEWEST_NUMBERS = 1 << 14  # smaller inputs are multiplied before the nonzeros are found
SAMPLED_ROWS = 64


class SparseFeatures:
    """The nonzeros of a matrix (N, K): rows are targets and columns sources of a graph, values its weights."""

    def __init__(self, entries: Neighbours, values: Tensor) -> None:
        self.entries, self.values = entries, values

    @classmethod
    def prepare(cls, x: Tensor) -> SparseFeatures:
        """The nonzeros of `x` (N, K), floating.

        Raises:
            GnnlabError: x has another shape or type, or wants a gradient, which is not sparse.
        """
        if not isinstance(x, Tensor) or x.dim() != 2 or not x.is_floating_point():
            given = f"{tuple(x.shape)}, {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
            raise GnnlabError(f"x must be a floating-point tensor (rows, columns), not {given}")
        if x.requires_grad:
            raise GnnlabError("x wants a gradient, and that of its zeros is not zero; use torch.nn.functional.linear")
        with torch.inference_mode(False):  # what is kept must serve training, too
            row, col = x.nonzero().unbind(1)
            kind = index_type(max(x.shape), row.shape[0])
            places = torch.arange(x.shape[0] + 1, device=x.device)
            rowptr = torch.searchsorted(row.contiguous(), places).to(kind)
            entries = Neighbours(rowptr, col.to(kind), None, None, x.shape[1])
            return cls(entries, x[row, col].clone())

    @property
    def density(self) -> float:
        """The share of numbers that are not zero."""
        return self.values.shape[0] / max(self.entries.num_nodes * self.entries.num_sources, 1)

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x @ weight.T + bias as `F.linear(x, weight, bias)` gives it, (N, out); `weight` (out, K) may want a gradient.

        Raises:
            GnnlabError: `weight` has another number of columns or another type.
        """
        if weight.dim() != 2 or weight.shape[1] != self.entries.num_sources or weight.dtype != self.values.dtype:
            raise GnnlabError(
                f"weight must be (outputs, {self.entries.num_sources}), {self.values.dtype}, "
                f"not {tuple(weight.shape)}, {weight.dtype}"
            )
        out = _Product.apply(weight, self)
        return out if bias is None else out + bias

    @property
    def sent(self) -> Tensor:
        """The values in the order of the transposed entries."""
        return self.entries.once("sent", lambda: self.values.index_select(0, self.entries.transposed.order))


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight: Tensor, features: SparseFeatures) -> Tensor:
        ctx.features = features
        return bag(weight.t(), features.entries, features.values)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        features: SparseFeatures = ctx.features
        return bag(grad, features.entries.transposed, features.sent).t().contiguous(), None


class SparseLinear(nn.Module):
    """`linear` with its own weight and bias, that leaves out the zeros of an input which comes again and again.

    An input is looked at when it comes a second time, the same tensor and unchanged: finding its nonzeros takes as long
    as two to three dense products. Inputs that are new in each call, that want gradients or have more nonzeros than
    `MOST_NONZEROS` are multiplied as before.
    """

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.weight = linear.weight
        self.register_parameter("bias", linear.bias)
        self._inputs = Kept()
        self.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        features = self._features(x)
        return F.linear(x, self.weight, self.bias) if features is None else features.product(self.weight, self.bias)

    def _features(self, x: Tensor) -> SparseFeatures | None:
        if torch.compiler.is_compiling() or x.requires_grad or x.device.type != "cpu" or x.is_inference():
            return None
        if x.dim() != 2 or x.numel() < FEWEST_NUMBERS or x.layout is not torch.strided or x.dtype != self.weight.dtype:
            return None
        some = x[:: max(1, x.shape[0] // SAMPLED_ROWS)]
        seen = self._inputs.get(x, lambda: _Seen(int(some.count_nonzero()) <= MOST_NONZEROS * some.numel()))
        if not seen.sparse or seen.calls == 0:
            seen.calls += 1
            return None
        if seen.features is None:
            seen.features = SparseFeatures.prepare(x)
            seen.sparse = seen.features.density <= MOST_NONZEROS
        return seen.features if seen.sparse else None

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, bias={self.bias is not None}"


@dataclass
class _Seen:
    """What is known of an input."""

    sparse: bool
    calls: int = 0
    features: SparseFeatures | None = None


LINEAR = (nn.Linear, pyg.Linear)


def sparse_places(model: nn.Module, batch: Any) -> dict[str, float]:
    """Paths of the linear layers that multiply a sparse argument, with the share of its numbers that are not zero.

    Raises:
        GnnlabError: there are none; it says why.
    """
    wide = {t.data_ptr(): t for t in tensors_in(batch) if t.dim() == 2 and t.is_floating_point()}
    shares = {at: float(t.count_nonzero()) / t.numel() for at, t in wide.items() if t.numel() >= FEWEST_NUMBERS}
    sparse = {at: share for at, share in shares.items() if share <= MOST_NONZEROS}
    if not sparse:
        most = f"; {100 * min(shares.values()):.0f} % of the features are not zero" if shares else ""
        raise GnnlabError(f"no input of {FEWEST_NUMBERS:,} numbers or more is mostly zeros{most}")
    found: dict[str, float] = {}

    def look(path: str) -> Any:
        def hook(module: nn.Module, inputs: tuple) -> None:
            if inputs and isinstance(inputs[0], Tensor) and inputs[0].data_ptr() in sparse:
                found[path] = sparse[inputs[0].data_ptr()]

        return hook

    linear = [(path, module) for path, module in model.named_modules() if type(module) in LINEAR]
    hooks = [module.register_forward_pre_hook(look(path)) for path, module in linear]
    try:
        with torch.no_grad():
            call(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        raise GnnlabError("no linear layer multiplies the sparse input as it came in")
    return found


def sparse_inputs(model: nn.Module, batch: Any) -> nn.Module:
    """`model`, changed, with the layers of `sparse_places` replaced. Raises `GnnlabError` as it does."""
    for path in sparse_places(model, batch):
        if not path:
            return SparseLinear(model)
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, SparseLinear(model.get_submodule(path)))
    return model


def with_torch_linears(model: nn.Module) -> nn.Module:
    """A copy on the CPU in which every linear layer is torch's: PyG's layers hold a Linear of PyG's own, which
    `isinstance(layer, nn.Linear)` and `quantize_dynamic` pass by."""
    made = copy.deepcopy(model).cpu().eval()
    for parent in list(made.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, pyg.Linear):
                linear = nn.Linear(layer.in_channels, layer.out_channels, bias=layer.bias is not None)
                linear.load_state_dict(layer.state_dict())
                setattr(parent, name, linear)
    return made


def int8_weights(model: nn.Module) -> nn.Module:
    """A copy of `model` with every linear layer in int8, activations quantized at each call.

    Raises:
        ImportError: this torch no longer has `torch.ao.quantization`, which is deprecated.
    """
    from torch.ao.quantization import quantize_dynamic

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.ao.quantization is deprecated", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="torch.quantize_per_tensor", category=UserWarning)
        return quantize_dynamic(with_torch_linears(model), {nn.Linear}, dtype=torch.qint8)
