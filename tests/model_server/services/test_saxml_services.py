"""Saxml's AudioService and our services of sounds over real gRPC, with arithmetic models."""

from __future__ import annotations

import asyncio
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from model_server.services.saxml_services import message_of
from model_server.serving.batch_servable import BatchServable
from model_server.sharing.audio.process import SoundForm
from model_server.sharing.audio.worker import decoded
from sax.chat import Message, Sound
from sax.errors import (
    Internal,
    InvalidRequest,
    NotLoaded,
    QueueFull,
    SaxError,
    ShuttingDown,
    UnsupportedParameter,
)
from sax.proto import (
    audio_pb2,
    common_pb2,
    custom_pb2,
    lm_pb2,
    modelet_pb2,
    multimodal_pb2,
    multimodal_pb2_grpc,
    speech_pb2,
    transcripts_pb2,
    vision_pb2,
)
from sax.proto.audio_pb2_grpc import AudioServiceStub
from sax.proto.speech_pb2_grpc import SpeechServiceStub
from sax.proto.transcripts_pb2_grpc import TranscriptServiceStub
from sax.proto.vision_pb2_grpc import VisionServiceStub
from tests.model_server.fake_batched import MEMORY
from tests.model_server.fake_model import FakeModels
from tests.model_server.fake_server import MODEL, Served, error_of, serving
from tests.model_server.waiting import until

EAR = "/sax/test/ear"


def wav(seconds: float = 2.5) -> bytes:
    into = BytesIO()
    soundfile.write(into, np.zeros(int(16_000 * seconds)), 16_000, format="WAV")
    return into.getvalue()


async def recognize(served: Served, sound: bytes, model: str = EAR, **fields: Any) -> Any:
    request = audio_pb2.AsrRequest(model_key=model, audio_bytes=sound, **fields)
    return await AudioServiceStub(served.channel).Recognize(request)


async def transcribe(served: Served, **fields: Any) -> list[Any]:
    request = transcripts_pb2.TranscribeRequest(**{"model_key": EAR, "sound": wav()} | fields)
    call = TranscriptServiceStub(served.channel).Transcribe(request)
    return [each async for each in call]


async def test_a_sound_is_recognized() -> None:
    async with serving(FakeModels(), metrics_port=0) as served:
        await served.load(EAR, "fake.Audio")
        (guess,) = (await recognize(served, wav())).hyps
        assert (guess.text, guess.score) == ("a b c", 0.0)
        formats = audio_pb2.AsrRequest
        again = await recognize(served, wav(0.5), audio_format=formats.WAVEFORM_FILE)
        assert again.hyps[0].text == "d"
        assert await served.metric("sax_batches_total", EAR) == 4
        methods = served.server.servables.get(EAR).methods
        assert methods["am.recognize"].succeeded == 2


async def test_a_transcript_comes_window_by_window() -> None:
    async with serving(FakeModels()) as served:
        await served.load(EAR, "fake.Audio")
        first, *parts = await transcribe(served, language="fr", prompt="b", temperature=0.5)
        assert (first.duration, [*first.segments]) == (2.5, [])
        segments = [each for part in parts for each in part.segments]
        assert [each.text for each in segments] == [" a", " b", " c"]
        assert [each.start for each in segments] == [0.0, 1.0, 2.0]
        assert {part.language for part in parts} == {"fr"}
        assert {each.temperature for each in segments} == {0.5}
        call = TranscriptServiceStub(served.channel).Transcribe(
            transcripts_pb2.TranscribeRequest(model_key=EAR, sound=wav())
        )
        assert len([each async for each in call]) == 4
        assert int(dict(await call.trailing_metadata())["query_cost_v0"]) >= 1


