"""Finds the model that `sax run` is to ask: a published one, or a checkpoint to publish. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from sax.cli.publication import Publication, absolute_checkpoint
from sax.errors import InvalidRequest, ModelNotFound
from sax.format import quoted
from sax.names import ModelId, check_checkpoint
from sax.references import HubReference, PackageReference, parse_reference
from sax.types import ModelSpec

_AUTO = "auto"
_CELL = "test"  # what `sax up` calls a cell


def find_published(text: str, known: Sequence[ModelSpec]) -> str | None:
    """Return the published model that a whole name or its last part means."""
    names = [spec.model_id for spec in known]
    ends = [name for name in names if name.rpartition("/")[2] == text]
    if text in names:
        return text
    return ends[0] if len(ends) == 1 else None


def to_publish(
    text: str, name: str | None, overrides: Mapping[str, str], known: Sequence[ModelSpec]
) -> Publication:
    """Return what to publish for a checkpoint. Raises InvalidRequest, ModelNotFound."""
    reference = parse_reference(text)
    if text.startswith("/sax/") or (reference is None and not _may_exist(text)):
        raise ModelNotFound(
            f"{quoted(text)} is no published model, and no checkpoint: give a GGUF file, a Hugging "
            "Face folder, ORG/NAME of a hub, or a name that `sax ls` lists",
            param="model",
        )
    cells = {ModelId.parse(spec.model_id).cell for spec in known}
    model_id = ModelId.parse(f"/sax/{min(cells, default=_CELL)}/{name or model_name(text)}")
    checkpoint = check_checkpoint(
        absolute_checkpoint(text) if reference is None else str(reference)
    )
    return Publication(str(model_id), _AUTO, checkpoint, 1, dict(overrides))


def is_published(wanted: Publication, known: Sequence[ModelSpec]) -> bool:
    """Return True if the model is there already.

    Raises InvalidRequest if its name stands for another checkpoint.
    """
    found = next((spec for spec in known if spec.model_id == wanted.model_id), None)
    if found is None:
        return False
    if _same(found.checkpoint, wanted.checkpoint) and found.overrides == wanted.overrides:
        return True
    raise InvalidRequest(
        f"{wanted.model_id} is published from {found.checkpoint} already: ask that one by its "
        "name, or give this one another with --name",
        param="name",
    )


def model_name(checkpoint: str) -> str:
    """Return a name for a checkpoint's model, as smollm2-135m-q4_1 for "SmolLM2-135M.Q4_1.gguf"."""
    match parse_reference(checkpoint):
        case HubReference(repo=repo):
            text = repo.rpartition("/")[2]
        case PackageReference(package=package):
            text = package
        case _:
            text = PurePosixPath(checkpoint.rstrip("/")).name.removesuffix(".gguf")
            text = re.sub(r"-\d{5}-of-\d{5}$", "", text)  # one part of several
    word = re.sub(r"[^a-z0-9_-]+", "-", text.lower())
    return re.sub(r"^[^a-z]+", "", word).strip("-") or "model"


def _may_exist(text: str) -> bool:
    return "://" in text or os.path.exists(os.path.expanduser(text))


def _same(published: str, wanted: str) -> bool:
    """Return True for equal checkpoints; a commit of a hub's default branch counts."""
    one, other = parse_reference(published), parse_reference(wanted)
    if isinstance(one, HubReference) and isinstance(other, HubReference) and not other.revision:
        return one.repo == other.repo and other.file in ("", one.file)
    return published == wanted
