"""The tokenizer in GGUF metadata cuts and joins as its makers' tokenizer.json does."""

import json
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from model_server.checkpoints.gguf.tokenizer import PRE_TOKENIZERS, tokenizer_of
from model_server.text.token_bytes import byte_alphabet
from model_server.text.vocabularies.sentence_piece import parse_model
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.text.vocabularies.golden import PLACE, differences

LETTERS = sorted(byte_alphabet(), key=byte_alphabet().__getitem__)
TOKENS = ["<|end|>", "<|turn|>", "<think>", *LETTERS, "12", "123", "\u0120a"]
MERGES = ["1 2", "12 3", "\u0120 a"]
TYPES = np.array([3, 3, 4] + [1] * (len(TOKENS) - 3), np.int32)
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.token_type": TYPES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.ggml.eot_token_id": 1,
}


EMPTY: dict[str, Any] = {
    "version": "1.0",
    "model": {"type": "BPE", "vocab": {}, "merges": []},
}


def pieces(pre: str, text: str) -> list[str]:
    tokenizer = tokenizer_of(METADATA | {"tokenizer.ggml.pre": pre})
    return [tokenizer.token_text(i) for i in tokenizer.encode(text, add_bos=False)]


def test_digits_stand_alone_where_the_model_was_trained_so() -> None:
    assert pieces("smollm", "1234 a") == ["1", "2", "3", "4", " a"]
    assert pieces("qwen2", "1234 a") == ["1", "2", "3", "4", " a"]
    assert pieces("gpt-2", "1234 a") == ["123", "4", " a"]
    assert pieces("llama-bpe", "1234 a") == ["123", "4", " a"]


@each_case(
    "text, words",
    [
        ("12345 67", ["123", "45", "\u0120", "67"]),  # threes, and never with a space
        ("wait... what?!", ["wait", "...", "\u0120what", "?!"]),
        ("a+b = $5", ["a", "+", "b", "\u0120", "=", "\u0120", "$", "5"]),
    ],
)
def test_falcon_cuts_marks_first_and_digits_by_three(text: str, words: list[str]) -> None:
    """Worked out by hand from the four steps of its tokenizer.json."""
    steps = {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS["falcon"]}
    cutter = Tokenizer.from_str(json.dumps(EMPTY | {"pre_tokenizer": steps}))
    assert cutter.pre_tokenizer is not None
    assert [word for word, _ in cutter.pre_tokenizer.pre_tokenize_str(text)] == words


def test_gpt_neox_joins_marks_with_their_letters_first() -> None:
    assert pieces("gpt-neox", "e\u0301") == pieces("gpt-neox", "\u00e9")
    assert pieces("gpt-2", "e\u0301") != pieces("gpt-2", "\u00e9")


@each_case("pre", PRE_TOKENIZERS)
def test_every_way_of_cutting_keeps_every_byte(pre: str) -> None:
    text = "It's  1234 naïve\n\n\tcafés — 你好 🙂\r\n x_y ''  "
    tokenizer = tokenizer_of(METADATA | {"tokenizer.ggml.pre": pre})
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_and_user_defined_tokens_keep_their_kinds() -> None:
    tokenizer = tokenizer_of(METADATA)
    assert tokenizer.control_tokens.texts == {"<|end|>", "<|turn|>"}
    assert tokenizer.encode("<think>") == [2]
    assert tokenizer.decode([2, 0]) == "<think>"


def test_every_end_is_an_end() -> None:
    assert tokenizer_of(METADATA).eos_ids == {0, 1}


def ends(*texts: str, kind: int = 3, **more: int) -> set[str]:
    """Texts of the end tokens of a vocabulary that begins with these."""
    tokens, kinds = [*texts, "<s>", *LETTERS], [kind] * len(texts) + [3] + [1] * len(LETTERS)
    given = {"tokens": tokens, "token_type": np.array(kinds, np.int32), "merges": []} | more
    own = {"model": "gpt2", "pre": "gpt-2", "bos_token_id": len(texts)} | given
    tokenizer = tokenizer_of({f"tokenizer.ggml.{key}": value for key, value in own.items()})
    assert tokenizer.eos_ids <= tokenizer.control_ids
    return {tokens[token_id] for token_id in tokenizer.eos_ids}


