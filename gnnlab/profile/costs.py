"""What one operator call costs: floating-point operations, and bytes that it has to read and to write.

The rules, with N the number of elements:

- matrix products, convolutions, attention: torch's own formulas (2 m k n for a product); attention adds 5 per score;
- softmax 5 N, normalization 5 N, GELU and other activations built from exp 4 N (the assumptions of S1);
- recurrent layers: the products with their weights, and what their gates take beside (13 for each number of an LSTM);
- other element-wise work and reductions 1 FLOP an element; work on integers and booleans none;
- of complex numbers a product is 6, in matrix products 8 with its sum, and anything else 2;
- gathering and copying none; scattering with a sum 1 for each element added;
- views and allocations cost nothing.

Bytes are the least that the operator can move: each input read once, each output written once. An expanded tensor is as
small as its source. A gather reads no more of its source than it gathers, and a scatter in place touches no more of its
target than it scatters. What only fills or copies does not read its target. Operators that none of the rules knows are
of the kind `unknown`: their bytes are counted, their FLOPs are not. The rules are for forward passes; operators of
backward passes alone are unknown. Passes of gnnswap, of the kind `fused`, have formulas of their own
(`gnnswap.passes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from gnnlab.measure.tensors import span_bytes
from gnnswap.inputs import tensors_in


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one call. `matrix_flops` is the part of `flops` that is matrix products, of numbers of `dtype`."""

    kind: str
    flops: int = 0
    matrix_flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    working_set: int = 0  # bytes of memory touched: what is read and written in place counts once
    dtype: str = ""


def cost(func: torch._ops.OpOverload, args: tuple, kwargs: dict, output: Any) -> Cost:
    """The cost of the call `output = func(*args, **kwargs)` of an operator below autograd."""
    kind = kind_of(func)
    if kind == "free":
        return Cost(kind)
    names = (argument.name for argument in func._schema.arguments)
    bound = dict(zip(names, args, strict=False)) | kwargs  # by name; defaults are left out
    sparse = any(t.layout is not torch.strided for t in tensors_in(bound))
    numbers = next((t.dtype for t in tensors_in(bound) if t.is_floating_point() or t.is_complex()), None)
    name, is_complex = base_name(func), numbers is not None and numbers.is_complex
    if kind == "matrix":
        matrix = _matrix_flops(func, bound, args, kwargs, output, sparse)
        kind = "unknown" if matrix is None else kind
        matrix = (matrix or 0) * (4 if is_complex else 1)
        flops = matrix + (0 if kind == "unknown" else _beside_matrix(name, bound, output)) * (1 + is_complex)
    else:
        kind = "unknown" if sparse and kind != "move" else kind
        matrix, flops = 0, 0 if kind == "unknown" else _flops(kind, name, bound, output)
        flops *= (6 if name in _PRODUCTS else 2) if is_complex else 1
    dtype = str(numbers).removeprefix("torch.") if matrix else ""
    return Cost(kind, flops, matrix, *_traffic(kind, func, bound, output), dtype)


@cache
def kind_of(func: torch._ops.OpOverload) -> str:
    """free, fill, move, gather, scatter, segment_sum, matrix, softmax, norm, reduce, elementwise or unknown."""
    name = base_name(func)
    if func.namespace in ("profiler", "prim") or func.is_view or name in _FREE:
        return "free"
    if func.namespace != "aten" or "_backward" in name:
        return "unknown"
    if func.overloadpacket in flop_registry or name in _MATRIX:
        return "matrix"
    for kind, names in _NAMED.items():
        if name in names:
            return kind
    if torch.Tag.nondeterministic_seeded in func.tags:  # random numbers
        return "fill"
    if torch.Tag.pointwise in func.tags:
        return "elementwise"
    return "reduce" if torch.Tag.reduction in func.tags else "unknown"


