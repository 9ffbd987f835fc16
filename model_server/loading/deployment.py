"""Deployment: one model on devices, and everything its programs, pages and weights follow from.

Computed once, from shapes alone, for the devices of this process, of a slice elsewhere, or for an
abstract mesh. Allocates nothing. All byte counts are per device of the mesh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Self, TypeVar

from msgspec import structs

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.config import ModelServerConfig
from model_server.disaggregation.layer_set import LayerSet, layer_sets
from model_server.engine.buckets import Bucket, closed_set
from model_server.engine.encoder_program import EncoderProgram
from model_server.engine.limits import EngineLimits
from model_server.engine.paging.window_pages import window_page_count
from model_server.engine.slot_state import state_bytes
from model_server.engine.step_program import StepProgram, everywhere
from model_server.kernels.cpu.attention import CpuAttention, unwritten
from model_server.kernels.pages import Pages, allocate
from model_server.loading.asked_limits import AskedLimits
from model_server.loading.media.encoder_plan import share_of_media
from model_server.loading.memory_plan import FreeMemory, MemoryPlan, plan_memory
from model_server.loading.placed_model import PREFILL_BLOCKS, PlacedModel, place_model
from model_server.models.recipe import Recipe
from model_server.models.weights.sharding import Layout
from model_server.models.weights.weight import leaf_shapes
from sax.errors import MemoryPlanError
from sax.memory_parts import MemoryParts

Program = TypeVar("Program")


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
        state = state_bytes(limits.slots, limits.draft_rows, self.recipe.vocab)
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
        return self.pages_over(self.layer_pages, self.limits.page_size)

    @property
    def layer_sets(self) -> tuple[LayerSet, ...]:
        """The layers whose pages are handed over together."""
        return layer_sets(self.pool_shapes, self.window_layers(self.limits.windows.sliding))

    @property
    def layer_pages(self) -> tuple[int, ...]:
        """Pages of each layer, the scratch page excluded."""
        pages, window_pages = self.limits.pages, window_page_count(self.limits)
        layers = self.window_layers(self.limits.windows.sliding)
        return (
            tuple(window_pages if its else pages for its in layers) or (pages,) * self.cache.layers
        )

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
            window_layers=self.window_layers(self.limits.windows.sliding),
            shows=self.recipe.shows,
        )

    def allocate_pages(self) -> tuple[Pages, ...]:
        where, shapes = self.layout.pages, self.kernel.shapes
        pages, size = self.layer_pages, self.limits.page_size
        # Tokens that see those after them are attended to by XLA, which reads what is masked.
        native = isinstance(self.kernel, CpuAttention) and not self.limits.looks_ahead
        blank = unwritten if native else None
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
    return plan_pages(place_model(recipe, checkpoint, layout), config, memory)


def plan_pages(placed: PlacedModel, config: ModelServerConfig, memory: FreeMemory) -> Deployment:
    """Plan the pages of a placed model in the memory of one device.

    Raises InvalidRequest, MemoryPlanError.
    """
    with share_of_media(placed.recipe, placed.encoder_bytes, placed.media_bytes):
        return _deployed(placed, config, memory)


def _deployed(placed: PlacedModel, config: ModelServerConfig, memory: FreeMemory) -> Deployment:
    asked = AskedLimits(placed, config)
    limits = asked.limits(asked.context(memory))
    per_sequence, of = limits.pages_per_sequence, placed.pages_of(limits)
    wanted = asked.wanted_pages(of, per_sequence)
    planned = plan_memory(
        weights=placed.weight_bytes,
        of=of,
        workspace=asked.temporaries(limits),
        limit=memory.limit,
        in_use=memory.in_use,
        wanted_pages=wanted,
        min_pages=per_sequence,
        devices=placed.layout.mesh.size,
        others=memory.others,
        shares=max(1, config.models - len(memory.holders)),
    )
    return Deployment(
        placed.recipe,
        placed.blueprint,
        placed.layout,
        structs.replace(limits, pages=planned.pages),
        planned,
        elastic=wanted is None,
        beside=placed.beside,
        draft=placed.draft,
        encoder=placed.encoder,
    )
