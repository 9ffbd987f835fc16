"""How jax behaves in the tests of a folder, which choose these fixtures in their conftest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

_STRICT = {"jax_numpy_dtype_promotion": "strict", "jax_numpy_rank_promotion": "raise"}


@pytest.fixture(scope="module")
def strict_promotion() -> Iterator[None]:
    """Refuse to mix dtypes or ranks that the code does not bring together itself.

    Holds in every thread, and in the processes that tests start.
    """
    import jax

    before = {name: getattr(jax.config, name) for name in _STRICT}
    with pytest.MonkeyPatch.context() as environment:
        for name, value in _STRICT.items():
            jax.config.update(name, value)
            environment.setenv(name.upper(), value)
        yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def compiled_anew() -> Iterator[None]:
    """Turn jax's compilation cache off: XLA:CPU cannot serialise a program that was read from it
    (the copy fails with "Function ... not found").
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    jax.clear_caches()  # what this process has read from it, too
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture(autouse=True, scope="session")
def _patient_limits() -> Iterator[None]:
    """Limits by the clock are for careless grammars and stuck processes: on a busy machine a test
    that asks for neither would meet them.
    """
    with pytest.MonkeyPatch.context() as limits:
        for place in (
            "grammars.grammar_state._MASK_S",
            "grammars.grammar_state._LOOK_S",
            "grammars.grammar_state._FIT_S",
            "sharing.confined.process.WALL_S",
            "text.chat_template._WAIT_S",
        ):
            limits.setattr(f"model_server.{place}", 60.0)
        yield
