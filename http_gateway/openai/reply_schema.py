"""Fields of OpenAI's bodies that shape the reply, as docs/reference/replies.md explains them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict

from http_gateway.bounds import bounded, checked, ranged
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.fields.sampling import MOST_BEAMS
from sax.types import ReplyOptions, TokenLogprob


class StreamOptions(BaseModel):
    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: the counts so far, in every event


class ReplyFields(BaseModel):
    """Those that chats and completions share; null always means the default."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    n: Annotated[int, ranged(RequestRoute.CHAT, "n"), checked(RequestRoute.CHAT, "n")] | None = None
    # vLLM's: the n likeliest answers instead of samples
    use_beam_search: Annotated[bool, checked(RequestRoute.CHAT, "use_beam_search")] | None = None
    stream: Annotated[bool, checked(RequestRoute.CHAT, "stream")] | None = None
    stream_options: (
        Annotated[StreamOptions, bounded(RequestRoute.CHAT, "stream_options")] | None
    ) = None
    # vLLM's, of the prompt and the reply
    prompt_logprobs: (
        Annotated[
            int,
            ranged(RequestRoute.CHAT, "prompt_logprobs"),
            checked(RequestRoute.CHAT, "prompt_logprobs"),
        ]
        | None
    ) = None
    return_token_ids: Annotated[bool, checked(RequestRoute.CHAT, "return_token_ids")] | None = None
    return_routed_experts: (
        Annotated[bool, checked(RequestRoute.CHAT, "return_routed_experts")] | None
    ) = None
    return_tokens_as_token_ids: (
        Annotated[bool, checked(RequestRoute.CHAT, "return_tokens_as_token_ids")] | None
    ) = None
    truncate_prompt_tokens: (
        Annotated[
            int,
            ranged(RequestRoute.CHAT, "truncate_prompt_tokens"),
            checked(RequestRoute.CHAT, "truncate_prompt_tokens"),
        ]
        | None
    ) = None
    add_special_tokens: Annotated[bool, checked(RequestRoute.CHAT, "add_special_tokens")] | None = (
        None
    )
    skip_special_tokens: (
        Annotated[bool, checked(RequestRoute.CHAT, "skip_special_tokens")] | None
    ) = None
    # No tokenizer here puts spaces there, so both values give the same text.
    spaces_between_special_tokens: (
        Annotated[bool, checked(RequestRoute.CHAT, "spaces_between_special_tokens")] | None
    ) = None
    include_stop_str_in_output: (
        Annotated[bool, checked(RequestRoute.CHAT, "include_stop_str_in_output")] | None
    ) = None

    @property
    def choices(self) -> int:
        return self.n or 1

    def _check_reply(self, logprobs: int | None) -> None:
        """Raise InvalidRequest for parts of the reply that contradict the rest of the request.

        logprobs: as asked for; None: none.
        """
        options = self.stream_options
        if options and options.continuous_usage_stats and not options.include_usage:
            raise InvalidRequest(
                "stream_options.continuous_usage_stats needs stream_options.include_usage: true",
                param="stream_options.continuous_usage_stats",
            )
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequest(
                "prompt_logprobs are not streamed: leave out stream, or use echo with logprobs",
                param="prompt_logprobs",
            )
        if self.return_tokens_as_token_ids and logprobs is None and self.prompt_logprobs is None:
            raise InvalidRequest(
                "return_tokens_as_token_ids renames the tokens of logprobs: ask for logprobs or "
                "prompt_logprobs, too",
                param="return_tokens_as_token_ids",
            )

    def _reply(self, prompt_logprobs: int | None, *, echo: bool = False) -> ReplyOptions:
        return ReplyOptions(
            echo=echo,
            prompt_logprobs=prompt_logprobs,
            return_token_ids=bool(self.return_token_ids),
            return_routed_experts=bool(self.return_routed_experts),
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            add_special_tokens=self.add_special_tokens,
            skip_special_tokens=self.skip_special_tokens is not False,
            include_stop_str_in_output=bool(self.include_stop_str_in_output),
        )

    def _shape(self, best_of: int, echoed_tops: int | None = None) -> Shape:
        options = self.stream_options
        return Shape(
            n=self.choices,
            best_of=1 if self.use_beam_search else best_of,
            beams=bool(self.use_beam_search),
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            echoed_tops=echoed_tops,
            prompt_logprobs=self.prompt_logprobs,
            token_ids=bool(self.return_token_ids),
            tokens_as_ids=bool(self.return_tokens_as_token_ids),
        )


_ONLY = {"length_penalty": 1.0, "early_stopping": False}  # and what changes nothing


def check_beams(body: ReplyFields, width: int) -> None:
    """Raise InvalidRequest for fields that contradict a beam search, or need one.

    width: answers generated per prompt.
    """
    if not body.use_beam_search:
        for name, unchanged in _ONLY.items():
            if getattr(body, name) not in (None, unchanged):
                raise InvalidRequest(
                    f"{name} is {getattr(body, name)} and there is no beam search: leave it out, "
                    "or send use_beam_search: true",
                    param=name,
                )
        return
    if body.stream:
        raise InvalidRequest(
            "a beam search has whole answers, which cannot be streamed: leave out stream or "
            "use_beam_search",
            param="stream",
        )
    if width > MOST_BEAMS:
        raise InvalidRequest(
            f"best_of is {width}: a beam search has at most {MOST_BEAMS} beams", param="best_of"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Parts that a request asked for beside the text; all are absent by default."""

    n: int = 1  # choices per prompt
    best_of: int = 1  # answers generated per prompt, of which the n best are returned
    beams: bool = False  # the one answer per prompt holds all hypotheses of a beam search
    include_usage: bool = False  # the tokens are counted at the end of a stream
    continuous_usage: bool = False  # and in each of its events
    echoed_tops: int | None = None  # logprobs of a completion begin with the prompt's
    prompt_logprobs: int | None = None  # vLLM's list of them
    token_ids: bool = False
    tokens_as_ids: bool = False  # tokens of logprobs are named token_id:7
    tools: tuple[str, ...] = ()  # names that calls in an answer may have
    custom_tools: frozenset[str] = frozenset()  # those whose input is a text
    parallel_calls: bool = True  # False: at most one call
    include_reasoning: bool = True

    def name(self, entry: TokenLogprob) -> str:
        return f"token_id:{entry.token_id}" if self.tokens_as_ids else entry.token

    @property
    def plain_events(self) -> bool:
        """True if an event in the middle of a stream holds nothing but text."""
        return not (self.token_ids or self.continuous_usage)
