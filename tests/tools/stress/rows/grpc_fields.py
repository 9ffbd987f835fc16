"""Every field of the model server's own gRPC calls at a hundred times its bound.

The messages are written by hand: building them would hold this process, which the neighbour shares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc.aio

from sax.fields.field import Kind, RequestField, RequestRoute
from sax.fields.sampling import SAMPLING
from sax.fields.table import fields_of
from sax.proto import (
    audio_pb2,
    custom_pb2,
    lm_pb2,
    speech_pb2,
    tokens_pb2,
    transcripts_pb2,
    vision_pb2,
)
from tests.end_to_end.cell import SMOLLM2, Cell
from tests.tools.stress.row import row
from tests.tools.stress.rows.fields import BODY, TIMES

Descriptor = Any  # of two libraries in protobuf's stubs

_METHODS: dict[RequestRoute, tuple[str, Descriptor]] = {
    RequestRoute.STREAM: ("/sax.tokens.TokenService/Stream", tokens_pb2.Generate.DESCRIPTOR),
    RequestRoute.TOKENIZE: (
        "/sax.tokens.TokenService/Tokenize",
        tokens_pb2.TokenizeRequest.DESCRIPTOR,
    ),
    RequestRoute.DETOKENIZE: (
        "/sax.tokens.TokenService/Detokenize",
        tokens_pb2.DetokenizeRequest.DESCRIPTOR,
    ),
    RequestRoute.EMBED: ("/sax.tokens.TokenService/Embed", tokens_pb2.EmbedRequest.DESCRIPTOR),
    RequestRoute.LM_GENERATE: (
        "/sax.server.lm.LMService/Generate",
        lm_pb2.GenerateRequest.DESCRIPTOR,
    ),
    RequestRoute.LM_SCORE: ("/sax.server.lm.LMService/Score", lm_pb2.ScoreRequest.DESCRIPTOR),
    RequestRoute.LM_EMBED: ("/sax.server.lm.LMService/Embed", lm_pb2.EmbedRequest.DESCRIPTOR),
    RequestRoute.CUSTOM: (
        "/sax.server.custom.CustomService/Custom",
        custom_pb2.CustomRequest.DESCRIPTOR,
    ),
    RequestRoute.AM_RECOGNIZE: (
        "/sax.server.audio.AudioService/Recognize",
        audio_pb2.AsrRequest.DESCRIPTOR,
    ),
    RequestRoute.TRANSCRIBE: (
        "/sax.transcripts.TranscriptService/Transcribe",
        transcripts_pb2.TranscribeRequest.DESCRIPTOR,
    ),
    RequestRoute.SPEAK: (
        "/sax.speech.SpeechService/Speak",
        speech_pb2.SpeakRequest.DESCRIPTOR,
    ),
    RequestRoute.VM_CLASSIFY: (
        "/sax.server.vision.VisionService/Classify",
        vision_pb2.ClassifyRequest.DESCRIPTOR,
    ),
    RequestRoute.VM_EMBED: (
        "/sax.server.vision.VisionService/Embed",
        vision_pb2.EmbedRequest.DESCRIPTOR,
    ),
}
# Where a field of the table stands in its message, if not under its own name.
_PATHS: dict[str, tuple[str, ...]] = {
    "prompt": ("text",),
    "input": ("inputs", "text"),
    "tokens": ("ids",),
    "messages": ("chat", "messages"),
    "messages.role": ("chat", "messages", "role"),
    "messages.content": ("chat", "messages", "content"),
    "messages.images": ("chat", "messages", "parts"),
    **{
        f"messages.{name}": ("chat", "messages", name)
        for name in ("name", "tool_call_id", "reasoning", "tool_calls")
    },
    **{
        f"messages.tool_calls.{name}": ("chat", "messages", "tool_calls", name)
        for name in ("id", "name", "arguments")
    },
    **{
        name: ("chat", *name.split("."))
        for name in ("tools", "tools.name", "tools.description", "tools.parameters")
    },
    **{name: ("chat", name) for name in ("tool_choice", "tool_name", "chat_template_kwargs")},
    **{name: ("sampling", name) for name in SAMPLING},
    "extra_inputs": ("extra_inputs", "strings", "key"),
    "answer.token_ids": ("answer", "token_ids"),
    "answer.version": ("answer", "version"),
}
_NUMBERS = (Kind.FLAG, Kind.INTEGER, Kind.NUMBER)  # fixed in size


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def delimited(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def nested(descriptor: Descriptor, path: tuple[str, ...], payload: bytes, count: int = 1) -> bytes:
    """One message with the payload at a path, the last part of it repeated so often."""
    field = descriptor.fields_by_name[path[0]]
    if len(path) == 1:
        entry = delimited(field.number, payload)
        return entry * min(count, BODY // len(entry) + 1)
    inner = nested(field.message_type, path[1:], payload, count)
    return delimited(field.number, inner)


def too_large(field: RequestField, descriptor: Descriptor) -> Iterator[bytes]:
    """Messages with a field beyond each of its bounds."""
    path = _PATHS.get(field.name, (field.name,))
    if path[0] not in descriptor.fields_by_name:  # a transcript's prompt is no text to go on with
        path = (field.name,)
    if field.bytes is not None and field.bytes < BODY:
        yield nested(descriptor, path, b"x" * min(TIMES * field.bytes, BODY))
    if field.kind is Kind.IDS:
        yield nested(
            descriptor, path, b"\x01" * min(TIMES * (field.tokens or field.count or 1), BODY)
        )  # packed
    elif field.kind is Kind.PROMPTS:
        ids = ("tokens", "ids") if field.name == "prompt" else ("inputs", "tokens", "ids")
        if path[0] == "inputs":
            yield nested(descriptor, ("inputs",), b"", TIMES * (field.count or 1))
        if ids[0] in descriptor.fields_by_name:
            yield nested(descriptor, ids, b"\x01" * (BODY // 2))
    elif field.kind is Kind.BIASES:
        number = tokens_pb2.Sampling.DESCRIPTOR.fields_by_name[field.name].number
        keys = range(TIMES * (field.count or 1))
        entries = (delimited(number, b"\x08" + varint(key)) for key in keys)
        yield nested(descriptor, path[:1], b"".join(entries))
    elif field.name == "extra_inputs":
        entries = (delimited(3, delimited(1, b"k%d" % n)) for n in range(TIMES * 128))
        yield nested(descriptor, ("extra_inputs",), b"".join(entries))
        yield nested(descriptor, ("extra_inputs", "tensors", "value", "values"), b"\0" * BODY)
    elif field.count is not None and field.name != "messages.content":
        yield nested(descriptor, path, b"", TIMES * field.count)


async def refusal(channel: grpc.aio.Channel, route: RequestRoute, message: bytes) -> str:
    """The error of one call, whichever way it comes."""
    path, _ = _METHODS[route]
    try:
        if route is RequestRoute.STREAM:
            call = channel.stream_stream(path)(iter([delimited(1, message)]))
            async for reply in call:
                chunk = tokens_pb2.FromServer.FromString(reply).chunks[0]
                return chunk.failure.text
        elif route is RequestRoute.TRANSCRIBE:
            _ = [reply async for reply in channel.unary_stream(path)(message)]
        else:
            await channel.unary_unary(path)(message)
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    return ""


def _is_refusal(said: str, field: RequestField) -> bool:
    """True for the field's own error, or gRPC's for a message that it does not even read."""
    return field.name.partition(".")[0] in said or said.startswith("RESOURCE_EXHAUSTED")


async def attack(address: str) -> int:
    sent = 0
    async with grpc.aio.insecure_channel(
        address, options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        for route, (_, descriptor) in _METHODS.items():
            model = nested(descriptor, ("model_key",), SMOLLM2.encode())
            if route is RequestRoute.STREAM:  # nothing else in it is to be refused
                sampling = tokens_pb2.Sampling(top_p=1.0)
                model += tokens_pb2.Generate(sampling=sampling).SerializeToString()
            for field in fields_of(route).values():
                if field.kind in _NUMBERS:
                    continue
                for message in too_large(field, descriptor):
                    said = await refusal(channel, route, model + message)
                    assert _is_refusal(said, field), f"{route} {field.name}: {said[:200]}"
                    sent += 1
    return sent


@row(f"every field of the model server's gRPC calls at {TIMES} times its bound")
def fields_of_grpc(cell: Cell) -> str:
    sent = asyncio.run(attack(f"127.0.0.1:{cell.plan.model_port}"))
    return f"{sent} calls, each refused with the field's name"
