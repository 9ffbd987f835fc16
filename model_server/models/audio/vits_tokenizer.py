"""The tokenizer of a VITS checkpoint: characters as tokens, with blanks between them.

The rules are those of transformers' `VitsTokenizer`, without its phonemizer and its romanizer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_server.checkpoints.files import read_json
from sax.errors import CheckpointError, InvalidRequest
from sax.format import quoted

_VOCABULARY, _SETTINGS = "vocab.json", "tokenizer_config.json"
_BLANK = 0  # its id


@dataclass(frozen=True, slots=True, kw_only=True)
class _Special:
    """A token that is found in texts whole."""

    id: int
    strips_before: bool = False
    strips_behind: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VitsTokenizer:
    vocabulary: Mapping[str, int]
    specials: Mapping[str, _Special]
    unknown: int  # id of characters that are not in the vocabulary
    rows: int  # tokens that the model has
    language: str
    blanks: bool
    normalizes: bool  # drops what is not in the vocabulary, and lower-cases what is not as written
    romanized: bool  # the model was trained on text that uroman had romanized

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a text; none if nothing in it can be spoken.

        Raises InvalidRequest for text that is to be romanized first, and for characters that the
        model has no token for unless it was trained to drop them.
        """
        prepared = self._prepared(text)
        pattern = "|".join(re.escape(each) for each in sorted(self.specials, key=len, reverse=True))
        parts = [part for part in re.split(f"({pattern})", prepared) if part]
        ids: list[int] = []
        for before, part, behind in zip(["", *parts], parts, [*parts[1:], ""], strict=False):
            if part in self.specials:
                ids.append(self._known(self.specials[part].id, part))
                continue
            if before in self.specials and self.specials[before].strips_behind:
                part = part.lstrip()
            if behind in self.specials and self.specials[behind].strips_before:
                part = part.rstrip()
            ids += self._characters(part)
        return ids

    def _prepared(self, text: str) -> str:
        text = self._as_written(text) if self.normalizes else text
        if self.language == "ron":
            text = text.replace("\u021b", "\u0163")  # t with a comma, with a cedilla
        if self.romanized and not text.isascii():
            wrong = next(each for each in text if not each.isascii())
            raise InvalidRequest(
                f"input has {quoted(wrong)}, and this model reads Latin letters only: it was "
                "trained on text that the package uroman had romanized; send what its "
                "`Uroman().romanize_string(text)` returns",
                param="input",
            )
        if self.normalizes:
            text = "".join(each for each in text if each in self.vocabulary).strip()
        return text

    def _as_written(self, text: str) -> str:
        """Lower-case what is not a token as it stands."""
        by_first: dict[str, list[str]] = {}
        for word in (*self.vocabulary, *self.specials):
            if word:
                by_first.setdefault(word[0], []).append(word)
        made: list[str] = []
        at = 0
        while at < len(text):
            words = by_first.get(text[at], ())
            found = next((word for word in words if text.startswith(word, at)), None)
            made.append(text[at].lower() if found is None else found)
            at += 1 if found is None else len(found)
        return "".join(made)

    def _characters(self, part: str) -> list[int]:
        found = [self._known(self.vocabulary.get(each, self.unknown), each) for each in part]
        if not self.blanks or not found:
            return found
        spaced = [_BLANK] * (2 * len(found) + 1)
        spaced[1::2] = found
        return spaced

    def _known(self, id: int, text: str) -> int:
        if id >= self.rows:
            raise InvalidRequest(
                f"input has {quoted(text)}, which this model has no token for: leave it out",
                param="input",
            )
        return id


def read_vits_tokenizer(folder: Path | None, rows: int) -> VitsTokenizer:
    """Read vocab.json and tokenizer_config.json. rows: tokens that the model has.

    Raises CheckpointError for files that are missing or wrong, and for a model of phonemes.
    """
    if folder is None or not (folder / _VOCABULARY).exists():
        raise CheckpointError(
            f"a VITS checkpoint is a folder with {_VOCABULARY} and {_SETTINGS}: serve it as it was "
            "published"
        )
    vocabulary, settings = read_json(folder / _VOCABULARY), _settings(folder)
    _check_vocabulary(vocabulary, rows)
    if _flag(settings, "phonemize", True):
        raise CheckpointError(
            f"{_SETTINGS} has phonemize = true: the model reads phonemes, which espeak would have "
            "to make of each text, and espeak is not part of this server. Serve a checkpoint that "
            "reads characters, such as those of MMS-TTS, which have phonemize = false"
        )
    specials = _specials(settings, vocabulary)
    return VitsTokenizer(
        vocabulary=vocabulary,
        specials=specials,
        unknown=specials[_text(settings, "unk_token", "<unk>")].id,
        rows=rows,
        language=str(settings.get("language") or ""),
        blanks=_flag(settings, "add_blank", True),
        normalizes=_flag(settings, "normalize", True),
        romanized=_flag(settings, "is_uroman", False),
    )


def _settings(folder: Path) -> Mapping[str, Any]:
    return read_json(folder / _SETTINGS) if (folder / _SETTINGS).exists() else {}


def _check_vocabulary(vocabulary: Mapping[str, Any], rows: int) -> None:
    good = all(type(each) is int and 0 <= each < rows for each in vocabulary.values())
    if not good or _BLANK not in vocabulary.values():
        raise CheckpointError(
            f"{_VOCABULARY} must map characters to the ids of the model's {rows} tokens "
            f"(vocab_size), of which {_BLANK} stands between the others"
        )


def _flag(settings: Mapping[str, Any], key: str, default: bool) -> bool:
    value = settings.get(key, default)
    if type(value) is not bool:
        raise CheckpointError(f"{_SETTINGS} has {key} = {value!r}; give true or false")
    return value


def _text(settings: Mapping[str, Any], key: str, default: str) -> str:
    value = settings.get(key, default)
    value = value.get("content") if isinstance(value, Mapping) else value
    if not isinstance(value, str) or not value:
        raise CheckpointError(f"{_SETTINGS} has {key} = {value!r}; give a text")
    return value


def _specials(settings: Mapping[str, Any], vocabulary: Mapping[str, int]) -> dict[str, _Special]:
    """Return the tokens that are found whole. Those without an id get the next ones, which the
    model has no rows for."""
    told = settings.get("added_tokens_decoder") or {}
    if not isinstance(told, Mapping):
        raise CheckpointError(f"{_SETTINGS} has added_tokens_decoder = {told!r}; give an object")
    made: dict[str, _Special] = {}
    for id, each in told.items():
        made |= _added(str(id), each)
    after = max((*vocabulary.values(), *(each.id for each in made.values()))) + 1
    for key, default in (("unk_token", "<unk>"), ("pad_token", "<pad>")):
        text = _text(settings, key, default)
        if text not in made:
            made[text] = _Special(id=vocabulary.get(text, after))
            after += text not in vocabulary
    return made


def _added(id: str, given: Any) -> dict[str, _Special]:
    good = isinstance(given, Mapping) and isinstance(given.get("content"), str)
    if not good or not given["content"] or not id.isdecimal() or given.get("single_word"):
        raise CheckpointError(
            f"{_SETTINGS} has {id}: {given!r} in added_tokens_decoder; give an id and a token that "
            "is found anywhere (single_word false)"
        )
    lstrip, rstrip = bool(given.get("lstrip")), bool(given.get("rstrip"))
    return {given["content"]: _Special(id=int(id), strips_before=lstrip, strips_behind=rstrip)}
