"""Adapter for the `tokenizers` library: converts its errors and takes its objects apart.

The library exposes the parts of a tokenizer only as JSON.
"""

from __future__ import annotations

import base64
import json
import os
import re
import struct
from array import array
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import tokenizers
from tokenizers import normalizers, pre_tokenizers

from sax.errors import CheckpointError

# Applies SentencePiece's compiled normalisation rules: the longest match wins, in one pass.
#
# The `tokenizers` library reads the same rules but applies them to whole grapheme clusters, which
# drops marks (a full-width letter with an accent loses it); this is what SentencePiece itself
# does. The rules are a trie in a double array (J. Aoe, "An efficient digital search algorithm by
# using a double-array structure", 1989), packed as the darts-clone library does, plus the texts
# that the trie points to.

_LONGEST = 64  # characters that a rule may match
_LONGEST_TEXT = 512  # bytes that it may write: Unicode's longest has 33
_PRINTABLE = [chr(code) for code in range(0x20, 0x7F)]


class CharsMap:
    """One tokenizer's rules. `apply` is thread-safe."""

    def __init__(self, compiled: bytes, kept: Collection[str] = ()) -> None:
        """Text in `kept` is not rewritten. Raises CheckpointError if the rules are damaged."""
        size = struct.unpack_from("<I", compiled)[0] if len(compiled) >= 4 else 0
        if not size or size % 4 or 4 + size > len(compiled):
            raise CheckpointError("its normalisation rules are damaged")
        self._units = array("I", struct.unpack_from(f"<{size // 4}I", compiled, 4))
        self._texts = compiled[4 + size :]
        if (longest := max(map(len, self._texts.split(b"\0")))) > _LONGEST_TEXT:
            raise CheckpointError(
                f"its normalisation rules write texts of {longest} bytes: at most "
                f"{_LONGEST_TEXT} are taken"
            )
        self._kept = sorted(filter(None, kept), key=len, reverse=True)
        self._step = self._stepping()

    def apply(self, text: str) -> str:
        return "".join(written for _, written in self._pieces(text))

    def applied(self, text: str) -> tuple[str, list[int], list[int]]:
        """Return the new text, and where each of its characters begins and ends in the old one."""
        out: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        place = 0
        for length, written in self._pieces(text):
            end = place + length
            if text[place:end] == written:
                starts += range(place, end)
                ends += range(place + 1, end + 1)
            else:
                starts += [place] * len(written)
                ends += [end] * len(written)
            out.append(written)
            place = end
        return "".join(out), starts, ends

    def _pieces(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield how many characters of the text become what."""
        place = 0
        while place < len(text):
            match = self._step.match(text, place)
            length, written = (
                self._rewrite(text, place) if match is None else (match.end() - place, match[0])
            )
            yield length, written
            place += length

    def _stepping(self) -> re.Pattern[str]:
        """Match text to copy as is: kept texts, and plain letters that start no rule."""
        plain = [c for c in _PRINTABLE if self._find(c.encode()) is None]
        plain = [c for c in plain if not any(self._reaches(c + after) for after in _PRINTABLE)]
        plain = [c for c in plain if not any(text.startswith(c) for text in self._kept)]
        letters = "".join(map(re.escape, plain))
        # Leave out a letter before a non-ASCII character: a rule may match the two together.
        run = rf"(?:[{letters}](?=[ -~]|\Z))+" if letters else r"(?!)"
        return re.compile("|".join([*map(re.escape, self._kept), run]))

    def _rewrite(self, text: str, place: int) -> tuple[int, str]:
        """Return how many characters the longest rule here matches, and their replacement."""
        ahead = text[place : place + _LONGEST].encode()
        found = self._find(ahead)
        if found is None:
            return 1, text[place]
        length, target = found
        end = self._texts.find(b"\0", target)
        rewritten = self._texts[target : end if end >= 0 else None].decode("utf-8", "replace")
        return len(ahead[:length].decode()), rewritten

    def _find(self, key: bytes) -> tuple[int, int] | None:
        """Return bytes matched and text offset for the longest rule that is a prefix of `key`."""
        found = None
        node = _offset(self._units[0])
        for length, byte in enumerate(key, 1):
            node ^= byte
            if not byte or node >= len(self._units):
                break
            unit = self._units[node]
            if _label(unit) != byte:
                break
            node ^= _offset(unit)
            if unit >> 8 & 1 and node < len(self._units):
                found = length, self._units[node] & 0x7FFFFFFF
        return found

    def _reaches(self, text: str) -> bool:
        """True if some rule starts with this text or with a prefix of it."""
        node = _offset(self._units[0])
        for byte in text.encode():
            node ^= byte
            if node >= len(self._units) or _label(self._units[node]) != byte:
                return False
            node ^= _offset(self._units[node])
        return True


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 1 << 9) >> 6)


def _label(unit: int) -> int:
    return unit & (1 << 31 | 0xFF)


# The library's own threads would encode the one text they get, and take a core from the engine.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_SHORT = 2000  # characters, encoded in well under a millisecond
_START = r"\A"  # of a pattern that looks at the start of a text only


def parsed(serialized: str) -> tokenizers.Tokenizer:
    """Parse for plain text: control tokens in it are not recognised. Raises CheckpointError."""
    try:
        tokenizer = tokenizers.Tokenizer.from_str(serialized)
    except BaseException as exc:
        if not _is_the_librarys(exc):
            raise
        raise CheckpointError(f"the tokenizer cannot be read: {exc}") from exc
    # A tokenizer.json may keep truncation from training: never shorten a prompt silently.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def encoded(tokenizer: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding:
    """Encode without the post-processor's tokens. Raises CheckpointError.

    `encode_batch` lets other threads run meanwhile, and `encode` does not: a megabyte would stop
    the process for a second. A short text is over before another thread could begin.
    """
    try:
        if len(text) > _SHORT:
            return tokenizer.encode_batch([text], add_special_tokens=False)[0]
        return tokenizer.encode(text, add_special_tokens=False)
    except BaseException as exc:
        if not _is_the_librarys(exc):
            raise
        raise CheckpointError(f"the tokenizer fails on a text: {exc}") from exc


def _is_the_librarys(exc: BaseException) -> bool:
    """True for the library's errors: a bare Exception, or a panic, which is not an Exception."""
    return isinstance(exc, Exception) or type(exc).__name__ == "PanicException"


def part_of(part: Any) -> dict[str, Any] | None:
    """Return a normaliser, pre-tokenizer or decoder as it is in tokenizer.json."""
    return None if part is None else json.loads(part.__getstate__())


def take_charsmap(tokenizer: tokenizers.Tokenizer) -> CharsMap | None:
    """Remove and return SentencePiece's rules if the normaliser starts with them, else None."""
    normalizer = part_of(tokenizer.normalizer) or {}
    steps: list[dict[str, Any]] = normalizer.get("normalizers", [normalizer])
    if not normalizer or not steps or steps[0]["type"] != "Precompiled":
        return None
    added = tokenizer.get_added_tokens_decoder().values()
    rest = normalizers.Sequence([])
    rest.__setstate__(json.dumps({"type": "Sequence", "normalizers": steps[1:]}).encode())
    tokenizer.normalizer = rest
    compiled = base64.b64decode(steps[0]["precompiled_charsmap"])
    return CharsMap(compiled, [token.content for token in added if not token.special])


def unknown_id(tokenizer: tokenizers.Tokenizer) -> int | None:
    """Return the id of the unknown token, which plain text may become."""
    model: Any = tokenizer.model
    if isinstance(model, tokenizers.models.Unigram):
        return json.loads(model.__getstate__())["unk_id"]
    unknown = getattr(model, "unk_token", None)
    return None if unknown is None else tokenizer.token_to_id(unknown)


def marks_words(tokenizer: tokenizers.Tokenizer) -> bool:
    """True if tokens that continue a word begin with a mark, as WordPiece's ##."""
    return bool(getattr(tokenizer.model, "continuing_subword_prefix", None))


def text_parts(text: str, cuts: Sequence[int]) -> list[tuple[int, str]]:
    """Return where each part of a text begins, and the part, between the cuts."""
    starts = [0, *cuts]
    return [(i, text[i:j]) for i, j in zip(starts, [*starts[1:], None], strict=True)]


def without_first_space(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return the tokenizer for text that continues after a control token.

    Some add a space only before the first text of a sequence; the library sees one text at a time
    and would add it to each.
    """
    steps = part_of(tokenizer.pre_tokenizer)
    if steps is None or not _first_only(steps):
        return tokenizer
    return _changed(tokenizer, tokenizer.normalizer, _from_json(_never(steps)))


def without_any_first_space(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return the tokenizer for text that continues other text: its start is like its middle."""
    normal = [_in_the_middle(step) for step in _each(part_of(tokenizer.normalizer))]
    words = [_in_the_middle(step) for step in _each(part_of(tokenizer.pre_tokenizer))]
    normalizer = normalizers.Sequence([])  # replaced by the states below
    kept = {"type": "Sequence", "normalizers": [step for step in normal if step]}
    normalizer.__setstate__(json.dumps(kept).encode())
    return _changed(tokenizer, normalizer, _from_json({"type": "Sequence", "pretokenizers": words}))


def _changed(
    tokenizer: tokenizers.Tokenizer,
    normalizer: normalizers.Normalizer | None,
    pre_tokenizer: pre_tokenizers.PreTokenizer,
) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(tokenizer.model)  # the vocabulary is shared, not copied
    made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizer
    made.add_tokens(list(tokenizer.get_added_tokens_decoder().values()))
    made.encode_special_tokens = True
    return made


def _each(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the single steps of a normaliser or pre-tokenizer."""
    if step is None:
        return []
    parts = step.get("normalizers", step.get("pretokenizers"))
    return [step] if parts is None else [each for part in parts for each in _each(part)]


def _in_the_middle(step: dict[str, Any]) -> dict[str, Any]:
    """Return the step without what it does to the start of a text; {} if nothing is left."""
    match step:
        case {"type": "Prepend"}:
            return {}
        case {"type": "Metaspace"}:
            return step | {"prepend_scheme": "never"}
        case {"type": "ByteLevel", "add_prefix_space": True}:
            return step | {"add_prefix_space": False}
        case {"type": "Strip", "strip_left": True}:
            return step | {"strip_left": False}
        case {"type": "Replace", "pattern": {"Regex": str(pattern)}, "content": content} if (
            pattern.startswith(_START)
        ):
            # The text that is added is added there alone; spaces are removed elsewhere too.
            elsewhere = "" if content else pattern.partition("|")[2]
            return step | {"pattern": {"Regex": elsewhere}} if elsewhere else {}
    return step


def _first_only(step: Any) -> bool:
    if step["type"] == "Sequence":
        return any(map(_first_only, step["pretokenizers"]))
    return step["type"] == "Metaspace" and step.get("prepend_scheme") == "first"


def _never(step: dict[str, Any]) -> dict[str, Any]:
    if step["type"] == "Sequence":
        return step | {"pretokenizers": [_never(part) for part in step["pretokenizers"]]}
    return step | {"prepend_scheme": "never"} if _first_only(step) else step


def _from_json(step: dict[str, Any]) -> pre_tokenizers.PreTokenizer:
    made = pre_tokenizers.Sequence([])  # replaced by the state below
    made.__setstate__(json.dumps(step).encode())
    return made
