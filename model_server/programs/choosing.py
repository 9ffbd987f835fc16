"""Choose the set of compiled programs that fits this server, or explain why none does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from model_server.engine.limits import EngineLimits
from model_server.programs.keys import Keys, differences
from model_server.programs.manifest import Manifest, shape_differences


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramNeeds:
    """Properties of the programs that this server would compile."""

    weights: str
    draft: str = ""  # as in a manifest
    keys: Keys
    limits: EngineLimits  # from its own plan
    pages_are_given: bool  # by a flag: a set with fewer does not fit
    sax: str


def choose(sets: Mapping[str, Manifest], wanted: ProgramNeeds) -> str | None:
    """Return the fitting set with the most pages; ties go to the same sources, then the newest.

    One for the same draft model comes first: with any other, its programs are compiled at load.
    """
    fitting = [name for name, each in sets.items() if not why_not(each, wanted)]
    return max(fitting, key=lambda name: _merit(sets[name], wanted), default=None)


def why_not(made: Manifest, wanted: ProgramNeeds) -> list[str]:
    """Return why this server cannot run a set; empty if it can."""
    if made.weights != wanted.weights:
        return [f"made for another model, {made.model}"]
    return [
        *differences(made.keys, wanted.keys),
        *shape_differences(made.limits, wanted.limits),
        *_pages(made.limits.pages, wanted),
    ]


def explain(sets: Mapping[str, Manifest], wanted: ProgramNeeds) -> str:
    """Explain why no set fits, with all the differences of the nearest one for this model."""
    reasons = {
        name: why_not(each, wanted) for name, each in sets.items() if each.weights == wanted.weights
    }
    if not reasons:
        others = sorted({f"{each.model} on {each.topology}" for each in sets.values()})
        return f"the sets there are for other models or meshes ({', '.join(others)})"
    nearest = min(reasons, key=lambda name: len(reasons[name]))
    return f"{nearest}, the nearest of {len(reasons)}, was {'; '.join(reasons[nearest])}"


def _pages(made: int, wanted: ProgramNeeds) -> list[str]:
    own = wanted.limits.pages
    if made > own:
        return [f"made for {made} KV pages, this server has memory for {own}"]
    if wanted.pages_are_given and made != own:
        return [f"made for {made} KV pages, --kv_cache_bytes gives {own}"]
    return []


def _merit(made: Manifest, wanted: ProgramNeeds) -> tuple[bool, int, bool, str]:
    same_draft = made.draft == wanted.draft
    return same_draft, made.limits.pages, made.sax == wanted.sax, made.made_at