async def test_a_text_is_spoken_piece_by_piece_by_a_model_that_speaks() -> None:
    async with serving(FakeModels(), metrics_port=0) as served:
        await served.load(EAR, "fake.Synthesizer")
        await served.load(MODEL)

        def speak(model: str = EAR, **fields: Any) -> Any:
            given = {"model_key": model, "text": f"{'a' * 60}. bc", "format": "pcm", "speed": 1.0}
            return SpeechServiceStub(served.channel).Speak(
                speech_pb2.SpeakRequest(**given | fields)
            )

        call = speak()
        parts = [each async for each in call]
        assert [(each.tokens, each.frames) for each in parts] == [(60, 60), (2, 5)]
        assert sum(len(each.data) for each in parts) == 65 * 100 * 2 * 24 // 16
        assert int(dict(await call.trailing_metadata())["query_cost_v0"]) >= 1
        assert await served.metric("sax_batches_total", EAR) == 2
        assert served.server.servables.get(EAR).methods["am.speak"].succeeded == 1
        wrong = await error_of(speak(voice="alloy").read())
        assert isinstance(wrong, InvalidRequest)
        assert wrong.param == "voice"
        other = await error_of(speak(MODEL).read())
        assert "does not serve am.speak" in str(other)


async def test_what_is_wrong_is_refused_by_name() -> None:
    async with serving(FakeModels()) as served:
        await served.load(EAR, "fake.Audio")
        await served.load(MODEL)
        bad = await error_of(recognize(served, b"hello"))
        assert isinstance(bad, InvalidRequest)
        assert "is not a WAV, FLAC, MP3 or Ogg" in str(bad)
        utterance = audio_pb2.AsrRequest.DATA_UTTERANCE
        error = await error_of(recognize(served, wav(), audio_format=utterance))
        assert isinstance(error, UnsupportedParameter)
        assert error.param == "audio_format"
        extra = common_pb2.ExtraInputs(items={"temperature": 1.0})
        assert await error_of(recognize(served, wav(), extra_inputs=extra))
        other = await error_of(recognize(served, wav(), MODEL))
        assert "does not serve am.recognize" in str(other)
        for fields, param in (
            ({"temperature": 3.0}, "temperature"),
            ({"language": "xx"}, "language"),
            ({"prompt": "x" * 10_000}, "prompt"),
        ):
            wrong = await error_of(transcribe(served, **fields))
            assert isinstance(wrong, InvalidRequest)
            assert wrong.param == param


async def test_a_model_of_sounds_answers_nothing_else() -> None:
    async with serving(FakeModels()) as served:
        await served.load(EAR, "fake.Audio")
        request = lm_pb2.GenerateRequest(model_key=EAR, text="hi")
        error = await error_of(served.lm.Generate(request))
        assert "is a model of sounds and does not serve lm.generate" in str(error)


CUSTOM = "/sax/test/custom"


async def ask(served: Served, request: bytes, method: str = "upper", model: str = CUSTOM) -> bytes:
    message = custom_pb2.CustomRequest(model_key=model, request=request, method_name=method)
    return (await served.custom.Custom(message)).response


def asked(served: Served, request: bytes) -> asyncio.Task[bytes]:
    return asyncio.create_task(ask(served, request))


def servable(served: Served) -> Any:
    return served.server.servables.get(CUSTOM)


async def test_bytes_go_to_the_method_that_is_named() -> None:
    async with serving(FakeModels()) as served:
        await served.load(CUSTOM, "fake.Custom")
        assert await ask(served, b"ab\xff") == b"AB\xff"
        assert await ask(served, b"ab\xff", "reverse") == b"\xffba"
        assert await ask(served, b"") == b""


async def test_the_cost_of_a_call_comes_behind_the_answer() -> None:
    async with serving(FakeModels()) as served:
        await served.load(CUSTOM, "fake.Custom")
        message = custom_pb2.CustomRequest(model_key=CUSTOM, request=b"a", method_name="upper")
        call = served.custom.Custom(message)
        await call
        assert int(dict(await call.trailing_metadata())["query_cost_v0"]) >= 1


