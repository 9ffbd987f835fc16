"""The encoder beside a model, traced from shapes alone: one program for each size of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from model_server.engine.compiling import options_for
from model_server.engine.media.media_limits import MediaLimits
from model_server.models.weights.quantized import byte_shape
from model_server.models.weights.weight import Blueprint


def encode_name(images: int, size: int) -> str:
    """Name the program that encodes a batch."""
    return f"encode {images} x {size} pieces"


class EncoderProgram:
    """Lowers the programs of an encoder, which write its vectors into a buffer."""

    def __init__(
        self,
        blueprint: Blueprint,
        leaves: Sequence[Any],  # arrays or their shapes, with shardings, as declared
        limits: MediaLimits,
        everywhere: jax.sharding.Sharding,
    ) -> None:
        """everywhere: replicates over the devices of the model's first stage."""
        self._blueprint = blueprint
        self.leaves = tuple(map(byte_shape, leaves))
        self.limits = limits
        self._everywhere = everywhere
        self.buffer = self._input((limits.rows, limits.width), jnp.float32)

    def programs(self) -> dict[str, Callable[[], jax.stages.Lowered]]:
        """Return what traces each program, by name."""
        return {encode_name(*each): partial(self.lower, *each) for each in self.limits.batches}

    def lower(self, images: int, size: int) -> jax.stages.Lowered:
        """Trace a batch of S images of P pieces each."""
        limits = self.limits
        jitted = jax.jit(
            self._trace,
            donate_argnums=1,
            out_shardings=self._everywhere,
            compiler_options=options_for(self._everywhere),
        )
        return jitted.lower(
            self.leaves,
            self.buffer,
            self._input((images, size, limits.piece), jnp.float32),
            self._input((images, size, limits.columns), jnp.int32),
            self._input((images,), jnp.int32),
            self._input((images, size // limits.per_row), jnp.int32),
        )

    def _trace(
        self,
        leaves: Any,
        buffer: jax.Array,  # f32[M, W]
        pieces: jax.Array,  # f32[S, P, C]
        places: jax.Array,  # i32[S, P, K]
        lengths: jax.Array,  # i32[S]
        rows: jax.Array,  # i32[S, P // per_row]; M: none
    ) -> jax.Array:
        encoder: Any = self._blueprint.assemble(leaves)
        made = encoder(pieces, places, lengths).reshape(-1, self.limits.width)
        return buffer.at[rows.reshape(-1)].set(made.astype(jnp.float32), mode="drop")

    def _input(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._everywhere)
