"""Saxml's requests, names and tuples as Saxml's users know them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import sax
from sax.client.location import admin_address
from sax.errors import ModelNotFound, UnsupportedParameter
from sax.proto import multimodal_pb2
from sax.saxml.options import client_at
from tests.sax.cli.saxutil.fake_media import FakeMedia
from tests.sax.client.test_blocking_client import Cell
from tests.sax.conftest import MODEL


def test_generate_and_score_return_saxmls_values(cell: Cell) -> None:
    lm = sax.Model(MODEL).LM()
    assert lm.Generate("abc") == [("cba", -1.5)]
    assert lm.Score("a", ["b", "cd"]) == [-1.0, -2.0]


def test_embed_and_custom_return_saxmls_values(cell: Cell) -> None:
    assert sax.Model(MODEL).LM().Embed("abc") == [3.0, 0.5]
    options = sax.ModelOptions()
    options.SetExtraInput("a", 1)
    assert sax.Model(MODEL).CM().Custom(b"ab\xff", "rev", options) == b"rev:\xffba"
    assert cell.replica.extra == options.ToProto()
    assert cell.replica.lm_calls == ["Embed", "Custom"]


def test_a_stream_calls_back_until_last(cell: Cell) -> None:
    seen: list[tuple[bool, list[tuple[str, int, list[float]]]]] = []
    sax.Model(MODEL).LM().GenerateStream("hi", lambda last, items: seen.append((last, items)))
    assert seen == [
        (False, [("h", 0, [0.0])]),
        (False, [("i", 1, [-1.0])]),
        (True, []),
    ]
    text = ""
    for _, items in seen:
        for piece, prefix_len, _ in items:
            text = text[:prefix_len] + piece
    assert text == "hi"


def test_a_callback_that_raises_ends_the_stream(cell: Cell) -> None:
    cell.do(cell.replica.hold.clear)

    def refuse(last: bool, items: object) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError):
        sax.Model(MODEL).LM().GenerateStream("hi", refuse)


def test_extra_inputs_and_timeout_travel_with_the_request(cell: Cell) -> None:
    options = sax.ModelOptions()
    assert options.GetTimeout() == -1
    options.SetExtraInput("temperature", 0.5)
    options.SetExtraInputTensor("eos_id", [1.0, 2.0])
    options.SetExtraInputString("style", "plain")
    options.SetTimeout(20)
    assert options.GetExtraInput("temperature") == 0.5
    assert options.GetTimeout() == 20
    assert "temperature" in options.ToDebugString()
    sax.Model(MODEL).LM().Generate("abc", options)
    assert cell.replica.extra == options.ToProto()
    assert list(options.ToProto().tensors["eos_id"].values) == [1.0, 2.0]
    assert dict(options.ToProto().strings) == {"style": "plain"}


def test_a_proxy_address_bypasses_the_admin(cell: Cell) -> None:
    options = sax.Options()
    options.proxy_addr = cell.replica.address
    assert sax.Model("/sax/test/unlisted", options).LM().Generate("ab") == [("ba", -1.5)]
    assert not cell.admin.calls


def test_any_number_of_connections_is_taken(cell: Cell) -> None:
    options = sax.Options()
    options.num_conn = 3
    assert sax.Model(MODEL, options).LM().Generate("ab") == [("ba", -1.5)]


def test_custom_takes_saxmls_keywords_and_can_answer_with_a_status(cell: Cell) -> None:
    custom = sax.Model(MODEL).CM()
    assert custom.Custom(request=b"ab", method_name="rev") == b"rev:ba"
    assert custom.CustomNoException(request=b"ab", method_name="rev") == b"rev:ba"
    status = sax.Model("/sax/test/nosuch").CM().CustomNoException(b"ab", "rev")
    assert isinstance(status, sax.Status)
    assert status.code() is sax.StatusCode.NOT_FOUND


def test_the_classes_of_methods_have_saxmls_names() -> None:
    model = sax.Model(MODEL)
    assert isinstance(model.LM(), sax.LanguageModel)
    assert isinstance(model.VM(), sax.VisionModel)
    assert isinstance(model.AM(), sax.AudioModel)
    assert isinstance(model.MM(), sax.MultimodalModel)
    assert isinstance(model.CM(), sax.CustomModel)


def test_a_service_that_a_server_has_not_is_its_answer(cell: Cell) -> None:
    with pytest.raises(UnsupportedParameter, match="Method not found"):
        sax.Model(MODEL).VM().Classify(b"x")
    with pytest.raises(ModelNotFound):
        sax.Model("/sax/test/nosuch").AM().Recognize(b"x")


@pytest.fixture
def model(media: FakeMedia) -> Iterator[sax.Model]:
    options = sax.Options()
    options.proxy_addr = media.address
    yield sax.Model(MODEL, options)
    client_at(admin_address()).close()
    client_at.cache_clear()


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