def test_tokens_whose_texts_end_an_answer_are_ends() -> None:
    """As in llama.cpp; not where the text is one of several messages, or a plain one."""
    for text in ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<turn|>"):
        assert ends("<|endoftext|>", text, "<|turn|>", eos_token_id=0) == {"<|endoftext|>", text}
        assert ends(text, kind=4) == ends(text, kind=1) == {text}
    assert ends("<|end|>", "<|return|>", "<|call|>") == {"<|return|>", "<|call|>"}
    assert ends("<|end|>", "<|flush|>", "<|calls|>") == {"<|flush|>", "<|calls|>"}
    assert ends("<|end|>", "<|return|>", "<|call|>", eot_token_id=0) == {
        *("<|end|>", "<|return|>", "<|call|>")
    }
    assert ends("</s>", "[EOT]") == {"</s>", "[EOT]"}
    assert ends("</s>", "[EOT]", kind=1) == set()


def test_the_start_token_is_added_when_the_file_says_so() -> None:
    assert not tokenizer_of(METADATA).adds_bos
    told = tokenizer_of(METADATA | {"tokenizer.ggml.add_bos_token": True})
    assert told.encode("x")[0] == 1
    assert tokenizer_of(METADATA | {"tokenizer.ggml.pre": "llama-bpe"}).adds_bos


