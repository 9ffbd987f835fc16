"""The encoders beside a model, traced from shapes alone: a program for each size of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from model_server.engine.compiling import options_for
from model_server.engine.media import BatchShape, MediaLimits
from model_server.models.layers.decoder import set_whole_rows
from model_server.models.weights.quantized import byte_shape
from model_server.models.weights.weight import Blueprint


def encode_name(limits: MediaLimits, shape: BatchShape) -> str:
    """Name the program that encodes a batch."""
    kind = limits.encoders[shape.encoder].kind
    return f"encode {kind} {shape.images} x {shape.size} pieces"


class EncoderProgram:
    """Lowers the programs of all encoders, which write their vectors into one buffer."""

    def __init__(
        self,
        blueprint: Blueprint,
        leaves: Sequence[Any],  # arrays or their shapes, with shardings, as declared
        limits: MediaLimits,
        everywhere: jax.sharding.Sharding,
    ) -> None:
        """blueprint: of `Encoders`. everywhere: replicates over the devices of the model's first
        stage.
        """
        self._blueprint = blueprint
        self.leaves = tuple(map(byte_shape, leaves))
        self.limits = limits
        self._everywhere = everywhere
        self._native = any(each.is_tiled for each in blueprint.declarations)
        self.buffer = self._input((limits.rows, limits.width), jnp.float32)

    def programs(self) -> dict[str, Callable[[], jax.stages.Lowered]]:
        """Return what traces each program, by name."""
        shapes = self.limits.batches
        return {encode_name(self.limits, each): partial(self.lower, each) for each in shapes}

    def lower(self, shape: BatchShape) -> jax.stages.Lowered:
        """Trace a batch of S images of P pieces each."""
        number, images, size = shape
        encoder = self.limits.encoders[number]
        jitted = jax.jit(
            partial(self._trace, number),
            donate_argnums=1,
            out_shardings=self._everywhere,
            compiler_options=options_for(self._everywhere),
        )
        return jitted.lower(
            self.leaves,
            self.buffer,
            self._input((images, size, encoder.piece), jnp.float32),
            self._input((images, size, encoder.columns), jnp.int32),
            self._input((images,), jnp.int32),
            self._input((images, size // encoder.per_row), jnp.int32),
        )

    def _trace(
        self,
        number: int,  # of the encoder
        leaves: Any,
        buffer: jax.Array,  # f32[M, W]
        pieces: jax.Array,  # f32[S, P, C]
        places: jax.Array,  # i32[S, P, K]
        lengths: jax.Array,  # i32[S]
        rows: jax.Array,  # i32[S, P // per_row]; M: none
    ) -> jax.Array:
        encoders: Any = self._blueprint.assemble(leaves)
        if self._native:
            set_whole_rows(encoders, None, 0)
        made = encoders.each[number](pieces, places, lengths)
        made = made.reshape(-1, made.shape[-1])
        # An encoder without levels adds nothing in the layers that another one feeds.
        made = jnp.pad(made, ((0, 0), (0, self.limits.width - made.shape[-1])))
        return buffer.at[rows.reshape(-1)].set(made.astype(jnp.float32), mode="drop")

    def _input(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._everywhere)
