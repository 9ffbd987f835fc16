"""Saxml query: a text of LMService, and what a model reads it as.

One rule for Generate and Score: token ids (TOKENIZED_INPUT), a user's turn of a chat
(QUERY_FORMAT), or plain text. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from model_server.loading.loaded import Loaded
from model_server.serving.chats.rendered_chat import Prompt, RenderedChat
from model_server.serving.engine_request import prompt_ids
from model_server.serving.request_checks import check_ids, check_length, text_ids
from model_server.text.text_decoder import whole_text
from model_server.text.tokenizer import split_ids
from sax.errors import InvalidRequest, PromptTooLong
from sax.types import Message

_DIGITS = 10  # of the largest id that a message can hold


def prompt_of(text: str, loaded: Loaded) -> Prompt:
    """Return the prompt for a query; of an empty one the start token, if the model has one.

    Raises InvalidRequest.
    """
    if not text:
        return "" if loaded.chat_queries else tuple(start_ids(loaded))
    if loaded.tokenized_input:
        return tuple(_listed(text, "text", loaded, start=True))
    return (Message("user", text),) if loaded.chat_queries else text


def begin_of(text: str, ids: Sequence[int], loaded: Loaded) -> str:
    """Return what an answer begins with: "", or its query, read as these ids."""
    if not loaded.replies.begins_with_query:
        return ""
    if loaded.tokenized_output:
        return join_ids(ids)
    return whole_text(loaded.tokenizer.decoder(), ids) if loaded.tokenized_input else text


def scored_prompt(prefix: str, loaded: Loaded) -> Prompt:
    """Return the prompt after which a suffix is scored. Raises InvalidRequest."""
    if loaded.tokenized_input or not loaded.chat_queries:
        return prefix
    if not prefix:
        raise InvalidRequest(
            "prefix is empty: this model reads it as a user's message; send one, or publish the "
            'model with QUERY_FORMAT="raw"',
            param="prefix",
        )
    return (Message("user", prefix),)


def scored_ids(
    prefix: Prompt | RenderedChat, suffix: str, loaded: Loaded
) -> tuple[list[int], list[int]]:
    """Return the ids of a prefix, as Generate reads it, and of a suffix to score after it.

    In a chat the suffix is the assistant's answer. Raises InvalidRequest, PromptTooLong.
    """
    before, after = _split(prefix, suffix, loaded)
    return before, [*after, *loaded.replies.ending]


def _split(
    prefix: Prompt | RenderedChat, suffix: str, loaded: Loaded
) -> tuple[list[int], list[int]]:
    sizes = loaded.tokenizer, loaded.runner.limits.max_context
    if not isinstance(prefix, str):
        return prompt_ids(prefix, loaded), text_ids(suffix, *sizes, "suffix", add_bos=False)
    if loaded.tokenized_input:
        before = _listed(prefix, "prefix", loaded, start=True) or start_ids(loaded)
        return before, _listed(suffix, "suffix", loaded, start=False)
    for text, param in ((prefix, "prefix"), (suffix, "suffix")):
        check_length(text, *sizes, param)
    before, after = split_ids(loaded.tokenizer, prefix, suffix)
    return before or start_ids(loaded), after


def start_ids(loaded: Loaded) -> list[int]:
    """Return what an empty text is read as: the start token, also one that no text begins with."""
    start = loaded.tokenizer.bos_id if loaded.start_token is None else loaded.start_token
    return loaded.tokenizer.encode("") or ([] if start is None else [start])


def _listed(text: str, param: str, loaded: Loaded, *, start: bool) -> list[int]:
    """Return the ids of a list, after the start token if the model has one and `start` is set."""
    ids = parse_ids(text, loaded.runner.limits.max_context, param)
    check_ids(param, ids, loaded.tokenizer.vocab_size)
    return [*(loaded.tokenizer.encode("") if start else ()), *ids]


def parse_ids(text: str, most: int, param: str) -> tuple[int, ...]:
    """Return the ids of a list of up to `most`; none for an empty text.

    Raises InvalidRequest naming the field, PromptTooLong.
    """
    if not text.strip():
        return ()
    count = text.count(",") + 1
    if count > most:
        raise PromptTooLong(
            f"{param} has {count} token ids and this model's maximum context length is "
            f"{most} tokens: send fewer",
            param=param,
        )
    return tuple(_id(part, place, param) for place, part in enumerate(text.split(","), 1))


def join_ids(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids))


def _id(part: str, place: int, param: str) -> int:
    digits = part.strip()
    if len(digits) > _DIGITS or not (digits.isascii() and digits.isdecimal()):
        raise InvalidRequest(
            f"{param} is not a list of token ids: number {place} is {digits[:20]!r}. This model "
            'takes ids separated by commas, such as "5,6,7", as its Saxml class does; for text, '
            "publish it with TOKENIZED_INPUT=false",
            param=param,
        )
    return int(digits)
