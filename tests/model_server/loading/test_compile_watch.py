"""A compile outside a load is counted, and raises in strict mode."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import pytest

from model_server.loading.compile_watch import CompileWatch


def compile_something(constant: float) -> None:
    """A program that no cache of this process holds."""
    jax.jit(lambda x: x * constant + 3)(jnp.ones(5)).block_until_ready()


def test_a_compile_inside_a_load_is_expected() -> None:
    watch = CompileWatch()
    with watch.loading():
        compile_something(1.25)
    assert watch.while_serving == 0


def test_a_compile_outside_a_load_is_counted() -> None:
    watch = CompileWatch()
    compile_something(2.25)
    assert watch.while_serving > 0


def test_another_threads_load_does_not_excuse_it() -> None:
    watch = CompileWatch()
    with watch.loading():
        thread = threading.Thread(target=compile_something, args=(3.25,))
        thread.start()
        thread.join()
    assert watch.while_serving > 0


def test_strict_mode_turns_it_into_an_error() -> None:
    watch = CompileWatch(strict=True)
    try:
        with pytest.raises(RuntimeError, match="compiled while serving"):
            compile_something(4.25)
    finally:
        watch.stop()
