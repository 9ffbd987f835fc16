"""Freeing arrays: what nobody holds goes, what somebody holds goes too."""

from __future__ import annotations

import weakref

import jax.numpy as jnp

from model_server.engine.runner import free


def test_arrays_are_gone_whether_or_not_somebody_holds_them() -> None:
    kept = jnp.ones(3)
    arrays = [jnp.ones(3), kept, kept]
    alone = weakref.ref(arrays[0])
    free(arrays)
    assert arrays == []
    assert alone() is None
    assert kept.is_deleted()
