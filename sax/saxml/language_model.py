"""Saxml's text methods: `sax.Model(id).LM().Generate(text)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sax.proto import lm_pb2
from sax.saxml.model_handle import ModelHandle
from sax.saxml.options import ModelOptions

StreamItem = tuple[str, int, list[float]]
StreamCallback = Callable[[bool, list[StreamItem]], None]


class LanguageModel:
    """Text methods of one model."""

    def __init__(self, handle: ModelHandle) -> None:
        self._handle = handle

    def Generate(self, text: str, options: ModelOptions | None = None) -> list[tuple[str, float]]:
        handle, options = self._handle, options or ModelOptions()
        return handle.client.saxml_generate(
            handle.model_id, text, options.extra_inputs, options.timeout_s, route=handle.route
        )

    def GenerateStream(
        self, text: str, callback: StreamCallback, options: ModelOptions | None = None
    ) -> None:
        """Call back with (False, items) for each message and (True, []) at the end.

        An item is (text, prefix_len, scores): truncate the text so far to prefix_len characters,
        then append text.
        """
        handle, options = self._handle, options or ModelOptions()
        messages = handle.client.saxml_generate_stream(
            handle.model_id, text, options.extra_inputs, options.timeout_s, route=handle.route
        )
        for message in messages:
            callback(False, [_stream_item(item) for item in message.items])
        callback(True, [])

    def Score(
        self, prefix: str, suffix: Sequence[str], options: ModelOptions | None = None
    ) -> list[float]:
        handle, options = self._handle, options or ModelOptions()
        extra, timeout_s = options.extra_inputs, options.timeout_s
        return handle.client.score(
            handle.model_id, prefix, suffix, extra, timeout_s, route=handle.route
        )

    def Embed(self, text: str, options: ModelOptions | None = None) -> list[float]:
        handle, options = self._handle, options or ModelOptions()
        return handle.client.saxml_embed(
            handle.model_id, text, options.extra_inputs, options.timeout_s, route=handle.route
        )

    def Gradient(
        self, prefix: str, suffix: str, options: ModelOptions | None = None
    ) -> tuple[list[float], dict[str, list[float]]]:
        """Return the scores and the gradients, each flattened, by the names of their tensors."""
        handle, options = self._handle, options or ModelOptions()
        extra, timeout_s = options.extra_inputs, options.timeout_s
        found = handle.client.gradient(
            handle.model_id, prefix, suffix, extra, timeout_s, route=handle.route
        )
        return found.score, dict(found.gradients)


def _stream_item(item: lm_pb2.GenerateStreamItem) -> StreamItem:
    return item.text, item.prefix_len, [*item.scores]
