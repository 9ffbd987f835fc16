"""Parser for MODEL MODEL_PATH CHECKPOINT [REPLICAS] [KEY=JSON ...]."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from sax.command import parse_overrides, say
from sax.errors import InvalidRequest
from sax.format import quoted
from sax.names import NO_CHECKPOINT, ModelId, check_checkpoint, check_model_path
from sax.references import parse_reference


@dataclass(frozen=True, slots=True)
class Publication:
    model_id: str
    model_path: str
    checkpoint: str
    replicas: int = 1
    overrides: dict[str, str] = field(default_factory=dict[str, str])


def parse_publication(words: Sequence[str], cell: str = "") -> Publication:
    """Parse MODEL MODEL_PATH CHECKPOINT [REPLICAS] [KEY=JSON ...]. Raises InvalidRequest.

    cell: of a model that is named by its last part alone, as /sax/<cell>.
    """
    if len(words) < 3:
        raise InvalidRequest(
            f"{quoted(' '.join(words))}: write MODEL MODEL_PATH CHECKPOINT [REPLICAS] "
            "[KEY=JSON ...], e.g. /sax/test/smollm2 llama /models/smollm2.gguf 1"
        )
    model_id, model_path, checkpoint, *rest = words
    if cell and "/" not in model_id:
        model_id = f"{cell}/{model_id}"
    replicas, pairs = _split(rest)
    return Publication(
        str(ModelId.parse(model_id)),
        check_model_path(model_path),
        check_checkpoint(absolute_checkpoint(checkpoint)),
        replicas,
        parse_overrides(pairs),
    )


def warn_of(published: Publication) -> None:
    """Print a line for each override without effect, as `sax ls` shows it from now on."""
    from sax.overrides.saxml_overrides import override_warnings

    for warning in override_warnings(published.model_path, published.overrides):
        say(f"warning: {warning}")


def _split(rest: Sequence[str]) -> tuple[int, Sequence[str]]:
    if not rest or "=" in rest[0]:
        return 1, rest
    try:
        replicas = int(rest[0])
    except ValueError:
        replicas = -1
    if replicas < 0:
        raise InvalidRequest(f"{quoted(rest[0])} is not a number of replicas: write 0, 1, 2, ...")
    return replicas, rest[1:]


def check_here(checkpoint: str) -> None:
    """Raise InvalidRequest for a local checkpoint that this machine does not have."""
    local = checkpoint != NO_CHECKPOINT and "://" not in checkpoint
    if local and parse_reference(checkpoint) is None and not os.path.exists(checkpoint):
        raise InvalidRequest(
            f"the checkpoint {quoted(checkpoint)} does not exist on this machine: give the path of "
            'a file or folder, ORG/NAME of a Hugging Face hub, or "None" for random weights',
            param="checkpoint",
        )


def absolute_checkpoint(checkpoint: str) -> str:
    """Make a local path absolute, since the model server runs in another folder."""
    if checkpoint != NO_CHECKPOINT and os.path.exists(checkpoint):
        return os.path.abspath(checkpoint)
    return checkpoint