def base_name(func: torch._ops.OpOverload) -> str:
    """`add` for `aten::add` and `aten::add_`: in place or not, the work is the same."""
    name = func._schema.name.split("::")[1]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FREE = _words(
    "_unsafe_view _reshape_alias view_as_real lift lift_fresh detach alias empty empty_like empty_strided new_empty "
    "new_empty_strided _efficientzerotensor resize resize_as set split split_with_sizes unsafe_split "
    "unsafe_split_with_sizes unsafe_chunk unbind chunk squeeze unsqueeze "
    "transpose t swapaxes as_strided _local_scalar_dense is_same_size _assert_async _assert_scalar is_pinned "
    "_assert_tensor_metadata is_coalesced _nnz _dimI _dimV sparse_dim dense_dim crow_indices col_indices ccol_indices "
    "row_indices values indices _values _indices _coalesced set_data record_stream"
)
_RECURRENT = _words("mkldnn_rnn_layer _cudnn_rnn")
_MATRIX = _RECURRENT | _words(
    "mv addmv dot vdot _sparse_addmm _sparse_mm_reduce_impl sparse_sampled_addmm "
    "_scaled_dot_product_flash_attention_for_cpu"
)
_GATES = (2, 2, 13, 10)  # FLOPs a hidden number beside products and biases: RNN (tanh, ReLU), LSTM, GRU, by their modes
_PRODUCTS = _words("mul div addcmul addcdiv prod cumprod")
_NAMED: dict[str, frozenset[str]] = {
    "fill": _words(
        "zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full fill zero arange linspace eye "
        "scalar_tensor tril_indices triu_indices _foreach_zero"
    ),
    "move": _words(
        "clone copy _to_copy _copy_from lift_fresh_copy view_copy expand_copy cat stack repeat constant_pad_nd roll "
        "flip rot90 tril triu sort topk kthvalue unique_dim _unique2 unique_consecutive nonzero masked_select "
        "repeat_interleave searchsorted bucketize diag_embed diagonal_scatter slice_scatter select_scatter "
        "as_strided_scatter masked_scatter split_with_sizes_copy _to_dense _to_sparse _to_sparse_csr _to_sparse_csc "
        "_foreach_copy _coalesce _pin_memory block_diag sparse_coo_tensor _sparse_coo_tensor_with_dims_and_tensors "
        "sparse_compressed_tensor "
        "_sparse_compressed_tensor_unsafe _sparse_csr_tensor_unsafe _convert_indices_from_coo_to_csr "
        "_convert_indices_from_csr_to_coo"
    ),
    "gather": _words("index_select index _unsafe_index gather embedding take"),
    "scatter": _words(
        "scatter scatter_add scatter_reduce index_add index_reduce index_put _unsafe_index_put _index_put_impl "
        "index_copy index_fill put bincount segment_reduce"
    ),
    "segment_sum": _words("_embedding_bag _embedding_bag_forward_only"),
    "softmax": _words("_softmax _log_softmax _safe_softmax _masked_softmax"),
    "norm": _words(
        "native_layer_norm native_batch_norm native_group_norm _native_batch_norm_legit cudnn_batch_norm "
        "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training _batch_norm_with_update "
        "_fused_rms_norm"
    ),
    "reduce": _words(
        "cumsum cumprod cummax cummin logcumsumexp argmax argmin max min norm median mode logsumexp trace isin histc "
        "equal"
    ),
    "elementwise": _words(
        "native_dropout log_sigmoid_forward glu _prelu_kernel polar complex isinf floor_divide masked_fill"
    ),
}
_WEIGHTS = {  # FLOPs an element
    **dict.fromkeys(_words("gelu silu elu mish softplus hardswish log_sigmoid_forward"), 4),
    **dict.fromkeys(_words("addcmul addcdiv lerp"), 3),
    "native_dropout": 2,
}
_WEIGHT_OF_KIND = {"softmax": 5, "norm": 5, "reduce": 1, "elementwise": 1}
_ADDING_SCATTERS = _words("scatter_add scatter_reduce index_add index_reduce bincount segment_reduce")


def _flops(kind: str, name: str, bound: Mapping[str, Any], output: Any) -> int:
    """FLOPs of everything but matrix products."""
    if kind in ("fill", "move", "gather"):
        return 0
    if kind == "segment_sum":
        weighted = isinstance(bound.get("per_sample_weights"), torch.Tensor)
        return bound["indices"].numel() * bound["weight"].shape[-1] * (2 if weighted else 1)
    if kind == "scatter":
        adds = name in _ADDING_SCATTERS or bool(bound.get("accumulate"))
        source = _scattered(bound)
        return source[0] if adds and source and (source[1].is_floating_point or source[1].is_complex) else 0
    weight = _WEIGHTS.get(name, _WEIGHT_OF_KIND[kind])
    if kind == "elementwise" and isinstance(output, torch.Tensor):
        inputs = any(t.is_floating_point() or t.is_complex() for t in tensors_in(bound))
        return weight * output.numel() * inputs
    return weight * sum(map(_floating, tensors_in(next(iter(bound.values()), None))))


def _floating(tensor: torch.Tensor | None) -> int:
    """Elements of a floating-point or complex tensor; work on others is no floating-point operation."""
    return tensor.numel() if tensor is not None and (tensor.is_floating_point() or tensor.is_complex()) else 0


def _matrix_flops(
    func: Any, bound: Mapping[str, Any], args: tuple, kwargs: dict, output: Any, sparse: bool
) -> int | None:
    """FLOPs of the matrix products alone; None where no formula fits (the product of two sparse matrices)."""
    name = base_name(func)
    if name in _RECURRENT:
        return 2 * _rows(bound) * sum(t.numel() for t in _weights(bound) if t.dim() == 2)
    if isinstance(output, torch.Tensor) and not (output.is_floating_point() or output.is_complex()):
        return 0  # of whole numbers: no floating-point operation
    if name == "_scaled_dot_product_flash_attention_for_cpu":
        return sdpa_flop_count(*(t.shape for t in args[:3]))
    if sparse:
        return _sparse_flops(name, args)
    if name in ("mv", "addmv"):
        return 2 * args[name == "addmv"].numel()
    if name in ("dot", "vdot"):
        return 2 * args[0].numel()
    if func.overloadpacket in flop_registry:
        return flop_registry[func.overloadpacket](*args, **kwargs, out_val=output)
    return None


