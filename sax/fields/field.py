"""RequestField: one field of a request, its kind and its bounds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, cast

from sax.errors import InvalidRequest
from sax.format import shortened


class RequestRoute(StrEnum):
    """A call that carries fields: HTTP by its path, gRPC by its service and method."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    CONVERSATIONS = "/v1/conversations"
    FILES = "/v1/files"
    BATCHES = "/v1/batches"
    MESSAGES = "/v1/messages"
    COUNT_TOKENS = "/v1/messages/count_tokens"
    OLLAMA_CHAT = "/api/chat"
    OLLAMA_GENERATE = "/api/generate"
    OLLAMA_EMBED = "/api/embed"
    OLLAMA_EMBEDDINGS = "/api/embeddings"
    OLLAMA_SHOW = "/api/show"
    OLLAMA_PULL = "/api/pull"
    OLLAMA_CREATE = "/api/create"
    OLLAMA_COPY = "/api/copy"
    OLLAMA_DELETE = "/api/delete"
    TRANSCRIPTIONS = "/v1/audio/transcriptions"
    TRANSLATIONS = "/v1/audio/translations"
    SPEECH = "/v1/audio/speech"
    EMBEDDINGS = "/v1/embeddings"
    RERANK = "/v1/rerank"
    SCORE = "/v1/score"
    CLASSIFY = "/v1/classify"
    TEXT_TO_TOKENS = "/tokenize"
    TOKENS_TO_TEXT = "/detokenize"
    INFILL = "/infill"
    MODEL = "/v1/models/{name}"
    GENERATE = "/generate"
    PUBLISH = "/publish"
    UPDATE = "/update"
    CANARY = "/canary"
    PROMOTE = "/promote"
    ABORT = "/abort"
    ROLLBACK = "/rollback"
    WEIGHTS = "/weights"
    UNPUBLISH = "/unpublish"
    LISTCELL = "/listcell"
    LISTALL = "/listall"
    EVENTS = "/events"
    STREAM = "TokenService/Stream"
    TOKENIZE = "TokenService/Tokenize"
    DETOKENIZE = "TokenService/Detokenize"
    EMBED = "TokenService/Embed"
    SCORE_PAIRS = "TokenService/ScorePairs"
    CLASSES = "TokenService/Classify"
    LM_GENERATE = "LMService/Generate"
    LM_SCORE = "LMService/Score"
    LM_EMBED = "LMService/Embed"
    LM_GRADIENT = "LMService/Gradient"
    CUSTOM = "CustomService/Custom"
    AM_RECOGNIZE = "AudioService/Recognize"
    TRANSCRIBE = "TranscriptService/Transcribe"
    SPEAK = "SpeechService/Speak"
    VM_CLASSIFY = "VisionService/Classify"
    VM_EMBED = "VisionService/Embed"
    MM_GENERATE = "MultimodalService/Generate"
    MM_SCORE = "MultimodalService/Score"
    ADMIN_PUBLISH = "Admin/Publish"


