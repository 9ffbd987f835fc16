"""Keys of prompts: equal beginnings give equal keys, and nothing else does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sax.client.routing.affinity import ANYWHERE, affinity_of, prefix_affinity
from sax.types import ChatOptions, GenerateRequest, Message, Tool

MODEL = "/sax/test/m"
TEXTS = st.text(max_size=40).map(lambda text: text * 50)


def digests(prompt: str | tuple[int, ...] | tuple[Message, ...]) -> list[bytes]:
    return [key.digest for key in prefix_affinity(MODEL, prompt).keys]


@given(TEXTS, TEXTS, TEXTS)
def test_prompts_that_begin_alike_share_the_keys_of_all_cuts_of_what_is_common(
    start: str, one: str, other: str
) -> None:
    common = digests(start)
    for prompt in (start + one, start + other):
        made = digests(prompt)
        assert made[len(made) - len(common) :] == common


@given(st.text(min_size=256, max_size=600), st.integers(0, 255))
def test_a_difference_in_the_first_bytes_leaves_no_common_key(text: str, at: int) -> None:
    changed = text[:at] + ("a" if text[at] != "a" else "b") + text[at + 1 :]
    if len(text[:at].encode(errors="surrogatepass")) < 250:
        assert not {*digests(text)} & {*digests(changed)}


@given(TEXTS)
def test_the_longest_prefix_comes_first_with_its_share_of_the_prompt(text: str) -> None:
    keys = prefix_affinity(MODEL, text).keys
    shares = [key.share for key in keys]
    assert shares == sorted(shares, reverse=True)
    assert all(0 < share <= 1 for share in shares)
    assert len({key.digest for key in keys}) == len(keys)


def test_a_short_prompt_has_no_keys() -> None:
    assert prefix_affinity(MODEL, "x" * 255) == ANYWHERE
    assert len(prefix_affinity(MODEL, "x" * 256).keys) == 1
    assert prefix_affinity(MODEL, ()) == prefix_affinity(MODEL, "") == ANYWHERE


def test_a_prompt_of_any_length_has_few_keys() -> None:
    keys = prefix_affinity(MODEL, "x" * (1 << 22)).keys
    assert len(keys) == 20
    assert keys[0].share == 1.0


def test_a_chat_goes_on_from_the_keys_of_its_earlier_turns() -> None:
    first = (Message("system", "Be brief. " * 40), Message("user", "Name a colour."))
    second = (*first, Message("assistant", "Blue."), Message("user", "Another one. " * 30))
    assert digests(second)[-len(digests(first)) :] == digests(first)
    assert digests((Message("user", first[0].content),)) != digests(first[:1])


def test_token_ids_have_keys_too_and_impossible_ones_none() -> None:
    ids = tuple(range(100))
    assert digests((*ids, 5, 6))[-3:] == digests(ids)
    assert prefix_affinity(MODEL, (*ids, 2**70)) == ANYWHERE


def test_requests_that_share_no_cache_share_no_key() -> None:
    prompt = (Message("user", "Hello there. " * 40),)
    plain = GenerateRequest(model_id=MODEL, prompt=prompt)
    others = (
        GenerateRequest(model_id="/sax/test/other", prompt=prompt),
        GenerateRequest(model_id=MODEL, prompt=prompt, cache_salt="mine"),
        GenerateRequest(model_id=MODEL, prompt=prompt, chat=ChatOptions(tools=(Tool("now"),))),
    )
    for each in others:
        assert not {*affinity_of(plain).keys} & {*affinity_of(each).keys}
