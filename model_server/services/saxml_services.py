"""Saxml's services of sounds, images, messages and custom methods, and our TranscriptService and
SpeechService.

Each decodes a request, calls the handler and encodes the answer. Methods of the VisionService that
no model here serves are refused with those that the model does.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np

from model_server.services.call import account_of_call, tell_cost, time_left_s, traceparent_of_call
from model_server.services.lm_service import Samples, sampled
from model_server.serving.handler import MM_GENERATE, MM_SCORE, Handler
from model_server.serving.passes.custom import CustomCalls
from model_server.serving.passes.images import VisionCalls
from model_server.serving.passes.sounds import AudioCalls
from model_server.serving.passes.speech import SpeechCalls
from model_server.serving.query_cost import BatchCost
from model_server.sharing.audio.process import RATE
from sax.chat import Image, Message, Sound
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.proto import (
    audio_pb2,
    audio_pb2_grpc,
    custom_pb2,
    custom_pb2_grpc,
    multimodal_pb2,
    multimodal_pb2_grpc,
    speech_pb2,
    speech_pb2_grpc,
    transcripts_pb2,
    transcripts_pb2_grpc,
    vision_pb2,
    vision_pb2_grpc,
)
from sax.speech import TranscriptRequest
from sax.types import GenerateRequest
from sax.wire.extra_inputs import (
    refuse_extra_inputs,
    sample_temperatures,
    sampling_from_extra_inputs,
)
from sax.wire.request_bounds import (
    check_custom,
    check_image,
    check_items,
    check_model_key,
    check_recognize,
    check_speak,
    check_transcribe,
)
from sax.wire.speech import decode_speak, decode_transcribe, encode_part, encode_spoken

_FLOATS = 3  # WAV's number of the format


class MultimodalService(multimodal_pb2_grpc.MultimodalServiceServicer):
    def __init__(self, handler: Handler, calls: VisionCalls) -> None:
        self._handler = handler
        self._calls = calls

    async def Generate(self, request: Any, context: Any) -> multimodal_pb2.GenerateRpcResponse:
        """Return all samples whole, best first."""
        self._check(request, MM_GENERATE)
        meter = self._handler.cost_meter(request.model_key, MM_GENERATE)
        defaults, count = self._handler.defaults(request.model_key)
        sampling = sampling_from_extra_inputs(request.extra_inputs, defaults)
        beams = sampling.beam_size
        starts = 1 if beams else count
        temperatures = sample_temperatures(request.extra_inputs, starts)
        question = GenerateRequest(
            model_id=request.model_key,
            prompt=message_of(request.request.items, "items"),
            sampling=sampling,
            account=account_of_call(context),
            timeout_s=time_left_s(context),
            traceparent=traceparent_of_call(context),
        )
        samples = Samples(
            beams or count,
            as_ids=self._handler.answers_ids(request.model_key),
            replies=self._handler.replies(request.model_key),
        )
        work = sampled(self._handler, question, samples, MM_GENERATE, starts, temperatures)
        async with contextlib.aclosing(work) as stream:
            async for _ in stream:
                pass
        tell_cost(context, meter.milliseconds(samples.computed))
        results = [
            multimodal_pb2.GenerateResult(
                items=[multimodal_pb2.DataItem(text=sample.text + sample.piece)],
                score=sample.score,
            )
            for sample in samples.ordered()
        ]
        made = multimodal_pb2.GenerateResponse(results=results)
        return multimodal_pb2.GenerateRpcResponse(response=made)

    async def Score(self, request: Any, context: Any) -> multimodal_pb2.ScoreRpcResponse:
        """Return the log-probability of the suffix's text as the answer to the prefix."""
        self._check(request, MM_SCORE)
        refuse_extra_inputs(request.extra_inputs, "Score")
        meter = self._handler.cost_meter(request.model_key, MM_SCORE)
        scores = await self._handler.score(
            request.model_key,
            message_of(request.request.prefix_items, "prefix_items"),
            [_text_of(request.request.suffix_items, "suffix_items")],
            account_of_call(context),
            time_left_s(context),
            method=MM_SCORE,
        )
        tell_cost(context, meter.milliseconds(scores.tokens))
        results = [multimodal_pb2.ScoreResult(score=score) for score in scores.logprobs]
        made = multimodal_pb2.ScoreResponse(results=results)
        return multimodal_pb2.ScoreRpcResponse(response=made)

    async def Embed(self, request: Any, context: Any) -> Any:
        """Refuse: no model here makes one vector of texts and images."""
        check_model_key(request)
        raise self._calls.refuse(request.model_key, "mm.embed")

    def _check(self, request: Any, method: str) -> None:
        """Raise InvalidRequest for what is too large, or a model that does not serve the method."""
        check_items(request)
        if not self._handler.serves(request.model_key, method):
            raise self._calls.refuse(request.model_key, method)


