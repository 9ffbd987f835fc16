"""Saxml's AudioService and our TranscriptService over real gRPC, with an arithmetic model."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import soundfile

from sax.errors import InvalidRequest, UnsupportedParameter
from sax.proto import audio_pb2, common_pb2, lm_pb2, transcripts_pb2
from sax.proto.audio_pb2_grpc import AudioServiceStub
from sax.proto.transcripts_pb2_grpc import TranscriptServiceStub
from tests.model_server.fake_model import FakeModels
from tests.model_server.fake_server import MODEL, Served, error_of, serving

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
