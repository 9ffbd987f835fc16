"""Saxml's VisionService and MultimodalService over real gRPC, with an arithmetic model of images.

Its scores are the negatives of an image's mean colours, so the darkest colour comes first.
"""

from __future__ import annotations

import asyncio
from io import BytesIO
from typing import Any

import pytest
from PIL import Image

from model_server.serving.vision_servable import VisionServable
from sax.errors import InvalidRequest, NotLoaded, QueueFull, UnsupportedParameter
from sax.proto import common_pb2, lm_pb2, multimodal_pb2, multimodal_pb2_grpc, vision_pb2
from sax.proto.vision_pb2_grpc import VisionServiceStub
from tests.model_server.fake_model import FakeModels
from tests.model_server.fake_server import MODEL, Served, error_of, serving
from tests.model_server.waiting import until

EYE = "/sax/test/eye"


def image(red: int = 200, green: int = 0, blue: int = 100) -> bytes:
    file = BytesIO()
    Image.new("RGB", (9, 7), (red, green, blue)).save(file, "PNG")
    return file.getvalue()


def vision(served: Served) -> Any:
    return VisionServiceStub(served.channel)


async def classify(served: Served, data: bytes, model: str = EYE) -> list[tuple[str, float]]:
    request = vision_pb2.ClassifyRequest(model_key=model, image_bytes=data)
    return [(each.text, each.score) for each in (await vision(served).Classify(request)).texts]


async def test_an_image_is_classified_and_embedded() -> None:
    async with serving(FakeModels(), metrics_port=0) as served:
        await served.load(EYE, "fake.Vision")
        assert await classify(served, image()) == [("green", 0.0), ("blue", -100.0)]
        call = vision(served).Embed(vision_pb2.EmbedRequest(model_key=EYE, image_bytes=image()))
        assert list((await call).embedding) == [200.0, 0.0, 100.0]
        assert int(dict(await call.trailing_metadata())["query_cost_v0"]) >= 1
        assert await served.metric("sax_batches_total", EYE) == 2
        methods = {name: each.succeeded for name, each in _methods(served).items()}
        assert methods == {"vm.classify": 1, "vm.embed": 1}


def _methods(served: Served) -> Any:
    return served.server.servables.get(EYE).methods


async def test_images_that_come_together_share_a_batch_and_get_their_own_answers() -> None:
    models = FakeModels()
    async with serving(models) as served:
        await served.load(EYE, "fake.Vision")
        models.batches.clear()
        first = asyncio.create_task(classify(served, image(1, 2, 3)))
        servable = served.server.servables.get(EYE)
        assert isinstance(servable, VisionServable)
        await until(lambda: servable.running == 1)
        others = [asyncio.create_task(classify(served, image(n, 9, 9))) for n in range(4)]
        await until(lambda: servable.waiting == 4 and models.runners[-1].batches == [1])
        await until(lambda: servable.decoding == 0)
        error = await error_of(classify(served, image()))
        assert isinstance(error, QueueFull)
        models.batches.set()
        assert await first == [("red", -1.0), ("green", -2.0)]
        assert [(await each)[0] for each in others] == [("red", -n) for n in range(4)]
        assert models.runners[-1].batches == [1, 4]


async def test_a_bad_image_is_refused_and_its_neighbours_are_answered() -> None:
    async with serving(FakeModels()) as served:
        await served.load(EYE, "fake.Vision")
        good = asyncio.create_task(classify(served, image()))
        for bad, words in ((b"hello", "is not a JPEG, PNG or WebP file"), (b"", "is empty")):
            error = await error_of(classify(served, bad))
            assert isinstance(error, InvalidRequest)
            assert f"the image {words}" in str(error)
            assert error.param == "image_bytes"
        cut = await error_of(classify(served, image()[:-30]))
        assert "is damaged" in str(cut)
        assert len(await good) == 2


METHODS = {
    "vm.generate": ("TextToImage", vision_pb2.TextToImageRequest),
    "vm.text_and_image_to_image": (
        "TextAndImageToImage",
        vision_pb2.TextAndImageToImageRequest,
    ),
    "vm.detect": ("Detect", vision_pb2.DetectRequest),
    "vm.image_to_text": ("ImageToText", vision_pb2.ImageToTextRequest),
    "vm.image_to_image": ("ImageToImage", vision_pb2.ImageToImageRequest),
    "vm.video_to_text": ("VideoToText", vision_pb2.VideoToTextRequest),
    "vm.video_to_token": ("VideoToToken", vision_pb2.VideoToTokenRequest),
    "vm.token_to_video": ("TokenToVideo", vision_pb2.TokenToVideoRequest),
    "mm.generate": ("Generate", multimodal_pb2.GenerateRpcRequest),
    "mm.score": ("Score", multimodal_pb2.ScoreRpcRequest),
    "mm.embed": ("Embed", multimodal_pb2.EmbedRpcRequest),
}


async def test_what_no_model_serves_is_refused_with_what_the_model_does() -> None:
    async with serving(FakeModels()) as served:
        await served.load(EYE, "fake.Vision")
        mixed = multimodal_pb2_grpc.MultimodalServiceStub(served.channel)
        for name, (method, request) in METHODS.items():
            stub = mixed if name.startswith("mm.") else vision(served)
            error = await error_of(getattr(stub, method)(request(model_key=EYE)))
            assert isinstance(error, UnsupportedParameter)
            assert str(error).endswith(
                f"{EYE} is a model of images and does not serve {name}; it serves vm.classify, "
                "vm.embed"
            )
            error = await error_of(getattr(stub, method)(request(model_key=MODEL)))
            assert f"is a language model and does not serve {name}; it serves lm." in str(error)
            error = await error_of(getattr(stub, method)(request(model_key="/sax/test/no")))
            assert isinstance(error, NotLoaded)


async def test_models_of_other_kinds_and_extra_inputs_are_refused() -> None:
    async with serving(FakeModels()) as served:
        await served.load(EYE, "fake.Vision")
        error = await error_of(classify(served, image(), MODEL))
        assert isinstance(error, InvalidRequest)
        assert "is a language model and does not serve vm.classify" in str(error)
        request = lm_pb2.GenerateRequest(model_key=EYE, text="x")
        assert "is a model of images" in str(await error_of(served.lm.Generate(request)))
        extra = common_pb2.ExtraInputs(items={"top_k": 1})
        asked = vision_pb2.ClassifyRequest(model_key=EYE, image_bytes=image(), extra_inputs=extra)
        error = await error_of(vision(served).Classify(asked))
        assert "Classify takes no extra inputs; leave out top_k" in str(error)


async def test_an_image_beyond_the_bound_is_refused_before_it_is_decoded() -> None:
    async with serving(FakeModels()) as served:
        await served.load(EYE, "fake.Vision")
        error = await error_of(classify(served, b"x" * ((20 << 20) + 1)))
        assert isinstance(error, InvalidRequest)
        assert "image_bytes" in str(error)


@pytest.mark.parametrize("name", ["Classify", "Embed"])
async def test_the_message_numbers_are_saxmls(name: str) -> None:
    message = getattr(vision_pb2, f"{name}Request")(model_key="m", image_bytes=b"i")
    assert message.SerializeToString() == b"\x0a\x01m\x12\x01i"
    service = vision_pb2.DESCRIPTOR.services_by_name["VisionService"]
    assert service.full_name == "sax.server.vision.VisionService"
