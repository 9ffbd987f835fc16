"""Saxml query: a text of LMService, and what a model reads it as.

One rule for Generate and Score: token ids (TOKENIZED_INPUT), a user's turn of a chat
(QUERY_FORMAT), or plain text. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from model_server.loading.loaded import Loaded
from model_server.serving.chats.rendered_chat import Prompt, RenderedChat
from model_server.serving.engine_request import prompt_ids
from model_server.serving.request_checks import check_ids, check_length, text_ids
from model_server.text.id_list import join_ids, parse_ids
from model_server.text.text_decoder import whole_text
from model_server.text.tokenizer import split_ids
from sax.errors import InvalidRequest
from sax.types import Message


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
