"""Checks that a tokenizer and a model fit together: every id needs a row of the embedding.

A few control tokens without a row are normal (Gemma 3 has one for pictures): only prompts that
contain them are refused. An ordinary token without a row means that the tokenizer belongs to
another model.
"""

from __future__ import annotations

from collections.abc import Sequence

from model_server.text.tokenizer import HfTokenizer, Tokenizer
from sax.errors import CheckpointError, InvalidRequest


def check_fit(tokenizer: HfTokenizer, rows: int, checkpoint: str) -> None:
    """Raise CheckpointError if text could become ids that the model has no embedding for."""
    if tokenizer.ordinary_size > rows:
        raise CheckpointError(
            f"{checkpoint}: its tokenizer has ids up to {tokenizer.ordinary_size - 1}, its model "
            f"{rows} rows of embedding: the tokenizer is another model's. Replace its files by "
            "the model's own"
        )
    if tokenizer.adds_bos and tokenizer.bos_id is not None and tokenizer.bos_id >= rows:
        raise CheckpointError(
            f"{checkpoint}: every text would begin with token {tokenizer.bos_id} "
            f"({tokenizer.token_text(tokenizer.bos_id)!r}), but its model has {rows} rows of "
            "embedding. Replace the tokenizer's files by the model's own"
        )


def check_rows(ids: Sequence[int], rows: int | None, tokenizer: Tokenizer) -> None:
    """Raise InvalidRequest if the prompt has a token that the model has no embedding for."""
    if rows is None or max(ids, default=0) < rows:
        return
    token_id = next(token_id for token_id in ids if token_id >= rows)
    raise InvalidRequest(
        f"the prompt holds token {token_id} ({tokenizer.token_text(token_id)!r}), which this "
        f"model has no embedding for: its ids go to {rows - 1}. Leave it out",
        param="prompt",
    )
