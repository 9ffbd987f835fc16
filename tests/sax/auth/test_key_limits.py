"""The limits of a key, as options of its line in the token file."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sax.auth.key_limits import UNLIMITED, KeyLimits, parse_options
from sax.auth.token_file import new_token, parse_tokens, token_line
from tests.each_case import each_case

NUMBERS = st.none() | st.integers(1, 10**9)
PATTERNS = st.lists(st.from_regex(r"[a-z0-9_/*?\[\]!-]{1,20}", fullmatch=True), max_size=5)
LIMITS = st.builds(
    KeyLimits, rpm=NUMBERS, tpm=NUMBERS, concurrent=NUMBERS, models=PATTERNS.map(tuple)
)


@given(LIMITS)
def test_a_line_that_was_printed_is_read_as_it_was_meant(limits: KeyLimits) -> None:
    (alice,) = parse_tokens(token_line("alice", new_token(), limits), "f").values()
    assert (alice.name, alice.limits) == ("alice", limits)


def test_a_line_without_options_has_no_limits() -> None:
    assert parse_options([]) is not None
    assert parse_options([]) == UNLIMITED
    assert str(UNLIMITED) == ""
    assert not UNLIMITED.counted
    assert UNLIMITED.allows("/sax/test/llama")


@each_case(
    "limits, counted",
    [
        (KeyLimits(rpm=1), True),
        (KeyLimits(tpm=1), True),
        (KeyLimits(concurrent=1), True),
        (KeyLimits(models=("m",)), False),
    ],
)
def test_only_numbers_are_counted(limits: KeyLimits, counted: bool) -> None:
    assert limits.counted == counted


@each_case(
    "models, allowed",
    [
        ("/sax/prod/*", {"/sax/prod/llama", "/sax/prod/smollm2"}),
        ("llama", {"/sax/prod/llama", "/sax/test/llama"}),
        ("*", {"/sax/prod/llama", "/sax/prod/smollm2", "/sax/test/llama", "/sax/test/smollm2"}),
        (
            "/sax/*/llama,/sax/test/smol*",
            {"/sax/prod/llama", "/sax/test/llama", "/sax/test/smollm2"},
        ),
        ("smol*", {"/sax/prod/smollm2", "/sax/test/smollm2"}),
        ("sax/prod/*", set[str]()),
        ("[a-m]*", {"/sax/prod/llama", "/sax/test/llama"}),
    ],
)
def test_a_glob_with_a_slash_is_of_full_names_and_one_without_of_short_ones(
    models: str, allowed: set[str]
) -> None:
    limits = parse_options([f"models={models}"])
    names = [f"/sax/{cell}/{name}" for cell in ("prod", "test") for name in ("llama", "smollm2")]
    assert {name for name in names if limits.allows(name)} == allowed
