"""An embedder and a custom model that are arithmetic.

The vector of an input is [sum of its ids, their number]; texts are bytes. The custom method
`upper` answers in capitals and `reverse` backwards; both refuse b"bad" and break on b"bug".
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from model_server.loading.loaded import Batching, LoadedCustom, LoadedEmbedder
from model_server.text.tokenizer import ByteTokenizer
from sax.errors import Internal, InvalidRequest, SaxError

MEMORY = 500
CONTEXT = 100


class FakeEmbedRunner:
    """Holds every batch until the gate opens."""

    batch = 4

    def __init__(self, gate: threading.Event) -> None:
        self.closed = False
        self.batches: list[int] = []
        self._gate = gate

    def length(self, count: int) -> int:
        return 10 if count <= 10 else CONTEXT

    def embed(self, inputs: Sequence[Sequence[int]]) -> list[list[float]]:
        assert len({self.length(len(ids)) for ids in inputs}) == 1
        self.batches.append(len(inputs))
        assert self._gate.wait(30)
        return [[float(sum(ids)), float(len(ids))] for ids in inputs]

    def close(self) -> None:
        self.closed = True


class FakeCustomRunner:
    """Holds every batch until the gate opens."""

    def __init__(self, gate: threading.Event) -> None:
        self.closed = False
        self._gate = gate

    def answer(self, method: str, requests: Sequence[bytes]) -> list[bytes | SaxError]:
        assert self._gate.wait(30)
        return [_answer(method, request) for request in requests]

    def close(self) -> None:
        self.closed = True


def _answer(method: str, request: bytes) -> bytes | SaxError:
    if request == b"bad":
        return InvalidRequest("bad is not a request", param="request")
    if request == b"bug":
        return Internal("a bug")
    return request.upper() if method == "upper" else request[::-1]


def fake_embedder(gate: threading.Event, *, queue: int = 8) -> LoadedEmbedder:
    return LoadedEmbedder(
        runner=FakeEmbedRunner(gate),
        tokenizer=ByteTokenizer(256),
        vocab=256,
        max_context=CONTEXT,
        dimensions=2,
        queue=queue,
        memory=MEMORY,
    )


def fake_custom(gate: threading.Event) -> LoadedCustom:
    return LoadedCustom(
        runner=FakeCustomRunner(gate),
        batching={"upper": Batching(2, 0.0, 2), "reverse": Batching(2, 0.0, 2)},
        memory=MEMORY,
    )
