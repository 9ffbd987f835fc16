"""Validates a request and converts it to an engine request. Pure.

Errors name the field.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from msgspec.structs import replace

from model_server.config import PrefixSharing
from model_server.engine.engine import EngineRequest
from model_server.engine.parts.thinking import ThinkingBudget
from model_server.engine.slot_write import BAD_WORD_TOKENS, MOST_BAD_WORDS
from model_server.engine.types import Grammar, Sampling
from model_server.loading.loaded import Loaded
from model_server.serving.beam_request import beam_search, check_beams
from model_server.serving.chats.rendered_chat import Prompt, RenderedChat, is_chat
from model_server.text.text_length import check_bytes, check_pieces
from model_server.text.tokenizer import Tokenizer
from model_server.text.vocabulary_fit import check_rows
from sax.auth.acl import Principal
from sax.chat import Message, images_of
from sax.errors import InvalidRequest, NotLoaded, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.sampling import DEVICE_FIELDS, SAMPLING, UNCHANGED
from sax.fields.table import fields_of
from sax.types import AnswerSoFar, GenerateRequest, ReplyOptions, SamplingParams

_FIELDS = fields_of(RequestRoute.STREAM)
_PLAIN = ReplyOptions()
_NO_ANSWER = AnswerSoFar()
_SEEDS = 2**64
_SEED_STRIDE = 0x9E3779B97F4A7C15  # odd, so every sample of a request gets another seed
_DRAWN_BITS = 53  # of a seed that a reply tells: JSON's numbers are exact up to there


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
    if request.sampling.max_tokens == 0 and not reply.echo and wanted is None:
        raise InvalidRequest(
            "max_tokens is 0, so nothing would be returned: ask for at least 1, or for echo or "
            "prompt_logprobs",
            param="max_tokens",
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


def prompt_ids(
    prompt: Prompt | RenderedChat, loaded: Loaded, request: GenerateRequest | None = None
) -> list[int]:
    """Return the prompt as token ids, as the request's reply options say.

    A chat must have been rendered. Raises InvalidRequest.
    """
    if not prompt:
        raise InvalidRequest(
            "the prompt is empty: send text, token ids or messages", param="prompt"
        )
    ids = _encoded(prompt, loaded, request.reply if request else _PLAIN)
    check_rows(ids, loaded.vocab, loaded.tokenizer)
    return ids[-kept:] if request and (kept := _kept(request, loaded)) else ids


def _kept(request: GenerateRequest, loaded: Loaded) -> int | None:
    """Return how many of the prompt's last tokens are read; None: all."""
    kept = request.reply.truncate_prompt_tokens
    if kept != -1:
        return kept
    answer = request.sampling.max_tokens
    return max(1, loaded.runner.limits.max_context - (1 if answer is None else answer))


def _encoded(prompt: Prompt | RenderedChat, loaded: Loaded, reply: ReplyOptions) -> list[int]:
    tokenizer, context = loaded.tokenizer, loaded.runner.limits.max_context
    whole = reply.truncate_prompt_tokens is None  # a longer one is cut, up to the bound of bytes
    if isinstance(prompt, RenderedChat):
        check_bytes(prompt.text, tokenizer, context, "messages")
        if whole:
            check_pieces(prompt.text, tokenizer.encode_chat, context, "messages")
        start = tokenizer.encode("") if reply.add_special_tokens else []
        return [*start, *tokenizer.encode_chat(prompt.text)]
    if isinstance(prompt, str):
        add_bos = reply.add_special_tokens is not False
        if whole:
            return text_ids(prompt, tokenizer, context, "prompt", add_bos=add_bos)
        check_bytes(prompt, tokenizer, context, "prompt")
        return tokenizer.encode(prompt, add_bos=add_bos)
    ids = [part for part in prompt if isinstance(part, int)]
    check_ids("prompt", ids, loaded.tokenizer.vocab_size)
    return ids


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


