"""Prompts whose answer goes between two texts, for models that were trained to fill in the middle.

Each family has tokens of its own around the texts, and puts the text before the answer first, or
the one behind it. Which family it is shows in the vocabulary, or in what a GGUF file names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from model_server.text.tokenizer import Tokenizer
from sax.errors import UnsupportedParameter


@dataclass(frozen=True, slots=True)
class _Marks:
    """Texts of the tokens that come before each text, and before the answer."""

    prefix: str
    suffix: str
    middle: str = ""  # "": the answer follows the prefix
    suffix_first: bool = False


_FAMILIES = (
    _Marks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite
    _Marks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code, StableCode
    _Marks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    _Marks("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # CodeLlama
    _Marks("<PRE>", "<SUF>", "<MID>"),
    _Marks(  # DeepSeek Coder
        "<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"
    ),
    _Marks("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    _Marks("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", suffix_first=True),  # Seed Coder
    _Marks("[PREFIX]", "[SUFFIX]", suffix_first=True),  # Codestral
)
# Tokens that end such an answer, beside the model's end tokens.
_ENDS = (
    *("<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
    *("<fim_pad>", "<file_sep>", "\u2581<EOT>", "<EOT>", "<|cursor|>"),
)


@dataclass(frozen=True, slots=True)
class FillIn:
    """How one model reads the texts around an answer."""

    prefix: int
    suffix: int
    middle: int | None
    suffix_first: bool
    ends: frozenset[int]

    def ids(self, before: str, behind: str, tokenizer: Tokenizer, *, add_bos: bool) -> list[int]:
        """Return the prompt for an answer between two texts."""
        first = [self.prefix, *tokenizer.encode(before, add_bos=False)]
        last = [self.suffix, *tokenizer.encode_continuation(behind)]
        start = tokenizer.encode("", add_bos=add_bos)
        middle = [] if self.middle is None else [self.middle]
        return [*start, *(last + first if self.suffix_first else first + last), *middle]


def fill_in_of(tokenizer: Tokenizer) -> FillIn:
    """Return how a model fills in the middle. Raises UnsupportedParameter if it does not."""
    ends = frozenset(each for text in _ENDS if (each := _token(tokenizer, text)) is not None)
    if tokenizer.middle_ids is not None:
        return FillIn(*tokenizer.middle_ids, suffix_first=False, ends=ends)
    for marks in _FAMILIES:
        found = [_token(tokenizer, text) for text in (marks.prefix, marks.suffix)]
        middle = _token(tokenizer, marks.middle) if marks.middle else None
        prefix, suffix = found
        if prefix is not None and suffix is not None and (middle is not None or not marks.middle):
            return FillIn(prefix, suffix, middle, marks.suffix_first, ends)
    raise UnsupportedParameter(
        "suffix is not supported by this model: its vocabulary has no tokens for filling in the "
        "middle; leave it out, or ask a model that has them (Qwen2.5-Coder, Codestral)",
        param="suffix",
    )


def _token(tokenizer: Tokenizer, text: str) -> int | None:
    """Return the token whose whole text this is, as a token of its own."""
    ids: Sequence[int] = tokenizer.encode_chat(text)
    # Without a start token, which plain text may have.
    only = ids[-1] if ids else -1
    return only if only >= 0 and tokenizer.token_text(only) == text else None
