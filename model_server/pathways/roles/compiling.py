"""Settings of the compiler in a process that has devices."""

from __future__ import annotations

from typing import Any

from model_server.pathways.roles.flags import PathwaysFlags
from model_server.pathways.scheduling.options import typed
from sax.errors import InvalidRequest


def configure(config: Any, flags: PathwaysFlags) -> None:
    """Keep every program in jax's cache, if it has a folder: all of them make up a load's time."""
    config.update("jax_persistent_cache_min_compile_time_secs", 0)
    config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def check_options(flags: PathwaysFlags) -> None:
    """Compile a small program with the `--xla_` flags. Raises InvalidRequest with XLA's reason."""
    if not flags.compile_options:
        return
    import jax

    options: dict[str, Any] = {name: typed(value) for name, value in flags.compile_options.items()}
    try:
        jax.jit(lambda x: x + 1).lower(1).compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as exc:
        told = ", ".join(f"--{name}={value}" for name, value in flags.compile_options.items())
        raise InvalidRequest(f"the compiler does not take {told}: {exc}") from exc
