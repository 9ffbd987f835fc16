"""The tokens by which a language model scores pairs."""

from __future__ import annotations

from model_server.checkpoints.huggingface.sentence_transformers import SentenceSettings, TokenScore
from model_server.models.tasks import Tasks
from model_server.text.tokenizer import HfTokenizer
from sax.errors import CheckpointError, InvalidRequest


def score_of(tasks: Tasks, settings: SentenceSettings, tokenizer: HfTokenizer) -> TokenScore:
    """Return the tokens that score a pair: as published, else the checkpoint's.

    Raises InvalidRequest for a text that is not one token, CheckpointError for an unknown token.
    """
    if tasks.rerank_tokens is not None:
        return TokenScore(*(_token(text, tokenizer) for text in tasks.rerank_tokens))
    assert settings.score is not None, "the task follows from it"
    score = settings.score
    if max(score.true_id, score.false_id or 0) >= tokenizer.vocab_size:
        raise CheckpointError(
            f"LogitScore names tokens {score.true_id} and {score.false_id}, but the vocabulary has "
            f"{tokenizer.vocab_size}"
        )
    return score


def _token(text: str, tokenizer: HfTokenizer) -> int:
    ids = tokenizer.encode_chat(text)
    if len(ids) != 1:
        raise InvalidRequest(
            f"RERANK_TOKENS has {text!r}, which is {len(ids)} tokens of this vocabulary: give a "
            "text of one token",
            param="overrides.RERANK_TOKENS",
        )
    return ids[0]
