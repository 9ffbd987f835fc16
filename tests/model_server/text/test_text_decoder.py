"""Token bytes become whole characters, at constant work per token."""

from __future__ import annotations

from model_server.text.text_decoder import Utf8Decoder, whole_text

PIECES = ("  a", " b", "", "\N{GRINNING FACE}")


def bytes_of(token_id: int) -> bytes:
    return PIECES[token_id].encode()


def test_leading_spaces_are_removed_up_to_the_limit_and_only_there() -> None:
    assert [whole_text(Utf8Decoder(bytes_of, strip_left=n), [0, 1]) for n in range(3)] == [
        "  a b",
        " a b",
        "a b",
    ]
    assert whole_text(Utf8Decoder(bytes_of, strip_left=9), [2, 0, 1]) == "a b"


def test_a_token_is_looked_up_once_however_much_is_held_back() -> None:
    """A logit bias can ask for thousands of bytes that never make up a character."""
    seen: list[int] = []

    def stray(token_id: int) -> bytes:
        seen.append(token_id)
        return b"\x80" if token_id % 2 else b"\xf0\x9f\x98"

    text = whole_text(Utf8Decoder(stray), range(2000))
    assert seen == list(range(2000))
    assert text == "\N{GRINNING FACE}" * 1000


def test_a_decoder_can_be_used_again_after_a_flush() -> None:
    decoder = Utf8Decoder(lambda token_id: bytes([token_id]))
    assert (decoder.push(0xC3), decoder.flush(), decoder.flush()) == (
        "",
        "\N{REPLACEMENT CHARACTER}",
        "",
    )
    assert decoder.push(ord("a")) == "a"
