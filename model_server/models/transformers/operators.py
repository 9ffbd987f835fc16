"""The core operations of torch in jax, by torch's names: what traced models are made of.

Semantics are those of torch 2.13's `aten` operations
(https://docs.pytorch.org/docs/stable/torch.compiler_ir.html), with 32-bit integers and floats in
place of 64-bit ones. Sums and softmaxes of rows are those of `row_sums`, whose bits depend on the
row alone; products are in full precision on every platform.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from model_server.kernels.row_sums import logistic, row_softmax, row_sum, softplus, standardized

Number = int | float | bool


def _float(x: Any) -> Any:
    """As torch: functions of integers are those of floats."""
    return x if jnp.issubdtype(jnp.result_type(x), jnp.floating) else jnp.asarray(x, jnp.float32)


def _axes(x: jax.Array, given: int | Sequence[int] | None) -> tuple[int, ...]:
    if given is None or (not isinstance(given, int) and not given):
        return tuple(range(x.ndim))
    every = (given,) if isinstance(given, int) else given
    return tuple(axis % x.ndim for axis in every)


# Numbers one by one.


def _add(x: Any, y: Any, alpha: Number = 1) -> Any:
    return x + (y if alpha == 1 else y * alpha)


def _sub(x: Any, y: Any, alpha: Number = 1) -> Any:
    return x - (y if alpha == 1 else y * alpha)


def _div(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return jnp.floor_divide(x, y)
    made = jnp.true_divide(x, y)
    if rounding_mode is None:
        return made
    return jnp.trunc(made).astype(jnp.result_type(x, y))


def _pow(x: Any, exponent: Any) -> Any:
    if isinstance(exponent, int | float) and exponent == 2:
        return jnp.square(x)
    return jnp.power(x, exponent)


def _gelu(x: jax.Array, approximate: str = "none") -> jax.Array:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def _softplus(x: jax.Array, beta: Number = 1, threshold: Number = 20) -> jax.Array:
    scaled = x * beta
    return jnp.where(scaled > threshold, x, softplus(scaled) / beta)


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    return jnp.clip(x, min, max)


def _where(condition: Any, x: Any, y: Any) -> Any:
    return jnp.where(condition, x, y)


def _masked_fill(x: jax.Array, mask: jax.Array, value: Any) -> jax.Array:
    return jnp.where(mask, jnp.asarray(value, x.dtype), x)


def _cast(x: Any, dtype: str | None = None, copy: bool = False) -> Any:
    return x if dtype is None else jnp.asarray(x).astype(dtype)


def _sigmoid(x: jax.Array) -> jax.Array:
    x = _float(x)
    return logistic(x) if x.ndim and x.dtype == jnp.float32 else jax.nn.sigmoid(x)


# Shapes.


def _view(x: jax.Array, sizes: Sequence[int]) -> jax.Array:
    return jnp.reshape(x, tuple(sizes))


def _transpose(x: jax.Array, first: int, second: int) -> jax.Array:
    return jnp.swapaxes(x, first, second)


def _unsqueeze(x: jax.Array, dim: int) -> jax.Array:
    return jnp.expand_dims(x, dim)


def _squeeze(x: jax.Array, dims: int | Sequence[int] | None = None) -> jax.Array:
    return jnp.squeeze(x, tuple(axis for axis in _axes(x, dims) if x.shape[axis] == 1))


def _expand(x: jax.Array, sizes: Sequence[int], implicit: bool = False) -> jax.Array:
    front = len(sizes) - x.ndim
    known = [x.shape[i - front] if size == -1 else size for i, size in enumerate(sizes)]
    return jnp.broadcast_to(x, known)


def _slice(
    x: jax.Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> jax.Array:
    index = [slice(None)] * x.ndim
    index[dim] = slice(start, end, step)
    return x[tuple(index)]


def _select(x: jax.Array, dim: int, index: int) -> jax.Array:
    return jnp.take(x, index % x.shape[dim], axis=dim)


def _split(x: jax.Array, size: int | Sequence[int], dim: int = 0) -> list[jax.Array]:
    sizes = [size] * -(-x.shape[dim] // size) if isinstance(size, int) else list(size)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    return jnp.split(x, ends, axis=dim)


def _unbind(x: jax.Array, dim: int = 0) -> list[jax.Array]:
    return [_select(x, dim, i) for i in range(x.shape[dim])]


def _repeat(x: jax.Array, repeats: Sequence[int]) -> jax.Array:
    return jnp.tile(x, tuple(repeats))


def _pad(x: jax.Array, pad: Sequence[int], value: Number = 0.0) -> jax.Array:
    widths = [(0, 0, 0)] * x.ndim
    for i in range(len(pad) // 2):  # the last dimension comes first; numbers below 0 cut
        widths[-1 - i] = (pad[2 * i], pad[2 * i + 1], 0)
    return jax.lax.pad(x, jnp.asarray(value, x.dtype), widths)


def _same(x: Any, *_: Any, **__: Any) -> Any:
    return x


# New arrays.


def _full(sizes: Sequence[int], value: Number, dtype: str | None = None) -> jax.Array:
    return jnp.full(tuple(sizes), value, dtype or jnp.result_type(value))


def _full_like(x: jax.Array, value: Number, dtype: str | None = None) -> jax.Array:
    return jnp.full(x.shape, value, dtype or x.dtype)


def _zeros(sizes: Sequence[int], dtype: str | None = None) -> jax.Array:
    return jnp.zeros(tuple(sizes), dtype or jnp.float32)


def _ones(sizes: Sequence[int], dtype: str | None = None) -> jax.Array:
    return jnp.ones(tuple(sizes), dtype or jnp.float32)


def _scalar(value: Number, dtype: str | None = None) -> jax.Array:
    return jnp.asarray(value, dtype)


def _arange(start: Number, end: Number, step: Number = 1, dtype: str | None = None) -> jax.Array:
    return jnp.arange(start, end, step, dtype)


def _arange_to(end: Number, dtype: str | None = None) -> jax.Array:
    return jnp.arange(0, end, 1, dtype)


# Rows.


def _last_alone(x: jax.Array, axes: tuple[int, ...]) -> bool:
    return axes == (x.ndim - 1,) and x.dtype == jnp.float32 and x.shape[-1] > 0


def _sum(
    x: jax.Array,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: str | None = None,
) -> jax.Array:
    axes = _axes(x, dim)
    if jnp.issubdtype(x.dtype, jnp.bool_):
        x = x.astype(jnp.int32)
    x = x.astype(dtype) if dtype else x
    if not _last_alone(x, axes):
        return jnp.sum(x, axes, keepdims=keepdim)
    made = row_sum(x)
    return made if keepdim else made[..., 0]


def _mean(
    x: jax.Array,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: str | None = None,
) -> jax.Array:
    count = math.prod(x.shape[axis] for axis in _axes(x, dim))
    return _sum(x, dim, keepdim, dtype) / count


def _var(
    x: jax.Array,
    dim: int | Sequence[int] | None = None,
    correction: Number = 1,
    keepdim: bool = False,
) -> jax.Array:
    count = math.prod(x.shape[axis] for axis in _axes(x, dim))
    apart = jnp.square(x - _mean(x, dim, True))
    return _sum(apart, dim, keepdim) / (count - correction)


def _var_mean(
    x: jax.Array,
    dim: int | Sequence[int] | None = None,
    correction: Number = 1,
    keepdim: bool = False,
) -> tuple[jax.Array, jax.Array]:
    return _var(x, dim, correction, keepdim), _mean(x, dim, keepdim)


def _layer_norm(
    x: jax.Array,
    sizes: Sequence[int],
    scale: jax.Array | None,
    bias: jax.Array | None,
    epsilon: float,
) -> tuple[jax.Array]:
    """Only the first of torch's results: no model reads the others."""
    kept = x.shape
    made = standardized(x.reshape(*kept[: x.ndim - len(sizes)], -1), epsilon).reshape(kept)
    made = made if scale is None else made * scale
    return (made if bias is None else made + bias,)


