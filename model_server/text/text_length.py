"""Refuses a text that is too long for a model's context before it is encoded.

Encoding costs up to a second for each megabyte, and memory of a hundred bytes for each token. A
text is therefore refused by its bytes, and a long one is encoded piece by piece first, to see
whether its pieces alone have too many tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from sax.errors import PromptTooLong
from sax.fields.field import longer, size_of
from sax.types import Message

LEAST_BYTES = 64 << 10  # refused by tokens only: encoding it takes some 50 ms
_SHRINKING = 2  # normalisers may drop or join characters, and unknown words become one token
_PIECE = 32 << 10  # characters
_CUT_TOKENS = 16  # by which cutting a text may raise its number of tokens, each time
_MESSAGE_BYTES = 8  # of an empty message once rendered, at least; most templates write more


class TokenLengths(Protocol):
    @property
    def longest_token(self) -> int:
        """Bytes of the vocabulary's longest token, or more."""
        ...


def most_bytes(tokenizer: TokenLengths, context: int) -> int:
    """Return the bytes above which no text fits a context of so many tokens."""
    return max(LEAST_BYTES, _SHRINKING * context * tokenizer.longest_token)


def check_bytes(text: str, tokenizer: TokenLengths, context: int, param: str) -> None:
    """Raise PromptTooLong if a text has too many bytes to fit the context."""
    most = most_bytes(tokenizer, context)
    if longer(text, most):
        raise _too_long(param, size_of(text), most, context)


def check_messages(messages: Sequence[Message], tokenizer: TokenLengths, context: int) -> None:
    """Raise PromptTooLong if the messages, before they are rendered, are too much."""
    most = most_bytes(tokenizer, context)
    # Most templates leave out the reasoning of earlier turns.
    size = sum(
        len(each.role)
        + each.characters
        + sum(len(call.arguments) for call in each.tool_calls)
        + _MESSAGE_BYTES
        for each in messages
    )
    if size > most:
        raise _too_long("messages", size, most, context)


def check_pieces(
    text: str, encode: Callable[[str], Sequence[int]], context: int, param: str
) -> None:
    """Raise PromptTooLong if a long text has more tokens than the context, whatever cutting adds.

    Stops at the piece that shows it, so memory and time are bounded by the context.
    """
    if len(text) <= _PIECE:
        return
    least = 0
    for piece in _pieces(text):
        least += len(encode(piece)) - _CUT_TOKENS
        if least > context:
            raise PromptTooLong(
                f"{param} has more than {least} tokens and this model's maximum context length is "
                f"{context} tokens: send less text",
                param=param,
            )


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))


def _too_long(param: str, size: int, most: int, context: int) -> PromptTooLong:
    return PromptTooLong(
        f"{param} has {size} bytes, of which at most {most} can fit: this model's maximum context "
        f"length is {context} tokens; send less text, or serve the model with a larger "
        "--max_context",
        param=param,
    )
