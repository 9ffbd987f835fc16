"""BERT's words and pieces, its frame and its decoding."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from model_server.text.tokenizer import HfTokenizer
from model_server.text.vocabularies.vocabulary import AddedToken
from model_server.text.vocabularies.word_piece import word_piece
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.text.vocabularies.golden import streamed

CONTROL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "the",
    "cafe",
    "café",
    "The",
    "##s",
    "##ing",
    "play",
    "!",
    "don",
    "'",
    "t",
    "你",
    "[",
    "]",
    "cls",
]
TOKENS = [*CONTROL, *WORDS]
TOKENIZER = HfTokenizer(word_piece(TOKENS).serialized(), bos="[CLS]")
IDS = st.lists(st.integers(len(CONTROL), len(TOKENS) - 1), max_size=9)


def tokens(text: str, **options: bool) -> list[str]:
    tokenizer = HfTokenizer(word_piece(TOKENS, **options).serialized())
    return [TOKENS[token_id] for token_id in tokenizer.encode(text)]


def test_words_are_cut_into_the_longest_pieces() -> None:
    assert tokens("Playing the cafés!") == ["play", "##ing", "the", "cafe", "##s", "!"]
    assert tokens("xyz the") == ["[UNK]", "the"]
    assert tokens("你the你") == ["你", "the", "你"]


def test_letters_and_accents_are_kept_where_the_model_knows_them() -> None:
    assert tokens("The café", lowercase=False) == ["The", "café"]
    assert tokens("The café", lowercase=True, strip_accents=False) == ["the", "café"]
    assert tokens("你the你", cuts_chinese=False) == ["[UNK]"]


def test_a_text_stands_between_cls_and_sep() -> None:
    the = TOKENS.index("the")
    assert TOKENIZER.encode_framed("the") == [2, the, 3]
    assert TOKENIZER.encode_framed("") == [2, 3]
    assert TOKENIZER.adds_bos


def test_control_tokens_written_in_text_stay_text() -> None:
    assert tokens("[CLS]") == ["[", "cls", "]"]


@given(IDS)
def test_decoding_equals_the_library(ids: list[int]) -> None:
    library = tokenizers.Tokenizer.from_str(TOKENIZER.serialized)
    if ids and TOKENS[ids[0]].startswith("##"):
        ids = ids[1:]  # the library shows the marks of a piece that continues nothing
    if not (ids and TOKENS[ids[0]].startswith("##")):
        assert TOKENIZER.decode(ids) == library.decode(ids)
    assert streamed(TOKENIZER, ids) == TOKENIZER.decode(ids)


def test_added_tokens_are_tokens() -> None:
    added = [AddedToken(id=len(TOKENS), text="[turn]", control=True)]
    tokenizer = HfTokenizer(word_piece(TOKENS, added).serialized())
    assert tokenizer.encode_chat("[turn]the") == [len(TOKENS), TOKENS.index("the")]


@each_case("token", ["[UNK]", "[CLS]", "[SEP]"])
def test_a_missing_control_token_is_named(token: str) -> None:
    with pytest.raises(CheckpointError, match=token.replace("[", r"\[")):
        word_piece([other for other in TOKENS if other != token])


def test_a_token_given_twice_is_named() -> None:
    with pytest.raises(CheckpointError, match="'the' twice"):
        word_piece([*TOKENS, "the"])
