"""RequestField: one field of a request, its kind and its bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import cast

from sax.errors import InvalidRequest


class RequestRoute(StrEnum):
    """A call that carries fields: HTTP by its path, gRPC by its service and method."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RERANK = "/v1/rerank"
    SCORE = "/v1/score"
    CLASSIFY = "/v1/classify"
    MODEL = "/v1/models/{name}"
    GENERATE = "/generate"
    PUBLISH = "/publish"
    UPDATE = "/update"
    ROLLBACK = "/rollback"
    UNPUBLISH = "/unpublish"
    LISTCELL = "/listcell"
    LISTALL = "/listall"
    EVENTS = "/events"
    STREAM = "TokenService/Stream"
    TOKENIZE = "TokenService/Tokenize"
    EMBED = "TokenService/Embed"
    SCORE_PAIRS = "TokenService/ScorePairs"
    CLASSES = "TokenService/Classify"
    LM_GENERATE = "LMService/Generate"
    LM_SCORE = "LMService/Score"
    LM_EMBED = "LMService/Embed"
    LM_GRADIENT = "LMService/Gradient"
    CUSTOM = "CustomService/Custom"
    ADMIN_PUBLISH = "Admin/Publish"

    @property
    def is_http(self) -> bool:
        return self.startswith("/")


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
    MAP = "object"


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


def size_of(text: str | bytes) -> int:
    """Return the bytes of a text in UTF-8; half a surrogate pair counts as three."""
    return len(text) if isinstance(text, bytes) else len(text.encode(errors="surrogatepass"))


def longer(text: str | bytes, most: int) -> bool:
    """Return True if a text has more than so many bytes. Encodes only texts near the bound."""
    if len(text) > most:
        return True
    return isinstance(text, str) and 4 * len(text) > most and size_of(text) > most
