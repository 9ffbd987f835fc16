"""Calls of functions beside an island's devices, through the unmodified client of jaxlib.

Of what the protocol of IFRT proxy carries, three things could ask workers to make arrays: a
StableHLO program with a custom call, which every compiler between here and there would have to
leave alone; a plugin program, which is bytes only, so that a proxy server cannot tell where it
goes; and a custom call program, which names its devices and the shapes, types and shardings of
arguments and results. jaxlib makes the latter for `jax.experimental.colocated_python`, but looks
neither at the name nor at the text: here both are plain data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax._src.interpreters import pxla
from jax.core import ShapedArray
from jax.extend.ifrt_programs import ifrt_programs


class IslandCall:
    """A call that workers have checked, ready to run."""

    def __init__(
        self,
        name: str,
        text: bytes,
        devices: Sequence[Any],
        results: Sequence[jax.ShapeDtypeStruct],
    ) -> None:
        """Raises JaxRuntimeError if the workers do not take it."""
        program = ifrt_programs.make_colocated_python_program(
            name, text, list(devices), [], list(results)
        )
        options = ifrt_programs.make_colocated_python_compile_options()
        self._program = devices[0].client.compile_ifrt_program(program, options)
        avals = [ShapedArray(each.shape, each.dtype) for each in results]
        shardings = [each.sharding for each in results]
        made = pxla.global_avals_to_results_handler(avals, shardings, committed=True)
        self._handlers = made.handlers

    def run(self) -> list[jax.Array]:
        """Return the results, which are not there yet: an error of theirs is found by waiting."""
        made = self._program.execute_sharded([], with_tokens=False)
        return made.consume_with_handlers(self._handlers)
