"""A small tokenizer of every kind that a checkpoint may bring, for what must hold of all."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from model_server.text.tokenizer import ByteTokenizer, HfTokenizer, Tokenizer
from model_server.text.vocabularies.byte_level import tekken, tiktoken
from model_server.text.vocabularies.sentence_piece import parse_model, pieces_of, sentence_piece
from model_server.text.vocabularies.vocabulary import AddedToken
from tests.model_server.checkpoints.tiny_folder import tokenizer_json
from tests.model_server.text.vocabularies.golden import PLACE

_SPACE = "\u2581"
_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
_END = [AddedToken(id=420, text="<|endoftext|>", control=True)]


def _of_pieces(name: str) -> Callable[[], Tokenizer]:
    def made() -> Tokenizer:
        pieces = pieces_of(parse_model((PLACE / f"{name}.model").read_bytes()))
        vocabulary = sentence_piece(pieces, bos="<s>", adds_bos=True)
        return HfTokenizer(vocabulary.serialized(), bos="<s>")

    return made


def _of_ranks(file: str, family: str) -> Callable[[], Tokenizer]:
    data = (PLACE / file).read_bytes()
    return lambda: HfTokenizer(tiktoken(data, family, _END).serialized())


def _tekken() -> Tokenizer:
    vocabulary = tekken(json.loads((PLACE / "tekken.json").read_text()))
    return HfTokenizer(vocabulary.serialized(), bos=vocabulary.bos)


def _metaspace(scheme: str) -> Callable[[], Tokenizer]:
    """The parts that converters of the `transformers` library write instead of a normaliser."""
    first = {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": scheme, "split": False}
    return lambda: _converted(normalizer=None, pre_tokenizer=first)


def _prepend() -> Tokenizer:
    steps = [{"type": "Prepend", "prepend": _SPACE}, _SPACES]
    return _converted(normalizer={"type": "Sequence", "normalizers": steps}, pre_tokenizer=None)


def _converted(**parts: Any) -> Tokenizer:
    pieces = pieces_of(parse_model((PLACE / "bpe_llama.model").read_bytes()))
    serialized = json.loads(sentence_piece(pieces, bos="<s>", adds_bos=True).serialized())
    return HfTokenizer(json.dumps(serialized | parts), bos="<s>")


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: ByteTokenizer(256),
    "byte level": lambda: HfTokenizer(tokenizer_json(), bos="<|turn|>", adds_bos=True),
    "qwen": _of_ranks("qwen.tiktoken", "qwen"),
    "llama 3": _of_ranks("llama3.model", "llama"),
    "tekken": _tekken,
    "bpe": _of_pieces("bpe_llama"),
    "bpe without a first space": _of_pieces("bpe_gemma"),
    "bpe with rules": _of_pieces("bpe_rules"),
    "unigram": _of_pieces("unigram_bytes"),
    "unigram with rules": _of_pieces("unigram_rules"),
    "characters": _of_pieces("char"),
    "converted, always a first space": _metaspace("always"),
    "converted, a first space once": _metaspace("first"),
    "converted, legacy": _prepend,
}
# They write down every text as it is: nothing is normalised, removed or unknown.
FAITHFUL = [kind for kind in KINDS if "rules" not in kind and kind not in ("characters", "qwen")]


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    return KINDS[kind]()
