"""Text to token ids and back, one whole character at a time.

Knows nothing of models, requests or files: whoever opens a checkpoint hands over the tokenizer's
JSON. The work is done by the `tokenizers` library, except for decoding: the library decodes whole
sequences only, and a stream needs the bytes of each token as it comes.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable
from typing import Protocol

import tokenizers

from model_server.control_tokens import MARK, ControlTokens
from model_server.spelling import spelling_of
from sax.errors import CheckpointError, InvalidRequest


class IncrementalDecoder(Protocol):
    """Turns a stream of ids into a stream of text; the pieces add up to `decode` of all ids."""

    def push(self, token_id: int) -> str:
        """The whole characters this token completes; "" for a control token."""
        ...

    def flush(self) -> str:
        """What an unfinished character at the end looks like: U+FFFD, or "" if there is none."""
        ...


class Tokenizer(Protocol):
    """What the servables need of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Ids of plain text; control tokens written in it stay text.

        `add_bos` puts the start token first if this model was trained with one.
        """
        ...

    def encode_chat(self, rendered: str) -> list[int]:
        """Ids of a rendered chat template, in which control tokens are recognised."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without control tokens; a broken character becomes U+FFFD."""
        ...

    def token_text(self, token_id: int) -> str:
        """One token as text, control tokens included."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """One token as bytes, control tokens included; b"" for an id outside the vocabulary."""
        ...

    def decoder(self) -> IncrementalDecoder: ...


class Utf8Decoder:
    """Collects the bytes of tokens and gives the characters that are complete."""

    def __init__(self, spelling: _Spells, *, strip_left: bool = False) -> None:
        self._spelling = spelling
        self._strip_left = strip_left
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The whole characters this token completes; "" for a control token."""
        return self._stripped(self._utf8.decode(self._spelling.spoken_bytes(token_id)))

    def flush(self) -> str:
        """U+FFFD for an unfinished character; the decoder then starts over."""
        rest = self._stripped(self._utf8.decode(b"", final=True))
        self._utf8.reset()
        return rest

    def _stripped(self, text: str) -> str:
        if self._strip_left and text:
            self._strip_left = False
            return text.removeprefix(" ")
        return text


class _Spells(Protocol):
    def spoken_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the text: none for a control token."""
        ...


def _all_text(decoder: IncrementalDecoder, ids: Iterable[int]) -> str:
    text = "".join(decoder.push(token_id) for token_id in ids)
    return text + decoder.flush()


class HfTokenizer:
    """A tokenizer of the `tokenizers` library, from its JSON (the text of tokenizer.json)."""

    def __init__(
        self,
        serialized: str,
        *,
        bos: int | str | None = None,
        eos: Iterable[int | str] = (),
        adds_bos: bool | None = None,
    ) -> None:
        """Start and end tokens by id or by text, those that are not in the vocabulary left out.

        `adds_bos` None asks the tokenizer's own post-processor. Raises CheckpointError.
        """
        self.serialized = serialized
        self._chat = _parsed(serialized)
        # A second instance, because recognising control tokens is a switch on the whole object.
        self._plain = _parsed(serialized)
        self._plain.encode_special_tokens = True
        self._spelling = spelling_of(self._chat, json.loads(serialized).get("decoder"))
        self.bos_id = None if bos is None else self._id_of(bos)
        self.eos_ids = frozenset(i for i in map(self._id_of, eos) if i is not None)
        self.adds_bos = self._post_processor_adds_bos() if adds_bos is None else adds_bos
        self.control_tokens = ControlTokens(self._spelling.control.values())

    @property
    def vocab_size(self) -> int:
        return self._spelling.size

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Ids of plain text; control tokens written in it stay text."""
        ids = self._ids(self._plain, text)
        if add_bos and self.adds_bos and self.bos_id is not None:
            return [self.bos_id, *ids]
        return ids

    def encode_chat(self, rendered: str) -> list[int]:
        """Ids of a rendered chat; text that `ControlTokens.guard` marked stays text."""
        if MARK not in rendered:
            return self._ids(self._chat, rendered)
        ids: list[int] = []
        for piece in self.control_tokens.split(rendered):
            ids += self._ids(self._chat if piece.control else self._plain, piece.text)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without control tokens; a broken character becomes U+FFFD."""
        return _all_text(self.decoder(), ids)

    def token_text(self, token_id: int) -> str:
        """One token as text, control tokens included."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """One token as bytes; b"" for an id outside the vocabulary."""
        return self._spelling.bytes_of(token_id)

    def decoder(self) -> IncrementalDecoder:
        return Utf8Decoder(self._spelling, strip_left=self._spelling.strip_left)

    def _ids(self, tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
        _utf8(text)
        return tokenizer.encode(text, add_special_tokens=False).ids

    def _id_of(self, token: int | str) -> int | None:
        if isinstance(token, str):
            return self._chat.token_to_id(token)
        return token if 0 <= token < self.vocab_size else None

    def _post_processor_adds_bos(self) -> bool:
        first = self._chat.encode("a", add_special_tokens=True).ids[:1]
        return self.bos_id is not None and first == [self.bos_id]


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidRequest(
            f"the text is not valid Unicode: a lone surrogate at character {exc.start}; "
            "send whole characters",
            param="prompt",
        ) from exc


def _parsed(serialized: str) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(serialized)
    except Exception as exc:  # the library raises bare Exception
        raise CheckpointError(f"the tokenizer cannot be read: {exc}") from exc
    # A tokenizer.json may carry a training-time cut: never shorten a prompt in silence.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class ByteTokenizer:
    """One id per byte of UTF-8, for models with random weights.

    Ids above 255 exist because such a model utters them: they decode to made-up words.
    """

    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < 256:
            raise InvalidRequest(
                f"a model with random weights reads bytes and needs a vocabulary of at least 256 "
                f"entries, not {vocab_size}",
                param="VOCAB_SIZE",
            )
        self.vocab_size = vocab_size

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """The bytes of the text; there is no start token."""
        return list(_utf8(text))

    def encode_chat(self, rendered: str) -> list[int]:
        """The bytes of the text; there are no control tokens."""
        return self.encode(rendered)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; a broken character becomes U+FFFD."""
        return _all_text(self.decoder(), ids)

    def token_text(self, token_id: int) -> str:
        """One token as text."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """A byte, or a made-up word for the ids above 255."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        return bytes([token_id]) if token_id < 256 else b" " + _word(token_id - 256)

    def spoken_bytes(self, token_id: int) -> bytes:
        """The same: there are no control tokens."""
        return self.token_bytes(token_id)

    def decoder(self) -> IncrementalDecoder:
        return Utf8Decoder(self)


def _word(number: int) -> bytes:
    """A different pronounceable word for every number: 0 is "ba", 1 is "be"."""
    number, syllable = divmod(number, 100)
    consonant, vowel = divmod(syllable, 5)
    start = b"bcdfghjklmnpqrstvwxz"[consonant : consonant + 1] + b"aeiou"[vowel : vowel + 1]
    return start if number == 0 else _word(number - 1) + start