class Kind(Enum):
    """Shape of a field's value."""

    TEXT = "text"
    FLAG = "true or false"
    INTEGER = "whole number"
    NUMBER = "number"
    TEXTS = "list of texts"
    IDS = "list of token ids"
    PROMPTS = "texts, or lists of token ids"
    MESSAGES = "list of messages"
    OBJECTS = "list of objects"
    MAP = "object"
    BIASES = "token ids and numbers"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestField:
    """One field on the routes that have it. None: no such bound."""

    name: str
    kind: Kind
    routes: tuple[RequestRoute, ...]
    least: float | None = None  # of a number, or of each in a list
    above: float | None = None  # instead of `least`, itself excluded
    most: float | None = None
    count: int | None = None  # entries of a list or an object
    bytes: int | None = None  # of a text, or of each text, key and value in it
    tokens: int | None = None  # token ids of one entry
    values: int = 1  # JSON values of one entry

    @property
    def range(self) -> str:
        """The values that a number may have, in words; "" for any."""
        if self.above is not None:
            upper = "" if self.most is None else f" and at most {_exact(self.most)}"
            return f"above {_exact(self.above)}{upper}"
        if self.least is not None and self.most is not None:
            return f"from {_exact(self.least)} to {_exact(self.most)}"
        return "" if self.least is None else f"of {_exact(self.least)} or more"

    def read(self, value: object, param: str | None = None) -> None:
        """Raise InvalidRequest, with the value and its range, unless the value is of this kind and
        within every bound. MESSAGES, OBJECTS, PROMPTS and MAP have readers of their own."""
        param = param or self.name
        self.check(value, param)
        if self.kind is Kind.BIASES and isinstance(value, Mapping):
            self._read_biases(cast("Mapping[object, object]", value), param)
        elif self.kind in _LISTS and isinstance(value, list | tuple):
            for entry in cast("Sequence[object]", value):
                self._read_one(entry, param)
        elif self.kind is Kind.BIASES or self.kind in _LISTS:
            raise self._wrong(value, param)
        else:
            self._read_one(value, param)

    def _read_one(self, value: object, param: str) -> None:
        good = isinstance(value, _TYPES[self.kind]) and value != ""
        if self.kind is not Kind.FLAG:
            good = good and not isinstance(value, bool)
            if isinstance(value, int | float):
                good = good and self._within(value)
        if not good:
            raise self._wrong(value, param)

    def _wrong(self, value: object, param: str) -> InvalidRequest:
        wanted = f"{_WORDS[self.kind]} {self.range}".strip()
        return InvalidRequest(f"{param} is {_shown(value)}: give {wanted}", param=param)

    def _read_biases(self, value: Mapping[object, object], param: str) -> None:
        for token, bias in value.items():
            if not isinstance(token, int) or token < 0:
                raise InvalidRequest(
                    f"{param} has the key {_shown(token)}: give token ids", param=param
                )
            self._read_one(bias, param)

    def _within(self, value: float) -> bool:
        least = -math.inf if self.least is None else self.least
        above = -math.inf if self.above is None else self.above
        most = math.inf if self.most is None else self.most
        finite = isinstance(value, int) or math.isfinite(value)
        return finite and value > above and least <= value <= most

    def check(self, value: object, param: str | None = None) -> None:
        """Raise InvalidRequest if a text, a list or an object is too large.

        Numbers, and values of a wrong type, pass: whoever reads them checks those.
        """
        param = param or self.name
        if isinstance(value, str | bytes):
            self.check_text(value, param)
        elif isinstance(value, Mapping):
            pairs = cast("Mapping[object, object]", value)
            self.check_count(len(pairs), param)
            self._check_entries(pairs.keys(), param)
            self._check_entries(pairs.values(), param)
        elif isinstance(value, Sequence):
            self._check_list(cast("Sequence[object]", value), param)

    def check_text(self, text: str | bytes, param: str | None = None) -> None:
        """Raise InvalidRequest if a text has too many bytes."""
        if self.bytes is not None and longer(text, self.bytes):
            self._refuse(param, f"{size_of(text)} bytes", self.bytes)

    def check_count(self, count: int, param: str | None = None) -> None:
        """Raise InvalidRequest if a list or an object has too many entries."""
        if self.count is not None and count > self.count:
            self._refuse(param, f"{count} entries", self.count)

    def check_tokens(self, count: int, param: str | None = None) -> None:
        """Raise InvalidRequest if one entry has too many token ids."""
        if self.tokens is not None and count > self.tokens:
            self._refuse(param, f"{count} token ids", self.tokens)

    def _check_list(self, entries: Sequence[object], param: str) -> None:
        if self.tokens is not None and entries and isinstance(entries[0], int):
            self.check_tokens(len(entries), param)
            return
        self.check_count(len(entries), param)
        self._check_entries(entries, param)

    def _check_entries(self, entries: Iterable[object], param: str) -> None:
        for entry in entries:
            if isinstance(entry, str | bytes):
                self.check_text(entry, param)
            elif isinstance(entry, Sequence):
                check = self.check_count if self.tokens is None else self.check_tokens
                check(len(cast("Sequence[object]", entry)), param)

    def _refuse(self, param: str | None, size: str, most: int) -> None:
        name = param or self.name
        raise InvalidRequest(
            f"{name} has {size}; at most {most} are allowed: send less", param=name
        )


_LISTS = (Kind.TEXTS, Kind.IDS)
_TYPES: dict[Kind, Any] = {
    Kind.TEXT: str,
    Kind.TEXTS: str,
    Kind.FLAG: bool,
    Kind.INTEGER: int,
    Kind.IDS: int,
    Kind.NUMBER: int | float,
    Kind.BIASES: int | float,
}
_WORDS = {
    Kind.TEXT: "a text",
    Kind.TEXTS: "texts that are not empty",
    Kind.FLAG: "true or false",
    Kind.INTEGER: "a whole number",
    Kind.IDS: "token ids",
    Kind.NUMBER: "a number",
    Kind.BIASES: "a number per token id",
}


def _exact(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"a number of {value.bit_length()} bits"
    return shortened(json.dumps(value, default=str))


def size_of(text: str | bytes) -> int:
    """Return the bytes of a text in UTF-8; half a surrogate pair counts as three."""
    return len(text) if isinstance(text, bytes) else len(text.encode(errors="surrogatepass"))


def longer(text: str | bytes, most: int) -> bool:
    """Return True if a text has more than so many bytes. Encodes only texts near the bound."""
    if len(text) > most:
        return True
    return isinstance(text, str) and 4 * len(text) > most and size_of(text) > most
