"""Encodes with a tokenizer whose patterns are of no known family, in a process with limits.

Before that it bounds what the tokenizer's normalizers and pre-tokenizers can do to a text, from its
JSON. Normalisers that replace one letter by many multiply, and patterns may take a time that grows
with a power of the text or faster: a file of a few kilobytes can ask for gigabytes, or for hours.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
import tokenizers

from model_server.sharing.confined.lanes import LaneKind, Lanes
from model_server.sharing.confined.pipe import framed
from model_server.sharing.confined.process import ConfinedProcess
from model_server.text.untrusted_worker import MAX_ANSWER, TextAsk, TextIds
from model_server.text.vocabularies.cutting import CUTTINGS
from sax.errors import CheckpointError, InvalidRequest, Unavailable

QUICK_S = 1.0  # processor time of a text in the quick lane: a megabyte takes about that
SLOW_S = 5.0  # and in the slow one, where tokenizers are read first
_WAIT_S = 5.0
_WORKER = "model_server.text.untrusted_worker"
_DECODER = msgspec.msgpack.Decoder(TextIds)
_MOST_GROWTH = 128  # characters for each one of a text: NFKC has up to 18, and bytes up to 4
_MOST_ADDED = 4096  # characters beside those

Step = Mapping[str, Any]
# Characters that a step makes of one, at most; others make one.
_GROWTH = {
    **{"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "ByteLevel": 4},
    "BertNormalizer": 12,
}
_CLASS = re.compile(r"\\[pP]\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL)
_NO_WIDTH = re.compile(r"[(^$]|\\[bBAzZG]")  # what may match between characters
_UNBOUNDED = re.compile(r"[*+]|\{\d+,\}|\{\d*,?\d{3,}\}")


class _UntrustedText(NamedTuple):
    ask: TextAsk
    tokenizer: str


class _EncodingProcess(ConfinedProcess):
    """Tells the process of a tokenizer when it does not know it."""

    def __init__(self, seconds: float, niceness: int) -> None:
        super().__init__(_WORKER, seconds, niceness, doing="encodes it", most=MAX_ANSWER)

    def answer(self, text: _UntrustedText) -> TextIds:
        """Raises ProcessEnded, ProcessStarved, OSError."""
        answer = self._exchanged(text.ask)
        if answer.kind == "unknown":
            ask = msgspec.structs.replace(text.ask, tokenizer=text.tokenizer)
            answer = self._exchanged(ask)
        return answer

    def _exchanged(self, ask: TextAsk) -> TextIds:
        return self.exchange(framed(msgspec.msgpack.encode(ask)), _DECODER.decode)


@cache
def _lanes() -> Lanes[_UntrustedText, TextIds]:
    return Lanes(
        LaneKind(
            name="untrusted tokenizers",
            doing="to encode",
            process=_EncodingProcess,
            quick_s=QUICK_S,
            slow_s=SLOW_S,
            wait_s=_WAIT_S,
            refused=lambda why, retry_after_s: Unavailable(why, retry_after_s=retry_after_s),
            ended=lambda how: TextIds("ended", text=how),
            spent=lambda answer: answer.kind == "ended",
        )
    )


class UntrustedEncoder:
    """Encodes with the tokenizers of one model. Thread-safe; each call waits for its answer."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[bytes, str]] = {}

    def encoded(self, tokenizer: tokenizers.Tokenizer, text: str) -> TextIds:
        """Return the ids of a text, without the post-processor's, and where they are in it.

        tokenizer: one that lives as long as this object. Raises InvalidRequest for a text that
        takes too long, Unavailable.
        """
        if id(tokenizer) not in self._told:
            source = tokenizer.to_str()
            self._told[id(tokenizer)] = hashlib.sha256(source.encode()).digest(), source
        key, source = self._told[id(tokenizer)]
        answer = _lanes().submit(key, _UntrustedText(TextAsk(key, text), source)).result()
        if answer.kind == "ended":
            raise InvalidRequest(
                f"the model's tokenizer {answer.text} on this text: send another text, or publish "
                "a checkpoint with a tokenizer that does not",
                param="prompt",
            )
        return answer


def check_growth(steps: Step | None, what: str) -> None:
    """Raise CheckpointError for steps that can make too much of a text. what: of the tokenizer."""
    growth, added = 1, 0
    for step in _each(steps):
        by, more = _growth(step)
        growth, added = growth * by, added * by + more
        if growth > _MOST_GROWTH or added > _MOST_ADDED:
            raise CheckpointError(
                f"the tokenizer's {what} can make {growth} characters of one, and {added} more: at "
                f"most {_MOST_GROWTH} and {_MOST_ADDED} are taken"
            )


def are_known(steps: Step | None) -> bool:
    """True if no pattern of these steps can take long: each is one of a family that is known, or
    repeats one thing at most."""
    return all(pattern in _known() or _is_simple(pattern) for pattern in _patterns(steps))


def _growth(step: Step) -> tuple[int, int]:
    """Return what one character becomes at most, and how many come beside the text."""
    kind = step.get("type")
    if kind == "Replace":
        pattern, content = step.get("pattern", {}), str(step.get("content", ""))
        text = pattern.get("String")
        if text:
            return -(-len(content) // len(text)) or 1, 0
        if _needs_text(str(pattern.get("Regex", ""))):
            return len(content) or 1, 0
        return len(content) + 1, len(content)  # it may match nothing, everywhere
    if kind == "Prepend":
        return 1, len(str(step.get("prepend", "")))
    if kind == "Metaspace":
        return 1, 1
    return _GROWTH.get(str(kind), 1), 1


def _patterns(steps: Step | None) -> Iterator[str]:
    for step in _each(steps):
        pattern = step.get("pattern")
        if isinstance(pattern, dict) and isinstance(regex := pattern.get("Regex"), str):
            yield regex


def _needs_text(pattern: str) -> bool:
    """True if every match has a character, for patterns that Python's `re` reads alike."""
    if _NO_WIDTH.search(pattern):
        return False
    try:
        return re.fullmatch(pattern, "") is None
    except re.error:
        return False


def _is_simple(pattern: str) -> bool:
    plain = _CLASS.sub("x", pattern)
    return "(" not in plain and all(
        len(_UNBOUNDED.findall(branch)) <= 1 for branch in plain.split("|")
    )


@cache
def _known() -> frozenset[str]:
    return frozenset(
        pattern
        for cutting in CUTTINGS.values()
        for step in cutting.steps
        for pattern in _patterns(step)
    )


def _each(step: Step | None) -> Iterator[Step]:
    """The single steps of a normaliser or pre-tokenizer."""
    if step is None:
        return
    parts = step.get("normalizers", step.get("pretokenizers"))
    if parts is None:
        yield step
        return
    for part in parts:
        yield from _each(part)
