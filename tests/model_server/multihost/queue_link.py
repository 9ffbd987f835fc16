"""The link between stages of one process."""

from __future__ import annotations

import queue

from model_server.multihost.link import LinkClosed, StageMessage


class QueueLink:
    def __init__(self) -> None:
        self._messages: queue.Queue[StageMessage] = queue.Queue(4)
        self._next = self
        self._closed = False

    def connect(self, other: QueueLink) -> None:
        self._next = other

    def send(self, message: StageMessage) -> None:
        while not self._closed:
            try:
                return self._next._messages.put(message, timeout=0.02)
            except queue.Full:
                continue
        raise LinkClosed("closed")

    def receive(self) -> StageMessage:
        while not self._closed:
            try:
                return self._messages.get(timeout=0.02)
            except queue.Empty:
                continue
        raise LinkClosed("closed")

    def close(self) -> None:
        self._closed = True


def ring(count: int) -> list[QueueLink]:
    links = [QueueLink() for _ in range(count)]
    for link, following in zip(links, [*links[1:], links[0]], strict=True):
        link.connect(following)
    return links
