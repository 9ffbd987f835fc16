"""saxutil's commands for images, sounds and mixed inputs: vm.*, am.recognize and mm.*.

They ask the model's server. Ours serve vm.classify, vm.embed, mm.generate and mm.score and refuse
the others.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sax.cli.saxutil.language_verbs import EXTRA, PROXY
from sax.cli.saxutil.verb import SaxutilCall, SaxutilVerb, as_number, show
from sax.command import read_file
from sax.proto import multimodal_pb2
from sax.saxml.model import AudioModel, MultimodalModel, VisionModel

_FILE = "@"  # before a file's name, among the items of mm.*


def classify(call: SaxutilCall) -> None:
    image, handle = read_file(call.words[1]), call.model()
    with handle.client:
        found = VisionModel(handle).Classify(image, call.options())
    show(("Text", "Score"), [(text, as_number(score)) for text, score in found])


def text_to_image(call: SaxutilCall) -> None:
    """Write the images into a folder, or one behind the other to stdout."""
    _, text, folder = call.words
    handle = call.model()
    with handle.client:
        images = VisionModel(handle).TextToImage(text, call.options())
    if folder == "-":
        for image, _ in images:
            sys.stdout.buffer.write(image)
        return
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    names = [place / f"{number:04}.PNG" for number in range(1, len(images) + 1)]
    for name, (image, _) in zip(names, images, strict=True):
        name.write_bytes(image)
    scores = (as_number(score) for _, score in images)
    show(("Image", "Score"), [*zip(map(str, names), scores, strict=True)])


def embed_image(call: SaxutilCall) -> None:
    name, handle = call.words[1], call.model()
    image = read_file(name)
    with handle.client:
        vector = VisionModel(handle).Embed(image, call.options())
    shown = "stdin" if name == "-" else name
    show(("Image", "Embedding"), [(shown, ", ".join(map(as_number, vector)))])


def detect(call: SaxutilCall) -> None:
    image, handle = read_file(call.words[1]), call.model()
    with handle.client:
        found = VisionModel(handle).Detect(image, call.words[2:], (), call.options())
    rows = [
        (
            *map(as_number, (cx, cy, width, height)),
            text.decode(errors="replace"),
            as_number(score),
            f"{mask[0]},{mask[1]}",
        )
        for cx, cy, width, height, text, score, mask in found
    ]
    show(("CenterX", "CenterY", "Width", "Height", "Text", "Score", "Mask"), rows)


def recognize(call: SaxutilCall) -> None:
    sound, handle = read_file(call.words[1]), call.model()
    with handle.client:
        found = AudioModel(handle).Recognize(sound, call.options())
    show(("Text", "Score"), [(text, as_number(score)) for text, score in found])


def mm_generate(call: SaxutilCall) -> None:
    request, handle = multimodal_pb2.GenerateRequest(items=_items(call.words[1:])), call.model()
    with handle.client:
        reply = MultimodalModel(handle).Generate(request, call.options())
    rows = [
        ("\n".join(_shown(item) for item in result.items), as_number(result.score))
        for result in reply.results
    ]
    show(("generate", "Score"), rows)


def mm_score(call: SaxutilCall) -> None:
    """Score the last item after all before it."""
    *prefix, suffix = _items(call.words[1:])
    request = multimodal_pb2.ScoreRequest(prefix_items=prefix, suffix_items=[suffix])
    handle = call.model()
    with handle.client:
        reply = MultimodalModel(handle).Score(request, call.options())
    show(("Score",), [(as_number(result.score),) for result in reply.results])


def mm_embed(call: SaxutilCall) -> None:
    request, handle = multimodal_pb2.EmbedRequest(items=_items(call.words[1:])), call.model()
    with handle.client:
        reply = MultimodalModel(handle).Embed(request, call.options())
    show(("Embedding",), [(", ".join(map(as_number, reply.embedding.values)),)])


def _items(words: Sequence[str]) -> list[multimodal_pb2.DataItem]:
    return [_item(word) for word in words]


def _item(word: str) -> multimodal_pb2.DataItem:
    if word.startswith(_FILE):
        return multimodal_pb2.DataItem(image_bytes=read_file(word.removeprefix(_FILE)))
    return multimodal_pb2.DataItem(text=word)


def _shown(item: multimodal_pb2.DataItem) -> str:
    kind = item.WhichOneof("item")
    return item.text if kind == "text" else f"({kind})"


_FLAGS = (EXTRA, PROXY)

VERBS = (
    SaxutilVerb("vm.classify", "Classify an image.", "MODEL FILE|-", classify, 2, 2, _FLAGS),
    SaxutilVerb("vm.generate", "Draw images.", "MODEL TEXT FOLDER|-", text_to_image, 3, 3, _FLAGS),
    SaxutilVerb(
        "vm.embed", "Turn an image into a vector.", "MODEL FILE|-", embed_image, 2, 2, _FLAGS
    ),
    SaxutilVerb("vm.detect", "Find objects.", "MODEL FILE|- [TEXT ...]", detect, 2, None, _FLAGS),
    SaxutilVerb("am.recognize", "Write down a sound.", "MODEL FILE|-", recognize, 2, 2, _FLAGS),
    SaxutilVerb(
        "mm.generate", "Continue texts and @FILEs.", "MODEL ITEM ...", mm_generate, 2, None, _FLAGS
    ),
    SaxutilVerb(
        "mm.score", "Score the last item.", "MODEL ITEM ... ITEM", mm_score, 3, None, _FLAGS
    ),
    SaxutilVerb(
        "mm.embed", "Turn items into a vector.", "MODEL ITEM ...", mm_embed, 2, None, _FLAGS
    ),
)
