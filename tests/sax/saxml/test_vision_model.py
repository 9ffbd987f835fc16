"""Saxml's vision, audio and multimodal calls, at a server that has the services."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import sax
from sax.client.location import admin_address
from sax.proto import multimodal_pb2
from sax.saxml import cell_client
from tests.sax.cli.saxutil.fake_media import FakeMedia
from tests.sax.conftest import MODEL


@pytest.fixture
def model(media: FakeMedia) -> Iterator[sax.Model]:
    options = sax.Options()
    options.proxy_addr = media.address
    yield sax.Model(MODEL, options)
    cell_client.client_at(admin_address()).close()
    cell_client.client_at.cache_clear()


@pytest.fixture
def media() -> Iterator[FakeMedia]:
    with FakeMedia() as running:
        yield running


def test_images_give_saxmls_tuples(model: sax.Model) -> None:
    vision = model.VM()
    assert vision.Classify(image_bytes=b"xyz") == [("3 bytes", -3.0)]
    assert vision.TextToImage(text="x") == [(b"x", -1.0), (b"xx", -2.0)]
    assert vision.TextAndImageToImage("x", b"y") == [(b"xy", -2.0)]
    assert vision.ImageToImage(text=b"xy") == [(b"yx", -2.0)]
    assert vision.Embed(image=b"xy") == [2.0]
    assert vision.ImageToText(b"xy", "z") == [(b"3 bytes", -3.0)]
    assert vision.VideoToText([b"x", b"yz"]) == [(b"3 bytes", -3.0)]
    assert vision.VideoToToken(image_frames=[b"x", b"yz"]) == [1.0, 2.0]
    assert vision.TokenToVideo(tokens=[1.0, 2.0]) == [b"\1", b"\2"]


def test_objects_are_boxes_with_masks(model: sax.Model) -> None:
    mask = (1, 2, b"\1\0")
    assert model.VM().Detect(b"x", ["cat"]) == [(0.5, 0.25, 1.0, 2.0, b"cat", 0.0, mask)]
    asked = model.VM().Detect(image_bytes=b"x", boxes=[(1, 2, 3, 4)])
    assert asked == [(1.0, 2.0, 3.0, 4.0, b"", 0.0, (0, 0, b""))]


def test_extra_inputs_and_the_model_travel_along(model: sax.Model, media: FakeMedia) -> None:
    options = sax.ModelOptions()
    options.SetExtraInput("top", 5)
    model.VM().Classify("a text is bytes too", options)
    assert media.vision.last.model_key == MODEL
    assert media.vision.last.extra_inputs == options.ToProto()


def test_sounds_give_guesses(model: sax.Model) -> None:
    assert model.AM().Recognize(b"xyz") == [("3 bytes", -3.0)]


def test_multimodal_calls_take_and_give_saxmls_messages(model: sax.Model) -> None:
    items = [multimodal_pb2.DataItem(text="a"), multimodal_pb2.DataItem(image_bytes=b"b")]
    mixed = model.MM()
    (result,) = mixed.Generate(multimodal_pb2.GenerateRequest(items=items)).results
    assert [item.WhichOneof("item") for item in result.items] == ["image_bytes", "text"]
    request = multimodal_pb2.ScoreRequest(prefix_items=items, suffix_items=items[:1])
    assert mixed.Score(request).results[0].score == 21
    assert list(mixed.Embed(multimodal_pb2.EmbedRequest(items=items)).embedding.values) == [2.0]
