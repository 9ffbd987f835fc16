"""The work that is raced over, and its prompts: text of exactly so many tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from model_server.text.tokenizer import HfTokenizer
from sax.cli.bench.load_plan import drawn


@dataclass(frozen=True, slots=True)
class Workload:
    """Every stream sends a prompt and reads `tokens` tokens."""

    name: str
    prompt: int  # tokens of a prompt
    tokens: int  # tokens of an answer
    shared: int = 0  # first tokens of every prompt that are the same


WORKLOADS = (
    Workload("128 in, 128 out", 128, 128),
    Workload("512 in, 64 out", 512, 64),
    Workload("1,000 shared + 32 in, 64 out", 1032, 64, shared=1000),
)
CONTEXT = max(workload.prompt + workload.tokens for workload in WORKLOADS) + 64


def prompts(words: Sequence[str], workload: Workload, streams: int, key: str) -> list[str]:
    """Make a prompt per stream; only the shared part is the same under another key.

    Each of `words` is one token after a space, so a prompt begins with a space.
    """
    shared = drawn(words, workload.shared, "shared")
    own = workload.prompt - workload.shared
    return [
        "".join(f" {word}" for word in [*shared, *drawn(words, own, f"{key}, {stream}")])
        for stream in range(streams)
    ]


def one_token_words(tokenizer: HfTokenizer) -> list[str]:
    """The plain English words of a vocabulary that are one token after a space."""
    texts = map(tokenizer.token_text, range(tokenizer.vocab_size))
    return [text[1:] for text in texts if re.fullmatch(" [a-z]{3,8}", text)]
