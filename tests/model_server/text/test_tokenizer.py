"""Encoding keeps control tokens out of plain text; decoding never emits half a character."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.text.control_tokens import MARK
from model_server.text.text_decoder import whole_text
from model_server.text.tokenizer import ByteTokenizer, HfTokenizer, IncrementalDecoder, split_ids
from sax.errors import CheckpointError, InvalidRequest
from tests.each_case import each_case
from tests.model_server.checkpoints.tiny_folder import CONTROL, tokenizer_json
from tests.model_server.text.every_tokenizer import FAITHFUL, KINDS, tokenizer_of

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


def changed(**parts: Any) -> str:
    """The tiny byte-level tokenizer.json with some of its parts replaced."""
    return json.dumps(json.loads(tokenizer_json()) | parts)


def test_control_tokens_may_swallow_the_space_beside_them() -> None:
    added = json.loads(tokenizer_json())["added_tokens"]
    added[1]["rstrip"] = added[2]["lstrip"] = True
    tokenizer = HfTokenizer(changed(added_tokens=added))
    assert tokenizer.encode_chat("<|turn|> \n a \t<|stop|> b") == [
        1,
        *tokenizer.encode("a"),
        2,
        *tokenizer.encode(" b"),
    ]
    # The same beside a text that mentions a control token.
    guarded = tokenizer.control_tokens.guard("<|end|>")
    assert tokenizer.encode_chat(f"<|turn|> {guarded}") == [1, *tokenizer.encode("<|end|>")]


def test_a_first_space_is_not_put_after_control_tokens() -> None:
    first = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"}
    serialized = json.loads(SENTENCE_PIECE.serialized)
    serialized |= {"normalizer": None, "pre_tokenizer": first | {"split": False}}
    tokenizer = HfTokenizer(json.dumps(serialized))
    space_hi, h = 263, 260
    assert tokenizer.encode_chat("h<s>h") == [259, h, 1, h]
    assert tokenizer.encode_chat("<s>h" + MARK + "</s>h")[:2] == [1, h]
    assert tokenizer.encode_chat("<s> h") == [1, 259, h]
    assert tokenizer.token_text(space_hi) == " hi"


def test_text_never_becomes_a_control_token_even_where_the_library_says_so() -> None:
    vocab = [["<unk>", 0.0], ["</s>", 0.0], *([letter, -5.0] for letter in "</s>ab")]
    control = [
        {
            "id": 1,
            "content": "</s>",
            "special": True,
            "normalized": False,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
    ]
    serialized = {
        "version": "1.0",
        "added_tokens": control,
        "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never"},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab},
    }
    assert tokenizers.Tokenizer.from_str(json.dumps(serialized)).encode("a</s>").ids == [6, 1]
    tokenizer = HfTokenizer(json.dumps(serialized))
    assert tokenizer.encode("a</s>b</s>") == [6, 2, 3, 4, 5, 7, 2, 3, 4, 5]
    assert tokenizer.encode_chat("a</s>") == [6, 1]
    many = tokenizer.encode("</s>" * 5000)
    assert 1 not in many
    assert tokenizer.decode(many) == "</s>" * 5000


def test_user_defined_tokens_of_sentence_piece_show_their_spaces() -> None:
    serialized = json.loads(SENTENCE_PIECE.serialized)
    token = serialized["added_tokens"][0] | {"id": 263, "content": "\u2581hi", "special": False}
    serialized["added_tokens"].append(token)
    assert HfTokenizer(json.dumps(serialized)).decode([260, 263]) == "h hi"


def test_a_frame_is_put_around_texts_for_encoders_only() -> None:
    frame = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|turn|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<|stop|>", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {
            token: {"id": token, "ids": [token_id], "tokens": [token]}
            for token, token_id in (("<|turn|>", 1), ("<|stop|>", 2))
        },
    }
    tokenizer = HfTokenizer(changed(post_processor=frame), bos="<|turn|>")
    assert tokenizer.encode_framed("a<|stop|>") == [1, *BYTE_LEVEL.encode("a<|stop|>"), 2]
    assert tokenizer.encode_framed("") == [1, 2]
    assert tokenizer.encode("a") == [1, *BYTE_LEVEL.encode("a")]
    assert BYTE_LEVEL.encode_framed("a") == BYTE_LEVEL.encode("a")


def test_ordinary_tokens_are_counted_without_added_ones() -> None:
    assert BYTE_LEVEL.ordinary_size == BYTE_LEVEL.vocab_size
    added = json.loads(tokenizer_json())["added_tokens"]
    late = added[0] | {"id": BYTE_LEVEL.vocab_size, "content": "<late>"}
    tokenizer = HfTokenizer(changed(added_tokens=[*added, late]))
    assert tokenizer.vocab_size == BYTE_LEVEL.vocab_size + 1
    assert tokenizer.ordinary_size == BYTE_LEVEL.ordinary_size


def test_a_vocabulary_that_makes_the_library_panic_is_a_checkpoint_error() -> None:
    added = json.loads(tokenizer_json())["added_tokens"]
    added[3]["normalized"] = True
    nothing = {"type": "Replace", "pattern": {"String": added[3]["content"]}, "content": ""}
    with pytest.raises(CheckpointError, match="fails on a text"):
        HfTokenizer(changed(added_tokens=added, normalizer=nothing))


def test_a_lone_surrogate_is_refused() -> None:
    for tokenizer in (BYTE_LEVEL, ByteTokenizer(256)):
        with pytest.raises(InvalidRequest, match="not valid Unicode"):
            tokenizer.encode("a\ud800")


@each_case("text", ["", "{}", "[]", '{"model": {"type": "BPE"}}', "not json"])
def test_a_damaged_tokenizer_is_a_checkpoint_error(text: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        HfTokenizer(text)


def test_an_unknown_kind_of_decoder_is_named() -> None:
    changed = json.loads(tokenizer_json())
    changed["decoder"] = {"type": "CTC", "pad_token": "-", "word_delimiter_token": "|"}
    changed["decoder"]["cleanup"] = True
    with pytest.raises(CheckpointError, match="decodes with CTC"):
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


@given(st.lists(st.sampled_from(["the ", "x", "\u4f60", "  ", "1"]), min_size=1))
@settings(max_examples=20, deadline=None)
def test_a_long_text_is_encoded_like_a_short_one(parts: list[str]) -> None:
    """Long texts take another call of the library."""
    piece = "".join(parts)
    text = piece * (1 + 3000 // len(piece))
    whole = tokenizers.Tokenizer.from_str(BYTE_LEVEL.serialized)
    assert len(text) > 2000
    assert BYTE_LEVEL.encode(text) == whole.encode(text, add_special_tokens=False).ids


@each_case("tokenizer", [BYTE_LEVEL, SENTENCE_PIECE, ByteTokenizer(1000)])
def test_no_token_is_longer_than_the_longest(tokenizer: HfTokenizer | ByteTokenizer) -> None:
    lengths = [len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)]
    assert max(lengths) <= tokenizer.longest_token <= 8 + 2 * max(lengths)


PARTS = ["a", "the", " ", "  ", " park", "park", ".", "\n", "é", "🙂", "12", " serves", "'s", "<"]
CONTINUATION_TEXTS = st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map("".join)
CONTINUATION_IDS = st.lists(st.integers(0, 255), max_size=8)
FEW = settings(max_examples=40, deadline=None)  # of all kinds


@FEW
@given(prompt=CONTINUATION_TEXTS, answer=CONTINUATION_IDS)
@each_case("kind", KINDS)
def test_a_continuation_says_what_the_whole_says_after_the_prompt(
    kind: str, prompt: str, answer: list[int]
) -> None:
    tokenizer = tokenizer_of(kind)
    before = tokenizer.encode(prompt)
    said = whole_text(tokenizer.decoder(after=before), answer)
    assert tokenizer.decode(before) + said == tokenizer.decode([*before, *answer])


@FEW
@given(prompt=CONTINUATION_TEXTS, continuation=CONTINUATION_TEXTS)
@each_case("kind", KINDS)
def test_the_prompt_keeps_its_ids_and_the_suffix_has_the_rest_of_the_whole(
    kind: str, prompt: str, continuation: str
) -> None:
    tokenizer = tokenizer_of(kind)
    before, after = split_ids(tokenizer, prompt, continuation)
    together = tokenizer.encode(prompt + continuation)
    assert before == tokenizer.encode(prompt)
    assert [*before, *after] == together or together[: len(before)] != before


@FEW
@given(prompt=CONTINUATION_TEXTS, continuation=CONTINUATION_TEXTS)
@each_case("kind", FAITHFUL)
def test_a_suffix_says_its_text_and_prompt_and_text_encode_to_the_same_ids(
    kind: str, prompt: str, continuation: str
) -> None:
    tokenizer = tokenizer_of(kind)
    before, after = split_ids(tokenizer, prompt, continuation)
    said = whole_text(tokenizer.decoder(after=before), after)
    assert said == continuation
    together = tokenizer.encode(prompt + said)
    assert [*before, *after] == together or together[: len(before)] != before


@each_case("kind", KINDS)
def test_a_word_that_goes_on_has_no_space_and_a_new_word_has_its_own(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    for prompt, continuation in [("the", " park"), ("the pa", "rk"), ("the ", "park")]:
        before, after = split_ids(tokenizer, prompt, continuation)
        said = whole_text(tokenizer.decoder(after=before), after)
        assert tokenizer.decode(before) + said in ("the park", "thepark")
        if prompt != "the " or kind in FAITHFUL:
            assert said == continuation
            assert tokenizer.decode([*before, *after]) == "the park"


@FEW
@given(answer=CONTINUATION_TEXTS.filter(lambda text: not text.startswith(" ")))
@each_case("kind", FAITHFUL)
def test_an_answer_of_its_own_loses_the_first_space_that_encoding_adds(
    kind: str, answer: str
) -> None:
    tokenizer = tokenizer_of(kind)
    assert whole_text(tokenizer.decoder(), tokenizer.encode(answer, add_bos=False)) == answer


@each_case("kind", KINDS)
def test_after_a_start_token_alone_the_text_still_begins(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    start = [tokenizer.bos_id] if tokenizer.bos_id is not None else []
    ids = tokenizer.encode("the park", add_bos=False)
    assert whole_text(tokenizer.decoder(after=start), ids) == "the park"


def test_a_character_that_the_prompt_began_is_completed() -> None:
    tokenizer = tokenizer_of("bytes")
    smile = list("🙂".encode())
    for end in range(1, 4):
        decoder = tokenizer.decoder(after=[*b"ab", *smile[:end]])
        assert whole_text(decoder, [*smile[end:], *b"!"]) == "🙂!"
    assert whole_text(tokenizer.decoder(after=[*b"ab", *smile]), b"!") == "!"


@pytest.mark.parametrize("kind", ["bpe", "byte level"])
def test_few_of_a_long_prompts_tokens_are_read(kind: str) -> None:
    """The context is set once per request, on the event loop."""

    class Counting(list[int]):
        read = 0

        def __iter__(self):
            for token_id in super().__iter__():
                self.read += 1
                yield token_id

        def __reversed__(self):
            for token_id in super().__reversed__():
                self.read += 1
                yield token_id

    tokenizer = tokenizer_of(kind)
    prompt = Counting(tokenizer.encode("the park serves " * 1000))
    tokenizer.decoder(after=prompt)
    assert 0 < prompt.read < 10


@each_case("kind", [kind for kind in KINDS if kind != "bytes"])
def test_tokens_are_placed_in_the_text(kind: str) -> None:
    """Also where the library would take a part of the text for a control, and it is cut in two."""
    tokenizer = tokenizer_of(kind)
    assert isinstance(tokenizer, HfTokenizer)
    control = max(map(tokenizer.token_text, tokenizer.control_ids), key=len, default="")
    for text in ("the  caf\u00e9, \u4f60", f"a{control}b", ""):
        placed = tokenizer.encode_placed(text)
        assert [token.id for token in placed] == tokenizer.encode_framed(text)
        own = [token for token in placed if not token.special]
        assert all(0 <= token.start <= token.end <= len(text) for token in own)
        assert [token.start for token in own] == sorted(token.start for token in own)
        covered = {at for token in own for at in range(token.start, token.end)}
        assert {at for at, letter in enumerate(text) if not letter.isspace()} <= covered
