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
    "sax has no export: `saxutil export MODEL lm.score PATH` writes a program of jax.export with "
    "the model's weights, and `sax convert` writes a Hugging Face folder"
)
SAVE = (
    "sax has no save: `saxutil save MODEL PATH` writes the checkpoint of a loaded model, and "
    "`sax versions` shows which one that is"
)


def unsupported(words: str) -> UnsupportedParameter:
    return UnsupportedParameter(words)
