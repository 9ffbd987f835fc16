r"""Pre-tokenizers of byte-level vocabularies: the split of text into words before bytes merge.

A vocabulary does not include its pre-tokenizer, so every family's is listed here under the name
that GGUF files use. The patterns are taken from the published tokenizers; each is a step of the
`tokenizers` library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

GPT2_WORDS = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
BYTES_ONLY = {**GPT2_WORDS, "use_regex": False}
NFC = {"type": "NFC"}


@dataclass(frozen=True, slots=True)
class Cutting:
    """One family's pre-tokenizer."""

    steps: tuple[Mapping[str, Any], ...]
    normalizer: Mapping[str, Any] | None = None
    whole_words_first: bool = False  # a word that is a token skips the merges
    adds_bos: bool = False  # default where the file does not say


def split(pattern: str) -> dict[str, Any]:
    """Return a step that makes words of every match and of the text between matches."""
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def by_pattern(pattern: str, **options: Any) -> Cutting:
    """Return a pre-tokenizer with a single pattern, as in tiktoken."""
    return Cutting((split(pattern), BYTES_ONLY), **options)


def with_space_before(cutting: Cutting) -> Cutting:
    """Return `cutting` with a space prepended to texts that do not start with one."""
    steps = [
        {**step, "add_prefix_space": True} if step["type"] == "ByteLevel" else step
        for step in cutting.steps
    ]
    return replace(cutting, steps=tuple(steps))


def _cl100k(digits: str) -> str:
    """The pattern that most families share; they differ in how digits are grouped."""
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + "|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def _o200k(digits: str, suffix: str) -> str:
    """GPT-4o's pattern, which splits words by letter case."""
    first, rest = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{before}[{first}]*[{rest}]+{suffix}|{before}[{first}]+[{rest}]*{suffix}|{digits}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def _kimi() -> str:
    """GPT-4o's pattern for all but Chinese characters, which make words of their own."""
    first, rest = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
    before, other, suffix = r"[^\r\n\p{L}\p{N}]?", r"&&[^\p{Han}]", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    return (
        rf"\p{{Han}}+|{before}[{first}{other}]*[{rest}{other}]+{suffix}|"
        rf"{before}[{first}{other}]+[{rest}{other}]*{suffix}|\p{{N}}{{1,3}}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_DIGITS = {"type": "Digits", "individual_digits": True}
_LLAMA3 = _cl100k(r"\p{N}{1,3}")
_QWEN2 = _cl100k(r"\p{N}")
_SEED = (  # newlines do not end a run of punctuation
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35 = (  # combining marks belong to words
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_MAYBE_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_DEEPSEEK3 = (
    split(r"\p{N}{1,3}"),
    split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
    split(
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
        "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|"
        r"\s+(?!\S)|\s+"
    ),
)
# Cased letters, as listed by DeepSeek's first models.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295"
    "-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e"
    "-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00"
    "-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f"
    "-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6"
    "-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119"
    "-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149"
    "\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13"
    "-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8"
    "-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900"
    "-\U0001e943"
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LLM = (
    split("[\r\n]"),
    split(r"\s?[" + _CASED + "]+"),
    split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"),
    split(r"\s+$"),
    split(_CJK),
    {"type": "Digits", "individual_digits": True},
)
_DEEPSEEK_CODER = (
    split("[\r\n]"),
    split(r"\s?\p{L}+"),
    split(r"\s?\p{P}+"),
    split(_CJK),
    {"type": "Digits", "individual_digits": True},
)

_FALCON = (
    {"type": "Punctuation", "behavior": "Contiguous"},
    GPT2_WORDS,
    {"type": "Digits", "individual_digits": False},
    split("[0-9][0-9][0-9]"),
)

GPT2 = Cutting((GPT2_WORDS,))
GPT_NEOX = Cutting((GPT2_WORDS,), NFC)
LLAMA3 = by_pattern(_LLAMA3, whole_words_first=True, adds_bos=True)
QWEN2 = by_pattern(_QWEN2, normalizer=NFC)
CL100K = by_pattern(_LLAMA3)
KIMI = by_pattern(_kimi())
O200K = by_pattern(_o200k(r"\p{N}{1,3}", _MAYBE_SUFFIX))

# By the names of `tokenizer.ggml.pre`.
CUTTINGS: Mapping[str, Cutting] = MappingProxyType(
    {
        "gpt-2": GPT2,
        "phi-2": GPT2,
        "olmo": GPT_NEOX,
        "mpt": GPT_NEOX,
        "gpt-neox": GPT_NEOX,
        "falcon": Cutting(_FALCON),
        "smollm": Cutting((_DIGITS, GPT2_WORDS)),
        "starcoder": Cutting((_DIGITS, GPT2_WORDS)),
        "refact": Cutting((_DIGITS, GPT2_WORDS)),
        "command-r": Cutting((_DIGITS, GPT2_WORDS), NFC),
        "llama-bpe": LLAMA3,
        "llama3": LLAMA3,
        "llama-v3": LLAMA3,
        "dbrx": CL100K,
        "smaug-bpe": CL100K,
        "glm4": CL100K,
        "chatglm-bpe": CL100K,
        "seed-coder": by_pattern(_SEED),
        "qwen2": QWEN2,
        "deepseek-r1-qwen": QWEN2,
        "qwen35": by_pattern(_QWEN35),
        "deepseek-llm": Cutting((*_DEEPSEEK_LLM, BYTES_ONLY)),
        "deepseek-coder": Cutting((*_DEEPSEEK_CODER, BYTES_ONLY)),
        "deepseek-v3": Cutting((*_DEEPSEEK3, BYTES_ONLY)),
        "hunyuan-dense": Cutting((*_DEEPSEEK3, BYTES_ONLY)),
        "tekken": by_pattern(_o200k(r"\p{N}", ""), whole_words_first=True, adds_bos=True),
        "gpt-4o": O200K,
        "kimi-k2": KIMI,
        "llama4": O200K,
    }
)
