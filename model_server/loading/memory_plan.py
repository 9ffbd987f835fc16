"""Memory plan: how many KV pages fit, decided before anything is loaded.

Pure arithmetic on bytes. If a model does not fit, the error says which flag to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sax.errors import MemoryPlanError
from sax.format import human_bytes as human
from sax.format import listing
from sax.need import Need


@dataclass(frozen=True, slots=True)
class Devices:
    count: int
    memory: int  # bytes that models may fill


_MOST_PAGES = 2**24  # if this device has no layer whose pages are counted


@dataclass(frozen=True, slots=True)
class PageBytes:
    """Memory of one device that a number of pages takes, with a scratch page beside them."""

    page: int  # bytes of one page, but for window layers
    window_page: int = 0  # bytes of one page of window layers, which have their own
    most_window_pages: int = 0  # pages that window layers have at most, but for those
    beside: int = 1  # their scratch page, and those of states behind draft tokens

    def pool(self, pages: int) -> int:
        """Return the bytes of all layers' pages."""
        window_pages = min(pages, self.most_window_pages) + self.beside
        return (pages + 1) * self.page + window_pages * self.window_page

    def fitting(self, free: int) -> int:
        """Return the most pages that take no more than these bytes; negative: not even scratch."""
        alike = (free - (self.beside - 1) * self.window_page) // (self.page + self.window_page) - 1
        if alike < self.most_window_pages or not self.window_page:
            return alike
        rest = free - (self.most_window_pages + self.beside) * self.window_page
        return rest // self.page - 1 if self.page else _MOST_PAGES


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory granted to one model, on one device."""

    pages: int  # pages the engine may grant; the pool has one more, scratch page 0
    kv: int  # bytes of the page pool, scratch page included
    total: int  # bytes of weights, page pool and workspace
    of: PageBytes

    def with_pages(self, pages: int, of: PageBytes | None = None) -> MemoryPlan:
        """of: None: they take what they take here."""
        of = of or self.of
        kv = of.pool(pages)
        return MemoryPlan(pages=pages, kv=kv, total=self.total - self.kv + kv, of=of)


def plan_memory(
    *,
    weights: int,
    of: PageBytes,
    workspace: int,
    limit: int,
    in_use: int,
    wanted_pages: int | None,
    min_pages: int,
    devices: int = 1,
    others: str = "other models",
    shares: int = 1,
) -> MemoryPlan:
    """Grant the wanted pages (None: all that fit). Raises MemoryPlanError if they do not fit.

    All bytes and pages are per device; `devices` is how many share the model. of: what pages take.
    others: the models
    that use `in_use`, for messages. shares: into which the pages that fit are divided, if none are
    wanted; this model gets one, the models to come the others.
    """
    if wanted_pages is not None and wanted_pages < min_pages:
        raise MemoryPlanError(_too_few_wanted(wanted_pages, min_pages, of))
    free = limit - in_use - weights - workspace
    fitting = of.fitting(free)
    pages = max(min_pages, of.fitting(free // shares)) if wanted_pages is None else wanted_pages
    if max(pages, min_pages) > fitting:
        needed = of.pool(max(pages, min_pages))
        least = weights + workspace + of.pool(min_pages)
        raise MemoryPlanError(
            _does_not_fit(
                weights, needed, workspace, limit, in_use, wanted_pages, min_pages, devices, others
            ),
            need=Need(memory=least, weights=weights) if least > limit - in_use else None,
        )
    kv = of.pool(pages)
    return MemoryPlan(pages=pages, kv=kv, total=weights + kv + workspace, of=of)


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Memory of one device that is left for one more model."""

    limit: int  # bytes
    in_use: int  # by other models
    holders: Mapping[str, int] = field(default_factory=dict[str, int])  # these models, bytes each

    @property
    def others(self) -> str:
        """The models in memory and what each takes, for messages."""
        if not self.holders:
            return "other models"
        most = sorted(self.holders, key=lambda model: -self.holders[model])
        return f"other models ({listing([f'{each} {human(self.holders[each])}' for each in most])})"

    def reserve(self, *, weights: int, workspace: int) -> int:
        """Return the bytes of a model without KV pages. Raises MemoryPlanError."""
        total, free = weights + workspace, max(0, self.limit - self.in_use)
        if total > free:
            raise MemoryPlanError(
                f"the model does not fit: weights {human(weights)} + workspace "
                f"{human(workspace)} = {human(total)}, but of {human(self.limit)} memory "
                f"{human(self.in_use)} is in use by {self.others} and {human(free)} is free: "
                f"{_more_memory(total, self.in_use)}",
                need=Need(memory=total, weights=weights),
            )
        return total


_OVERRIDES = " (for this model alone: KV_CACHE_BYTES, NUM_CACHE_SLOTS, MAX_CONTEXT)"


def _on_each(devices: int, total: int) -> str:
    if devices == 1:
        return ""
    return f" on each of {devices} devices ({human(devices * total)} in all)"


def _too_few_wanted(wanted: int, least: int, of: PageBytes) -> str:
    return (
        f"the KV cache would hold {wanted} pages ({human(of.pool(wanted))}) but one whole "
        f"sequence needs {least} pages ({human(of.pool(least))}): raise --kv_cache_bytes to "
        f"{of.pool(least)} or lower --max_context{_OVERRIDES}"
    )


def _does_not_fit(
    weights: int,
    kv: int,
    workspace: int,
    limit: int,
    in_use: int,
    wanted: int | None,
    least: int,
    devices: int,
    others: str,
) -> str:
    total = weights + kv + workspace
    text = (
        f"the model does not fit: weights {human(weights)} + KV cache {human(kv)} + workspace "
        f"{human(workspace)} = {human(total)}{_on_each(devices, total)}, but of {human(limit)} "
        f"memory {human(in_use)} is in use by {others} and {human(max(0, limit - in_use))} is free"
    )
    if limit - in_use < weights + workspace:
        return f"{text}: {_more_memory(total, in_use)}"
    if wanted is not None and wanted > least:
        less = f"lower --kv_cache_bytes or --slots{_OVERRIDES}"
        return f"{text}: {less}, or {_more_memory(total, in_use)}"
    return f"{text}: lower --max_context{_OVERRIDES}, or {_more_memory(total, in_use)}"


def _more_memory(total: int, in_use: int) -> str:
    raised = f"raise --memory_limit_bytes to {total + in_use} if the device has it"
    return f"unload another model, or {raised}" if in_use else raised
