from __future__ import annotations

from model_server.serving.passes.sounds import Piece, cut

T = 1000  # the token of 0.00 s


def test_pairs_of_timestamps_cut_and_the_next_window_begins_at_the_last() -> None:
    found = cut((T, 1, 2, T + 10, T + 10, 3, T + 20, T + 20, 4), T, 100)
    assert found.pieces == [
        Piece(0.0, 0.2, (T, 1, 2, T + 10)),
        Piece(0.2, 0.4, (T + 10, 3, T + 20)),
    ]
    assert found.frames == 40


def test_a_timestamp_alone_at_the_end_says_that_nothing_follows() -> None:
    found = cut((T, 1, T + 10, T + 12, 2, T + 30), T, 100)
    assert [each.tokens for each in found.pieces] == [(T, 1, T + 10), (T + 12, 2, T + 30)]
    assert found.frames == 100


def test_without_pairs_the_window_is_one_segment() -> None:
    for tokens, end in (((T, 1, 2), 1.0), ((T, 1, T + 20), 0.4), ((1, 2), 1.0), ((), 1.0)):
        found = cut(tokens, T, 100)
        assert found.pieces == [Piece(0.0, end, tokens)]
        assert found.frames == 100


def test_a_window_always_moves_on_and_never_past_its_end() -> None:
    assert cut((T, T, 1), T, 100).frames == 100
    assert cut((T, 1, T + 50, T + 50), T, 60).frames == 60
