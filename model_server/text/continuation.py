"""Continuation: the ids of a text that follows another, as a model reads the two together."""

from __future__ import annotations

from model_server.text.tokenizer import Tokenizer


def split_ids(tokenizer: Tokenizer, prefix: str, suffix: str) -> tuple[list[int], list[int]]:
    """Return the ids of a prefix, and those of a suffix that follows it.

    The prefix always has the ids of a prompt, so that suffixes of one prefix can be compared, and
    with what the model generates after it. The suffix has the rest of the ids of both texts
    together. Where those are not the prefix's at first, because a token would span the border
    ("a " and "b" make "a" and " b"), it has the ids of its own text, as the middle of a text.
    """
    before = tokenizer.encode(prefix)
    together = tokenizer.encode(prefix + suffix)
    if together[: len(before)] == before:
        return before, together[len(before) :]
    return before, tokenizer.encode_continuation(suffix)
