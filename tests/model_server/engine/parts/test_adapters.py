"""Which adapter a sequence has: its request's, or the checkpoint's own for its media."""

from __future__ import annotations

from msgspec.structs import replace

from model_server.engine.media import MediaLimits
from model_server.engine.parts.adapters import AdapterColumns
from model_server.engine.request import EngineRequest
from model_server.engine.sequence import Sequence
from tests.model_server.engine.media.fake_images import ENCODER, MEDIA, image, limits, request

# Images and sounds, with an adapter each, behind one place for those that are published.
BOTH = replace(MEDIA, encoders=(replace(ENCODER, adapter=2), replace(ENCODER, adapter=3)))
ONE = replace(MEDIA, encoders=(ENCODER, replace(ENCODER, adapter=3)))


def begun(asked: EngineRequest, media: MediaLimits = BOTH) -> tuple[int, str]:
    """The place of a sequence's adapter, and its salt."""
    part = AdapterColumns()
    part.limits = limits(media, adapters=3)
    sequence = Sequence(1, asked, 64)
    state = part.begin(sequence)
    if state is not None:
        part.of[sequence.id] = state
    return sequence.columns.adapter, "" if state is None else part.salt(sequence)


def of(*encoders: int) -> EngineRequest:
    """Three tokens, then media of these encoders."""
    spans = [image([7], (3 + at, 4 + at), encoder=each) for at, each in enumerate(encoders)]
    text = request((1, 2, 3, *(9 for _ in spans)))
    return replace(text, media=tuple(spans))


def test_texts_have_none_and_media_that_of_the_first_encoder() -> None:
    assert begun(of()) == (0, "")
    assert begun(of(0))[0] == 2
    assert begun(of(1))[0] == 3
    assert begun(of(1, 0))[0] == begun(of(0, 1))[0] == 2
    assert begun(of(0), ONE) == (0, ""), "this kind has none"


def test_keys_and_values_are_shared_with_nobody_who_has_another() -> None:
    salts = {begun(of(*each))[1] for each in ((), (0,), (1,))}
    assert len(salts) == 3


def test_an_adapter_that_a_request_names_is_its_only_one() -> None:
    assert begun(replace(of(0), adapter=1)) == (1, "")
