"""Applies SentencePiece's compiled normalisation rules: the longest match wins, in one pass.

The `tokenizers` library reads the same rules but applies them to whole grapheme clusters, which
drops marks (a full-width letter with an accent loses it); this is what SentencePiece itself does.
The rules are a trie in a double array (J. Aoe, "An efficient digital search algorithm by using a
double-array structure", 1989), packed as the darts-clone library does, plus the texts that the trie
points to.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Collection

from sax.errors import CheckpointError

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
        out: list[str] = []
        place = 0
        while place < len(text):
            match = self._step.match(text, place)
            if match is not None:
                out.append(match[0])
                place = match.end()
                continue
            length, rewritten = self._rewrite(text, place)
            out.append(rewritten)
            place += length
        return "".join(out)

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
