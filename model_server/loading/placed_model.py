"""A model laid out over a mesh: kernel, pages and bytes follow from its shapes alone.

Nothing is allocated. All byte counts are per device of the mesh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from math import gcd
from typing import Any

import jax
import jax.numpy as jnp

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.engine.limits import EngineLimits
from model_server.engine.paging.window_pages import most_window_pages
from model_server.engine.slot_state import state_bytes
from model_server.engine.step_program import told_as_plan_error
from model_server.kernels import xla
from model_server.kernels.choice import kernel_for
from model_server.kernels.cpu.served import attends_natively
from model_server.kernels.paged import Kernel
from model_server.kernels.pages import CacheShape, LayerPages, Pages
from model_server.loading.media.encoder_plan import encoder_workspace, media_limits
from model_server.loading.memory_plan import PageBytes
from model_server.models.recipe import Recipe
from model_server.models.weights.sharding import Layout, bytes_per_device
from model_server.models.weights.stage import Stage
from model_server.models.weights.weight import Blueprint, Declaration, borrowed_weights
from sax.errors import InvalidRequest

PREFILL_BLOCKS = (1, 4, 8)  # bucket sizes, in blocks of prompt tokens per step
# Prompt tokens that attend together and share one read of the cached tokens. In the time it takes
# to read the weights, an accelerator computes several hundred tokens, a CPU only a few.
_CPU_PREFILL_BLOCK, _PREFILL_BLOCK = 32, 128
_SCORE_COPIES = 12  # of the scores of chosen tokens: numbers to sort, ranks and marks, too


@dataclass(frozen=True, slots=True)
class EncoderBytes:
    """The encoder of images or sounds, with the first stage; asked as a draft model is."""

    weight_bytes: int
    workspace_bytes: int  # of the vectors, and of the temporaries that make them

    def page_bytes(self, page_size: int) -> int:
        return 0

    def workspace(self, slots: int) -> int:
        return self.workspace_bytes


@dataclass(frozen=True, eq=False)
class PlacedModel:
    """A model laid out over a mesh; its pages are not planned yet."""

    recipe: Recipe  # of one stage, if the model is a pipeline
    blueprint: Blueprint
    layout: Layout
    beside: int = field(default=0, kw_only=True)  # bytes of temporaries beside those of the steps
    draft: PlacedModel | None = field(default=None, kw_only=True)  # over the same mesh
    # Of a draft head: its weights, by index, that are the model's, by theirs
    borrowed: Mapping[int, int] = field(default_factory=dict[int, int], kw_only=True)
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
        platform, heads = self.layout.platform, (self.cache.key_dim, self.cache.value_dim)
        native = attends_natively(platform, self.layout.mesh.size, *heads) and not self.cache.chosen
        if self.layout.platform == "cpu" and not native:
            return jnp.dtype("float32")  # XLA's bf16 products inside the page loop are slow there
        return jnp.dtype(self.recipe.dtype)

    @cached_property
    def kernel(self) -> Kernel:
        plain = {"tpu": self.cache.plain, "gpu": self.cache.plain or self.cache.chosen}
        if plain.get(self.layout.platform):
            return xla.KERNEL
        heads, pages = map(self.layout.axis, (self.cache.query_axis, self.cache.axis))
        memories = self.layout.axis("heads") if self.recipe.recurrent else None
        return kernel_for(
            self.layout.platform, self.layout.mesh, heads, pages, self.kv_dtype, memories
        )

    @cached_property
    def parts_beside(self) -> tuple[EncoderBytes | PlacedModel, ...]:
        """The draft model and the encoder, as far as they lie here."""
        encoder = EncoderBytes(self.encoder_bytes, self.media_bytes)
        return (encoder, self.draft) if self.draft else (encoder,)

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of its weights, of its encoder's and of its draft model's."""
        own = sum(weight.bytes_on(self.layout) for weight in self.own_weights)
        return own + sum(part.weight_bytes for part in self.parts_beside)

    @property
    def own_weights(self) -> tuple[Declaration, ...]:
        """The weights that are read for it alone."""
        every = enumerate(self.blueprint.declarations)
        return tuple(weight for index, weight in every if index not in self.borrowed)

    @property
    def encoder_bytes(self) -> int:
        """Bytes of the weights of the vision encoder."""
        return self.encoder.bytes_on(self.layout) if self.encoder else 0

    @cached_property
    def media_bytes(self) -> int:
        """Bytes of the vectors of images and of the temporaries of the encoder."""
        limits = media_limits(self.recipe)
        return encoder_workspace(limits, self.encoder) if limits and self.encoder else 0

    def page_bytes(self, page_size: int) -> int:
        """Bytes of one page of all layers, its draft model's included.

        Raises MemoryPlanError if the kernel refuses it.
        """
        beside = sum(part.page_bytes(page_size) for part in self.parts_beside)
        return sum(self.layer_bytes(page_size)) + beside

    def pages_of(self, limits: EngineLimits) -> PageBytes:
        """Return what pages take. Raises MemoryPlanError if the kernel refuses them."""
        whole, each = self.page_bytes(limits.page_size), self.layer_bytes(limits.page_size)
        window_page = sum(compress(each, self.window_layers(limits.windows.sliding)))
        counts = most_window_pages(limits), 1 + limits.draft_states
        return PageBytes(whole - window_page, window_page, *counts)

    def layer_bytes(self, page_size: int) -> list[int]:
        """Return the bytes of a page, or of a state, in each layer. Raises MemoryPlanError."""
        with told_as_plan_error():
            shapes = self.pages_over((0,) * self.cache.layers, page_size)
        leaves = [jax.tree.leaves(layer) for layer in shapes]
        return [
            sum(bytes_per_device(a.shape, 8 * a.dtype.itemsize, a.sharding) for a in layer)
            for layer in leaves
        ]

    def pages_over(self, pages: Sequence[int], page_size: int) -> tuple[Pages, ...]:
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

    def window_layers(self, sliding_window: int | None) -> tuple[bool, ...]:
        """Return, for each layer here, True if it has pages of its own; (): none has any."""
        if sliding_window is None:
            return ()
        first = self.stage.first if self.stage else 0
        windows = self.recipe.windows[first : first + self.cache.layers]
        return tuple(window is not None for window in windows)

    @property
    def prefill_block(self) -> int:
        """Return the tokens of a block, at most; see `block`.

        A step holds the largest image or prompt whose tokens see each other, if larger blocks on
        CPUs do; there, blocks are larger still if an image leaves the rest of its prompt no room.
        """
        if self.layout.platform != "cpu":
            return _PREFILL_BLOCK
        media, block = media_limits(self.recipe), _CPU_PREFILL_BLOCK
        prompt = self.recipe.bidirectional_prompt
        joined = prompt or (media.joined if media else 0)
        while block < _PREFILL_BLOCK and block * max(PREFILL_BLOCKS) < joined:
            block *= 2
        if prompt and media and block * max(PREFILL_BLOCKS) <= media.largest:
            block *= 2
        return block

    def block(self, page_size: int) -> int:
        """Return the tokens of a block; where layers keep a state, it has no border of a page."""
        return gcd(self.prefill_block, page_size) if self.recipe.recurrent else self.prefill_block

    @property
    def draft_tokens(self) -> int:
        """Return the draft tokens of a sequence in a step; a pipeline makes some only if asked to.

        Its stages take in the next step while others compute; a draft token waits for all of them.
        """
        speculation = self.recipe.speculation
        return speculation.draft_tokens if speculation.asked or self.stage is None else 0

    def decodes(self, slots: int) -> int:
        """Return the rows of the largest decode step: if asked for, one sequence's drafts fit."""
        return max(slots, 1 + self.draft_tokens if self.recipe.speculation.asked else 0)

    def workspace(self, slots: int) -> int:
        """Bytes of the slots' state and of the largest step's temporaries.

        Those are several copies of the logits, and the step's tokens. With it come the vectors of
        images, and the temporaries of the encoder that makes them.
        """
        decodes = self.decodes(slots)
        tokens = decodes + self.prefill_block * max(PREFILL_BLOCKS)
        logits = 4 * max(decodes, 2) * self.recipe.vocab * 6
        drafting = decodes if self.draft_tokens else 0
        state = state_bytes(slots, drafting, self.recipe.vocab)
        step = state + logits + 4 * tokens * self.recipe.row * 32 + 64 * 2**20
        return step + self.beside + sum(part.workspace(slots) for part in self.parts_beside)

    def choice_bytes(self, slots: int, context: int) -> int:
        """Bytes of the scores of a step's tokens, where each chooses what it attends to."""
        if not self.cache.chosen:
            return 0
        tokens = self.decodes(slots) + self.prefill_block * max(PREFILL_BLOCKS)
        return 4 * tokens * context * _SCORE_COPIES


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
    if recipe.routed_experts and not any("experts" in each.axes for each in blueprint.declarations):
        raise InvalidRequest(
            "RETURN_ROUTED_EXPERTS is true, and this model has no routed experts: leave it out",
            param="overrides.RETURN_ROUTED_EXPERTS",
        )
    draft = None
    if recipe.draft is not None:
        draft = place_model(recipe.draft.recipe, recipe.draft.checkpoint, layout)
        if recipe.draft.is_head:
            draft = replace(draft, borrowed=borrowed_weights(draft.blueprint, blueprint))
            _check_embedding(draft, recipe.draft.checkpoint)
    encoder = recipe.media_blueprint(layout)
    return PlacedModel(recipe, blueprint, layout, draft=draft, encoder=encoder)


def _check_embedding(head: PlacedModel, checkpoint: Checkpoint | None) -> None:
    """Raise InvalidRequest if a head would have to read an embedding that only the model has."""
    if checkpoint is None:
        return
    there = set(checkpoint.names())
    tables = [each for each in head.own_weights if each.path.startswith("embedding.")]
    if not all(there.issuperset(each.source.names) for each in tables):
        raise InvalidRequest(
            "DRAFT_MODEL has no embedding, and that of the model is quantised in another way: set "
            "DRAFT_QUANTIZE to the model's QUANTIZE, or leave out both",
            param="overrides.DRAFT_QUANTIZE",
        )


def _check_recurrent(recipe: Recipe) -> None:
    draft = recipe.draft.recipe if recipe.draft is not None else None
    if draft is not None and draft.recurrent:
        raise InvalidRequest(
            "the draft model keeps a state of all tokens so far, and would have to take back those "
            'that were wrong: set SPECULATION to "ngram", or name one without such layers',
            param="overrides.DRAFT_MODEL",
        )
