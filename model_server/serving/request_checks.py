"""Refuses requests with fields out of range, or that contradict; errors name the field. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from model_server.engine.slot_write import BAD_WORD_TOKENS, MOST_BAD_WORDS
from model_server.engine.types import Sampling
from model_server.loading.loaded import Loaded
from model_server.serving.beam_request import check_beams
from model_server.serving.chats.rendered_chat import Prompt, is_chat
from model_server.text.text_length import check_bytes, check_pieces
from model_server.text.tokenizer import Tokenizer
from sax.chat import Message, images_of
from sax.errors import InvalidRequest, NotLoaded, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.sampling import DEVICE_FIELDS, SAMPLING, UNCHANGED
from sax.fields.table import fields_of
from sax.types import GenerateRequest, ReplyOptions, SamplingParams

_FIELDS = fields_of(RequestRoute.STREAM)


def check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    """Raise InvalidRequest naming the first field out of range, or fields that contradict."""
    for name in SAMPLING:
        value = getattr(sampling, name)
        if value != getattr(UNCHANGED, name):
            _FIELDS[name].read(value)
    for name in ("stop_token_ids", "stop_sequence", "allowed_token_ids"):
        check_ids(name, getattr(sampling, name), vocab_size)
    check_ids("logit_bias", tuple(sampling.logit_bias), vocab_size)
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise InvalidRequest(
            f"min_tokens is {sampling.min_tokens} and max_tokens {sampling.max_tokens}: send a "
            "min_tokens of at most max_tokens",
            param="min_tokens",
        )


def check_device_sampling(sampling: Sampling, vocab_size: int) -> None:
    """Raise InvalidRequest for a setting that another server sent and that the device must not get:
    a bad row would affect others in its step."""
    params = SamplingParams(
        **{name: getattr(sampling, name) for name in DEVICE_FIELDS},
        seed=sampling.seed,
        logprobs=sampling.logprobs,
        logit_bias=dict(sampling.logit_bias),
        allowed_token_ids=sampling.allowed or (),
        min_tokens=sampling.min_tokens,
    )
    check_sampling(params, vocab_size)
    _FIELDS["stop_token_ids"].check_count(len(sampling.ends), "ends")
    check_ids("ends", sampling.ends, vocab_size)
    sizes = [len(word) for word in sampling.bad_words]
    if len(sizes) > MOST_BAD_WORDS or not all(1 <= size <= BAD_WORD_TOKENS for size in sizes):
        raise InvalidRequest(
            f"bad_words has {len(sizes)} words of up to {max(sizes)} tokens: send at most "
            f"{MOST_BAD_WORDS}, each of 1 to {BAD_WORD_TOKENS} tokens",
            param="bad_words",
        )
    for word in sampling.bad_words:
        check_ids("bad_words", word, vocab_size)


def check_asker(request: GenerateRequest) -> None:
    """Raise InvalidRequest for an account, a priority or a time limit out of range."""
    _FIELDS["priority"].read(request.priority)
    _FIELDS["account"].check_text(request.account)
    _FIELDS["cache_salt"].check_text(request.cache_salt)
    most_s = (_FIELDS["timeout_ms"].most or 0) / 1000
    if request.timeout_s is not None and not 0 < request.timeout_s <= most_s:
        allowed = f"seconds above 0 and at most {most_s:.0f}"
        raise _out_of_range("timeout", request.timeout_s, allowed)


def check_reply(request: GenerateRequest, loaded: Loaded) -> None:
    """Raise InvalidRequest for reply options out of range, or that contradict the request."""
    check_beams(request)
    reply, context = request.reply, loaded.runner.limits.max_context
    wanted, kept = reply.prompt_logprobs, reply.truncate_prompt_tokens
    if wanted is not None:
        _FIELDS["prompt_logprobs"].read(wanted)
    if kept is not None and kept != -1 and not 1 <= kept < context:
        allowed = f"-1, or a whole number from 1 to {context - 1}, one less than the context"
        raise _out_of_range("truncate_prompt_tokens", kept, allowed)
    if images_of(_messages(request.prompt)):
        _check_beside_images(reply)
    if reply.echo and is_chat(request.prompt):
        raise InvalidRequest("a chat has no text to echo: leave echo out", param="echo")
    if reply.suffix is not None:
        _check_suffix(request)
    if reply.return_routed_experts and request.sampling.max_tokens == 0:
        raise InvalidRequest(
            "return_routed_experts comes with the end of an answer, and max_tokens is 0: ask for 1",
            param="return_routed_experts",
        )
    if request.sampling.max_tokens == 0 and not reply.echo and wanted is None:
        raise InvalidRequest(
            "max_tokens is 0, so nothing would be returned: ask for at least 1, or for echo or "
            "prompt_logprobs",
            param="max_tokens",
        )


def _check_suffix(request: GenerateRequest) -> None:
    reply = request.reply
    if not isinstance(request.prompt, str):
        raise InvalidRequest("suffix goes with a prompt that is one text", param="suffix")
    for name in ("echo", "truncate_prompt_tokens", "prompt_logprobs"):
        if (value := getattr(reply, name)) is not None and value is not False:
            raise UnsupportedParameter(
                f"with suffix, the prompt is two texts between marks, of which {name} would tell "
                f"or cut one: leave out {name}, or suffix",
                param=name,
            )


def _check_beside_images(reply: ReplyOptions) -> None:
    if reply.truncate_prompt_tokens is not None:
        raise UnsupportedParameter(
            "truncate_prompt_tokens could cut an image: leave it out, or the images",
            param="truncate_prompt_tokens",
        )
    if reply.prompt_logprobs is not None:
        raise UnsupportedParameter(
            "tokens of images have no log-probabilities: leave out prompt_logprobs, or the images",
            param="prompt_logprobs",
        )


def _messages(prompt: Prompt) -> list[Message]:
    return [part for part in prompt if isinstance(part, Message)] if is_chat(prompt) else []


def check_answer(request: GenerateRequest, loaded: Loaded, version: str) -> None:
    """Check an answer that was begun by another replica, if the request goes on with one.

    Raises InvalidRequest, or NotLoaded if that replica's model was another version.
    """
    if (answer := request.answer) is None:
        return
    if request.sampling.beam_size:
        raise InvalidRequest(
            "a beam search has no answer before its end: send the request without one",
            param="answer.token_ids",
        )
    _FIELDS["answer.prompt_logprobs"].read(answer.prompt_logprobs)
    check_ids("answer.token_ids", answer.token_ids, loaded.ids)
    if answer.version and answer.version != version:
        raise NotLoaded(
            f"{request.model_id} is version {version or 'unknown'} on this replica, and the answer "
            f"was begun by version {answer.version}: try another replica",
            param="model",
        )


def check_ids(param: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raise InvalidRequest naming the first id outside the vocabulary."""
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return
    for token in ids:
        if not 0 <= token < vocab_size:
            raise _out_of_range(param, f"token {token}", f"ids from 0 to {vocab_size - 1}")


