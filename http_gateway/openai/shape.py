"""The parts of a reply that only some requests ask for."""

from __future__ import annotations

from dataclasses import dataclass

from sax.types import TokenLogprob


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
