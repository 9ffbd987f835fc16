"""Finds programs that were compiled ahead, and logs the result.

Programs are code, so a server looks only where its flag says: at one place, or beside each
checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from model_server.config import BESIDE_CHECKPOINTS, ModelServerConfig
from model_server.engine.limits import EngineLimits
from model_server.engine.versions import versions
from model_server.models.weights.quantized import byte_shape
from model_server.models.weights.sharding import Layout
from model_server.models.weights.weight import Blueprint, leaf_shapes
from model_server.programs.choosing import ProgramNeeds, choose, explain
from model_server.programs.keys import differences
from model_server.programs.manifest import Manifest
from model_server.programs.place import SetFolder, beside, open_to_all, sets_at
from model_server.programs.ready_programs import ReadyPrograms
from model_server.programs.surroundings import digest_of, draft_key, keys_of
from sax.errors import CheckpointError
from sax.types import ModelSpec

logger = logging.getLogger(__name__)


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
