"""Encoding keeps control tokens out of plain text; decoding never emits half a character."""

import json
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from model_server.control_tokens import MARK
from model_server.tokenizer import ByteTokenizer, HfTokenizer, IncrementalDecoder
from sax.errors import CheckpointError, InvalidRequest
from tests.model_server.checkpoints.tiny_folder import CONTROL, tokenizer_json

BYTE_LEVEL = HfTokenizer(tokenizer_json(), bos="<|turn|>", eos=["<|stop|>"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
IDS = st.lists(st.integers(-2, BYTE_LEVEL.vocab_size + 2))


def sentence_piece(*, strip: bool = True) -> HfTokenizer:
    """Llama 2's kind: spaces as U+2581, unknown characters as byte tokens."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["\u2581", "h", "i", "\u00e9", "\u2581hi", "<0xZZ>"]
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if strip:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    control = [
        {
            "id": i,
            "content": tokens[i],
            "special": True,
            "normalized": False,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
        for i in range(3)
    ]
    return HfTokenizer(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": control,
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [
                        {"type": "Prepend", "prepend": "\u2581"},
                        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
                    ],
                },
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [
                        {"SpecialToken": {"id": "<s>", "type_id": 0}},
                        {"Sequence": {"id": "A", "type_id": 0}},
                    ],
                    "pair": [],
                    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
                },
                "decoder": {"type": "Sequence", "decoders": steps},
                "model": {
                    "type": "BPE",
                    "vocab": {token: i for i, token in enumerate(tokens)},
                    "merges": [],
                    "unk_token": "<unk>",
                    "byte_fallback": True,
                },
            }
        ),
        bos="<s>",
        eos=["</s>"],
    )


SENTENCE_PIECE = sentence_piece()


def stream(decoder: IncrementalDecoder, ids: list[int]) -> list[str]:
    return [*(decoder.push(token_id) for token_id in ids), decoder.flush()]


def test_control_tokens_are_recognised_in_a_chat_only() -> None:
    assert BYTE_LEVEL.encode_chat("<|stop|>") == [2]
    plain = BYTE_LEVEL.encode("<|stop|>")
    assert len(plain) == len("<|stop|>")
    assert not set(plain) & set(range(3))
    assert BYTE_LEVEL.decode(plain) == "<|stop|>"


def test_marked_text_in_a_chat_stays_text() -> None:
    guarded = BYTE_LEVEL.control_tokens.guard("a<|stop|>b")
    ids = BYTE_LEVEL.encode_chat(f"<|turn|>{guarded}<|stop|>")
    assert ids == [1, *BYTE_LEVEL.encode("a<|stop|>b"), 2]


@given(st.lists(st.sampled_from([*CONTROL, "<tool>", "the", " t", "1", MARK, "é"])).map("".join))
def test_no_message_can_write_a_control_token(text: str) -> None:
    ids = BYTE_LEVEL.encode_chat("<|turn|>" + BYTE_LEVEL.control_tokens.guard(text) + "<|stop|>")
    assert ids == [1, *BYTE_LEVEL.encode(text), 2]


@given(TEXTS)
def test_decoding_what_was_encoded_gives_the_text(text: str) -> None:
    ids = BYTE_LEVEL.encode(text)
    # The user-defined token is one id, whose text decodes to itself.
    assert BYTE_LEVEL.decode(ids) == text
    assert BYTE_LEVEL.encode_chat(text.replace("|", "")) == BYTE_LEVEL.encode(text.replace("|", ""))


@given(IDS)
def test_a_stream_of_any_ids_adds_up_to_their_text(ids: list[int]) -> None:
    assert "".join(stream(BYTE_LEVEL.decoder(), ids)) == BYTE_LEVEL.decode(ids)


@given(st.lists(st.integers(0, BYTE_LEVEL.vocab_size - 1)))
def test_decoding_equals_the_library(ids: list[int]) -> None:
    library = tokenizers.Tokenizer.from_str(tokenizer_json())
    assert BYTE_LEVEL.decode(ids) == library.decode(ids, skip_special_tokens=True)


@given(TEXTS)
def test_a_stream_never_emits_half_a_character(text: str) -> None:
    pieces = stream(BYTE_LEVEL.decoder(), [4 + byte for byte in text.encode()])
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text
    assert pieces[-1] == ""


def test_a_broken_tail_is_one_replacement_character() -> None:
    decoder = BYTE_LEVEL.decoder()
    smile = [4 + byte for byte in "🙂".encode()]
    assert [decoder.push(token_id) for token_id in smile[:3]] == ["", "", ""]
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""
    assert stream(decoder, smile) == ["", "", "", "🙂", ""]


def test_a_control_token_inside_a_character_does_not_break_it() -> None:
    first, second = (4 + byte for byte in "é".encode())
    assert BYTE_LEVEL.decode([first, 2, second]) == "é"
    assert stream(BYTE_LEVEL.decoder(), [first, 2, second]) == ["", "", "é", ""]


def test_a_single_token_shows_itself_even_if_it_is_control() -> None:
    assert BYTE_LEVEL.token_text(2) == "<|stop|>"
    assert BYTE_LEVEL.token_bytes(4 + 0xC3) == b"\xc3"
    assert BYTE_LEVEL.token_text(4 + 0xC3) == "\ufffd"
    assert BYTE_LEVEL.token_bytes(-1) == BYTE_LEVEL.token_bytes(10**12) == b""


def test_the_start_token_comes_from_the_post_processor_unless_said() -> None:
    assert SENTENCE_PIECE.adds_bos
    assert SENTENCE_PIECE.encode("hi")[0] == 1
    assert SENTENCE_PIECE.encode("hi", add_bos=False)[0] != 1
    assert not BYTE_LEVEL.adds_bos
    told = HfTokenizer(tokenizer_json(), bos=1, adds_bos=True)
    assert told.encode("a") == [1, *told.encode("a", add_bos=False)]


def test_ends_may_be_given_by_text_or_by_id() -> None:
    tokenizer = HfTokenizer(tokenizer_json(), bos="nobody", eos=["<|stop|>", 0, 10**9, "no"])
    assert tokenizer.bos_id is None
    assert tokenizer.eos_ids == {0, 2}


def test_a_training_time_cut_does_not_shorten_prompts() -> None:
    cut = json.loads(tokenizer_json())
    cut["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst"}
    cut["truncation"]["stride"] = 0
    assert len(HfTokenizer(json.dumps(cut)).encode("x" * 100)) == 100


@given(TEXTS)
def test_sentence_piece_text_comes_back(text: str) -> None:
    # U+2581 is how this family writes a space: it cannot come back as itself.
    text = text.replace("\u2581", "").replace("<", "")
    ids = SENTENCE_PIECE.encode(text)
    assert SENTENCE_PIECE.decode(ids) == text
    assert "".join(stream(SENTENCE_PIECE.decoder(), ids)) == text


@given(st.lists(st.integers(-1, SENTENCE_PIECE.vocab_size)))
def test_a_sentence_piece_stream_adds_up(ids: list[int]) -> None:
    assert "".join(stream(SENTENCE_PIECE.decoder(), ids)) == SENTENCE_PIECE.decode(ids)


def test_sentence_piece_loses_one_leading_space_and_no_other() -> None:
    space, h = 259, 260
    assert SENTENCE_PIECE.decode([space, space, h, space]) == " h "
    assert sentence_piece(strip=False).decode([space, h]) == " h"
    assert stream(SENTENCE_PIECE.decoder(), [space, h, space, h]) == ["", "h", " ", "h", ""]


def test_a_lone_surrogate_is_refused() -> None:
    for tokenizer in (BYTE_LEVEL, ByteTokenizer(256)):
        with pytest.raises(InvalidRequest, match="not valid Unicode"):
            tokenizer.encode("a\ud800")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"model": {"type": "BPE"}}', "not json"])
def test_a_damaged_tokenizer_is_a_checkpoint_error(text: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        HfTokenizer(text)


def test_an_unknown_kind_of_decoder_is_named() -> None:
    changed = json.loads(tokenizer_json())
    changed["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    with pytest.raises(CheckpointError, match="WordPiece"):
        HfTokenizer(json.dumps(changed))


@given(TEXTS)
def test_bytes_come_back(text: str) -> None:
    tokenizer = ByteTokenizer(300)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(text) == tokenizer.encode_chat(text) == list(text.encode())


@given(st.lists(st.integers(-2, 33_000)))
def test_a_byte_stream_of_any_ids_adds_up_to_their_text(ids: list[int]) -> None:
    tokenizer = ByteTokenizer(32_000)
    assert "".join(stream(tokenizer.decoder(), ids)) == tokenizer.decode(ids)


def test_ids_beyond_the_bytes_are_different_words() -> None:
    tokenizer = ByteTokenizer(32_000)
    words = [tokenizer.token_text(token_id) for token_id in range(256, 32_000)]
    assert words[:2] == [" ba", " be"]
    assert len(set(words)) == len(words)
    assert tokenizer.token_bytes(32_000) == b""


def test_a_vocabulary_too_small_for_bytes_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least 256"):
        ByteTokenizer(255)
