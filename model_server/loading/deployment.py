"""Deployment: one model on devices, and everything its programs, pages and weights follow from.

Computed once, from shapes alone, for the devices of this process, of a slice elsewhere, or for an
abstract mesh. Allocates nothing. All byte counts are per device of the mesh.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import compress
from math import gcd
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp
from msgspec import structs

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.config import AUTO, ModelServerConfig
from model_server.disaggregation.handed_pages import transit_room
from model_server.disaggregation.layer_set import LayerSet, layer_sets
from model_server.engine.buckets import Bucket, closed_set
from model_server.engine.media.encoder_program import EncoderProgram
from model_server.engine.paging.near_count import most_near, near_count
from model_server.engine.slot_state import state_bytes
from model_server.engine.step_program import StepProgram, everywhere, told_as_plan_error
from model_server.engine.types import EngineLimits
from model_server.islands.proxy_backend import is_proxied
from model_server.kernels import xla
from model_server.kernels.choice import kernel_for
from model_server.kernels.cpu.attention import CpuAttention, supports_heads, unwritten
from model_server.kernels.paged import Kernel
from model_server.kernels.pages import CacheShape, LayerPages, Pages, allocate
from model_server.loading.media.encoder_plan import (
    check_chunk,
    encoder_workspace,
    media_limits,
    share_of_media,
)
from model_server.loading.memory_plan import FreeMemory, MemoryPlan, PageBytes, plan_memory
from model_server.models.recipe import Recipe
from model_server.models.weights.sharding import Layout, bytes_per_device
from model_server.models.weights.stage import Stage
from model_server.models.weights.tiled import tiles_fit
from model_server.models.weights.weight import Blueprint, leaf_shapes
from sax.errors import InvalidRequest, MemoryPlanError
from sax.memory_parts import MemoryParts

Program = TypeVar("Program")
PREFILL_BLOCKS = (1, 4, 8)  # bucket sizes, in blocks of prompt tokens per step
# Prompt tokens that attend together and share one read of the cached tokens. In the time it takes
# to read the weights, an accelerator computes several hundred tokens, a CPU only a few.
_CPU_PREFILL_BLOCK, _PREFILL_BLOCK = 32, 128
# Default page pool of a CPU server: modest, because other processes share the memory.
_CPU_KV_BYTES = 2**30
_PROXIED_STEPS = 4  # of one launch, behind a proxy server
_SCORE_COPIES = 12  # of the scores of chosen tokens: numbers to sort, ranks and marks, too
_LEAST_AUTO = 256  # tokens: a shorter context than this serves nobody, so "auto" is refused


@dataclass(frozen=True, eq=False)
class PlacedModel:
    """A model laid out over a mesh; its pages are not planned yet."""

    recipe: Recipe  # of one stage, if the model is a pipeline
    blueprint: Blueprint
    layout: Layout
    beside: int = field(default=0, kw_only=True)  # bytes of temporaries beside those of the steps
    draft: PlacedModel | None = field(default=None, kw_only=True)  # over the same mesh
    # The vision encoder, with the first stage; None: nothing of it lies here
    encoder: Blueprint | None = field(default=None, kw_only=True)

    @property
    def stage(self) -> Stage | None:
        return self.recipe.stage

    @cached_property
    def cache(self) -> CacheShape:
        return self.recipe.cache(self.layout.shards("heads"))

    @cached_property
    def kv_dtype(self) -> jnp.dtype:
        if self.recipe.kv_cache_dtype is not None:
            return jnp.dtype(self.recipe.kv_cache_dtype)
        native = tiles_fit(self.layout) and supports_heads(self.cache.key_dim, self.cache.value_dim)
        native = native and not self.cache.chosen
        if self.layout.platform == "cpu" and not native:
            return jnp.dtype("float32")  # XLA's bf16 products inside the page loop are slow there
        return jnp.dtype(self.recipe.dtype)

    @cached_property
    def kernel(self) -> Kernel:
        if self.cache.chosen and self.layout.platform != "tpu":
            return xla.KERNEL
        heads, pages = map(self.layout.axis, (self.cache.query_axis, self.cache.axis))
        memories = self.layout.axis("heads") if self.recipe.recurrent else None
        return kernel_for(
            self.layout.platform, self.layout.mesh, heads, pages, self.kv_dtype, memories
        )

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of its weights, of its encoder's and of its draft model's."""
        own = self.blueprint.bytes_on(self.layout) + self.encoder_bytes
        return own + (self.draft.weight_bytes if self.draft else 0)

    @property
    def encoder_bytes(self) -> int:
        """Bytes of the weights of the vision encoder."""
        return self.encoder.bytes_on(self.layout) if self.encoder else 0

    def page_bytes(self, page_size: int) -> int:
        """Bytes of one page of all layers, its draft model's included.

        Raises MemoryPlanError if the kernel refuses it.
        """
        own = sum(self.layer_bytes(page_size))
        return own + (self.draft.page_bytes(page_size) if self.draft else 0)

    def pages_of(self, limits: EngineLimits) -> PageBytes:
        """Return what pages take. Raises MemoryPlanError if the kernel refuses them."""
        whole, each = self.page_bytes(limits.page_size), self.layer_bytes(limits.page_size)
        near = sum(compress(each, self.near_layers(limits.near_window)))
        return PageBytes(whole - near, near, most_near(limits))

    def layer_bytes(self, page_size: int) -> list[int]:
        """Return the bytes of a page, or of a state, in each layer. Raises MemoryPlanError."""
        with told_as_plan_error():
            shapes = self._pool_shapes((0,) * self.cache.layers, page_size)
        leaves = [jax.tree.leaves(layer) for layer in shapes]
        return [
            sum(bytes_per_device(a.shape, 8 * a.dtype.itemsize, a.sharding) for a in layer)
            for layer in leaves
        ]

    def _pool_shapes(self, pages: Sequence[int], page_size: int) -> tuple[Pages, ...]:
        """Return the shapes and shardings of every layer's arrays, of so many pages each."""
        cache, where = self.cache, self.layout.pages

        def placed(leaf: Any, axis: str | None) -> Any:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where(axis))

        def layer(index: int, count: int) -> Pages:
            one = cache.layer(index, count, page_size, self.kv_dtype, self.kernel.shapes)
            if not isinstance(one, LayerPages):
                return tuple(map(placed, one, cache.axes(index)))
            return jax.tree.map(lambda leaf: placed(leaf, cache.axis), one)

        return tuple(layer(index, count) for index, count in enumerate(pages))

    def near_layers(self, near_window: int | None) -> tuple[bool, ...]:
        """Return, for each layer here, True if it has pages of its own; (): none has any."""
        if near_window is None:
            return ()
        first = self.stage.first if self.stage else 0
        windows = self.recipe.windows[first : first + self.cache.layers]
        return tuple(window is not None for window in windows)

    @property
    def prefill_block(self) -> int:
        """Return the tokens of a block, at most; see `_block`."""
        return _CPU_PREFILL_BLOCK if self.layout.platform == "cpu" else _PREFILL_BLOCK

    def _block(self, page_size: int) -> int:
        """Return C; where layers keep a state, a block has no border of a page inside."""
        return gcd(self.prefill_block, page_size) if self.recipe.recurrent else self.prefill_block

    def workspace(self, slots: int) -> int:
        """Bytes of the slots' state and of the largest step's temporaries.

        Those are several copies of the logits, and the step's tokens. With it come the vectors of
        images, and the temporaries of the encoder that makes them.
        """
        decodes = self._decodes(slots)
        tokens = decodes + self.prefill_block * max(PREFILL_BLOCKS)
        logits = 4 * max(decodes, 2) * self.recipe.vocab * 6
        state = state_bytes(slots, self.recipe.vocab)
        step = state + logits + 4 * tokens * self.recipe.row * 32 + 64 * 2**20
        beside = self.beside + self.media_bytes
        return step + beside + (self.draft.workspace(slots) if self.draft else 0)

    def choice_bytes(self, slots: int, context: int) -> int:
        """Bytes of the scores of a step's tokens, where each chooses what it attends to."""
        if not self.cache.chosen:
            return 0
        tokens = self._decodes(slots) + self.prefill_block * max(PREFILL_BLOCKS)
        return 4 * tokens * context * _SCORE_COPIES

    @cached_property
    def media_bytes(self) -> int:
        """Bytes of the vectors of images and of the temporaries of the encoder."""
        limits = media_limits(self.recipe)
        return encoder_workspace(limits, self.encoder) if limits and self.encoder else 0

    def least_bytes(self, config: ModelServerConfig) -> int:
        """Minimum bytes: enough to serve one whole sequence at a time."""
        limits = self._limits(config, self.least_context(config))
        slots, of = self._slots(config), self.pages_of(limits)
        handoff = _handoff_bytes(config, of, limits)
        pool = of.pool(limits.pages_per_sequence)
        choice = self.choice_bytes(slots, limits.max_context)
        return self.weight_bytes + self.workspace(slots) + choice + handoff + pool

    def deploy(self, config: ModelServerConfig, memory: FreeMemory) -> Deployment:
        """Plan the pages in the memory of one device. Raises MemoryPlanError."""
        with share_of_media(self.recipe, self.encoder_bytes, self.media_bytes):
            return self._deployed(config, memory)

    def _deployed(self, config: ModelServerConfig, memory: FreeMemory) -> Deployment:
        slots, limits = self._slots(config), self._limits(config, self._context(config, memory))
        per_sequence, of = limits.pages_per_sequence, self.pages_of(limits)
        wanted = self._wanted_pages(config, of, per_sequence, slots)
        handoff = _handoff_bytes(config, of, limits)
        choice = self.choice_bytes(slots, limits.max_context)
        planned = plan_memory(
            weights=self.weight_bytes,
            of=of,
            workspace=self.workspace(slots) + choice + handoff,
            limit=memory.limit,
            in_use=memory.in_use,
            wanted_pages=wanted,
            min_pages=per_sequence,
            devices=self.layout.mesh.size,
            others=memory.others,
            shares=max(1, config.models - len(memory.holders)),
        )
        return Deployment(
            self.recipe,
            self.blueprint,
            self.layout,
            structs.replace(limits, pages=planned.pages),
            planned,
            elastic=wanted is None,
            beside=self.beside,
            draft=self.draft,
            encoder=self.encoder,
        )

    def _limits(self, config: ModelServerConfig, context: int) -> EngineLimits:
        """Return the engine's limits, as yet without pages. Raises InvalidRequest."""
        slots, block = self._slots(config), self._block(config.page_size)
        decodes, media = self._decodes(slots), media_limits(self.recipe)
        check_chunk(media, block * max(PREFILL_BLOCKS))
        return EngineLimits(
            slots=slots,
            pages=0,
            page_size=config.page_size,
            max_context=context,
            token_budget=decodes + block * max(PREFILL_BLOCKS),
            max_logit_rows=max(decodes, 2),
            prefill_block=block,
            max_prefill_blocks=max(PREFILL_BLOCKS),
            max_mixed_blocks=config.max_mixed_blocks,
            queue=config.queue,
            short_context=self.recipe.short_context,
            max_running_per_account=config.max_running_per_account,
            max_queued_per_account=config.max_queued_per_account,
            prefix_cache=config.prefix_cache,
            window=self._window,
            near_window=self._near_window(context),
            recurrent=self.recipe.recurrent,
            adapters=self.recipe.adapters.places if self.recipe.adapters else 0,
            guesses=self._guesses,
            max_decodes=None if decodes == slots else decodes,
            steps_per_launch=self._steps_per_launch(config),
            media=media,
        )

    def _steps_per_launch(self, config: ModelServerConfig) -> int:
        handoffs = config.gives_pages or config.takes_pages
        drafted = self.recipe.speculation.draft is not None
        if self.stage is not None or drafted or handoffs:
            return 1
        return config.steps_per_launch or (_PROXIED_STEPS if is_proxied() else 1)

    def _near_window(self, context: int) -> int | None:
        """Return the window of layers that have pages of their own; None: it would free no page.

        Nor do they beside a draft model, whose pages have the numbers of all layers'.
        """
        window = self.recipe.near_window
        drafted = self.recipe.speculation.draft is not None  # beside whichever stage
        return None if drafted or window is None or window >= context else window

    @property
    def _window(self) -> int | None:
        """Return the tokens that any layer sees at most, the draft model's included."""
        own = self.recipe.window
        other = self.draft.recipe.window if self.draft else own
        return None if own is None or other is None else max(own, other)

    def _slots(self, config: ModelServerConfig) -> int:
        return self.recipe.slots or config.slots

    @property
    def _guesses(self) -> int:
        """Return the guesses of a sequence in a step; a pipeline makes some only if asked to.

        Its stages take in the next step while others compute; a guess waits for all of them.
        """
        if self.recipe.recurrent:
            return 0  # a state cannot take back a wrong one
        speculation = self.recipe.speculation
        return speculation.guesses if speculation.asked or self.stage is None else 0

    def _decodes(self, slots: int) -> int:
        """Return the rows of the largest decode step: one sequence's guesses fit, if asked for."""
        return max(slots, 1 + self._guesses if self.recipe.speculation.asked else 0)

    def _auto(self, config: ModelServerConfig) -> bool:
        """Return True if the memory decides the context."""
        if self.recipe.auto_context is None:
            return config.max_context == AUTO
        return self.recipe.auto_context

    def least_context(self, config: ModelServerConfig) -> int:
        """Return the tokens of the shortest context with which it is loaded."""
        asked = asked_context(self.recipe, config)
        return min(asked, max(config.page_size, _LEAST_AUTO)) if self._auto(config) else asked

    def _context(self, config: ModelServerConfig, memory: FreeMemory) -> int:
        """Return the longest context as asked, or that every slot can hold at once, in tokens."""
        if not self._auto(config):
            return self.least_context(config)
        slots, kv = self._slots(config), self._kv_bytes(config)
        asked = asked_context(self.recipe, config)
        limits = self._limits(config, asked)
        of = self.pages_of(limits)
        free = memory.limit - memory.in_use - self.weight_bytes - self.workspace(slots)
        free //= max(1, config.models - len(memory.holders)) if kv is None else 1

        def taken(pages: int) -> int:
            context = pages * config.page_size
            handoff = _handoff_bytes(config, of, structs.replace(limits, max_context=context))
            return of.pool(slots * pages) + handoff + self.choice_bytes(slots, context)

        each = range(1, -(-asked // config.page_size) + 1)
        most = bisect_right(each, free, key=taken)
        if kv is not None:
            most = min(most, of.fitting(kv) // slots)
        return max(self.least_context(config), min(asked, most * config.page_size))

    def _kv_bytes(self, config: ModelServerConfig) -> int | None:
        """Return the bytes of the page pool as told, or as a CPU's default; None: all that fit."""
        told = self.recipe.kv_cache_bytes or config.kv_cache_bytes
        return _CPU_KV_BYTES if told is None and self.layout.platform == "cpu" else told

    def _wanted_pages(
        self, config: ModelServerConfig, of: PageBytes, per_sequence: int, slots: int
    ) -> int | None:
        """Pages for the whole context of every slot, capped by the flags or the CPU default."""
        whole = per_sequence * slots
        told = self.recipe.kv_cache_bytes or config.kv_cache_bytes
        if told is not None:
            return min(whole, of.fitting(told))
        if self.layout.platform == "cpu":
            return min(whole, max(per_sequence, of.fitting(_CPU_KV_BYTES)))
        return None


@dataclass(frozen=True, eq=False)
class Deployment(PlacedModel):
    """A model on devices with its planned memory."""

    limits: EngineLimits  # of the engine; the same on every host and in every stage
    memory: MemoryPlan
    elastic: bool = False  # True: it got the pages that fit; fewer would do

    @property
    def total_bytes(self) -> int:
        """Bytes on all devices, including other stages."""
        return self.parts.total

    @property
    def parts(self) -> MemoryParts:
        """The bytes on all devices, other stages included, by what takes them."""
        limits, memory, everywhere = self.limits, self.memory, self._everywhere
        state = state_bytes(limits.slots, self.recipe.vocab)
        pages = limits.pages_per_sequence if self.elastic else limits.pages
        work = memory.total - memory.kv - self.weight_bytes - state
        weights, kv, drafts_work = self._of_draft(limits.pages)
        return MemoryParts(
            weights=everywhere(self.weight_bytes, weights),
            kv=everywhere(memory.kv, kv),
            state=everywhere(state),
            workspace=everywhere(work, drafts_work),
            least=everywhere(memory.with_pages(pages).total, sum(self._of_draft(pages))),
            slots=limits.slots,
            context=limits.max_context,
            tokens=limits.pages * limits.page_size,
        )

    def _everywhere(self, here: int, of_draft: int = 0) -> int:
        """Return bytes on all devices, of those on one here; other stages have no draft model."""
        stages = self.stage.count if self.stage else 1
        return self.layout.mesh.size * (stages * here - (stages - 1) * of_draft)

    def _of_draft(self, pages: int) -> tuple[int, int, int]:
        """Return the bytes of its draft model's weights, pages and temporaries on one device."""
        if self.draft is None:
            return 0, 0, 0
        pool = (pages + 1) * self.draft.page_bytes(self.limits.page_size)
        return self.draft.weight_bytes, pool, self.draft.workspace(self.limits.slots)

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        asked = self.recipe.batches
        return closed_set(
            self.limits.decodes, PREFILL_BLOCKS, skips=self.program.skips, batches=asked
        )

    @cached_property
    def pool_shapes(self) -> tuple[Pages, ...]:
        return self._pool_shapes(self.layer_pages, self.limits.page_size)

    @property
    def layer_sets(self) -> tuple[LayerSet, ...]:
        """The layers whose pages are handed over together."""
        return layer_sets(self.pool_shapes, self.near_layers(self.limits.near_window))

    @property
    def layer_pages(self) -> tuple[int, ...]:
        """Pages of each layer, the scratch page excluded."""
        pages, near = self.limits.pages, near_count(self.limits)
        layers = self.near_layers(self.limits.near_window)
        return tuple(near if its else pages for its in layers) or (pages,) * self.cache.layers

    @cached_property
    def program(self) -> StepProgram:
        return self.program_of(partial(StepProgram, encoder=self._encoder_program))

    @property
    def _encoder_program(self) -> EncoderProgram | None:
        limits = self.limits.media
        if self.encoder is None or limits is None:
            return None
        leaves = leaf_shapes(self.encoder, self.layout)
        return EncoderProgram(self.encoder, leaves, limits, everywhere(leaves[0].sharding))

    def program_of(self, kind: Callable[..., Program]) -> Program:
        """Return what `kind`, which takes what StepProgram takes, makes of this deployment."""
        return kind(
            self.blueprint,
            leaf_shapes(self.blueprint, self.layout),
            self.pool_shapes,
            self.limits,
            self.kernel,
            self.layout.row_split(),
            self.stage,
            self.recipe.row,
            vocab=self.recipe.vocab,
            # As the head leaves them: a device computes the logits of its part of the vocabulary.
            logits=self.layout.sharding((1, self.recipe.vocab), (None, "vocab")),
            near=self.near_layers(self.limits.near_window),
        )

    def allocate_pages(self) -> tuple[Pages, ...]:
        where, shapes = self.layout.pages, self.kernel.shapes
        pages, size = self.layer_pages, self.limits.page_size
        media = self.limits.media
        # Images whose tokens see each other are attended to by XLA, which reads what is masked.
        by_xla = media is not None and media.bidirectional
        blank = unwritten if isinstance(self.kernel, CpuAttention) and not by_xla else None
        return allocate(self.cache, pages, size, self.kv_dtype, where, shapes, blank)

    def with_pages(self, pages: int) -> Self:
        limits = structs.replace(self.limits, pages=pages)
        return replace(self, limits=limits, memory=self.memory.with_pages(pages))

    def following(self, limits: EngineLimits) -> Self:
        """Return the deployment with the primary's limits.

        Raises MemoryPlanError if its pages do not fit here.
        """
        of = self.pages_of(limits)
        if of.pool(limits.pages) > self.memory.kv:
            raise MemoryPlanError(
                f"{self.stage or 'this host'} has memory for {self.limits.pages} KV pages, but "
                f"the primary planned {limits.pages}: give every host the same flags and the same "
                "memory, or lower --kv_cache_bytes"
            )
        return replace(self, limits=limits, memory=self.memory.with_pages(limits.pages, of))


def asked_context(recipe: Recipe, config: ModelServerConfig) -> int:
    """Return the longest context that was asked for, in tokens, whatever the memory."""
    flag = config.max_context
    return recipe.max_context if flag is None or flag == AUTO else min(recipe.max_context, flag)


def place_model(recipe: Recipe, checkpoint: Checkpoint | None, layout: Layout) -> PlacedModel:
    """Lay out a recipe over a mesh. Raises InvalidRequest.

    layout: over devices, or over an abstract mesh if only sizes are asked for. checkpoint: says how
    its tensors are quantised.
    """
    blueprint = recipe.blueprint(layout, checkpoint)
    if recipe.adapters is not None and not blueprint.factors:
        raise InvalidRequest(
            "MAX_ADAPTERS asks for room for adapters, and no weight of this model can have one: "
            "publish it without MAX_ADAPTERS, or from a Hugging Face or GGUF checkpoint",
            param="overrides.MAX_ADAPTERS",
        )
    _check_recurrent(recipe)
    draft = None
    if recipe.draft is not None:
        draft = place_model(recipe.draft.recipe, recipe.draft.checkpoint, layout)
    encoder = recipe.media_blueprint(layout)
    return PlacedModel(recipe, blueprint, layout, draft=draft, encoder=encoder)


def _check_recurrent(recipe: Recipe) -> None:
    draft = recipe.draft.recipe if recipe.draft is not None else None
    if recipe.recurrent and recipe.speculation.asked or draft is not None and draft.recurrent:
        raise InvalidRequest(
            f"{'this model keeps' if recipe.recurrent else 'the draft model keeps'} a state of all "
            "tokens so far, which cannot take back a wrong guess: leave SPECULATION and its "
            "draft model out",
            param="overrides.SPECULATION",
        )


def deploy(
    recipe: Recipe,
    checkpoint: Checkpoint | None,
    layout: Layout,
    config: ModelServerConfig,
    memory: FreeMemory,
) -> Deployment:
    """Place a model on devices of this process or elsewhere, and plan its pages.

    memory: of one device. Raises InvalidRequest, MemoryPlanError.
    """
    return place_model(recipe, checkpoint, layout).deploy(config, memory)


def _handoff_bytes(config: ModelServerConfig, of: PageBytes, limits: EngineLimits) -> int:
    """Bytes of pages outside the pool: offered to other servers or being fetched."""
    directions = config.gives_pages + config.takes_pages
    return directions * transit_room(limits).bytes(of.page, of.near)
