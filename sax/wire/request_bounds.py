"""Checks the sizes of a message's fields before it is decoded. The bounds are `sax.fields`'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sax.errors import InvalidRequest
from sax.fields.field import RequestField, RequestRoute
from sax.fields.sampling import SAMPLING
from sax.fields.table import IMAGE_BYTES, IMAGES, field, fields_of
from sax.proto import (
    audio_pb2,
    common_pb2,
    custom_pb2,
    lm_pb2,
    multimodal_pb2,
    speech_pb2,
    tokens_pb2,
    transcripts_pb2,
    vision_pb2,
)
from sax.speech import check_speech

_STREAM = fields_of(RequestRoute.STREAM)
_MANY = [name for name, row in SAMPLING.items() if row.count]  # lists and maps
_DETOKENIZE = fields_of(RequestRoute.DETOKENIZE)
_EMBED = fields_of(RequestRoute.EMBED)
_PAIRS = fields_of(RequestRoute.SCORE_PAIRS)
_SCORE = fields_of(RequestRoute.LM_SCORE)
_GRADIENT = fields_of(RequestRoute.LM_GRADIENT)
_CUSTOM = fields_of(RequestRoute.CUSTOM)
_IMAGE = fields_of(RequestRoute.VM_CLASSIFY)
_SOUND = fields_of(RequestRoute.TRANSCRIBE)
_SPEECH = fields_of(RequestRoute.SPEAK)
_RECOGNIZED = field(RequestRoute.AM_RECOGNIZE, "audio_bytes")
_TEXT = field(RequestRoute.LM_GENERATE, "text")
_EXTRA = field(RequestRoute.LM_GENERATE, "extra_inputs")
_MM_GENERATE = fields_of(RequestRoute.MM_GENERATE)
_MM_SCORE = fields_of(RequestRoute.MM_SCORE)
_MEDIA = ("image", "sound", "video")
_TURN = ("role", "content", "name", "tool_call_id", "reasoning")
_CALL = ("id", "name", "arguments")
_TOOL = ("name", "description", "parameters")


def check_generate(msg: tokens_pb2.Generate) -> None:
    """Raise InvalidRequest naming the first field that is too large."""
    _STREAM["model_key"].check_text(msg.model_key)
    _STREAM["request_id"].check_text(msg.request_id)
    _STREAM["account"].check_text(msg.account)
    _STREAM["cache_salt"].check_text(msg.cache_salt)
    _check_prompt(msg)
    _STREAM["suffix"].check_text(msg.reply.suffix)
    _STREAM["answer.token_ids"].check_count(len(msg.answer.token_ids))
    _STREAM["answer.version"].check_text(msg.answer.version)
    for name in _MANY:
        _check_many(name, getattr(msg.sampling, name))


def _check_many(name: str, values: Any) -> None:
    row = _STREAM[name]
    if row.bytes is None:
        row.check_count(len(values))
    else:
        row.check(values)


def check_token(msg: tokens_pb2.Generate) -> None:
    """Raise InvalidRequest for a credential that is too large to be one."""
    _STREAM["token"].check_text(msg.token)


def check_tokenize(msg: tokens_pb2.TokenizeRequest) -> None:
    """Raise InvalidRequest naming the first field that is too large."""
    _STREAM["model_key"].check_text(msg.model_key)
    _check_prompt(msg)


def check_detokenize(msg: tokens_pb2.DetokenizeRequest) -> None:
    """Raise InvalidRequest naming the first field that is too large."""
    _DETOKENIZE["model_key"].check_text(msg.model_key)
    _DETOKENIZE["tokens"].check_tokens(len(msg.ids))


def check_embed(msg: tokens_pb2.EmbedRequest) -> None:
    """Raise InvalidRequest naming the first field that is out of its bounds."""
    _EMBED["prompt_name"].check_text(msg.prompt_name)
    if msg.dimensions < 0:
        raise InvalidRequest(
            f"dimensions is {msg.dimensions}: give 1 or more, or 0 for the model's own",
            param="dimensions",
        )
    check_inputs(msg)


def check_inputs(msg: tokens_pb2.EmbedRequest | tokens_pb2.ClassifyRequest) -> None:
    """Raise InvalidRequest naming the first field that is too large."""
    _EMBED["model_key"].check_text(msg.model_key)
    candidates = msg.candidates if isinstance(msg, tokens_pb2.ClassifyRequest) else ()
    _check_inputs(msg.inputs, _EMBED["input"], "input")
    _check_inputs(candidates, _EMBED["input"], "candidates")
    _check_seen([*msg.inputs, *candidates], "input")


def check_pairs(msg: tokens_pb2.ScorePairsRequest) -> None:
    """Raise InvalidRequest naming the first field that is too large."""
    _PAIRS["model_key"].check_text(msg.model_key)
    _PAIRS["first"].check(msg.first)
    _PAIRS["second"].check(msg.second)
    for name, inputs in (("first", msg.first_inputs), ("second", msg.second_inputs)):
        _check_inputs(inputs, _PAIRS[name], name)
        if any(each.HasField("tokens") for each in inputs):
            raise InvalidRequest(f"{name} has token ids: send texts or images", param=name)
    _check_seen([*msg.first_inputs, *msg.second_inputs], "second")


def _check_inputs(inputs: Sequence[tokens_pb2.EmbedInput], row: RequestField, at: str) -> None:
    ids = 0
    row.check_count(len(inputs))
    for index, each in enumerate(inputs):
        if each.HasField("tokens"):
            ids += len(each.tokens.ids)
            _EMBED["input"].check_tokens(ids)
        elif each.HasField("chat"):
            _check_turns(each.chat.messages, f"{at}[{index}].messages")
        else:
            row.check_text(each.text, f"{at}[{index}]")


def _check_seen(inputs: Sequence[tokens_pb2.EmbedInput], at: str) -> None:
    """Check the images of all inputs of a request together."""
    _check_media([turn for each in inputs for turn in each.chat.messages], at)


def check_gradient(msg: lm_pb2.GradientRequest) -> None:
    """Raise InvalidRequest naming the first field that is too large."""
    for name in ("model_key", "prefix", "suffix"):
        _GRADIENT[name].check_text(getattr(msg, name))
    check_extra_inputs(msg.extra_inputs)


def check_question(msg: lm_pb2.GenerateRequest | lm_pb2.EmbedRequest) -> None:
    """Raise InvalidRequest naming the first field that is too large."""
    _SCORE["model_key"].check_text(msg.model_key)
    _TEXT.check_text(msg.text)
    check_extra_inputs(msg.extra_inputs)


def check_score(msg: lm_pb2.ScoreRequest) -> None:
    """Raise InvalidRequest naming the first field that is too large."""
    _SCORE["model_key"].check_text(msg.model_key)
    _SCORE["prefix"].check_text(msg.prefix)
    _SCORE["suffix"].check(msg.suffix)
    check_extra_inputs(msg.extra_inputs)


def check_custom(msg: custom_pb2.CustomRequest) -> None:
    """Raise InvalidRequest naming the first field that is too large."""
    for name in ("model_key", "method_name", "request"):
        _CUSTOM[name].check_text(getattr(msg, name))
    check_extra_inputs(msg.extra_inputs)


def check_image(msg: vision_pb2.ClassifyRequest | vision_pb2.EmbedRequest) -> None:
    """Raise InvalidRequest naming the first field that is too large."""
    check_model_key(msg)
    _IMAGE["image_bytes"].check_text(msg.image_bytes)
    check_extra_inputs(msg.extra_inputs)


def check_items(msg: multimodal_pb2.GenerateRpcRequest | multimodal_pb2.ScoreRpcRequest) -> None:
    """Raise InvalidRequest naming the first item that is too large or too many."""
    check_model_key(msg)
    check_extra_inputs(msg.extra_inputs)
    if isinstance(msg, multimodal_pb2.GenerateRpcRequest):
        lists = {"items": (msg.request.items, _MM_GENERATE["items"])}
    else:
        lists = {
            name: (getattr(msg.request, name), _MM_SCORE[name])
            for name in ("prefix_items", "suffix_items")
        }
    sizes: list[int] = []
    for name, (items, row) in lists.items():
        row.check_count(len(items), name)
        for index, item in enumerate(items):
            row.check_text(item.text, f"{name}[{index}].text")
            if item.HasField("image_bytes"):
                sizes.append(len(item.image_bytes))
                check_image_size(sizes[-1], f"{name}[{index}].image_bytes")
            elif item.HasField("audio_float_samples"):
                sizes.append(4 * len(item.audio_float_samples.sample))
                check_image_size(sizes[-1], f"{name}[{index}].audio_float_samples", "sound")
    check_images(sizes, next(iter(lists)))


def check_recognize(msg: audio_pb2.AsrRequest) -> None:
    """Raise InvalidRequest naming the first field that is too large."""
    check_model_key(msg)
    _RECOGNIZED.check_text(msg.audio_bytes)
    check_extra_inputs(msg.extra_inputs)


def check_transcribe(msg: transcripts_pb2.TranscribeRequest) -> None:
    """Raise InvalidRequest naming the first field that is out of its bounds."""
    for name in ("model_key", "sound", "language", "prompt"):
        _SOUND[name].check_text(getattr(msg, name))
    _SOUND["temperature"].read(msg.temperature)


def check_speak(msg: speech_pb2.SpeakRequest) -> None:
    """Raise InvalidRequest naming the first field that is out of its bounds."""
    for name in ("model_key", "text", "voice", "format"):
        _SPEECH[name].check_text(getattr(msg, name))
    _SPEECH["speed"].read(msg.speed)
    check_speech(msg.text, msg.format)


def check_model_key(msg: Any) -> None:
    """Raise InvalidRequest for a name that is too large."""
    _IMAGE["model_key"].check_text(msg.model_key)


def check_extra_inputs(msg: common_pb2.ExtraInputs) -> None:
    """Raise InvalidRequest for too many extra inputs, or a key, text or tensor that is too long."""
    _EXTRA.check_count(len(msg.items) + len(msg.tensors) + len(msg.strings))
    for key in (*msg.items, *msg.tensors, *msg.strings):
        _EXTRA.check_text(key)
    for key, tensor in msg.tensors.items():
        _EXTRA.check_count(len(tensor.values), f"extra_inputs.{key}")
    for key, text in msg.strings.items():
        _EXTRA.check_text(text, f"extra_inputs.{key}")


def _check_prompt(msg: tokens_pb2.Generate | tokens_pb2.TokenizeRequest) -> None:
    match msg.WhichOneof("prompt"):
        case "text":
            _STREAM["prompt"].check_text(msg.text)
        case "tokens" if isinstance(msg, tokens_pb2.Generate):
            _STREAM["prompt"].check_tokens(len(msg.tokens.ids))
        case "chat":
            _check_chat(msg.chat)
        case _:
            pass


def _check_chat(chat: tokens_pb2.Chat) -> None:
    _check_turns(chat.messages, "messages")
    _check_media(chat.messages, "messages")
    _check_objects("tools", chat.tools, _TOOL, "tools")
    for name in ("tool_choice", "tool_name", "chat_template_kwargs"):
        _STREAM[name].check_text(getattr(chat, name))
    _STREAM["allowed_tools"].check(chat.allowed_tools)


def _check_turns(turns: Sequence[tokens_pb2.Message], whose: str) -> None:
    _STREAM["messages"].check_count(len(turns))
    for index, turn in enumerate(turns):
        at = f"{whose}[{index}]."
        for name in _TURN:
            _STREAM[f"messages.{name}"].check_text(getattr(turn, name), at + name)
        if turn.parts:
            _check_parts(turn.parts, at + "content")
        if turn.tool_calls:
            _check_objects("messages.tool_calls", turn.tool_calls, _CALL, f"{at}tool_calls")


def _check_media(turns: Sequence[tokens_pb2.Message], param: str) -> None:
    """Check the number and the bytes of the images, sounds and videos of all turns together."""
    check_images(
        [
            len(getattr(part, kind).data)
            for turn in turns
            for part in turn.parts
            if (kind := part.WhichOneof("kind")) in _MEDIA
        ],
        param,
    )


def _check_parts(parts: Sequence[tokens_pb2.Part], at: str) -> None:
    texts = _STREAM["messages.content"]
    texts.check_count(len(parts), at)
    for index, part in enumerate(parts):
        name = f"{at}[{index}]"
        if (kind := part.WhichOneof("kind")) in _MEDIA:
            medium: tokens_pb2.Image | tokens_pb2.Sound | tokens_pb2.Video = getattr(part, kind)
            _STREAM["messages.name"].check_text(medium.name, f"{name}.name")
            check_image_size(len(medium.data), medium.name or name, kind)
        else:
            texts.check_text(part.text, name)


def check_image_size(size: int, param: str, kind: str = "image") -> None:
    """Raise InvalidRequest for an image, a sound or a video of too many bytes."""
    if size > IMAGE_BYTES:
        raise InvalidRequest(
            f"{param} is {'an' if kind == 'image' else 'a'} {kind} of {size} bytes; at most "
            f"{IMAGE_BYTES} are allowed: send a smaller one",
            param=param,
        )


def check_images(sizes: Sequence[int], param: str) -> None:
    """Raise InvalidRequest for more images, sounds and videos, or more bytes of them, than one
    request may have."""
    if len(sizes) > IMAGES:
        raise InvalidRequest(
            f"{param} holds {len(sizes)} images, sounds and videos; at most {IMAGES} are allowed: "
            "send fewer",
            param=param,
        )
    if sum(sizes) > IMAGE_BYTES:
        raise InvalidRequest(
            f"the images, sounds and videos of {param} have {sum(sizes)} bytes; at most "
            f"{IMAGE_BYTES} are allowed together: send smaller or fewer ones",
            param=param,
        )


def _check_objects(row: str, entries: Any, names: Sequence[str], at: str) -> None:
    _STREAM[row].check_count(len(entries), at)
    for index, entry in enumerate(entries):
        for name in names:
            _STREAM[f"{row}.{name}"].check_text(getattr(entry, name), f"{at}[{index}].{name}")