def _out_of_range(param: str, value: object, allowed: str) -> InvalidRequest:
    return InvalidRequest(f"{param} is {value}: give {allowed}", param=param)


def bad_word_ids(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each text, with and without a space before it, each once. Raises
    InvalidRequest for one of too many tokens."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word.lstrip() or word, f" {word.lstrip()}"):
            ids = tuple(tokenizer.encode_continuation(text))
            if len(ids) > BAD_WORD_TOKENS:
                raise InvalidRequest(
                    f"bad_words has a text of {len(ids)} tokens, {text!r}; at most "
                    f"{BAD_WORD_TOKENS} are allowed: send a shorter one",
                    param="bad_words",
                )
            if ids:
                found[ids] = None
    return tuple(found)


def text_ids(
    text: str, tokenizer: Tokenizer, context: int, param: str, *, add_bos: bool = True
) -> list[int]:
    """Return the ids of a text. Raises PromptTooLong where that is clear without encoding it."""
    check_length(text, tokenizer, context, param)
    return tokenizer.encode(text, add_bos=add_bos)


def check_length(text: str, tokenizer: Tokenizer, context: int, param: str) -> None:
    """Raise PromptTooLong for a text that is clearly longer than the context."""
    check_bytes(text, tokenizer, context, param)
    check_pieces(text, tokenizer.encode, context, param)
