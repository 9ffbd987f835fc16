"""Placeholders become the tokens of images, and the tokens' places become runs and triples."""

from typing import NamedTuple

import numpy as np
import pytest

from model_server.serving.chats.placeholders import expanded, places_of, runs_of, triples_of
from model_server.text.control_tokens import MARK, ControlTokens
from sax.errors import InvalidRequest

IMAGE = "<image>"
GUARD = ControlTokens({IMAGE}).guard


def test_each_placeholder_becomes_the_text_of_its_image() -> None:
    assert expanded(f"a{IMAGE}b{IMAGE}", [(IMAGE, "[1]"), (IMAGE, "[2]")]) == "a[1]b[2]"


def test_images_and_videos_have_placeholders_of_their_own_in_their_order() -> None:
    texts = [("<video>", "[1]"), (IMAGE, "[2]")]
    assert expanded(f"a<video>b{IMAGE}", texts) == "a[1]b[2]"
    with pytest.raises(InvalidRequest, match="writes 2 of them, or others"):
        expanded(f"a{IMAGE}b<video>", texts)


def test_what_users_wrote_is_no_placeholder() -> None:
    for text in (IMAGE, MARK, f"{MARK}{IMAGE}", f"x{MARK}"):
        guarded = GUARD(text)
        assert expanded(f"{guarded}{IMAGE}", [(IMAGE, "[1]")]) == f"{guarded}[1]"


def test_a_template_that_writes_too_few_or_too_many_is_refused() -> None:
    for texts in (["[1]", "[2]"], ["[1]"] * 3):
        with pytest.raises(InvalidRequest, match="writes 1 of them"):
            expanded(f"a{IMAGE}", [(IMAGE, text) for text in texts])


class Part(NamedTuple):
    grid: tuple[int, int, int] | None
    frame: int | None = None
    lasts: int | None = None
    rows: int = 0
    turns: np.ndarray | None = None
    twins: bool = False


def test_tokens_belong_to_images_in_their_order() -> None:
    parts = [Part(None, rows=3), Part(None, rows=1)]
    assert places_of([5, 9, 9, 5, 8, 5, 9], {8, 9}, parts) == [(1, 2, 4), (6,)]
    with pytest.raises(InvalidRequest, match="stand for 3 tokens and the prompt has 2"):
        places_of([9, 9], {9}, parts[:1])


def test_places_form_runs() -> None:
    assert runs_of((1, 2, 4, 7, 8, 9)) == ((1, 3), (4, 5), (7, 10))


def test_triples_of_a_text_count_and_those_of_an_image_lie_in_its_grid() -> None:
    made, following = triples_of(10, [(2, 3, 4, 5, 6, 7)], [Part((1, 2, 3))])
    assert made.T.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]
    assert following == 7


def test_frames_of_a_video_share_its_grid_and_a_text_follows_its_longer_side() -> None:
    """Of two frames, 4 apart, of 1 row and 2 columns: the text goes on from 1 + 2, the answer
    behind the last frame."""
    grid = (1, 1, 2)
    made, following = triples_of(7, [(1, 2), (3, 4)], [Part(grid), Part(grid, 4)])
    assert made.T.tolist() == [
        [0, 1, 1, 5, 5, 3, 4],
        [0, 1, 1, 1, 1, 3, 4],
        [0, 1, 2, 1, 2, 3, 4],
    ]
    assert following == 6


def test_a_sound_counts_as_a_text_and_a_video_may_say_where_the_text_goes_on() -> None:
    """A sound of 2 vectors; then two frames, 4 apart, behind all of which the text goes on."""
    parts = [Part(None), Part((1, 1, 2), lasts=5), Part((1, 1, 2), 4)]
    made, following = triples_of(9, [(1, 2), (3, 4), (5, 6)], parts)
    assert made.T.tolist() == [
        [0, 1, 2, 3, 3, 7, 7, 8, 9],
        [0, 1, 2, 3, 3, 3, 3, 8, 9],
        [0, 1, 2, 3, 4, 3, 4, 8, 9],
    ]
    assert following == 10


def heard(*, twins: bool = False) -> list[Part]:
    """Two frames of 1 x 2 vectors, 2 positions apart, and a sound of 3 vectors between them; then
    an image."""
    turns = np.asarray([0, 0, 2, 2, 1, 1, 2])
    first = Part((1, 1, 2), lasts=3, rows=2, turns=turns, twins=twins)
    return [first, Part((1, 1, 2), 2, rows=2), Part(None, 0, rows=3), Part((1, 1, 1), rows=1)]


IDS = [5, 5, 9, 9, 8, 8, 9, 9, 8, 5, 5, 9, 5]


def test_parts_that_take_turns_have_the_places_between_each_other() -> None:
    places = places_of(IDS, {8, 9}, heard())
    assert places == [(2, 3), (6, 7), (4, 5, 8), (11,)]
    made, following = triples_of(len(IDS), places, heard())
    assert made.T.tolist() == [
        [0, 1, 2, 2, 2, 3, 4, 4, 4, 5, 6, 7, 8],
        [0, 1, 2, 2, 2, 3, 2, 2, 4, 5, 6, 7, 8],
        [0, 1, 2, 3, 2, 3, 2, 3, 4, 5, 6, 7, 8],
    ]
    assert following == 9


def test_the_marks_of_twins_share_the_positions_of_those_around_them() -> None:
    places = places_of(IDS, {8, 9}, heard(twins=True))
    made, following = triples_of(len(IDS), places, heard(twins=True))
    assert made[:, 0].tolist() == [0, 0, 1, 1, 1, 2, 3, 3, 3, 4, 4, 5, 6]
    assert following == 7
