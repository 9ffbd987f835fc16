"""Tiny real models with a toy encoder, in the engine and whole."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.engine.buckets import closed_set
from model_server.engine.encoder_program import EncoderProgram
from model_server.engine.limits import EngineLimits, WindowLimits
from model_server.engine.media import EncoderLimits, MediaLimits, MediaSpan
from model_server.engine.paging.window_pages import window_page_count
from model_server.engine.request import EngineRequest
from model_server.engine.running.encoder import Encoder
from model_server.engine.running.runner import ModelRunner
from model_server.engine.step_program import StepProgram, everywhere
from model_server.engine.types import Sampling
from model_server.kernels import xla
from model_server.kernels.paged import Kernel
from model_server.kernels.pages import allocate
from model_server.loading.compile_watch import CompileWatch
from model_server.loading.random_weights import random_weights
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.rope import axes_in_turn
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import ONE_DEVICE, Layout
from model_server.models.weights.weight import WeightForm, blueprint, leaf_shapes, weight
from tests.model_server.engine.media.driven import Driven
from tests.model_server.models.media.whole_media import WholeMedia, hidden_with_media
from tests.model_server.tiny import PAGE

EMBED, PIECE, PER_ROW, MOST = 32, 5, 2, 64
GREEDY = Sampling(0.0, 0, 1.0, seed=0)
COMMON: dict[str, Any] = {
    "hidden_size": EMBED,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 97,
    "max_position_embeddings": MOST,
}
WINDOWED = COMMON | {
    "model_type": "gemma3_text",
    "query_pre_attn_scalar": 16,
    "sliding_window": 6,
    "sliding_window_pattern": 2,
}
PLAIN = COMMON | {"model_type": "llama"}


@dataclass(frozen=True)
class VisionCase:
    """A family's treatment of its images."""

    config: dict[str, Any]
    levels: int = 0
    bidirectional: bool = False
    triples: bool = False


CASES = {
    # Scaled embeddings, windows shorter than an image, and images that see themselves.
    "itself": VisionCase(WINDOWED, bidirectional=True),
    "levels and triples": VisionCase(PLAIN, levels=2, triples=True),
}