@each_case(
    "key, value, words",
    [
        ("model", "rwkv", "kind 'rwkv'; supported from GGUF: gpt2, llama, gemma4, t5, bert"),
        ("model", ["llama"], "kind"),
        ("model", None, "supported"),
        ("pre", "viking", "'viking'"),
        ("pre", None, "None"),
        ("pre", ["smollm"], "smollm"),
        ("tokens", None, "tokens"),
        ("tokens", ["a", "a"], "'a' twice"),
        ("merges", ["a b c"], "pairs"),
        ("merges", None, "pairs"),
        ("merges", ["zz yy"], "cannot be read"),
        ("token_type", None, "token_type"),
        ("token_type", TYPES[:-1], "token_type"),
        ("bos_token_id", len(TOKENS), "bos_token_id"),
        ("eos_token_id", "x", "eos_token_id"),
    ],
)
def test_what_does_not_fit_together_is_refused(key: str, value: object, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        tokenizer_of(METADATA | {f"tokenizer.ggml.{key}": value})


def from_sentence_piece(name: str, kind: str, **changes: Any) -> dict[str, Any]:
    """A golden SentencePiece model as converters write it into GGUF."""
    model = parse_model((PLACE / f"{name}.model").read_bytes())
    rules = model.normalizer_spec
    metadata: dict[str, Any] = {
        "model": kind,
        "tokens": [piece.piece for piece in model.pieces],
        "scores": np.array([piece.score for piece in model.pieces], np.float32),
        "token_type": np.array([piece.type for piece in model.pieces], np.int32),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_space_prefix": rules.add_dummy_prefix,
        "remove_extra_whitespaces": rules.remove_extra_whitespaces,
    }
    if rules.precompiled_charsmap:
        compiled = np.frombuffer(rules.precompiled_charsmap, np.uint8)
        metadata["precompiled_charsmap"] = compiled
    return {f"tokenizer.ggml.{key}": value for key, value in (metadata | changes).items()}


@each_case(
    "name, kind",
    [
        ("bpe_llama", "llama"),
        ("bpe_gemma", "llama"),
        ("unigram_rules", "t5"),
        ("unigram_bytes", "t5"),
    ],
)
def test_sentence_piece_vocabularies_give_sentencepieces_ids(name: str, kind: str) -> None:
    tokenizer = tokenizer_of(from_sentence_piece(name, kind))
    assert {text for text, _, _ in differences(tokenizer, name)} <= {"<tool>", "<|x|>"}
    assert tokenizer.adds_bos == (kind == "llama")
    assert tokenizer.eos_ids == {2}


def with_merges(name: str) -> dict[str, Any]:
    """The same vocabulary as Gemma 4 writes it: merges in order, and no scores."""
    metadata = from_sentence_piece(name, "llama")
    merges = json.loads(tokenizer_of(metadata).serialized)["model"]["merges"]
    del metadata["tokenizer.ggml.scores"]
    listed = [" ".join(merge) for merge in merges]
    return metadata | {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.merges": listed}


def test_gemma_4_lists_the_merges_of_its_sentence_piece_vocabulary() -> None:
    tokenizer = tokenizer_of(with_merges("bpe_gemma"))
    assert {text for text, _, _ in differences(tokenizer, "bpe_gemma")} <= {"<tool>", "<|x|>"}
    assert tokenizer.adds_bos
    assert (
        tokenizer.decode(tokenizer.encode("a  b\n\nc \u00e9\U0001f600"))
        == "a  b\n\nc \u00e9\U0001f600"
    )


def test_gemma_4_needs_its_merges() -> None:
    metadata = with_merges("bpe_gemma")
    del metadata["tokenizer.ggml.merges"]
    with pytest.raises(CheckpointError, match="merges"):
        tokenizer_of(metadata)


def test_llama_vocabularies_start_texts_with_a_space_unless_told() -> None:
    metadata = from_sentence_piece("bpe_llama", "llama")
    del metadata["tokenizer.ggml.add_space_prefix"]
    with_space = tokenizer_of(metadata)
    without = tokenizer_of(metadata | {"tokenizer.ggml.add_space_prefix": False})
    assert with_space.encode("a") == without.encode(" a")
    assert with_space.encode("a") != without.encode("a")


def test_user_defined_pieces_may_be_written_with_real_spaces() -> None:
    metadata = from_sentence_piece("bpe_gemma", "llama")
    tokens = metadata["tokenizer.ggml.tokens"]
    two = tokens.index("\u2581\u2581")
    spaces = [text.replace("\u2581", " ") if i == two else text for i, text in enumerate(tokens)]
    tokenizer = tokenizer_of(metadata | {"tokenizer.ggml.tokens": spaces})
    assert tokenizer.encode("a  b", add_bos=False)[1] == two
    assert tokenizer.token_text(two) == "  "


def test_an_unknown_token_need_not_be_marked() -> None:
    metadata = from_sentence_piece("bpe_rules", "llama")
    types = metadata["tokenizer.ggml.token_type"].copy()
    types[0] = 3
    named = tokenizer_of(metadata | {"tokenizer.ggml.token_type": types})
    assert named.encode("\u4dff", add_bos=False)[-1] == 0


def test_the_frame_of_encoders_comes_from_the_file() -> None:
    flags = {"add_bos_token": True, "add_eos_token": True}
    tokenizer = tokenizer_of(from_sentence_piece("unigram_rules", "t5", **flags))
    assert [tokenizer.encode_framed("a")[place] for place in (0, -1)] == [1, 2]
    assert tokenizer.encode("a")[-1] != 2


def test_bert_words_begin_where_the_file_says() -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581play", "ing", "\u2581ing"]
    metadata = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([3, 2, 3, 3, 1, 1, 1], np.int32),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 3,
    }
    tokenizer = tokenizer_of(metadata)
    assert tokenizer.encode_framed("Playing ing") == [2, 4, 5, 6, 3]
    assert tokenizer.decode([2, 4, 5, 6, 3]) == "playing ing"


@each_case(
    "key, value, words",
    [
        ("scores", None, "scores is not a list"),
        ("scores", np.zeros(3, np.float32), "scores is not a list"),
        ("token_type", None, "token_type"),
        ("precompiled_charsmap", np.arange(9), "cannot be read: .*charsmap"),
        ("tokens", ["<unk>", "<unk>"], "twice"),
    ],
)
def test_a_damaged_sentence_piece_vocabulary_is_refused(
    key: str, value: object, words: str
) -> None:
    metadata = from_sentence_piece("bpe_llama", "llama", **{key: value})
    with pytest.raises(CheckpointError, match=words):
        tokenizer_of(metadata)


def test_tokens_of_unsaid_kinds_are_plain_but_those_that_end_by_their_text() -> None:
    """As in llama.cpp, for files of the first converters."""
    tokens = [*TOKENS, "<|im_end|>"]
    unsaid = METADATA | {"tokenizer.ggml.tokens": tokens}
    del unsaid["tokenizer.ggml.token_type"]
    tokenizer = tokenizer_of(unsaid)
    assert len(tokens) - 1 in tokenizer.eos_ids
    assert "<|im_end|>" in tokenizer.control_tokens.texts
    assert "<think>" not in tokenizer.control_tokens.texts
