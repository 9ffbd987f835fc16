"""Jax as its flags want it: options checked by name, and its profiler's server.

Imports jax only when called, once the environment variables that it reads are set, and jax and
flax without what they bring along for uses that no server has. jax reads the metadata of every
installed package to find a plugin for AMD's GPUs; flax imports optax for training, and rich and
treescope for tables and notebooks. What was left out is imported once somebody does use it.

flax also looks for arrays in whatever a module is given, at each assignment and once more at the
end. That finds mistakes in the code of modules, which tests do, and is half of what making a model
takes: servers leave it out.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import logging
import socket
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from sax.errors import InvalidRequest
from sax.flags.parser import JAX_FLAG

logger = logging.getLogger(__name__)

_ROCM = "rocm"  # part of the names of AMD's plugins
_UNUSED = (
    "optax",
    "rich",
    "rich.console",
    "rich.table",
    "rich.text",
    "treescope",
    "treescope.renderers",
    "treescope.rendering_parts",
)


def check_jax_flags(flags: Sequence[str]) -> None:
    """Import jax, which reads the flags from the environment, if there are any.

    Raises InvalidRequest for a flag that jax does not have, or a value that it does not take.
    """
    if not flags:
        return
    try:
        import jax
    except ValueError as exc:
        raise InvalidRequest(f"jax takes no such flag value: {exc}", param=JAX_FLAG) from exc
    options = jax.config.values
    for flag in flags:
        name = flag.partition("=")[0]
        if name not in options:
            near = difflib.get_close_matches(name, options, n=1)
            hint = f"; did you mean --{near[0]}?" if near else ""
            raise InvalidRequest(f"--{name} is no option of this jax{hint}", param=JAX_FLAG)


def start_profiler(port: int) -> None:
    """Let profilers connect at this port of every interface; 0 starts nothing.

    Initializes the devices, so the hosts of a replica must have met. Raises OSError if the port is
    taken, of which jax's own server says nothing.
    """
    if not port:
        return
    import jax

    try:
        with socket.create_server(("", port)):
            pass
    except OSError as exc:
        raise OSError(f"cannot listen on port {port} (--jax_profiler_port): {exc}") from exc
    jax.profiler.start_server(port)
    logger.info("jax's profiler listens on port %d", port)


def import_jax_and_flax() -> None:
    """Import both; once the environment variables that jax reads are set."""
    with _only_plugins_of_amd():
        importlib.import_module("jax")
    with _left_out(_UNUSED):
        importlib.import_module("flax.nnx")
    _trust_modules()


def _trust_modules() -> None:
    from flax.nnx import pytreelib

    flax: Any = pytreelib
    flax.check_pytree = flax.Pytree._check_value = lambda *_args, **_options: None


@contextmanager
def _only_plugins_of_amd() -> Generator[None]:
    """Let `importlib.metadata.distributions` find those packages alone."""
    everything = importlib.metadata.distributions

    def plugins(**where: Any) -> Iterator[importlib.metadata.Distribution]:
        return filter(_may_be_of_amd, everything(**where))

    importlib.metadata.distributions = plugins
    try:
        yield
    finally:
        importlib.metadata.distributions = everything


def _may_be_of_amd(package: importlib.metadata.Distribution) -> bool:
    """Tell by the name of its folder; True: the package is not in a folder."""
    return _ROCM in str(getattr(package, "_path", _ROCM)).rpartition("/")[2].lower()


class _LeftOut(ModuleType):
    """Stands for a module while another is imported, and then imports it when it is used."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._may_be_used = False

    def __getattr__(self, name: str) -> Any:
        if self._may_be_used:
            return getattr(importlib.import_module(self.__name__), name)
        if name.startswith("__"):
            raise AttributeError(name)
        return Any  # for annotations


@contextmanager
def _left_out(names: Iterable[str]) -> Generator[None]:
    """Import none of these modules within, but those that are there already."""
    made = {name: _LeftOut(name) for name in names if name not in sys.modules}
    for name, module in made.items():
        above, _, last = name.rpartition(".")
        if above in made:
            setattr(made[above], last, module)
    sys.modules.update(made)
    try:
        yield
    finally:
        for name, module in made.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
            module._may_be_used = True
