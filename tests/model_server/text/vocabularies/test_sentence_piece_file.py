"""SentencePiece's file says what it says, and every damage is one error."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.text.vocabularies.sentence_piece import PieceKind
from model_server.text.vocabularies.sentence_piece_file import own_token, parse, pieces_of
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.text.vocabularies.golden import PLACE

DATA = (PLACE / "unigram_rules.model").read_bytes()


def changed(change: Any) -> Any:
    model = parse(DATA)
    change(model)
    return parse(model.SerializeToString())


def test_the_settings_of_the_trainer_are_read() -> None:
    rules, gemma = (pieces_of(parse((PLACE / f"{n}.model").read_bytes())) for n in
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
    assert own_token(parse(DATA), "bos_id") == "<s>"
    assert own_token(parse(DATA), "eos_id") == "</s>"
    without = changed(lambda model: setattr(model.trainer_spec, "bos_id", -1))
    assert own_token(without, "bos_id") is None


@each_case("data", [b"", b"\x80", b"{}", b"x" * 100, DATA[:100], DATA[:-2000]])
def test_a_damaged_or_foreign_file_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError, match="SentencePiece model, or truncated"):
        parse(data)


@given(st.integers(0, len(DATA) - 1))
def test_a_file_cut_anywhere_is_whole_or_refused(end: int) -> None:
    try:
        pieces = pieces_of(parse(DATA[:end]))
    except CheckpointError:
        return
    assert len(pieces.texts) == len(parse(DATA).pieces)


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(CheckpointError, match="UTF-8"):
        pieces_of(parse(DATA.replace(b"<ctl>", b"<\xff\xfe\xff>")))


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
