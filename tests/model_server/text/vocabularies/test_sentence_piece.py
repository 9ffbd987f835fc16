"""SentencePiece's own ids and texts, for every kind of model it trains."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.text.tokenizer import HfTokenizer
from model_server.text.vocabularies.sentence_piece import (
    SPACE,
    PieceKind,
    Pieces,
    own_token,
    parse_model,
    pieces_of,
    sentence_piece,
)
from model_server.text.vocabularies.vocabulary import AddedToken
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.text.vocabularies.golden import PLACE, answers, differences, streamed

# A text that is one user-defined piece and nothing else gets no space before it.
KNOWN = {
    "unigram_rules": {"<tool>", "<|x|>"},
    "unigram_bytes": {"<tool>", "<|x|>"},
    "bpe_rules": {"<tool>", "<|x|>"},
}
NAMES = ["unigram_rules", "unigram_bytes", "bpe_rules", "bpe_llama", "bpe_gemma", "char"]
TEXTS = ["<unk>", "<s>", "</s>", SPACE, "a", "b", "ab", f"{SPACE}a", "<x>", "\n"]
PIECES = Pieces(
    unigram=False,
    texts=TEXTS,
    scores=[0.0, 0.0, 0.0, -4.0, -3.0, -3.0, -2.0, -1.0, 0.0, 0.0],
    kinds=[
        PieceKind.UNKNOWN,
        PieceKind.CONTROL,
        PieceKind.CONTROL,
        *[PieceKind.NORMAL] * 5,
        *[PieceKind.USER_DEFINED] * 2,
    ],
    byte_fallback=False,
)


@cache
def golden(name: str) -> HfTokenizer:
    pieces = pieces_of(parse_model((PLACE / f"{name}.model").read_bytes()))
    return HfTokenizer(sentence_piece(pieces).serialized())


def tokens(pieces: Pieces, text: str) -> list[str]:
    tokenizer = HfTokenizer(sentence_piece(pieces).serialized())
    return [pieces.texts[token_id] for token_id in tokenizer.encode(text)]


@each_case("name", NAMES)
def test_ids_and_texts_are_those_of_sentencepiece(name: str) -> None:
    tokenizer = golden(name)
    assert {text for text, _, _ in differences(tokenizer, name)} == KNOWN.get(name, set())
    for _, ids, _ in answers(name):
        assert streamed(tokenizer, ids) == tokenizer.decode(ids)


@settings(max_examples=50, deadline=None)
@given(ids=st.lists(st.integers(-1, 500), max_size=12))
@each_case("name", NAMES)
def test_a_stream_of_any_ids_adds_up(name: str, ids: list[int]) -> None:
    tokenizer = golden(name)
    assert streamed(tokenizer, ids) == tokenizer.decode(ids)


@each_case("name", NAMES)
def test_control_pieces_are_control_in_a_chat_only(name: str) -> None:
    tokenizer = golden(name)
    assert tokenizer.encode_chat("<s></s>") == [1, 2]
    assert not {1, 2} & set(tokenizer.encode("<s>a</s>"))


def test_the_best_score_merges_first() -> None:
    assert tokens(PIECES, "ab") == [f"{SPACE}a", "b"]
    assert tokens(replace(PIECES, scores=[*PIECES.scores[:6], -0.5, -1.0, 0, 0]), "ab") == [
        SPACE,
        "ab",
    ]


def test_a_user_defined_piece_is_never_taken_apart_or_joined() -> None:
    assert tokens(PIECES, "a<x>b\n") == [f"{SPACE}a", "<x>", "b", "\n"]


def test_a_first_space_stands_before_every_part_or_only_before_the_first() -> None:
    every = HfTokenizer(sentence_piece(PIECES).serialized())
    first = HfTokenizer(sentence_piece(replace(PIECES, every_part_starts=False)).serialized())
    space_a, a = TEXTS.index(f"{SPACE}a"), TEXTS.index("a")
    assert every.encode_chat("a<s>a") == [space_a, 1, space_a]
    assert first.encode_chat("a<s>a") == [space_a, 1, a]
    assert first.encode("a") == [space_a]
    # A message that mentions a control token is cut elsewhere; what it becomes stays the same.
    guarded = first.control_tokens.guard("a</s>")
    assert first.encode_chat(f"<s>{guarded}")[:2] == [1, a]


def test_without_bytes_strangers_are_one_unknown_piece() -> None:
    assert tokens(PIECES, "aéßa") == [f"{SPACE}a", "<unk>", "a"]


def test_added_tokens_follow_the_pieces() -> None:
    added = [AddedToken(id=len(TEXTS), text="<turn>", control=True)]
    for pieces in (PIECES, replace(PIECES, unigram=True)):
        tokenizer = HfTokenizer(sentence_piece(pieces, added).serialized())
        assert tokenizer.encode_chat("<turn>a")[0] == len(TEXTS)
        assert len(TEXTS) not in tokenizer.encode("<turn>")
        assert tokenizer.vocab_size == len(TEXTS) + 1
        assert tokenizer.ordinary_size == TEXTS.index(f"{SPACE}a") + 1


def test_the_frame_is_what_encoders_want() -> None:
    vocabulary = sentence_piece(PIECES, bos="<s>", eos="</s>", adds_bos=True, adds_eos=True)
    tokenizer = HfTokenizer(vocabulary.serialized(), bos="<s>")
    assert tokenizer.encode_framed("b") == [1, TEXTS.index(SPACE), TEXTS.index("b"), 2]
    assert tokenizer.encode("b") == [1, TEXTS.index(SPACE), TEXTS.index("b")]
    assert json.loads(tokenizer.serialized)["post_processor"]["special_tokens"]["</s>"]["ids"] == [
        2
    ]


def test_two_pieces_of_one_text_are_refused() -> None:
    with pytest.raises(CheckpointError, match="'a' twice"):
        sentence_piece(replace(PIECES, texts=[*TEXTS[:5], "a", *TEXTS[6:]]))


def test_a_unigram_model_needs_an_unknown_piece() -> None:
    kinds = [PieceKind.CONTROL, *PIECES.kinds[1:]]
    with pytest.raises(CheckpointError, match="unknown"):
        sentence_piece(replace(PIECES, kinds=kinds, unigram=True))


DATA = (PLACE / "unigram_rules.model").read_bytes()


def changed(change: Any) -> Any:
    model = parse_model(DATA)
    change(model)
    return parse_model(model.SerializeToString())


def test_the_settings_of_the_trainer_are_read() -> None:
    rules, gemma = (pieces_of(parse_model((PLACE / f"{n}.model").read_bytes())) for n in
                    ("unigram_rules", "bpe_gemma"))  # fmt: skip
    assert rules.unigram
    assert rules.charsmap
    assert rules.collapses_spaces
    assert rules.starts_with_space
    assert not rules.byte_fallback
    assert not gemma.unigram
    assert not gemma.charsmap
    assert not gemma.collapses_spaces
    assert not gemma.starts_with_space
    assert gemma.byte_fallback
    assert [gemma.texts[i] for i in gemma.of(PieceKind.USER_DEFINED)][-1] == "<tool>"
    assert len(list(gemma.of(PieceKind.BYTE))) == 256


def test_start_and_end_are_named() -> None:
    assert own_token(parse_model(DATA), "bos_id") == "<s>"
    assert own_token(parse_model(DATA), "eos_id") == "</s>"
    without = changed(lambda model: setattr(model.trainer_spec, "bos_id", -1))
    assert own_token(without, "bos_id") is None


@each_case("data", [b"", b"\x80", b"{}", b"x" * 100, DATA[:100], DATA[:-2000]])
def test_a_damaged_or_foreign_file_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError, match="SentencePiece model, or truncated"):
        parse_model(data)


@given(st.integers(0, len(DATA) - 1))
def test_a_file_cut_anywhere_is_whole_or_refused(end: int) -> None:
    try:
        pieces = pieces_of(parse_model(DATA[:end]))
    except CheckpointError:
        return
    assert len(pieces.texts) == len(parse_model(DATA).pieces)


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(CheckpointError, match="UTF-8"):
        pieces_of(parse_model(DATA.replace(b"<ctl>", b"<\xff\xfe\xff>")))


@each_case(
    "change, words",
    [
        (lambda model: setattr(model.trainer_spec, "model_type", 3), "whole words"),
        (lambda model: setattr(model.trainer_spec, "treat_whitespace_as_suffix", True), "end with"),
        (lambda m: setattr(m.denormalizer_spec, "precompiled_charsmap", b"x"), "rewrites"),
        (lambda model: setattr(model.pieces[7], "type", 9), "unknown kind, 9"),
    ],
)
def test_what_is_not_supported_is_named(change: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        pieces_of(changed(change))


def test_the_golden_files_name_no_path() -> None:
    assert not [path.name for path in Path(PLACE).glob("*.model") if b"/tmp" in path.read_bytes()]
