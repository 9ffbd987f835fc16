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


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory granted to one model, on one device."""

    pages: int  # pages the engine may grant; the pool has one more, scratch page 0
    kv: int  # bytes of the page pool, scratch page included
    total: int  # bytes of weights, page pool and workspace

    def with_pages(self, pages: int) -> MemoryPlan:
        kv = self.kv // (self.pages + 1) * (pages + 1)
        return MemoryPlan(pages=pages, kv=kv, total=self.total - self.kv + kv)


def plan_memory(
    *,
    weights: int,
    kv_bytes_per_page: int,
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

    All bytes and pages are per device; `devices` is how many share the model. others: the models
    that use `in_use`, for messages. shares: into which the pages that fit are divided, if none are
    wanted; this model gets one, the models to come the others.
    """
    if wanted_pages is not None and wanted_pages < min_pages:
        raise MemoryPlanError(_too_few_wanted(wanted_pages, min_pages, kv_bytes_per_page))
    free = limit - in_use - weights - workspace
    fitting = free // kv_bytes_per_page - 1
    pages = max(min_pages, (fitting + 1) // shares - 1) if wanted_pages is None else wanted_pages
    if max(pages, min_pages) > fitting:
        needed = (max(pages, min_pages) + 1) * kv_bytes_per_page
        least = weights + workspace + (min_pages + 1) * kv_bytes_per_page
        raise MemoryPlanError(
            _does_not_fit(
                weights, needed, workspace, limit, in_use, wanted_pages, min_pages, devices, others
            ),
            need=Need(memory=least, weights=weights) if least > limit - in_use else None,
        )
    kv = (pages + 1) * kv_bytes_per_page
    return MemoryPlan(pages=pages, kv=kv, total=weights + kv + workspace)


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


def _too_few_wanted(wanted: int, least: int, page: int) -> str:
    return (
        f"the KV cache would hold {wanted} pages ({human((wanted + 1) * page)}) but one whole "
        f"sequence needs {least} pages ({human((least + 1) * page)}): raise --kv_cache_bytes to "
        f"{(least + 1) * page} or lower --max_context{_OVERRIDES}"
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
