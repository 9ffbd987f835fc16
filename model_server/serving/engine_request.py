"""Validates a request and converts it to an engine request. Pure.

Errors name the field.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from msgspec.structs import replace

from model_server.config import PrefixSharing
from model_server.engine.engine import EngineRequest
from model_server.engine.parts.routed_experts import ShowRoutes
from model_server.engine.parts.thinking import ThinkingBudget
from model_server.engine.types import Grammar, Sampling
from model_server.loading.loaded import Loaded
from model_server.serving.beam_request import beam_search
from model_server.serving.chats.rendered_chat import Prompt, RenderedChat
from model_server.serving.request_checks import bad_word_ids, check_ids, check_length, text_ids
from model_server.text.fill_in import fill_in_of
from model_server.text.text_length import check_bytes, check_pieces
from model_server.text.tokenizer import Tokenizer
from model_server.text.vocabulary_fit import check_rows
from sax.auth.acl import Principal
from sax.errors import InvalidRequest
from sax.fields.sampling import DEVICE_FIELDS, UNCHANGED
from sax.types import AnswerSoFar, GenerateRequest, ReplyOptions, SamplingParams

_PLAIN = ReplyOptions()
_NO_ANSWER = AnswerSoFar()
_DRAWN_BITS = 53  # of a seed that a reply tells: JSON's numbers are exact up to there


def prompt_ids(
    prompt: Prompt | RenderedChat, loaded: Loaded, request: GenerateRequest | None = None
) -> list[int]:
    """Return the prompt as token ids, as the request's reply options say.

    A chat must have been rendered. Raises InvalidRequest.
    """
    if not prompt and (request is None or not request.reply.suffix):
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
        if reply.suffix is not None:
            for text, param in ((prompt, "prompt"), (reply.suffix, "suffix")):
                check_length(text, tokenizer, context, param)
            around = fill_in_of(tokenizer)
            return around.ids(prompt, reply.suffix, tokenizer, add_bos=add_bos)
        if whole:
            return text_ids(prompt, tokenizer, context, "prompt", add_bos=add_bos)
        check_bytes(prompt, tokenizer, context, "prompt")
        return tokenizer.encode(prompt, add_bos=add_bos)
    ids = [part for part in prompt if isinstance(part, int)]
    check_ids("prompt", ids, loaded.tokenizer.vocab_size)
    return ids


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
    if request.reply.suffix is not None and not sampling.ignore_eos:
        eos |= fill_in_of(loaded.tokenizer).ends
    stop_ids = eos | frozenset(sampling.stop_token_ids)
    if sampling.beam_size:
        beams, device_sampling = beam_search(sampling, stop_ids)
    else:
        device_sampling = _device_sampling(sampling, stop_ids, loaded.tokenizer)
        beams, device_sampling = None, replace(device_sampling, guided=grammar is not None)
    answer = request.answer or _NO_ANSWER
    shown = ShowRoutes() if request.reply.return_routed_experts else None
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
        settings=tuple(filter(None, (thinking, shown))),
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
    device = {name: getattr(sampling, name) for name in DEVICE_FIELDS}
    if not sampling.top_p:  # a nucleus of one token
        device |= {"top_p": UNCHANGED.top_p, "temperature": 0.0}
    return Sampling(
        **device,
        seed=secrets.randbits(_DRAWN_BITS) if sampling.seed is None else sampling.seed,
        logprobs=sampling.logprobs or 0,
        logit_bias=tuple(sampling.logit_bias.items()),
        allowed=tuple(allowed) or None,
        min_tokens=sampling.min_tokens,
        ends=ends,
        bad_words=bad_words,
    )


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
