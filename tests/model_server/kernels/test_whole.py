"""Attention among the tokens of whole inputs: the native kernel against XLA, and its bits."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.kernels.cpu import native
from model_server.kernels.whole import no_pages, whole_batch
from tests.each_case import Failures

_HEADS, _KV_HEADS, _KEY, _VALUE = 4, 2, 24, 20
_NATIVE = pytest.mark.skipif(not native.available(), reason="there are no native kernels")


@partial(jax.jit, static_argnames=("causal", "natively", "how"))
def _attended(
    lengths: jax.Array,
    qkv: tuple[Any, ...],
    ahead: jax.Array | None = None,
    *,
    causal: bool,
    natively: bool,
    how: tuple[tuple[str, Any], ...] = (),
) -> jax.Array:
    """f32[B, T, H, W]"""
    rows, columns = qkv[0].shape[:2]
    live = jnp.arange(rows * columns) if natively else None
    batch = whole_batch(lengths, columns, causal=causal, ahead=ahead, live=live)
    q, k, v = (None if part is None else part.reshape(-1, *part.shape[2:]) for part in qkv)
    assert q is not None
    assert k is not None
    made, _ = batch.attend(no_pages(), q, k, v, **{"scale": 0.2, **dict(how)})
    return made.reshape(rows, columns, _HEADS, -1)


def _vectors(rows: int, columns: int, *, valued: bool = True) -> tuple[Any, ...]:
    rng = np.random.default_rng(columns)
    sizes = [(_HEADS, _KEY), (_KV_HEADS, _KEY), (_KV_HEADS, _VALUE)]
    made = [rng.normal(size=(rows, columns, *size)).astype(np.float32) for size in sizes]
    return made[0], made[1], made[2] if valued else None


@_NATIVE
def test_the_native_kernel_attends_as_xla_does() -> None:
    failures, lengths = Failures(), jnp.asarray([77, 1, 40])
    ahead = jnp.zeros((3, 77), jnp.int32).at[0, 10:20].set(jnp.arange(9, -1, -1))
    how: list[dict[str, Any]] = [{}, {"window": 9}, {"chunk": 16}, {"softcap": 3.0}]
    for causal, each, looks in itertools.product([True, False], how, [False, True]):
        if looks and not causal:
            continue
        for valued in (True, False):
            with failures.of(causal, each, looks, valued):
                run = partial(_attended, lengths, _vectors(3, 77, valued=valued), causal=causal)
                run = partial(run, ahead if looks else None, how=tuple(each.items()))
                made, wanted = (np.asarray(run(natively=some)) for some in (True, False))
                for row, length in enumerate(lengths.tolist()):
                    np.testing.assert_allclose(made[row, :length], wanted[row, :length], atol=2e-6)
                assert not made[1, 1:].any()  # padding
    assert not failures, str(failures)


@_NATIVE
def test_no_bit_depends_on_padding_or_on_other_inputs() -> None:
    failures, lengths = Failures(), [700, 513, 130, 64, 7]
    for causal, window in itertools.product([True, False], [None, 200]):
        how, qkv = (("window", window),), _vectors(len(lengths), 704)
        run = partial(_attended, causal=causal, natively=True, how=how)
        together = np.asarray(run(jnp.asarray(lengths), qkv))
        for row, length in enumerate(lengths):
            with failures.of(causal, window, length):
                own = tuple(part[row : row + 1, :length] for part in qkv)
                alone = np.asarray(run(jnp.asarray([length]), own))
                np.testing.assert_array_equal(alone[0], together[row, :length])
    assert not failures, str(failures)
