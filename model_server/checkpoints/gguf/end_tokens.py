"""Finds the tokens that end an answer by their texts, as llama.cpp does.

A GGUF file names one or a few of them, and often not the one that ends a turn of a chat.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gguf.constants import TokenType

# Texts that are nothing else, whatever kind of token a file says they are.
_ALWAYS = frozenset(
    {
        "<|call|>",
        "<|calls|>",
        "<|end_of_text|>",
        "<|end|>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|flush|>",
        "<|im_end|>",
        "<|return|>",
        "<|tool_response>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)
# Texts that are plain ones in some vocabularies, such as HTML's tag for what is struck out.
_IF_CONTROL = frozenset({"</s>", "<EOT>", "<eos>", "[EOS]", "[EOT]", "_<EOT>"})
# Where these are, <|end|> ends a message of several in one answer (gpt-oss, Solar Open).
_MESSAGES = (frozenset({"<|return|>", "<|call|>"}), frozenset({"<|flush|>", "<|calls|>"}))
_MESSAGE_END = "<|end|>"


def ends_by_text(tokens: Sequence[str], kinds: np.ndarray) -> list[int]:
    """Return the ids of end tokens. kinds: i32[V], gguf's TokenType of each."""
    found = {
        token: token_id
        for token_id, token in enumerate(tokens)
        if token in _ALWAYS or (token in _IF_CONTROL and kinds[token_id] == TokenType.CONTROL)
    }
    if any(marks <= found.keys() for marks in _MESSAGES):
        found.pop(_MESSAGE_END, None)
    return list(found.values())
