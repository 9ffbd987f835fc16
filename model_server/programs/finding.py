"""Finds programs that were compiled ahead, and logs the result.

Programs are code, so a server looks only where its flag says: at one place, or beside each
checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from model_server.config import BESIDE_CHECKPOINTS, ModelServerConfig
from model_server.engine.limits import EngineLimits
from model_server.engine.versions import versions
from model_server.models.weights.quantized import byte_shape
from model_server.models.weights.sharding import Layout
from model_server.models.weights.weight import Blueprint, leaf_shapes
from model_server.programs.keys import Keys, differences
from model_server.programs.manifest import Manifest, shape_differences
from model_server.programs.place import SetFolder, beside, open_to_all, sets_at
from model_server.programs.ready_programs import ReadyPrograms
from model_server.programs.surroundings import digest_of, draft_key, keys_of
from sax.errors import CheckpointError
from sax.types import ModelSpec

logger = logging.getLogger(__name__)


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


def find_ready(
    spec: ModelSpec,
    config: ModelServerConfig,
    blueprint: Blueprint,
    layout: Layout,
    limits: EngineLimits,
    draft: Blueprint | None = None,
    encoder: Blueprint | None = None,
) -> ReadyPrograms | None:
    """Return the set that fits, or None after logging why there is none.

    layout: over the devices that will hold the model. limits: as this server plans them; a set may
    have fewer pages. draft, encoder: the weights of its draft model, and of the vision encoder.
    """
    place = _place(spec, config)
    if place is None:
        return None
    try:
        return _look(place, spec, _wanted(config, (blueprint, encoder), layout, limits, draft))
    except CheckpointError as exc:
        logger.warning("no compiled programs for %s: %s", spec.model_id, exc.text)
        return None


def find_passes(
    spec: ModelSpec,
    config: ModelServerConfig,
    blueprint: Blueprint,
    layout: Layout,
    encoder: Blueprint | None = None,
) -> ReadyPrograms | None:
    """Return the newest set with passes of this model, whatever its limits; None if there is none.

    Passes are the same for all limits, and are needed before the limits are known.
    """
    place = _place(spec, config)
    if place is None:
        return None
    weights, keys = _weights((blueprint, encoder), layout), keys_of(layout)
    try:
        found = [
            (manifest.made_at, folder, manifest)
            for folder, manifest in _sets(place).values()
            if manifest.passes
            and manifest.weights == weights
            and not differences(manifest.keys, keys)
        ]
    except CheckpointError:
        return None  # `find_ready` logs it
    if not found:
        return None
    _, folder, manifest = max(found, key=lambda each: each[0])
    return ReadyPrograms(folder, manifest, versions()["sax"])


def _sets(place: str) -> dict[str, tuple[SetFolder, Manifest]]:
    """Return the sets by name; none from a place where every user can write."""
    if open_to_all(place):
        logger.error(
            "%s is ignored: every user of this machine can write there, and programs are code; "
            "chmod o-w it",
            place,
        )
        return {}
    return {folder.name: (folder, manifest) for folder, manifest in sets_at(place)}


def _look(place: str, spec: ModelSpec, wanted: ProgramNeeds) -> ReadyPrograms | None:
    sets = _sets(place)
    manifests = {name: manifest for name, (_, manifest) in sets.items()}
    name = choose(manifests, wanted)
    if name is None:
        why = explain(manifests, wanted) if sets else "nothing was compiled for it (sax precompile)"
        logger.warning("no compiled programs for %s in %s: %s", spec.model_id, place, why)
        return None
    folder, chosen = sets[name]
    pages, own = chosen.limits.pages, wanted.limits.pages
    logger.info(
        "%s: %d programs for %s, compiled ahead by sax %s at %s, are in %s%s",
        *(spec.model_id, len(chosen.programs), chosen.topology, chosen.sax, chosen.made_at),
        folder.url,
        f"; they are for {pages} KV pages, {own} would fit" if pages < own else "",
    )
    return ReadyPrograms(folder, chosen, wanted.sax)


def _wanted(
    config: ModelServerConfig,
    parts: Sequence[Blueprint | None],
    layout: Layout,
    limits: EngineLimits,
    draft: Blueprint | None,
) -> ProgramNeeds:
    return ProgramNeeds(
        weights=_weights(parts, layout),
        draft=draft_key(_shapes(draft, layout), limits) if draft else "",
        keys=keys_of(layout),
        limits=limits,
        pages_are_given=config.kv_cache_bytes is not None,
        sax=versions()["sax"],
    )


def _weights(parts: Sequence[Blueprint | None], layout: Layout) -> str:
    return digest_of(chain.from_iterable(_shapes(part, layout) for part in parts if part))


def _shapes(blueprint: Blueprint, layout: Layout) -> Iterable[Any]:
    return map(byte_shape, leaf_shapes(blueprint, layout))


def _place(spec: ModelSpec, config: ModelServerConfig) -> str | None:
    own = beside(spec.checkpoint)
    if config.programs not in ("", BESIDE_CHECKPOINTS):
        return config.programs
    if config.programs:
        return own
    if own is not None and "://" not in own and _has_some(own):
        logger.info(
            "%s holds compiled programs, which are code and are loaded only with --programs: give "
            "--programs %s if everyone who can write there may run code here",
            own,
            BESIDE_CHECKPOINTS,
        )
    return None


def _has_some(own: str) -> bool:
    try:
        return any(True for _ in sets_at(own))
    except CheckpointError:
        logger.warning("%s cannot be listed", own)
        return False
