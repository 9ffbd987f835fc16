"""Models that make no tokens and see: the encoder of their images, and texts with images in them.

An encoder writes its vectors into a buffer on the device, from which the programs of texts take
what stands among their tokens, as the steps of a language model do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from model_server.engine.encoder_program import EncoderProgram
from model_server.engine.media import (
    BatchShape,
    EncodeBatch,
    EncodedPart,
    EncoderInput,
    MediaLimits,
    empty_input,
    pack_batch,
)
from model_server.engine.running.compiled_steps import zeros
from model_server.engine.step_program import everywhere
from model_server.loading.batch_plan import compiled_all
from model_server.loading.images.prepared import PreparedImage
from model_server.loading.loaded_model import Report
from model_server.loading.media.encoder_plan import encoder_workspace
from model_server.loading.passes.embed_programs import EmbedPrograms, Encode, EncodePrograms
from model_server.loading.passes.loaded_passes import MixedInput, Vector
from model_server.loading.passes.pass_programs import PassBatches, PassBucket, PassPrograms
from model_server.models.layers.whole_decoder import MixedTokens
from model_server.models.weights.quantized import as_bytes
from model_server.models.weights.sharding import Layout, divided_rows
from model_server.models.weights.weight import Blueprint, leaf_shapes

Output = TypeVar("Output")
_IMAGES = "images"  # the group of inputs that are images


class ImageEncoders:
    """The encoders beside a model, compiled; with weights once they are read.

    Not thread-safe: one thread calls it.
    """

    def __init__(self, encoder: Blueprint, limits: MediaLimits, layout: Layout) -> None:
        """encoder: of `Encoders`."""
        shapes = leaf_shapes(encoder, layout)
        self.limits = limits
        self.workspace = encoder_workspace(limits, encoder)  # bytes on a device
        self._program = EncoderProgram(encoder, shapes, limits, everywhere(shapes[0].sharding))
        self._compiled: dict[BatchShape, Any] = {}
        self._leaves: tuple[jax.Array, ...] = ()
        self.vectors: jax.Array | None = None  # f32[M, W]

    @property
    def buffer(self) -> jax.ShapeDtypeStruct:
        return self._program.buffer

    def compile(self, report: Report) -> None:
        def compile_one(shape: BatchShape) -> Any:
            return self._program.lower(shape).compile()

        self._compiled = compiled_all(self.limits.batches, compile_one, report)

    def open(self, leaves: Sequence[jax.Array]) -> None:
        """Take the weights, and run every program once."""
        self._leaves = tuple(map(as_bytes, leaves))
        self.vectors = zeros(self.buffer)
        for shape in self.limits.batches:
            self._encode(shape, empty_input(self.limits, shape))
        jax.block_until_ready(self.vectors)

    def see(self, images: Sequence[PreparedImage]) -> None:
        """Write the vectors of images into the buffer, one image after the other from row 0 on."""
        first, parts = 0, list[tuple[int, int, EncodedPart]]()
        for image in images:
            size = self.limits.encoders[image.encoder].size(image.count)
            rows = tuple(range(first, first + image.rows))
            part = EncodedPart(rows, image.count, image.pieces, image.places)
            parts.append((image.encoder, size, part))
            first += image.rows
        parts.sort(key=lambda each: each[:2])
        for (encoder, size), same in groupby(parts, key=lambda each: each[:2]):
            self._see(encoder, size, [part for _, _, part in same])

    def _see(self, encoder: int, size: int, parts: Sequence[EncodedPart]) -> None:
        most = self.limits.encoders[encoder].images(size)
        for start in range(0, len(parts), most):
            batch = EncodeBatch(encoder, size, tuple(parts[start : start + most]))
            self._encode(batch.shape(self.limits), pack_batch(batch, self.limits))

    def _encode(self, shape: BatchShape, given: EncoderInput) -> None:
        self.vectors = self._compiled[shape](self._leaves, self.vectors, *given)

    def close(self) -> None:
        self._leaves, self.vectors = (), None
        self._compiled.clear()


class ImagePrograms(EncodePrograms[MixedInput, Any]):
    """The buckets of a decoder that reads images among its tokens: a vector of each input, or of
    each of its tokens f32[T, N].
    """

    def __init__(
        self,
        module: Blueprint,
        encode: Encode,
        *,
        context: int,
        batch: int,
        leaves: Sequence[jax.ShapeDtypeStruct],
        width: int,
        levels: int,
        triples: bool,
        by_token: bool,
    ) -> None:
        """width, levels, triples: as of MediaLimits."""
        super().__init__(module, encode, context=context, batch=batch, leaves=leaves)
        self._levels, self._triples, self._by_token = levels, triples, by_token
        # Each row of the buffer stands for a token.
        shape = (self.largest.rows * self.largest.length, width)
        where = everywhere(self._leaves[0].sharding)
        self.buffer = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=where)

    @staticmethod
    def ids(given: MixedInput) -> Sequence[int]:
        return given.ids

    def run(
        self, leaves: Sequence[jax.Array], inputs: Sequence[MixedInput], bucket: PassBucket
    ) -> list[Any]:
        """leaves: and the buffer, which has the images' vectors in order."""
        tokens, at, lengths = self._arrays(inputs, bucket)
        given = (leaves, tokens, at, lengths) if self._triples else (leaves, tokens, lengths)
        made = np.asarray(self.compiled[bucket](*given))
        if not self._by_token:
            return made[: len(inputs)].tolist()
        return [made[row, : len(each.ids)].copy() for row, each in enumerate(inputs)]

    def _arrays(
        self, inputs: Sequence[MixedInput], bucket: PassBucket
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return tokens i32[B, T], positions i32[3, B, T] and lengths i32[B]."""
        tokens, lengths = np.zeros(bucket, np.int32), np.ones(bucket.rows, np.int32)
        at = np.broadcast_to(np.arange(bucket.length, dtype=np.int32), (3, *bucket)).copy()
        taken = 0
        for row, each in enumerate(inputs):
            count = len(each.ids)
            tokens[row, :count], lengths[row] = each.ids, count
            for places in each.places:
                tokens[row, list(places)] = -1 - np.arange(taken, taken + len(places))
                taken += len(places)
            if each.positions is not None:
                at[:, row, :count] = each.positions.T
        return tokens, at, lengths

    def _lowered(self, bucket: PassBucket) -> jax.stages.Lowered:
        def run(
            given: list[jax.Array], tokens: jax.Array, at: jax.Array | None, lengths: jax.Array
        ) -> jax.Array:
            *leaves, buffer = given
            mixed = MixedTokens(tokens, at, buffer, self._levels)
            return self._encode(self._assembled(leaves, lengths, bucket), mixed, lengths)

        where = divided_rows(self._leaves[0].sharding, bucket.rows)
        tokens = jax.ShapeDtypeStruct(bucket, jnp.int32, sharding=where)
        lengths = jax.ShapeDtypeStruct((bucket.rows,), jnp.int32, sharding=where)
        given = [*self._leaves, self.buffer]
        if not self._triples:
            plain = jax.jit(lambda a, b, c: run(a, b, None, c))
            return plain.lower(given, tokens, lengths)
        whole = everywhere(self._leaves[0].sharding)
        at = jax.ShapeDtypeStruct((3, *bucket), jnp.int32, sharding=whole)
        return jax.jit(run).lower(given, tokens, at, lengths)


class ImageBatches(PassBatches[MixedInput, Output]):
    """Each batch's images are encoded, then its texts are read with their vectors."""

    def __init__(
        self,
        programs: PassPrograms[MixedInput, Output],
        leaves: Sequence[jax.Array],
        encoders: ImageEncoders,
    ) -> None:
        """encoders: with their weights."""
        super().__init__(programs, leaves)
        self._encoders = encoders

    def _run(self, part: Sequence[MixedInput], bucket: PassBucket) -> list[Output]:
        self._encoders.see([image for each in part for image in each.images])
        vectors = self._encoders.vectors
        assert vectors is not None, "it is open"
        return self._programs.run([*self._leaves, vectors], part, bucket)

    def close(self) -> None:
        super().close()
        self._encoders.close()


class PairedPrograms(EmbedPrograms):
    """The buckets of the tower of texts, of a model that compares them with images."""

    @staticmethod
    def ids(given: Any) -> Sequence[int]:
        return given.ids

    def run(
        self, leaves: Sequence[jax.Array], inputs: Sequence[Any], bucket: PassBucket
    ) -> list[Vector]:
        return super().run(leaves, [each.ids for each in inputs], bucket)


class PairedBatches(PassBatches[Any, Vector]):
    """Batches of texts, by their lengths, and of images, by the other tower."""

    def __init__(
        self,
        programs: PairedPrograms,
        leaves: Sequence[jax.Array],
        encoders: ImageEncoders,
        *,
        normalise: bool,
    ) -> None:
        """encoders: with weights; their buffer has a row for each image of a batch. normalise: the
        vectors of images; the programs normalise those of texts.
        """
        super().__init__(programs, leaves)
        self._encoders = encoders
        self._normalise = normalise

    def group(self, given: MixedInput) -> Any:
        return _IMAGES if given.images else super().group(given)

    def run(self, inputs: Sequence[MixedInput]) -> list[Vector]:
        if not inputs[0].images:
            return super().run(inputs)
        self._encoders.see([each.images[0] for each in inputs])
        vectors = np.asarray(self._encoders.vectors)[: len(inputs)]
        if self._normalise:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors.tolist()

    def close(self) -> None:
        super().close()
        self._encoders.close()
