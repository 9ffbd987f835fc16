"""Makes llguidance's matcher of a grammar, within limits that hold however hostile it is."""

from __future__ import annotations

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from sax.errors import InvalidRequest

_LIMITS = LLParserLimits(
    initial_lexer_fuel=500_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,  # of ambiguous grammars: about 50 ms
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)


def matcher_of(grammar: str, tokenizer: LLTokenizer, field: str) -> LLMatcher:
    """Compile a grammar in llguidance's own form, its first mask included, without Python's lock.

    Recursive: needs stack in proportion to the longest chain of rules. Raises InvalidRequest.
    """
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
    if not matcher.is_error():
        matcher.deep_copy().compute_bitmask()  # the first mask builds the lexer
    if matcher.is_error():
        why = matcher.get_error().partition("\n<non-verbose/>")[0]
        raise InvalidRequest(f"{field} cannot be compiled: {why[:300]}", param=field)
    return matcher