def _rms_norm(
    x: jax.Array, sizes: Sequence[int], scale: jax.Array | None, epsilon: float | None = None
) -> jax.Array:
    assert len(sizes) == 1, "rows are normalised"
    epsilon = float(jnp.finfo(x.dtype).eps) if epsilon is None else epsilon
    made = x * jax.lax.rsqrt(_mean(jnp.square(x), -1, True) + epsilon)
    return made if scale is None else made * scale


def _softmax(x: jax.Array, dim: int, half_to_float: bool = False) -> jax.Array:
    if _last_alone(x, _axes(x, dim)):
        return row_softmax(x)
    return jax.nn.softmax(x, axis=dim)


def _log_softmax(x: jax.Array, dim: int, half_to_float: bool = False) -> jax.Array:
    return jax.nn.log_softmax(x, axis=dim)


def _extreme(of: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def made(
        x: jax.Array, dim: int | Sequence[int] | None = None, keepdim: bool = False
    ) -> jax.Array:
        return of(x, _axes(x, dim), keepdims=keepdim)

    return made


def _max_along(x: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    return x.max(dim, keepdims=keepdim), jnp.argmax(x, dim, keepdims=keepdim)


def _argmax(x: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
    return jnp.argmax(x, dim, keepdims=keepdim)


def _topk(
    x: jax.Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[jax.Array, jax.Array]:
    moved = jnp.moveaxis(x, dim, -1)
    values, places = jax.lax.top_k(moved if largest else -moved, k)
    values = values if largest else -values
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(places, -1, dim)


def _sort(x: jax.Array, dim: int = -1, descending: bool = False) -> tuple[jax.Array, jax.Array]:
    order = jnp.argsort(x, axis=dim, stable=True, descending=descending)
    return jnp.take_along_axis(x, order, axis=dim), order


def _cumsum(x: jax.Array, dim: int, dtype: str | None = None) -> jax.Array:
    return jnp.cumsum(x, axis=dim, dtype=dtype)


# Places.


def _index(x: jax.Array, places: Sequence[jax.Array | None]) -> jax.Array:
    at = tuple(slice(None) if place is None else place for place in places)
    return x.at[at].get(mode="clip")


def _index_select(x: jax.Array, dim: int, places: jax.Array) -> jax.Array:
    return jnp.take(x, places, axis=dim, mode="clip")


def _embedding(table: jax.Array, tokens: jax.Array, *_: Any, **__: Any) -> jax.Array:
    # One token past a full context may be computed before its sequence is seen to have ended.
    return table.at[tokens].get(mode="clip").astype(jnp.float32)


def _gather(x: jax.Array, dim: int, places: jax.Array, sparse_grad: bool = False) -> jax.Array:
    return jnp.take_along_axis(x, places, axis=dim, mode="clip")


def _along(dim: int, places: jax.Array) -> tuple[jax.Array, ...]:
    grid = list(jnp.meshgrid(*map(jnp.arange, places.shape), indexing="ij", sparse=True))
    grid[dim] = places
    return tuple(grid)


def _scatter(x: jax.Array, dim: int, places: jax.Array, numbers: Any) -> jax.Array:
    part = numbers[tuple(map(slice, places.shape))] if jnp.ndim(numbers) else numbers
    return x.at[_along(dim % x.ndim, places)].set(part)


def _scatter_add(x: jax.Array, dim: int, places: jax.Array, numbers: jax.Array) -> jax.Array:
    part = numbers[tuple(map(slice, places.shape))]
    return x.at[_along(dim % x.ndim, places)].add(part)


# Products.


def _matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(x, y.astype(x.dtype), precision="highest")


def _addmm(
    bias: jax.Array, x: jax.Array, y: jax.Array, beta: Number = 1, alpha: Number = 1
) -> jax.Array:
    made = _matmul(x, y)
    return (made if alpha == 1 else made * alpha) + (bias if beta == 1 else bias * beta)


def _linear(x: jax.Array, kernel: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    made = jnp.einsum("...d,ed->...e", x, kernel.astype(x.dtype), precision="highest")
    return made if bias is None else made + bias


def _each(names: Sequence[str], function: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return dict.fromkeys(names, function)


def _overloads(name: str, function: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return _each([f"aten.{name}.{kind}" for kind in ("Tensor", "Scalar")], function)


_UNARY: Mapping[str, Callable[..., Any]] = {
    "abs": jnp.abs,
    "bitwise_not": jnp.bitwise_not,
    "ceil": jnp.ceil,
    "cos": lambda x: jnp.cos(_float(x)),
    "erf": lambda x: jax.lax.erf(_float(x)),
    "exp": lambda x: jnp.exp(_float(x)),
    "expm1": lambda x: jnp.expm1(_float(x)),
    "floor": jnp.floor,
    "isnan": jnp.isnan,
    "log": lambda x: jnp.log(_float(x)),
    "log1p": lambda x: jnp.log1p(_float(x)),
    "log2": lambda x: jnp.log2(_float(x)),
    "logical_not": jnp.logical_not,
    "neg": jnp.negative,
    "reciprocal": lambda x: 1.0 / _float(x),
    "relu": jax.nn.relu,
    "round": jnp.round,
    "rsqrt": lambda x: jax.lax.rsqrt(_float(x)),
    "sigmoid": _sigmoid,
    "sign": jnp.sign,
    "silu": lambda x: x * _sigmoid(x),
    "sin": lambda x: jnp.sin(_float(x)),
    "sqrt": lambda x: jnp.sqrt(_float(x)),
    "tanh": lambda x: jnp.tanh(_float(x)),
    "trunc": jnp.trunc,
}
_COMPARED: Mapping[str, Callable[..., Any]] = {
    "bitwise_and": jnp.bitwise_and,
    "bitwise_or": jnp.bitwise_or,
    "div": _div,
    "eq": operator.eq,
    "floor_divide": jnp.floor_divide,
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "mul": operator.mul,
    "ne": operator.ne,
    "remainder": jnp.remainder,
    "add": _add,
    "rsub": lambda x, y, alpha=1: _sub(y, x, alpha),
    "sub": _sub,
}

OPERATORS: Mapping[str, Callable[..., Any]] = {
    **{f"aten.{name}.default": of for name, of in _UNARY.items()},
    **{key: it for name, of in _COMPARED.items() for key, it in _overloads(name, of).items()},
    **_each(("aten.div.Tensor_mode", "aten.div.Scalar_mode"), _div),
    **_each(("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar"), _pow),
    **_each(("aten.clamp.default", "aten.clamp.Tensor"), _clamp),
    **_each(("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default"), _view),
    **_each(
        [f"aten.{name}.default" for name in ("alias", "clone", "contiguous", "detach", "dropout")],
        _same,
    ),
    **_each(("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims"), _squeeze),
    **_each(("aten.split_with_sizes.default", "aten.split.Tensor"), _split),
    **_each(("aten.sum.dim_IntList", "aten.sum.default"), _sum),
    **_each(("aten.mean.dim", "aten.mean.default"), _mean),
    **_each(("aten.mm.default", "aten.bmm.default", "aten.matmul.default"), _matmul),
    **_each(("aten.scatter.src", "aten.scatter.value"), _scatter),
    **_each(("aten.masked_fill.Scalar", "aten.masked_fill.Tensor"), _masked_fill),
    **_each(("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf"), _where),
    "aten._log_softmax.default": _log_softmax,
    "aten._softmax.default": _softmax,
    "aten._to_copy.default": _cast,
    "aten.addmm.default": _addmm,
    "aten.amax.default": _extreme(jnp.max),
    "aten.amin.default": _extreme(jnp.min),
    "aten.any.dim": _extreme(jnp.any),
    "aten.arange.default": _arange_to,
    "aten.arange.start": _arange,
    "aten.arange.start_step": _arange,
    "aten.argmax.default": _argmax,
    "aten.cat.default": lambda parts, dim=0: jnp.concatenate(parts, dim),
    "aten.constant_pad_nd.default": _pad,
    "aten.cumsum.default": _cumsum,
    "aten.embedding.default": _embedding,
    "aten.expand.default": _expand,
    "aten.flip.default": jnp.flip,
    "aten.full.default": _full,
    "aten.full_like.default": _full_like,
    "aten.gather.default": _gather,
    "aten.gelu.default": _gelu,
    "aten.index.Tensor": _index,
    "aten.index_select.default": _index_select,
    "aten.linear.default": _linear,
    "aten.logical_and.default": jnp.logical_and,
    "aten.logical_or.default": jnp.logical_or,
    "aten.max.dim": _max_along,
    "aten.maximum.default": jnp.maximum,
    "aten.minimum.default": jnp.minimum,
    "aten.native_layer_norm.default": _layer_norm,
    "aten.ones.default": _ones,
    "aten.ones_like.default": lambda x, dtype=None: _full_like(x, 1, dtype),
    "aten.permute.default": jnp.transpose,
    "aten.repeat.default": _repeat,
    "aten.rms_norm.default": _rms_norm,
    "aten.scalar_tensor.default": _scalar,
    "aten.scatter_add.default": _scatter_add,
    "aten.select.int": _select,
    "aten.slice.Tensor": _slice,
    "aten.softplus.default": _softplus,
    "aten.sort.default": _sort,
    "aten.stack.default": lambda parts, dim=0: jnp.stack(parts, dim),
    "aten.sym_size.int": lambda x, dim: x.shape[dim],
    "aten.t.default": jnp.transpose,
    "aten.topk.default": _topk,
    "aten.transpose.int": _transpose,
    "aten.unbind.int": _unbind,
    "aten.unsqueeze.default": _unsqueeze,
    "aten.var.correction": _var,
    "aten.var_mean.correction": _var_mean,
    "aten.zeros.default": _zeros,
    "aten.zeros_like.default": lambda x, dtype=None: _full_like(x, 0, dtype),
    "getitem": operator.getitem,
    "python.add": operator.add,
    "python.floordiv": operator.floordiv,
    "python.mul": operator.mul,
    "python.sub": operator.sub,
}