class VisionService(vision_pb2_grpc.VisionServiceServicer):
    def __init__(self, calls: VisionCalls) -> None:
        self._calls = calls

    async def Classify(self, request: Any, context: Any) -> vision_pb2.ClassifyResponse:
        check_image(request)
        refuse_extra_inputs(request.extra_inputs, "Classify")
        cost = BatchCost()
        found = await self._calls.classify(request.model_key, request.image_bytes, cost)
        tell_cost(context, cost.milliseconds)
        texts = [vision_pb2.DecodedText(text=label, score=score) for label, score in found]
        return vision_pb2.ClassifyResponse(texts=texts)

    async def Embed(self, request: Any, context: Any) -> vision_pb2.EmbedResponse:
        check_image(request)
        refuse_extra_inputs(request.extra_inputs, "Embed")
        cost = BatchCost()
        vector = await self._calls.embed(request.model_key, request.image_bytes, cost)
        tell_cost(context, cost.milliseconds)
        return vision_pb2.EmbedResponse(embedding=vector)

    async def TextToImage(self, request: Any, context: Any) -> Any:
        raise self._refused(request, "vm.generate")

    async def TextAndImageToImage(self, request: Any, context: Any) -> Any:
        raise self._refused(request, "vm.text_and_image_to_image")

    async def Detect(self, request: Any, context: Any) -> Any:
        raise self._refused(request, "vm.detect")

    async def ImageToText(self, request: Any, context: Any) -> Any:
        raise self._refused(request, "vm.image_to_text")

    async def ImageToImage(self, request: Any, context: Any) -> Any:
        raise self._refused(request, "vm.image_to_image")

    async def VideoToText(self, request: Any, context: Any) -> Any:
        raise self._refused(request, "vm.video_to_text")

    async def VideoToToken(self, request: Any, context: Any) -> Any:
        raise self._refused(request, "vm.video_to_token")

    async def TokenToVideo(self, request: Any, context: Any) -> Any:
        raise self._refused(request, "vm.token_to_video")

    def _refused(self, request: Any, method: str) -> Exception:
        check_model_key(request)
        return self._calls.refuse(request.model_key, method)


class CustomService(custom_pb2_grpc.CustomServiceServicer):
    def __init__(self, calls: CustomCalls) -> None:
        self._calls = calls

    async def Custom(self, request: Any, context: Any) -> custom_pb2.CustomResponse:
        check_custom(request)
        refuse_extra_inputs(request.extra_inputs, "Custom")
        cost = BatchCost()
        answer = await self._calls.call(
            request.model_key, request.method_name, request.request, cost
        )
        tell_cost(context, cost.milliseconds)
        return custom_pb2.CustomResponse(response=answer)


