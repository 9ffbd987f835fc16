"""Whatever way text is cut, stop strings end it at the same place and never show."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from model_server.text.reply_text import ANY, StopSequence, StopText

letters = st.text("ab", max_size=30)
stops = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)


def run(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    """What leaves, piece by piece, with the flush at the end."""
    stop_text = StopText(stops)
    out = [stop_text.push(piece) for piece in pieces]
    if not stop_text.matched:
        out.append(stop_text.flush())
    return out, stop_text.matched


def naive(text: str, stops: list[str]) -> tuple[str, bool]:
    """The definition: grow the text; at the first stop it ends with, cut the longest such stop."""
    for end in range(1, len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, found))], True
    return text, False


@given(st.lists(letters, max_size=6), stops)
def test_the_text_is_what_the_definition_says_however_it_is_cut(
    pieces: list[str], stops: list[str]
) -> None:
    out, matched = run(pieces, stops)
    assert ("".join(out), matched) == naive("".join(pieces), stops)


@given(st.lists(letters, max_size=6), stops)
def test_no_part_of_a_later_stop_ever_leaves(pieces: list[str], stops: list[str]) -> None:
    final, _ = naive("".join(pieces), stops)
    stop_text = StopText(stops)
    sent = ""
    for piece in pieces:
        sent += stop_text.push(piece)
        assert final.startswith(sent)


@given(letters, stops)
def test_only_a_beginning_of_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    stop_text = StopText(stops)
    sent = stop_text.push(text)
    held = stop_text.flush()
    if not stop_text.matched:
        assert sent + held == text
        assert not held or any(stop.startswith(held) for stop in stops)


class CountedReads(str):
    """A text that counts how often one of its characters is looked at."""

    reads = 0

    def __getitem__(self, place: object) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        type(self).reads += 1
        return str.__getitem__(self, place)  # pyright: ignore


@given(st.integers(0, 200), st.sampled_from(["a", "ab", "aab"]))
def test_a_stop_is_read_only_as_far_as_the_text_has_met_it(count: int, unit: str) -> None:
    CountedReads.reads = 0
    stop_text = StopText([CountedReads(unit * 1000 + "z")])
    assert CountedReads.reads <= 1
    stop_text.push((unit * count)[:count])
    assert CountedReads.reads <= 1 + 8 * count


def test_a_stop_that_spans_pieces_is_found() -> None:
    assert run(["one\n", "\nHum", "an: two"], ["\n\nHuman:"]) == (["one", "", ""], True)


def test_text_that_only_looked_like_a_stop_leaves_at_once() -> None:
    stop_text = StopText(["STOP"])
    assert stop_text.push("go ST") == "go "
    assert stop_text.push("AY") == "STAY"


def test_without_stops_text_passes_through() -> None:
    assert StopText([]).push("anything") == "anything"


def test_nothing_leaves_after_a_match() -> None:
    stop_text = StopText(["x"])
    assert stop_text.push("axb") == "a"
    assert stop_text.push("c") == ""
    assert stop_text.flush() == ""


TOKENS = st.lists(st.integers(1, 3), max_size=12)
SEQUENCES = st.lists(st.integers(0, 3), min_size=1, max_size=5)


def ends_with(tokens: Sequence[int], sequence: Sequence[int]) -> bool:
    end = tokens[-len(sequence) :]
    return len(end) == len(sequence) and all(
        wanted in (ANY, found) for wanted, found in zip(sequence, end, strict=True)
    )


@given(SEQUENCES, TOKENS, TOKENS)
def test_it_is_found_wherever_the_tokens_end_with_it(
    sequence: list[int], prompt: list[int], answer: list[int]
) -> None:
    matcher = StopSequence(sequence)
    matcher.follow(prompt)
    found = [matcher.push(token) for token in answer]
    tokens = [*prompt, *answer]
    ends = range(len(prompt) + 1, len(tokens) + 1)
    assert found == [ends_with(tokens[:end], sequence) for end in ends]


def test_a_sequence_may_begin_again_inside_itself() -> None:
    matcher = StopSequence([1, 2, 1, 2, 3])
    assert [matcher.push(token) for token in [1, 2, 1, 2, 1, 2, 3]] == [False] * 6 + [True]