def make_engine_request(
    ids: Sequence[int],
    request: GenerateRequest,
    loaded: Loaded,
    grammar: Grammar | None = None,
    thinking: ThinkingBudget | None = None,
) -> EngineRequest:
    """Return the engine request; sampling must have been checked. Raises InvalidRequest for an
    answer that cannot be as it was asked for."""
    sampling = request.sampling
    eos = frozenset() if sampling.ignore_eos else loaded.tokenizer.eos_ids
    room = loaded.runner.limits.max_context - len(ids)
    if 0 < room < sampling.min_tokens:
        raise InvalidRequest(
            f"min_tokens is {sampling.min_tokens} and the context has room for {room} tokens after "
            "the prompt: ask for fewer, or shorten the prompt",
            param="min_tokens",
        )
    stop_ids = eos | frozenset(sampling.stop_token_ids)
    if sampling.beam_size:
        beams, device_sampling = beam_search(sampling, stop_ids)
    else:
        device_sampling = _device_sampling(sampling, stop_ids, loaded.tokenizer)
        beams, device_sampling = None, replace(device_sampling, guided=grammar is not None)
    answer = request.answer or _NO_ANSWER
    scores = request.reply.prompt_logprobs is not None or sampling.max_tokens == 0
    first = max(1, answer.prompt_logprobs)  # token whose score is not told yet
    return EngineRequest(
        prompt=tuple(ids),
        sampling=device_sampling,
        beams=beams,
        grammar=grammar,
        # At least 1: the engine refuses a prompt that fills the context, with both numbers.
        max_tokens=max(1, room) if sampling.max_tokens is None else sampling.max_tokens,
        stop_ids=stop_ids,
        score_from=first if scores and len(ids) > first else None,
        score_tops=request.reply.prompt_logprobs,
        priority=request.priority,
        salt=request.cache_salt,
        answer=answer.token_ids,
        settings=() if thinking is None else (thinking,),
    )


def _device_sampling(
    sampling: SamplingParams, stop_ids: frozenset[int], tokenizer: Tokenizer
) -> Sampling:
    """Return what the device needs to know. Raises InvalidRequest if no token may be chosen."""
    ends = tuple(sorted(stop_ids)) if sampling.min_tokens else ()
    bad_words = bad_word_ids(sampling.bad_words, tokenizer)
    allowed = sampling.allowed_token_ids
    if allowed and set(allowed) <= {*ends, *(word[-1] for word in bad_words)}:
        raise InvalidRequest(
            "allowed_token_ids holds only tokens that bad_words and min_tokens forbid: allow "
            "another token",
            param="allowed_token_ids",
        )
    return Sampling(
        **{name: getattr(sampling, name) for name in DEVICE_FIELDS},
        seed=secrets.randbits(_DRAWN_BITS) if sampling.seed is None else sampling.seed,
        logprobs=sampling.logprobs or 0,
        logit_bias=tuple(sampling.logit_bias.items()),
        allowed=tuple(allowed) or None,
        min_tokens=sampling.min_tokens,
        ends=ends,
        bad_words=bad_words,
    )


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


def of_caller(
    engine_request: EngineRequest,
    principal: Principal,
    account: str,
    sharing: PrefixSharing = "tenant",
) -> EngineRequest:
    """Enter whose turn the request takes: the principal's, else that of the account it names.

    What a principal says about the user behind it only divides its own turns. Both together are
    the tenant, who shares the prefix cache with nobody else by default: the time to a first token
    tells whether the same prompt was sent before.
    """
    member = account if principal.known else ""
    salt = salt_of(principal, account, engine_request.salt, sharing)
    account = principal.name if principal.known else account
    return replace(engine_request, account=account, member=member, salt=salt)


def salt_of(
    principal: Principal, account: str, salt: str, sharing: PrefixSharing = "tenant"
) -> str:
    """Return the name of those who share what was computed for a request's prompt. salt: what the
    request says of it."""
    member = account if principal.known else ""
    account = principal.name if principal.known else account
    # Names cannot run into each other, nor into what the request says: each comes with its length.
    tenant = () if sharing == "shared" else (account, member)
    return "".join(f"{len(part)}:{part}" for part in (*tenant, salt))


def score_engine_request(prefix: Sequence[int], suffix: Sequence[int]) -> EngineRequest:
    return EngineRequest(
        prompt=(*prefix, *suffix),
        sampling=Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0),
        max_tokens=0,
        stop_ids=frozenset(),
        score_from=len(prefix),
    )


def sample_seeds(seed: int | None, count: int) -> list[int]:
    """Return a seed for each sample of a request; the first is the caller's own."""
    first = secrets.randbits(64) if seed is None else seed
    return [(first + index * _SEED_STRIDE) % _SEEDS for index in range(count)]


def check_ids(param: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raise InvalidRequest naming the first id outside the vocabulary."""
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return
    for token in ids:
        if not 0 <= token < vocab_size:
            raise _out_of_range(param, f"token {token}", f"ids from 0 to {vocab_size - 1}")


def _out_of_range(param: str, value: object, allowed: str) -> InvalidRequest:
    return InvalidRequest(f"{param} is {value}: give {allowed}", param=param)
