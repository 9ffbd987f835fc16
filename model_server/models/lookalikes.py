"""Model types whose config.json and tensors fit a family that computes something else.

Neither keys nor names give them away, so they are refused by name. A test runs every model type of
transformers through every family that takes its config.json; what it finds wrong belongs here.
"""

from __future__ import annotations

from collections.abc import Mapping

from sax.errors import CheckpointError

_SHIFTED = "its positions start after the padding token's id"
# model_type -> what it computes in another way
_LOOKALIKES: Mapping[str, str] = {
    "camembert": _SHIFTED,
    "data2vec-text": _SHIFTED,
}


def refuse_lookalike(model_type: object, family: str) -> None:
    """Raise CheckpointError for a type that no family computes although some would take it."""
    reason = _LOOKALIKES.get(model_type) if isinstance(model_type, str) else None
    if reason is not None:
        raise CheckpointError(
            f"config.json has model_type {model_type!r}, which looks like the {family} family but "
            f"is not computed like it ({reason}): serve a model of a supported family"
        )