class AudioService(audio_pb2_grpc.AudioServiceServicer):
    def __init__(self, calls: AudioCalls) -> None:
        self._calls = calls

    async def Recognize(self, request: Any, context: Any) -> audio_pb2.AsrResponse:
        """Answer with one hypothesis: greedy decoding makes no others."""
        check_recognize(request)
        refuse_extra_inputs(request.extra_inputs, "Recognize")
        if request.audio_format == audio_pb2.AsrRequest.DATA_UTTERANCE:
            raise UnsupportedParameter(
                "audio_format DATA_UTTERANCE is a format inside Google and is not read here: send "
                "WAVEFORM_FILE, the bytes of a WAV, FLAC, MP3 or Ogg file",
                param="audio_format",
            )
        cost = BatchCost()
        given = TranscriptRequest(model_id=request.model_key, sound=request.audio_bytes)
        found = await self._calls.recognize(given, cost)
        tell_cost(context, cost.milliseconds)
        return audio_pb2.AsrResponse(
            hyps=[audio_pb2.AsrHypothesis(text=found.text, score=found.score)]
        )


class TranscriptService(transcripts_pb2_grpc.TranscriptServiceServicer):
    def __init__(self, calls: AudioCalls) -> None:
        self._calls = calls

    async def Transcribe(
        self, request: Any, context: Any
    ) -> AsyncGenerator[transcripts_pb2.TranscribeResponse, None]:
        check_transcribe(request)
        cost = BatchCost()
        async with aclosing(self._calls.transcribe(decode_transcribe(request), cost)) as parts:
            async for part in parts:
                yield encode_part(part)
        tell_cost(context, cost.milliseconds)


class SpeechService(speech_pb2_grpc.SpeechServiceServicer):
    def __init__(self, calls: SpeechCalls) -> None:
        self._calls = calls

    async def Speak(
        self, request: Any, context: Any
    ) -> AsyncGenerator[speech_pb2.SpeakResponse, None]:
        check_speak(request)
        cost = BatchCost()
        async with aclosing(self._calls.speak(decode_speak(request), cost)) as parts:
            async for part in parts:
                yield encode_spoken(part)
        tell_cost(context, cost.milliseconds)


def message_of(items: Sequence[multimodal_pb2.DataItem], at: str) -> tuple[Message, ...]:
    """Return texts, images and sounds, in their order, as one message. Raises InvalidRequest naming
    the item, as in items[2].video."""
    if not items:
        raise InvalidRequest(f"{at} is empty: send text and image_bytes", param=at)
    parts = tuple(_part(item, f"{at}[{n}]") for n, item in enumerate(items))
    texts = [part for part in parts if isinstance(part, str)]
    return (Message("user", "\n".join(texts) if len(texts) == len(parts) else parts),)


def _text_of(items: Sequence[multimodal_pb2.DataItem], at: str) -> str:
    """Return texts as one. Raises InvalidRequest for other items."""
    parts = [_part(item, f"{at}[{n}]") for n, item in enumerate(items)]
    for n, part in enumerate(parts):
        if isinstance(part, Image):
            raise UnsupportedParameter(
                f"{at}[{n}] is no text, and only texts are scored: send it in prefix_items",
                param=f"{at}[{n}]",
            )
    return "".join(part for part in parts if isinstance(part, str))


def _part(item: multimodal_pb2.DataItem, at: str) -> str | Image:
    match item.WhichOneof("item"):
        case "text":
            return item.text
        case "image_bytes":
            return Image(item.image_bytes, f"{at}.image_bytes")
        case "audio_float_samples":
            return Sound(_wave(item.audio_float_samples.sample), f"{at}.audio_float_samples")
        case None:
            raise InvalidRequest(f"{at} is empty: send text or image_bytes", param=at)
        case kind:
            raise UnsupportedParameter(
                f"{at}.{kind} is not supported: send text, image_bytes and audio_float_samples",
                param=f"{at}.{kind}",
            )


def _wave(samples: Sequence[float]) -> bytes:
    """Return samples at 16 kHz as a WAV file of 32-bit numbers."""
    data = np.asarray(samples, "<f4").tobytes()
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, _FLOATS, 1, RATE, 4 * RATE, 4, 32)
    body = head + struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI4s", b"RIFF", 4 + len(body), b"WAVE") + body
