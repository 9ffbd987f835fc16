"""Engine limits that flags and a publish ask for: slots, context and pages.

All byte counts are per device of the mesh.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from msgspec import structs

from model_server.config import AUTO, ModelServerConfig
from model_server.disaggregation.handed_pages import transit_room
from model_server.engine.limits import EngineLimits, WindowLimits
from model_server.islands import is_proxied
from model_server.loading.media.encoder_plan import check_chunk, longest_prompt, media_limits
from model_server.loading.memory_plan import FreeMemory, PageBytes
from model_server.loading.placed_model import PREFILL_BLOCKS, PlacedModel
from model_server.models.recipe import Recipe

# Default page pool of a CPU server: modest, because other processes share the memory.
_CPU_KV_BYTES = 2**30
_PROXIED_STEPS = 4  # of one launch, behind a proxy server
_LEAST_AUTO = 256  # tokens: a shorter context than this serves nobody, so "auto" is refused


@dataclass(frozen=True, slots=True)
class AskedLimits:
    """A placed model with a server's flags."""

    placed: PlacedModel
    config: ModelServerConfig

    @property
    def slots(self) -> int:
        return self.placed.recipe.slots or self.config.slots

    @property
    def auto(self) -> bool:
        """Return True if the memory decides the context."""
        asked = self.placed.recipe.auto_context
        return self.config.max_context == AUTO if asked is None else asked

    @property
    def least_context(self) -> int:
        """Return the tokens of the shortest context with which it is loaded."""
        asked = asked_context(self.placed.recipe, self.config)
        return min(asked, max(self.config.page_size, _LEAST_AUTO)) if self.auto else asked

    @property
    def least_bytes(self) -> int:
        """Minimum bytes: enough to serve one whole sequence at a time."""
        limits = self.limits(self.least_context)
        of = self.placed.pages_of(limits)
        temporaries = self.temporaries(limits)
        return self.placed.weight_bytes + temporaries + of.pool(limits.pages_per_sequence)

    def temporaries(self, limits: EngineLimits) -> int:
        """Bytes of what is neither weights nor the page pool."""
        slots, of = self.slots, self.placed.pages_of(limits)
        choice = self.placed.choice_bytes(slots, limits.max_context)
        return self.placed.workspace(slots) + choice + self._handoff_bytes(of, limits)

    def limits(self, context: int) -> EngineLimits:
        """Return the engine's limits, as yet without pages. Raises InvalidRequest."""
        placed, config = self.placed, self.config
        recipe, slots, block = placed.recipe, self.slots, placed.block(config.page_size)
        decodes, media = placed.decodes(slots), media_limits(recipe)
        chunk = block * max(PREFILL_BLOCKS)
        check_chunk(media, chunk)
        return EngineLimits(
            slots=slots,
            pages=0,
            page_size=config.page_size,
            max_context=context,
            token_budget=decodes + chunk,
            max_logit_rows=max(decodes, 2),
            prefill_block=block,
            max_prefill_blocks=max(PREFILL_BLOCKS),
            max_mixed_blocks=config.max_mixed_blocks,
            queue=config.queue,
            short_context=recipe.short_context,
            max_running_per_account=config.max_running_per_account,
            max_queued_per_account=config.max_queued_per_account,
            prefix_cache=config.prefix_cache,
            windows=self._windows(context),
            adapters=recipe.adapters.places if recipe.adapters else 0,
            routed_experts=recipe.routed_experts,
            draft_tokens=placed.draft_tokens,
            max_decodes=None if decodes == slots else decodes,
            steps_per_launch=self._steps_per_launch,
            media=media,
            bidirectional_prompt=longest_prompt(recipe, media, chunk),
        )

    @property
    def _steps_per_launch(self) -> int:
        config, placed = self.config, self.placed
        handoffs = config.gives_pages or config.takes_pages
        drafted = placed.recipe.speculation.drafter is not None
        if placed.stage is not None or drafted or handoffs:
            return 1
        return config.steps_per_launch or (_PROXIED_STEPS if is_proxied() else 1)

    def _windows(self, context: int) -> WindowLimits:
        return WindowLimits(
            every=self._window,
            sliding=self._sliding_window(context),
            recurrent=self.placed.recipe.recurrent,
        )

    def _sliding_window(self, context: int) -> int | None:
        """Return the window of layers that have pages of their own; None: it would free no page.

        Nor do they beside a draft model, whose pages have the numbers of all layers'. A draft head
        has no layers with a window.
        """
        recipe = self.placed.recipe
        window = recipe.sliding_window
        drafted = recipe.speculation.draft is not None and recipe.shows is None  # in any stage
        return None if drafted or window is None or window >= context else window

    @property
    def _window(self) -> int | None:
        """Return the tokens that any layer sees at most, the draft model's included."""
        own, draft = self.placed.recipe.window, self.placed.draft
        other = draft.recipe.window if draft else own
        return None if own is None or other is None else max(own, other)

    def context(self, memory: FreeMemory) -> int:
        """Return the longest context as asked, or that every slot can hold at once, in tokens."""
        if not self.auto:
            return self.least_context
        placed, config = self.placed, self.config
        slots, kv, asked = self.slots, self._kv_bytes, asked_context(placed.recipe, config)
        limits = self.limits(asked)
        of = placed.pages_of(limits)
        free = memory.limit - memory.in_use - placed.weight_bytes - placed.workspace(slots)
        free //= max(1, config.models - len(memory.holders)) if kv is None else 1

        def taken(pages: int) -> int:
            context = pages * config.page_size
            handoff = self._handoff_bytes(of, structs.replace(limits, max_context=context))
            return of.pool(slots * pages) + handoff + placed.choice_bytes(slots, context)

        each = range(1, -(-asked // config.page_size) + 1)
        most = bisect_right(each, free, key=taken)
        if kv is not None:
            most = min(most, of.fitting(kv) // slots)
        return max(self.least_context, min(asked, most * config.page_size))

    @property
    def _told_kv_bytes(self) -> int | None:
        return self.placed.recipe.kv_cache_bytes or self.config.kv_cache_bytes

    @property
    def _kv_bytes(self) -> int | None:
        """Return the bytes of the page pool as told, or as a CPU's default; None: all that fit."""
        told = self._told_kv_bytes
        return _CPU_KV_BYTES if told is None and self.placed.layout.platform == "cpu" else told

    def wanted_pages(self, of: PageBytes, per_sequence: int) -> int | None:
        """Pages for the whole context of every slot, capped by the flags or the CPU default.

        None: as many as fit.
        """
        whole, told = per_sequence * self.slots, self._told_kv_bytes
        if told is not None:
            return min(whole, of.fitting(told))
        if self.placed.layout.platform == "cpu":
            return min(whole, max(per_sequence, of.fitting(_CPU_KV_BYTES)))
        return None

    def _handoff_bytes(self, of: PageBytes, limits: EngineLimits) -> int:
        """Bytes of pages outside the pool: offered to other servers or being fetched."""
        directions = self.config.gives_pages + self.config.takes_pages
        return directions * transit_room(limits).bytes(of.page, of.window_page)


def asked_context(recipe: Recipe, config: ModelServerConfig) -> int:
    """Return the longest context that was asked for, in tokens, whatever the memory."""
    flag = config.max_context
    return recipe.max_context if flag is None or flag == AUTO else min(recipe.max_context, flag)