def _beside_matrix(name: str, bound: Mapping[str, Any], output: Any) -> int:
    """FLOPs of an operator beside its matrix products: the softmax of attention, the sum with a bias, gates."""
    if "scaled_dot_product" in name:
        return 5 * prod(bound["query"].shape[:-1]) * bound["key"].shape[-2]
    if name in _RECURRENT:
        weights = _weights(bound)
        biases = sum(t.numel() for t in weights if t.dim() == 1)
        hidden = bound["hidden_size"] * sum(t.dim() == 2 for t in weights) // 2
        return _rows(bound) * (biases + _GATES[bound["mode"]] * hidden)
    return _floating(output) if name in ("addmm", "baddbmm", "addmv", "_sparse_addmm") else 0


def _rows(bound: Mapping[str, Any]) -> int:
    """Rows of the input of a recurrent layer: the steps of all its sequences."""
    return bound["input"].numel() // bound["input"].shape[-1]


def _weights(bound: Mapping[str, Any]) -> list[torch.Tensor]:
    """The weights and biases of a recurrent layer."""
    named = [value for name, value in bound.items() if name.startswith("weight") and name != "weight_buf"]
    return list(tensors_in(named))


def _sparse_flops(name: str, args: tuple) -> int | None:
    """2 FLOPs for each stored value and column: sparse times dense, or the products that a sparse matrix asks for."""
    if name == "sparse_sampled_addmm":
        return 2 * _stored(args[0]) * args[1].shape[-1]
    left, right = args[1:3] if name in ("addmm", "addmv", "_sparse_addmm", "baddbmm") else args[:2]
    if right.layout is torch.strided:
        return 2 * _stored(left) * (right.shape[-1] if right.dim() > 1 else 1)
    if left.layout is torch.strided:
        return 2 * _stored(right) * (left.shape[-2] if left.dim() > 1 else 1)
    return None


def _stored(matrix: torch.Tensor) -> int:
    """Values that a sparse matrix stores, of all matrices of a batch; those of blocks count one by one."""
    return (matrix._values() if matrix.layout is torch.sparse_coo else matrix.values()).numel()


def _traffic(kind: str, func: torch._ops.OpOverload, bound: Mapping[str, Any], output: Any) -> tuple[int, int, int]:
    """(bytes read, bytes written, bytes of memory touched) by the call of an operator of the given kind.

    `bound` are its arguments by name. Memory that is both read and written in place is touched once.
    """
    arguments = func._schema.arguments
    targets = {a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write and a.name in bound}
    outputs = {argument.name for argument in arguments if argument.is_out}
    unread = targets if kind == "fill" or base_name(func) in ("copy", "_foreach_copy") else outputs
    read, changed, in_place, seen = 0, 0, 0, set()
    for name, value in bound.items():
        for tensor in tensors_in(value):
            size = _touched(kind, name, tensor, bound, output, name in targets)
            if name in targets:
                changed += size
                in_place += 0 if name in unread else size
            if name not in unread and kind != "fill" and _place(tensor) not in seen:
                seen.add(_place(tensor))
                read += size
    changed += sum(map(span_bytes, _fresh(func, output)))
    return read, changed, read + changed - in_place


def _scattered(bound: Mapping[str, Any]) -> tuple[int, torch.dtype] | None:
    """(elements that a scattering operator scatters, their type); None where it scatters a number."""
    given = (bound.get(name) for name in ("src", "source", "values", "data", "weights"))
    source = next((value for value in given if isinstance(value, torch.Tensor)), None)
    if source is None:
        return None
    if "src" in bound:  # `scatter_add` reads as much of its source as the index is long in each dimension
        return bound["index"].numel(), source.dtype
    return source.numel(), source.dtype


def _place(tensor: torch.Tensor) -> Any:
    """The same for two tensors over the same elements."""
    strided = tensor.layout is torch.strided
    return (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) if strided else id(tensor)


def _fresh(func: torch._ops.OpOverload, output: Any) -> Iterator[torch.Tensor]:
    """The results that are no alias of an argument."""
    returns = func._schema.returns
    results = output if len(returns) > 1 else (output,)
    for declared, result in zip(returns, results, strict=False):
        if declared.alias_info is None:
            yield from tensors_in(result)


def _touched(kind: str, name: str, tensor: torch.Tensor, bound: Mapping[str, Any], output: Any, target: bool) -> int:
    """Bytes of an argument that the operator has to touch."""
    size = span_bytes(tensor)
    if kind == "gather" and name in ("self", "weight"):
        return min(size, output.numel() * output.element_size())
    if kind == "segment_sum" and name == "weight":
        return min(size, bound["indices"].numel() * tensor.shape[-1] * tensor.element_size())
    if kind == "scatter" and (target or name in ("src", "source")):
        source = _scattered(bound)
        return min(size, source[0] * tensor.element_size()) if source else size
    return size
