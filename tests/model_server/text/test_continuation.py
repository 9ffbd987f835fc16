"""A continuation is encoded and decoded in its context, with a tokenizer of any kind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.text.continuation import split_ids
from model_server.text.text_decoder import whole_text
from tests.each_case import each_case
from tests.model_server.text.every_tokenizer import FAITHFUL, KINDS, tokenizer_of

PARTS = ["a", "the", " ", "  ", " park", "park", ".", "\n", "é", "🙂", "12", " serves", "'s", "<"]
TEXTS = st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map("".join)
IDS = st.lists(st.integers(0, 255), max_size=8)
FEW = settings(max_examples=40, deadline=None)  # of all kinds


@FEW
@given(prompt=TEXTS, answer=IDS)
@each_case("kind", KINDS)
def test_a_continuation_says_what_the_whole_says_after_the_prompt(
    kind: str, prompt: str, answer: list[int]
) -> None:
    tokenizer = tokenizer_of(kind)
    before = tokenizer.encode(prompt)
    said = whole_text(tokenizer.decoder(after=before), answer)
    assert tokenizer.decode(before) + said == tokenizer.decode([*before, *answer])


@FEW
@given(prompt=TEXTS, continuation=TEXTS)
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
@given(prompt=TEXTS, continuation=TEXTS)
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
@given(answer=TEXTS.filter(lambda text: not text.startswith(" ")))
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