async def test_the_message_numbers_are_saxmls() -> None:
    message = custom_pb2.CustomRequest(model_key="m", request=b"r", method_name="n")
    assert message.SerializeToString() == b"\x0a\x01m\x12\x01r\x22\x01n"
    assert custom_pb2.CustomResponse(response=b"r").SerializeToString() == b"\x0a\x01r"
    (service,) = custom_pb2.DESCRIPTOR.services_by_name.values()
    assert service.full_name == "sax.server.custom.CustomService"


async def test_a_method_that_is_not_there_is_refused_with_those_that_are() -> None:
    async with serving(FakeModels()) as served:
        await served.load(CUSTOM, "fake.Custom")
        for method in ("lower", ""):  # two methods, none of them `custom`
            error = await error_of(ask(served, b"x", method))
            assert isinstance(error, InvalidRequest)
            assert "is a custom model and does not serve" in str(error)
            assert "it serves upper, reverse" in str(error)
        error = await error_of(ask(served, b"x", model=MODEL))
        assert "is a language model and does not serve upper" in str(error)
        request = lm_pb2.GenerateRequest(model_key=CUSTOM, text="x")
        assert "is a custom model" in str(await error_of(served.lm.Generate(request)))
        assert isinstance(await error_of(ask(served, b"x", model="/sax/test/x")), NotLoaded)


async def test_extra_inputs_are_refused_by_name() -> None:
    async with serving(FakeModels()) as served:
        await served.load(CUSTOM, "fake.Custom")
        extra = common_pb2.ExtraInputs(strings={"mode": "fast"})
        message = custom_pb2.CustomRequest(
            model_key=CUSTOM, method_name="upper", extra_inputs=extra
        )
        error = await error_of(served.custom.Custom(message))
        assert "Custom takes no extra inputs; leave out mode" in str(error)


async def test_a_request_fails_alone_and_by_its_own_class() -> None:
    models = FakeModels()
    async with serving(models) as served:
        await served.load(CUSTOM, "fake.Custom")
        models.batches.clear()
        first = asked(served, b"first")
        await until(lambda: servable(served).running == 1)
        good, bad = asked(served, b"good"), asked(served, b"bad")
        await until(lambda: servable(served).waiting == 2)
        models.batches.set()
        error = await error_of(bad)
        assert (type(error), str(error)) == (InvalidRequest, "bad is not a request")
        assert [await first, await good] == [b"FIRST", b"GOOD"]
        assert list(servable(served).recent_batch_sizes) == [1, 2]
        assert isinstance(await error_of(ask(served, b"bug")), Internal)


async def test_a_full_queue_refuses_and_methods_have_queues_of_their_own() -> None:
    models = FakeModels()
    async with serving(models) as served:
        await served.load(CUSTOM, "fake.Custom")
        models.batches.clear()
        tasks = [asked(served, b"x")]
        await until(lambda: servable(served).running == 1)
        tasks += [asked(served, b"x") for _ in range(2)]
        await until(lambda: servable(served).waiting == 2)
        error = await error_of(ask(served, b"x"))
        assert isinstance(error, QueueFull)
        assert error.retry_after_s
        other = asyncio.create_task(ask(served, b"xy", "reverse"))
        await until(lambda: servable(served).running + servable(served).waiting == 4)
        models.batches.set()
        assert await asyncio.gather(*tasks, other) == [b"X", b"X", b"X", b"yx"]


async def test_a_caller_that_goes_away_frees_its_place() -> None:
    models = FakeModels()
    async with serving(models, metrics_port=0) as served:
        await served.load(CUSTOM, "fake.Custom")
        models.batches.clear()
        first = asked(served, b"x")
        await until(lambda: servable(served).running == 1)
        gone = served.custom.Custom(
            custom_pb2.CustomRequest(model_key=CUSTOM, request=b"y", method_name="upper")
        )
        await until(lambda: servable(served).waiting == 1)
        gone.cancel()
        await until(lambda: servable(served).waiting == 0)
        models.batches.set()
        await first
        assert await served.metric("sax_requests_cancelled_total", CUSTOM) == 1


