"""Words for Saxml's operations that this system has no need of, or does not do."""

from __future__ import annotations

from sax.errors import UnsupportedParameter

CREATE = (
    "a cell needs no create command: start its admin server, e.g. "
    "python -m admin_server --sax_cell=/sax/test --fs_root=gs://bucket/sax"
)
DELETE = (
    "no command deletes a cell: unpublish its models, stop its admin servers, and delete "
    "the folder or bucket given as their --fs_root"
)
EXPORT = (
    "export is not supported: no server here writes a TensorFlow SavedModel; "
    "`sax convert` writes a Hugging Face folder"
)
SAVE = (
    "save is not supported: servers never change weights, so a model always equals the "
    "checkpoint it was loaded from; `sax versions` shows which one"
)


def unsupported(words: str) -> UnsupportedParameter:
    return UnsupportedParameter(words)
