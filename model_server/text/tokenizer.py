"""Tokenizer: text to token ids and back, one whole character at a time.

Built from the tokenizer JSON of a checkpoint. The `tokenizers` library does the work, except for
decoding (`text_decoder`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import tokenizers

from model_server.text.control_tokens import ChatPiece, ControlTokens
from model_server.text.text_decoder import IncrementalDecoder, Utf8Decoder, whole_text
from model_server.text.token_bytes import token_bytes_of
from model_server.text.tokenizer_parts import (
    encoded,
    parsed,
    part_of,
    take_charsmap,
    unknown_id,
    without_any_first_space,
    without_first_space,
)
from model_server.text.untrusted_encoder import UntrustedEncoder, are_known, check_growth
from sax.errors import CheckpointError, InvalidRequest


class Tokenizer(Protocol):
    """Tokenizer interface used by servables."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def control_ids(self) -> frozenset[int]:
        """Tokens that stand for no text."""
        ...

    @property
    def middle_ids(self) -> tuple[int, int, int] | None:
        """Tokens before the prefix, the suffix and the middle, if the checkpoint names them."""
        ...

    @property
    def longest_token(self) -> int:
        """Bytes of the longest token, or more: no text of n tokens is longer than n of it."""
        ...

    @property
    def waits(self) -> bool:
        """True if texts are encoded in another process: blocks, so not for an event loop."""
        ...

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Return the ids of plain text; control tokens written in it stay text.

        `add_bos` puts the start token first if this model was trained with one.
        """
        ...

    def encode_continuation(self, text: str) -> list[int]:
        """Return the ids of text that goes on where another ends: no start token or first space."""
        ...

    def encode_chat(self, rendered: str) -> list[int]:
        """Return the ids of a rendered chat template, recognising control tokens."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, without control tokens; a broken character becomes U+FFFD."""
        ...

    def token_text(self, token_id: int) -> str:
        """Return one token as text, control tokens included."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return one token as bytes, control tokens included; b"" outside the vocabulary."""
        ...

    def decoder(
        self, after: Sequence[int] = (), *, control: bool = False, marks: Collection[str] = ()
    ) -> IncrementalDecoder:
        """Return a decoder for ids that follow `after` in one text.

        control: control tokens are written out; marks: those of these texts are.
        """
        ...


class _Control(NamedTuple):
    """A control token and the white space that it strips."""

    id: int
    strips_left: bool
    strips_right: bool