async def test_unloading_lets_what_runs_end_and_frees_the_memory() -> None:
    models = FakeModels()
    async with serving(models, drain_seconds=30) as served:
        await served.load(CUSTOM, "fake.Custom")
        models.batches.clear()
        first = asked(served, b"x")
        await until(lambda: servable(served).running == 1)
        unload = asyncio.create_task(_unload(served))
        await until(lambda: not _is_loaded(served))
        error = await error_of(ask(served, b"y"))
        assert isinstance(error, SaxError)
        assert not unload.done()
        models.batches.set()
        assert await first == b"X"
        await unload
        assert models.runners[-1].closed
        assert all(info.model_id != CUSTOM for info in served.server.servables.infos())


async def _unload(served: Served) -> None:
    await served.modelet.Unload(modelet_pb2.UnloadRequest(model_key=CUSTOM))


def _is_loaded(served: Served) -> bool:
    try:
        servable(served)
    except NotLoaded:
        return False
    return True


async def test_a_draining_server_answers_what_it_has_and_takes_nothing_new() -> None:
    models = FakeModels()
    async with serving(models, drain_seconds=30) as served:
        await served.load(CUSTOM, "fake.Custom")
        models.batches.clear()
        first = asked(served, b"x")
        await until(lambda: servable(served).running == 1)
        stopping = asyncio.create_task(served.server.stop())
        await asyncio.sleep(0)
        assert isinstance(await error_of(ask(served, b"y")), ShuttingDown)
        models.batches.set()
        assert await first == b"X"
        await stopping


async def test_status_and_metrics_count_each_method() -> None:
    async with serving(FakeModels(), metrics_port=0) as served:
        await served.load(CUSTOM, "fake.Custom")
        await ask(served, b"x")
        await error_of(ask(served, b"bad"))
        await ask(served, b"x", "reverse")
        request = modelet_pb2.GetStatusRequest(include_method_stats=True)
        status = await served.modelet.GetStatus(request)
        model = next(m for m in status.models if m.model_key == CUSTOM)
        rates = {
            m.method: (m.successes_per_second, m.errors_per_second) for m in model.method_stats
        }
        assert rates == {
            "upper": (pytest.approx(1 / 60), pytest.approx(1 / 60)),
            "reverse": (pytest.approx(1 / 60), 0),
        }
        assert await served.metric("sax_batches_total", CUSTOM) == 3
        assert await served.metric("sax_memory_bytes", CUSTOM) == MEMORY


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
        assert isinstance(servable, BatchServable)
        await until(lambda: servable.running == 1)
        others = [asyncio.create_task(classify(served, image(n, 9, 9))) for n in range(4)]
        await until(lambda: servable.waiting == 4 and models.runners[-1].batches == [1])
        await until(lambda: servable.queued == 4)
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
async def test_the_message_numbers_are_saxmls_of_vision_service(name: str) -> None:
    message = getattr(vision_pb2, f"{name}Request")(model_key="m", image_bytes=b"i")
    assert message.SerializeToString() == b"\x0a\x01m\x12\x01i"
    service = vision_pb2.DESCRIPTOR.services_by_name["VisionService"]
    assert service.full_name == "sax.server.vision.VisionService"


def test_samples_become_a_sound_of_the_same_samples() -> None:
    samples = np.linspace(-1, 1, 777, dtype=np.float32)
    audio = multimodal_pb2.AudioFloatSamples(sample=samples.tolist())
    items = [multimodal_pb2.DataItem(audio_float_samples=audio), multimodal_pb2.DataItem(text="?")]
    (message,) = message_of(items, "items")
    sound, text = message.content
    assert message == Message("user", (sound, "?"))
    assert isinstance(sound, Sound)
    assert (sound.name, text) == ("items[0].audio_float_samples", "?")
    np.testing.assert_array_equal(decoded(sound.data, SoundForm(0, 0, 1)), samples)
