"""Calls without HTTP: the SDK's and those of Saxml's classes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from typing import Any

import msgspec
from google.protobuf.json_format import MessageToDict

import sax
from sax.client import Client
from sax.errors import SaxError
from sax.fields.field import RequestRoute
from sax.fields.sampling import SAMPLING
from sax.fields.table import fields_of
from sax.proto import multimodal_pb2
from sax.speech import TranscriptRequest
from sax.types import GenerateRequest, Message, ReplyOptions, SamplingParams, TokenChunk
from tests.tools.answers.canonical import canonical
from tests.tools.answers.models import MODELS, model_id, picture, samples, wav
from tests.tools.answers.values import as_sampling, needs_of, values_of, wrong_of

Call = Callable[[], object]
_TEXT = "The capital of France is"
_FIELDS = fields_of(RequestRoute.STREAM)
_REPLY = ReplyOptions.__dataclass_fields__


def answer_of(call: Call, hidden: Mapping[str, str]) -> Any:
    """Return what a call returns, or the error that it raises."""
    try:
        answer = call()
        if isinstance(answer, bytes):  # of a custom model, which writes JSON
            answer = json.loads(answer)
        return {"answer": canonical(msgspec.to_builtins(answer, enc_hook=MessageToDict), hidden)}
    except SaxError as error:
        told = {"error": type(error).__name__, "text": error.text, "param": error.param}
        return canonical(told, hidden)


def calls(client: Client) -> Iterator[tuple[str, Call]]:
    """Yield every call with its name: each sampling field and reply option on our own stream, each
    that Saxml's calls know as an extra input, and every call of models that have it or not."""
    for name in (*SAMPLING, *_REPLY):
        needed = needs_of(RequestRoute.STREAM, name)
        for value in (*values_of(_FIELDS[name]), *wrong_of(_FIELDS[name])):
            yield f"generate {name}={value}", partial(_generate, client, **needed | {name: value})
            if name in SAMPLING and (key := SAMPLING[name].saxml) is not None:
                inputs = needed if "beam_size" in needed else {}
                inputs = inputs | {key or name: value}
                text = needed.get("prompt", _TEXT)
                asked = partial(_saxml, "smollm2", "LM.Generate", text, **inputs)
                yield f"LM.Generate {key or name}={value}", asked
    for model in MODELS:
        for name, call in {**_ours(client, model), **_saxmls(model)}.items():
            yield f"{name} of {model}", call


def _generate(
    client: Client, model: str = "smollm2", prompt: str = _TEXT, **fields: Any
) -> TokenChunk:
    """Return an answer's chunks as one: how many tokens each brings is a matter of time."""
    asked = {"max_tokens": 4, "seed": 7, **fields}
    held = {name: as_sampling(_FIELDS[name], value) for name, value in asked.items()}
    request = GenerateRequest(
        model_id=model_id(model),
        prompt=prompt,
        sampling=SamplingParams(**{name: held[name] for name in SAMPLING.keys() & held}),
        reply=ReplyOptions(**{name: held[name] for name in _REPLY.keys() & held}),
    )
    return reduce(TokenChunk.joined, client.generate(request))


def _ours(client: Client, model: str) -> dict[str, Call]:
    said, full = TranscriptRequest(model_id=model_id(model), sound=wav()), model_id(model)
    return {
        "generate": partial(_generate, client, model, temperature=0.0),
        "score": partial(client.score, full, "a b", [" c d", "e"]),
        "score nothing": partial(client.score, full, "a b", [""]),
        "tokenize": partial(client.tokenize_texts, full, "a b"),
        "tokenize a chat": partial(client.tokenize, full, (Message(role="user", content="Hi"),)),
        "detokenize": partial(client.detokenize, full, [5, 6]),
        "embed": partial(client.embed_counted, full, ["a b", [5, 6]]),
        "embed shortly": partial(client.embed, full, ["a b"], dimensions=4),
        "classify": partial(client.classify, full, ["a b", "c"]),
        "score_pairs": partial(client.score_pairs, full, ["a b"], ["a b", "q"]),
        "rerank": partial(client.rerank, full, "a b", ["q", "a b"], 1),
        "gradient": partial(client.gradient, full, "a b", " c d"),
        "custom": partial(client.custom, full, b"[5.1, 3.5, 1.4, 0.2]"),
        "custom, wrongly": partial(client.custom, full, b"roses", "grow"),
        "transcribe": partial(client.transcribe, said),
        "methods": lambda: client.list(full).methods,
    }


def _saxmls(model: str) -> dict[str, Call]:
    heard = multimodal_pb2.AudioFloatSamples(sample=samples().tolist())
    item = multimodal_pb2.DataItem
    items = {"an image": item(image_bytes=picture()), "a sound": item(audio_float_samples=heard)}
    asked: dict[str, tuple[Any, ...]] = {
        "LM.Generate": ("a b",),
        "LM.Score": ("a", ["b"]),
        "LM.Embed": ("a b",),
        "LM.Gradient": ("a b", " c d"),
        "CM.Custom": (b"[5.1, 3.5, 1.4, 0.2]", "classify"),
        "AM.Recognize": (wav(),),
        **dict.fromkeys(("VM.Classify", "VM.Embed", "VM.ImageToText"), (picture(),)),
    }
    told: dict[str, Call] = {n: partial(_saxml, model, n, *held) for n, held in asked.items()}
    told["LM.GenerateStream"] = partial(_streamed, model)
    for name, held in items.items():
        generate = multimodal_pb2.GenerateRequest(items=[held, item(text="?")])
        score = multimodal_pb2.ScoreRequest(prefix_items=[held], suffix_items=[item(text="a")])
        told[f"MM.Generate, {name},"] = partial(_saxml, model, "MM.Generate", generate)
        told[f"MM.Score, {name},"] = partial(_saxml, model, "MM.Score", score)
    return told


def _saxml(model: str, name: str, *held: Any, **inputs: Any) -> object:
    kind, _, method = name.partition(".")
    methods = getattr(sax.Model(model_id(model)), kind)()
    options = _options(**inputs) if method == "Generate" else None  # others take none
    return getattr(methods, method)(*held, options=options)


def _options(**more: Any) -> sax.ModelOptions:
    options, inputs = sax.ModelOptions(), {"seed": 7, "per_example_max_decode_steps": 4, **more}
    setters = {str: options.SetExtraInputString, list: options.SetExtraInputTensor}
    for key, value in inputs.items():
        setters.get(type(value), options.SetExtraInput)(key, value)
    return options


def _streamed(model: str) -> list[Any]:
    """Return the texts that Saxml's stream ends with, and their scores."""
    told: dict[int, Any] = {}

    def take(done: bool, items: list[tuple[str, int, list[float]]]) -> None:
        for place, (text, kept, scores) in enumerate(items):
            told[place] = told.get(place, ("", []))[0][:kept] + text, scores

    sax.Model(model_id(model)).LM().GenerateStream(_TEXT, take, _options())
    return [told[place] for place in sorted(told)]