class HfTokenizer:
    """A tokenizer of the `tokenizers` library, from its JSON (the text of tokenizer.json).

    The library sees plain text only: control tokens are cut out of a chat first.
    """

    def __init__(
        self,
        serialized: str,
        *,
        bos: int | str | None = None,
        eos: Iterable[int | str] = (),
        adds_bos: bool | None = None,
        middle_ids: tuple[int, int, int] | None = None,
    ) -> None:
        """Start and end tokens are given by id or text; those not in the vocabulary are dropped.

        `adds_bos` None: as the post-processor does. Raises CheckpointError.
        """
        self.serialized = serialized
        self.middle_ids = middle_ids
        self._start = parsed(serialized)
        self._charsmap = take_charsmap(self._start)
        normal, words = part_of(self._start.normalizer), part_of(self._start.pre_tokenizer)
        check_growth(normal, "normalizer")
        check_growth(words, "pre_tokenizer")
        self.waits = not (are_known(normal) and are_known(words))
        self._encoded = UntrustedEncoder().encoded if self.waits else encoded
        try:
            self._encoded(self._start, "the caf\u00e9 \u4f60")  # fail now on a broken vocabulary
        except InvalidRequest as exc:
            raise CheckpointError(exc.text) from exc
        self._inner = without_first_space(self._start)
        self._bytes = token_bytes_of(self._start, part_of(self._start.decoder))
        self.bos_id = None if bos is None else self._id_of(bos)
        self.eos_ids = frozenset(i for i in map(self._id_of, eos) if i is not None)
        self.adds_bos = self._post_processor_adds_bos() if adds_bos is None else adds_bos
        self.control_tokens = ControlTokens(self._bytes.control.values())
        self._control = self._control_by_text()
        self._never_text = frozenset(self._bytes.control) - {unknown_id(self._start)}

    @property
    def vocab_size(self) -> int:
        return self._bytes.size

    @property
    def control_ids(self) -> frozenset[int]:
        return frozenset(self._bytes.control)

    @property
    def longest_token(self) -> int:
        return self._bytes.longest

    @property
    def ordinary_size(self) -> int:
        """One more than the largest id that is not an added token."""
        return self._bytes.ordinary_size

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        ids = self._ids(self._start, text)
        if add_bos and self.adds_bos and self.bos_id is not None:
            return [self.bos_id, *ids]
        return ids

    def encode_continuation(self, text: str) -> list[int]:
        return self._ids(self._continuing, text)

    def encode_framed(self, text: str) -> list[int]:
        """Return the ids of plain text with the post-processor's tokens around it, for encoders."""
        ids = self._ids(self._start, text)
        return [*self._frame[0], *ids, *self._frame[1]]

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Return the ids of two texts with the post-processor's tokens around and between them."""
        before, between, after = self._pair_frame
        ids = (self._ids(self._start, text) for text in (first, second))
        return [*before, *next(ids), *between, *next(ids), *after]

    @property
    def separator(self) -> int | None:
        """The token that ends the first text of a pair; None: there is none."""
        between = self._pair_frame[1]
        return between[0] if between else None

    def encode_chat(self, rendered: str) -> list[int]:
        """Return the ids of a rendered chat; text marked by `ControlTokens.guard` stays text."""
        ids: list[int] = []
        pieces = list(self.control_tokens.split(rendered))
        for before, piece, after in zip([None, *pieces], pieces, [*pieces[1:], None], strict=False):
            if piece.control:
                ids.append(self._control[piece.text].id)
            else:
                text = self._stripped(piece.text, before, after)
                ids += self._ids(self._start if before is None else self._inner, text)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return whole_text(self.decoder(), ids)

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes.bytes_of(token_id)

    def decoder(
        self, after: Sequence[int] = (), *, control: bool = False, marks: Collection[str] = ()
    ) -> IncrementalDecoder:
        bytes_of = self._bytes.bytes_of if control else self._bytes.text_bytes
        if marks and not control:
            bytes_of = self._with_marks(marks)
        decoder = Utf8Decoder(bytes_of, strip_left=self._bytes.strip_left)
        decoder.follow(after)
        return decoder

    def _with_marks(self, marks: Collection[str]) -> Callable[[int], bytes]:
        shown = {self._control[text].id for text in marks if text in self._control}
        every, plain = self._bytes.bytes_of, self._bytes.text_bytes
        return lambda token_id: every(token_id) if token_id in shown else plain(token_id)

    @cached_property
    def _continuing(self) -> tokenizers.Tokenizer:
        return without_any_first_space(self._start)

    @cached_property
    def _frame(self) -> tuple[list[int], list[int]]:
        """The ids that the post-processor puts before and after a text."""
        framed = self._start.encode("a", add_special_tokens=True)
        text = [place for place, special in enumerate(framed.special_tokens_mask) if not special]
        if not text:
            return framed.ids, []
        return framed.ids[: text[0]], framed.ids[text[-1] + 1 :]

    @cached_property
    def _pair_frame(self) -> tuple[list[int], list[int], list[int]]:
        """The ids that the post-processor puts before, between and after two texts."""
        framed = self._start.encode("a", "a", add_special_tokens=True)
        special = framed.special_tokens_mask
        text = [place for place, each in enumerate(special) if not each]
        half = len(text) // 2  # both texts have the same ids
        if not half:
            return framed.ids, [], []
        return (
            framed.ids[: text[0]],
            framed.ids[text[half - 1] + 1 : text[half]],
            framed.ids[text[-1] + 1 :],
        )

    def _control_by_text(self) -> dict[str, _Control]:
        added = self._start.get_added_tokens_decoder()
        return {
            text: _Control(token_id, added[token_id].lstrip, added[token_id].rstrip)
            for token_id, text in self._bytes.control.items()
        }

    def _stripped(self, text: str, before: ChatPiece | None, after: ChatPiece | None) -> str:
        if before and before.control and self._control[before.text].strips_right:
            text = text.lstrip()
        if after and after.control and self._control[after.text].strips_left:
            text = text.rstrip()
        return text

    def _ids(self, tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
        _utf8(text)
        return self._text_ids(tokenizer, self._charsmap.apply(text) if self._charsmap else text)

    def _text_ids(self, tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
        """Encode without control tokens: text that the library would take for one is cut in two."""
        found = self._encoded(tokenizer, text)
        if self._never_text.isdisjoint(found.ids):
            return found.ids
        controls = [
            place
            for token_id, (place, end) in zip(found.ids, found.offsets, strict=True)
            if token_id in self._never_text and end - place > 1
        ]
        if not controls:
            return found.ids
        starts = [0, *(place + 1 for place in controls)]
        first, *others = (text[i:j] for i, j in zip(starts, [*starts[1:], None], strict=True))
        rest = [token_id for part in others for token_id in self._text_ids(self._inner, part)]
        return self._text_ids(tokenizer, first) + rest

    def _id_of(self, token: int | str) -> int | None:
        if isinstance(token, str):
            return self._start.token_to_id(token)
        return token if 0 <= token < self.vocab_size else None

    def _post_processor_adds_bos(self) -> bool:
        return self.bos_id is not None and self._frame[0][:1] == [self.bos_id]


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidRequest(
            f"the text is not valid Unicode: a lone surrogate at character {exc.start}; "
            "send whole characters",
            param="prompt",
        ) from exc


class ByteTokenizer:
    """One id per byte of UTF-8, for models with random weights.

    Such a model also generates ids above 255: they decode to made-up words.
    """

    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    control_ids: frozenset[int] = frozenset()
    middle_ids: tuple[int, int, int] | None = None
    waits: bool = False

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < 256:
            raise InvalidRequest(
                f"a model with random weights reads bytes and needs a vocabulary of at least 256 "
                f"entries, not {vocab_size}",
                param="VOCAB_SIZE",
            )
        self.vocab_size = vocab_size
        self.longest_token = len(self.token_bytes(vocab_size - 1))

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Return the bytes of the text; there is no start token."""
        return list(_utf8(text))

    def encode_continuation(self, text: str) -> list[int]:
        return self.encode(text)

    def encode_framed(self, text: str) -> list[int]:
        return self.encode(text)

    def encode_pair(self, first: str, second: str) -> list[int]:
        return [*self.encode(first), *self.encode(second)]

    def encode_chat(self, rendered: str) -> list[int]:
        return self.encode(rendered)

    def decode(self, ids: Iterable[int]) -> str:
        return whole_text(self.decoder(), ids)

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return a byte, or a made-up word for ids above 255."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        return bytes([token_id]) if token_id < 256 else b" " + _word(token_id - 256)

    def decoder(
        self, after: Sequence[int] = (), *, control: bool = False, marks: Collection[str] = ()
    ) -> IncrementalDecoder:
        decoder = Utf8Decoder(self.token_bytes)
        decoder.follow(after)
        return decoder


def _word(number: int) -> bytes:
    """Return a distinct pronounceable word for every number: 0 is "ba", 1 is "be"."""
    number, syllable = divmod(number, 100)
    consonant, vowel = divmod(syllable, 5)
    start = b"bcdfghjklmnpqrstvwxz"[consonant : consonant + 1] + b"aeiou"[vowel : vowel + 1]
    return start if number == 0 else _word(number - 1) + start


def split_ids(tokenizer: Tokenizer, prefix: str, suffix: str) -> tuple[list[int], list[int]]:
    """Return the ids of a prefix, and those of a suffix that follows it.

    The prefix always has the ids of a prompt, so that suffixes of one prefix can be compared, and
    with what the model generates after it. The suffix has the rest of the ids of both texts
    together. Where those are not the prefix's at first, because a token would span the border
    ("a " and "b" make "a" and " b"), it has the ids of its own text, as the middle of a text.
    """
    before = tokenizer.encode(prefix)
    together = tokenizer.encode(prefix + suffix)
    if together[: len(before)] == before:
        return before, together[len(before) :]
    return before, tokenizer.encode_continuation(suffix)