class ToyEncoder(nnx.Module):
    """Every vector depends on all pieces of its image, on their places and on none behind them."""

    def __init__(self, width: int, form: WeightForm) -> None:
        self.kernel = weight((width, PIECE), (None, None), (), dtype=form.dtype, spread=0.5)

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        images, size, _ = pieces.shape
        there = (jnp.arange(size)[None] < lengths[:, None])[..., None]
        moved = jnp.where(there, pieces + places[..., :1].astype(jnp.float32) / 7, 0.0)
        mean = moved.sum(1, keepdims=True) / lengths[:, None, None].astype(jnp.float32)
        pairs = (moved + mean).reshape(images, size // PER_ROW, PER_ROW, -1).mean(2)
        return jnp.tanh(jnp.einsum("srp,wp->srw", pairs, self.kernel[...]))


class ToyEncoders(nnx.Module):
    def __init__(self, width: int, form: WeightForm) -> None:
        self.each = nnx.List([ToyEncoder(width, form)])


class TinyVisionModel:
    """A model, its encoder and their weights."""

    def __init__(self, name: str, layout: Layout | None = None) -> None:
        self.case = case = CASES[name]
        self.layout = layout = layout or one_device()
        self._whole: Any = None  # the whole model and its program
        recipe: Any = make_recipe("auto", case.config, {"DTYPE": '"float32"'})
        self.recipe: Recipe = replace(recipe, build=partial(_built, recipe, case))
        self.media = MediaLimits(
            rows=16,
            width=EMBED * (1 + case.levels),
            encoders=(
                EncoderLimits(
                    kind="image",
                    pieces=(8, 16),
                    piece=PIECE,
                    columns=1,
                    per_row=PER_ROW,
                    bidirectional=case.bidirectional,
                ),
            ),
            levels=case.levels,
            triples=case.triples,
        )
        form = WeightForm(dtype=jnp.dtype("float32"), layout=layout)
        self.encoder = blueprint(lambda: ToyEncoders(self.media.width, form))
        self.encoder_leaves = random_weights(self.encoder.declarations, 5, lambda _: None, layout)

    def limits(self, **changes: Any) -> EngineLimits:
        sizes: dict[str, Any] = {
            "slots": 3,
            "pages": 30,
            "page_size": PAGE,
            "max_context": MOST,
            "token_budget": 3 + 16,
            "max_logit_rows": 3,
            "prefill_block": 8,
            "media": self.media,
            "windows": WindowLimits(sliding=self.recipe.sliding_window),
        }
        return EngineLimits(**(sizes | changes))

    def leaves(self, part: Recipe | None = None, layout: Layout | None = None) -> list[Any]:
        """Weights large enough for likeliest tokens that rounding does not change."""
        module = (part or self.recipe).blueprint(layout or self.layout)
        made = random_weights(module.declarations, 3, lambda _: None, layout or self.layout)
        return [leaf * 4 if leaf.ndim > 1 else leaf for leaf in made]

    def runner(
        self,
        limits: EngineLimits,
        kernel: Kernel = xla.KERNEL,
        part: Recipe | None = None,
        layout: Layout | None = None,
        leaves: Seq[Any] | None = None,
    ) -> ModelRunner:
        """part: a stage, with a layout and leaves of its own."""
        recipe, layout = part or self.recipe, layout or self.layout
        module, cache = recipe.blueprint(layout), recipe.cache(layout.shards("heads"))
        first = recipe.stage.first if recipe.stage else 0
        windows = self.recipe.windows[first : first + cache.layers]
        window_layers = (
            tuple(window is not None for window in windows) if limits.windows.sliding else ()
        )
        counts = [window_page_count(limits) if its else limits.pages for its in window_layers]
        pages = allocate(
            cache,
            tuple(counts) or limits.pages,
            limits.page_size,
            jnp.dtype("float32"),
            layout.pages,
            kernel.shapes,
        )
        leaves = leaves or self.leaves()
        encoder = None
        if recipe.stage is None or recipe.stage.is_first:
            shapes = leaf_shapes(self.encoder, layout)
            encoder = EncoderProgram(
                self.encoder, shapes, self.media, everywhere(shapes[0].sharding)
            )
        program = StepProgram(
            module,
            leaves,
            pages,
            limits,
            kernel,
            layout.row_split(),
            recipe.stage,
            recipe.embed,
            vocab=recipe.vocab,
            window_layers=window_layers,
            encoder=encoder,
        )
        where = everywhere(leaves[0].sharding)
        seen = [jax.device_put(np.asarray(each), where) for each in self.encoder_leaves]
        blocks = limits.max_prefill_blocks or limits.token_budget // limits.prefill_block
        buckets = closed_set(limits.slots, tuple(dict.fromkeys((1, blocks))))
        parts = [Encoder(encoder, seen)] if encoder else []
        return ModelRunner(program, leaves, pages, buckets, parts)

    def compiled(self, limits: EngineLimits, kernel: Kernel = xla.KERNEL) -> ModelRunner:
        runner = self.runner(limits, kernel)
        runner.compile(lambda _: None)
        for index in range(runner.warmups):
            runner.warm(index)
        return runner

    def request(self, *parts: Any, max_tokens: int = 6, **more: Any) -> EngineRequest:
        """Texts are tuples of tokens; images are numbers of vectors, drawn with it as the seed."""
        prompt: list[int] = []
        media: list[MediaSpan] = []
        places: list[tuple[int, ...]] = []
        for part in parts:
            start, next_place = len(prompt), max((max(each) for each in places), default=-1) + 1
            if isinstance(part, tuple):
                prompt += part
                places += [(next_place + n,) * 3 for n in range(len(part))]
                continue
            media.append(_image(part, (start, start + part)))
            prompt += [96] * part
            places += [(next_place, next_place + n // 2, next_place + n % 2) for n in range(part)]
        fields: dict[str, Any] = {
            "sampling": GREEDY,
            "stop_ids": frozenset(),
            "max_tokens": max_tokens,
            "media": tuple(media),
        }
        if self.case.triples:
            fields["positions"] = np.asarray(places, "<i4").tobytes()
            fields["shift"] = max(map(max, places)) + 1 - len(prompt)
        return EngineRequest(prompt=tuple(prompt), **(fields | more))

    def whole(self, asked: EngineRequest, answer: Seq[int]) -> np.ndarray:
        """f32[T, V]: log-probabilities after each token of prompt and answer, without an engine."""
        encoder: Any = self.encoder.assemble(self.encoder_leaves)
        tokens, rows = [*asked.prompt, *answer], 0
        buffer: list[np.ndarray] = []
        ahead = np.zeros(MOST, np.int32)
        for span in asked.media:
            pieces = np.frombuffer(span.pieces, "<f4").reshape(1, -1, PIECE)
            places = np.frombuffer(span.places, "<i4").reshape(1, -1, 1)
            count = jnp.asarray([span.count])
            made = encoder.each[0](jnp.asarray(pieces), jnp.asarray(places), count)
            buffer.append(np.asarray(made[0]))
            for first, end in span.runs:
                tokens[first:end] = range(-1 - rows, -1 - rows - (end - first), -1)
                ahead[first:end] = np.arange(end - first)[::-1]
                rows += end - first
        positions = None
        if self.case.triples:
            at = np.arange(MOST, dtype=np.int32) + asked.shift
            positions = np.stack([at] * 3)
            positions[:, : len(asked.prompt)] = (
                np.frombuffer(asked.positions, "<i4").reshape(-1, 3).T
            )
        rest = np.zeros((MOST - rows, self.media.width), np.float32)
        given = (
            jnp.asarray([[*tokens, *[0] * (MOST - len(tokens))]]),
            jnp.asarray([len(tokens)]),
            jnp.asarray(np.concatenate([*buffer, rest])),
            None if positions is None else jnp.asarray(positions)[:, None],
            jnp.asarray(ahead)[None] if self.case.bidirectional else None,
        )
        if self._whole is None:
            model = self.recipe.blueprint().assemble(self.leaves(layout=one_device()))
            self._whole = model, jax.jit(partial(_whole, self.case.levels))
        model, run = self._whole
        return np.asarray(run(model, *given))[: len(tokens)]

    def check(self, asked: EngineRequest, tokens: Seq[int], logprobs: Seq[float]) -> None:
        """The answer is the whole model's, token by token."""
        wanted = self.whole(asked, tokens)[len(asked.prompt) - 1 : -1]
        assert wanted.argmax(-1).tolist() == list(tokens)
        np.testing.assert_allclose(logprobs, wanted.max(-1), atol=1e-4)


def _whole(
    levels: int,
    model: Any,
    tokens: jax.Array,
    lengths: jax.Array,
    buffer: jax.Array,
    positions: jax.Array | None,
    ahead: jax.Array | None,
) -> jax.Array:
    media = WholeMedia(buffer=buffer, levels=levels, positions=positions, ahead=ahead)
    hidden = hidden_with_media(model, tokens, lengths, media)
    return jax.nn.log_softmax(model.logits(hidden[0]))


def _built(recipe: Recipe, case: VisionCase, form: WeightForm) -> nnx.Module:
    model: Any = recipe.build(form)
    assert isinstance(model, Decoder)
    if case.triples:
        axes = axes_in_turn((4, 2, 2))
        model.ropes = tuple(rope and replace(rope, axes=axes) for rope in model.ropes)
    return model


def served(
    model: TinyVisionModel, runner: Any, limits: EngineLimits, max_tokens: int = 6
) -> Driven:
    """Serve three prompts at once, compiling nothing, and check their answers."""
    asked = [
        model.request(tuple(range(3, 14)), 7, (20, 21, 22), 4, (23,), max_tokens=max_tokens),
        model.request((9, 8), 8, max_tokens=max_tokens),
        model.request(tuple(range(40, 46)), 7, (1,), max_tokens=max_tokens),
    ]
    driven = Driven(limits, runner)
    ids = [driven.add(each) for each in asked]
    watch = CompileWatch()
    driven.run()
    watch.stop()
    assert watch.while_serving == 0
    for id, each in zip(ids, asked, strict=True):
        model.check(each, driven.tokens(id), driven.logprobs(id))
    return driven


def _image(rows: int, run: tuple[int, int]) -> MediaSpan:
    numbers = np.random.default_rng(rows)
    count = rows * PER_ROW
    pieces = numbers.normal(size=(count, PIECE)).astype("<f4").tobytes()
    places = np.arange(count, dtype="<i4").tobytes()
    digest = blake2b(pieces + places, digest_size=16).digest()
    return MediaSpan(digest, (run,), count, pieces, places)


def one_device() -> Layout:
    return ONE_DEVICE.placed(jax.devices()[:1])
