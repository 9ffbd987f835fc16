"""Every family's way of cutting text keeps all of it, and differs where it should."""

from functools import cache

import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.text.tokenizer import HfTokenizer
from model_server.text.vocabularies.byte_level import byte_level, written
from model_server.text.vocabularies.cutting import CUTTINGS, with_space_before
from tests.each_case import each_case

VOCAB = {written(bytes([byte])): byte for byte in range(256)}


@cache
def tokenizer_of(name: str) -> HfTokenizer:
    return HfTokenizer(byte_level(VOCAB, [], [], CUTTINGS[name]).serialized())


def words(name: str, text: str) -> list[str]:
    cut = tokenizers.Tokenizer.from_str(tokenizer_of(name).serialized).pre_tokenizer
    assert cut is not None
    return [word.replace("\u0120", " ") for word, _ in cut.pre_tokenize_str(text)]


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=20))
@each_case("name", CUTTINGS)
def test_every_way_of_cutting_keeps_every_byte(name: str, text: str) -> None:
    if CUTTINGS[name].normalizer is None:
        assert tokenizer_of(name).decode(tokenizer_of(name).encode(text)) == text


def test_digits_go_together_as_each_family_was_trained() -> None:
    assert words("gpt-2", "a1234") == ["a", "1234"]
    deepseek = ("deepseek-coder", "deepseek-llm")
    for single in ("qwen2", "qwen35", "smollm", "tekken", "seed-coder", *deepseek):
        assert words(single, "a1234") == ["a", "1", "2", "3", "4"]
    triples = ("llama-bpe", "dbrx", "deepseek-v3", "glm4", "hunyuan-dense", "gpt-4o", "kimi-k2")
    for triple in triples:
        assert words(triple, "a1234") == ["a", "123", "4"]


def test_case_cuts_words_in_some_families() -> None:
    assert words("tekken", "abCD eF") == ["ab", "CD", " e", "F"]
    assert words("gpt-4o", "abCD eF") == ["ab", "CD", " e", "F"]
    assert words("qwen2", "abCD eF") == ["abCD", " eF"]


def test_chinese_characters_are_words_of_their_own_in_kimi() -> None:
    text = "\u4e2d\u6587English\u6df7\u5408 abCD"
    first, second = (written(part.encode()) for part in ("\u4e2d\u6587", "\u6df7\u5408"))
    assert words("kimi-k2", text) == [first, "English", second, " ab", "CD"]
    assert words("gpt-4o", text) == [f"{first}English{second}", " ab", "CD"]


def test_suffixes_belong_to_words_in_some_families() -> None:
    assert words("gpt-4o", "i'm") == ["i'm"]
    assert words("tekken", "i'm") == ["i", "'m"]
    assert words("qwen2", "i'LL") == ["i", "'LL"]
    assert words("gpt-2", "i'LL") == ["i", "'", "LL"]


def test_white_space_goes_with_the_next_word_or_the_line() -> None:
    assert words("gpt-2", "a  b\n\nc") == ["a", " ", " b", "\u010a", "\u010a", "c"]
    assert words("llama-bpe", "a  b.\n\nc") == ["a", " ", " b", ".\u010a\u010a", "c"]
    assert words("seed-coder", "a  b.\n\nc") == ["a", " ", " b", ".", "\u010a\u010a", "c"]
    assert words("deepseek-v3", "a.b /x") == ["a", ".b", " /", "x"]


def test_letters_are_composed_where_the_makers_do() -> None:
    for name in ("qwen2", "olmo", "command-r"):
        assert tokenizer_of(name).decode(tokenizer_of(name).encode("e\u0301")) == "\u00e9"
    for name in ("gpt-2", "llama-bpe", "qwen35"):
        assert tokenizer_of(name).decode(tokenizer_of(name).encode("e\u0301")) == "e\u0301"


def test_a_space_may_be_put_before() -> None:
    cutting = with_space_before(CUTTINGS["gpt-2"])
    tokenizer = HfTokenizer(byte_level(VOCAB, [], [], cutting).serialized())
    assert tokenizer.decode(tokenizer.encode("ab")) == " ab"
    assert tokenizer.decode(tokenizer.encode(" ab")) == " ab"
