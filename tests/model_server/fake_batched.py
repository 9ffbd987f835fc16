"""An embedder, a custom model and a model of images that are arithmetic.

The vector of an input is [sum of its ids, their number]; texts are bytes. The custom method
`upper` answers in capitals and `reverse` backwards; both refuse b"bad" and break on b"bug".
The vector of an image is its mean red, green and blue, and the score of each colour is minus that.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from model_server.loading.custom import CustomRequest, LoadedCustom
from model_server.loading.loaded_batches import ONLY, Batching
from model_server.loading.passes.embed_loading import methods_of
from model_server.loading.passes.loaded_passes import GradientInput, LoadedEmbedder, LoadedGradients
from model_server.loading.vision.loaded_vision import LoadedVision, SeenImage
from model_server.sharing.images.forms import SquareForm
from model_server.text.sentence_tokenizer import SentenceTokenizer
from model_server.text.tokenizer import ByteTokenizer
from sax.errors import Internal, InvalidRequest, SaxError
from sax.passes import Gradients

MEMORY = 500
CONTEXT = 100


class FakeEmbedRunner:
    """Holds every batch until the gate opens."""

    def __init__(self, gate: threading.Event, numbers: int = 2) -> None:
        self._numbers = numbers
        self.closed = False
        self.batches: list[int] = []
        self._gate = gate

    def group(self, ids: Sequence[int]) -> int:
        return 10 if len(ids) <= 10 else CONTEXT

    def run(self, inputs: Sequence[Sequence[int]]) -> list[list[float]]:
        assert len({self.group(ids) for ids in inputs}) == 1
        self.batches.append(len(inputs))
        assert self._gate.wait(60)
        return [[float(sum(ids)), float(len(ids))][: self._numbers] for ids in inputs]

    def close(self) -> None:
        self.closed = True


class FakeGradientRunner:
    """The score of a text is its number of ids, and its gradient these ids."""

    closed = False

    def group(self, given: GradientInput) -> int:
        return CONTEXT

    def run(self, inputs: Sequence[GradientInput]) -> list[Gradients]:
        return [
            Gradients([float(len(ids))], {"ids": [float(each) for each in ids]})
            for ids, _ in inputs
        ]

    def close(self) -> None:
        self.closed = True


class FakeCustomRunner:
    """Holds every batch until the gate opens."""

    def __init__(self, gate: threading.Event) -> None:
        self.closed = False
        self._gate = gate

    def group(self, request: CustomRequest) -> str:
        return request.method

    def run(self, requests: Sequence[CustomRequest]) -> list[bytes | SaxError]:
        assert self._gate.wait(60)
        return [_answer(*each) for each in requests]

    def close(self) -> None:
        self.closed = True


def _answer(method: str, request: bytes) -> bytes | SaxError:
    if request == b"bad":
        return InvalidRequest("bad is not a request", param="request")
    if request == b"bug":
        return Internal("a bug")
    return request.upper() if method == "upper" else request[::-1]


class PairTokenizer(ByteTokenizer):
    """Bytes, with 0 between the texts of a pair."""

    def encode_pair(self, first: str, second: str) -> list[int]:
        return [*self.encode(first), 0, *self.encode(second)]


def fake_classifier(gate: threading.Event, *labels: str) -> LoadedEmbedder:
    """Its scores are the vectors of the embedder; with one label the first number."""
    runner = FakeEmbedRunner(gate, numbers=len(labels))
    return replace(fake_embedder(gate), runner=runner, labels=labels, methods=methods_of(labels))


def fake_embedder(gate: threading.Event, *, queue: int = 8) -> LoadedEmbedder:
    return LoadedEmbedder(
        runner=FakeEmbedRunner(gate),
        tokenizer=SentenceTokenizer(PairTokenizer(256), "", {"query": "query"}),
        vocab=256,
        max_context=CONTEXT,
        dimensions=2,
        sizes=(1,),
        batching={ONLY: Batching(4, 0.002, queue)},
        memory=MEMORY,
    )


def fake_gradients() -> LoadedGradients:
    return LoadedGradients(
        runner=FakeGradientRunner(),
        max_context=CONTEXT,
        batching={ONLY: Batching(4, 0.002, 8)},
    )


class FakeVisionRunner:
    """Holds every batch until the gate opens."""

    def __init__(self, gate: threading.Event) -> None:
        self.closed = False
        self.batches: list[int] = []
        self._gate = gate

    def group(self, image: np.ndarray) -> None:
        pass

    def run(self, images: Sequence[np.ndarray]) -> list[SeenImage]:
        self.batches.append(len(images))
        assert self._gate.wait(60)
        means = [image.mean((0, 1)).astype(np.float32) for image in images]
        return [SeenImage(mean, -mean) for mean in means]

    def close(self) -> None:
        self.closed = True


def fake_vision(gate: threading.Event) -> LoadedVision:
    return LoadedVision(
        runner=FakeVisionRunner(gate),
        form=SquareForm(size=4, shortest=None, resample=0),
        labels=("red", "green", "blue"),
        top_k=2,
        batching={ONLY: Batching(4, 0.002, 4)},
        memory=MEMORY,
    )


def fake_custom(gate: threading.Event) -> LoadedCustom:
    return LoadedCustom(
        runner=FakeCustomRunner(gate),
        batching={"upper": Batching(2, 0.0, 2), "reverse": Batching(2, 0.0, 2)},
        methods=("upper", "reverse"),
        memory=MEMORY,
    )
