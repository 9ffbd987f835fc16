"""Capabilities of a model in Ollama's words: asked of its replicas, which have its template."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

from http_gateway.cell_client import CellClient
from sax.chat import Content
from sax.errors import InvalidRequest
from sax.types import PLAIN_CHAT, ChatOptions, Image, Message, PublishedModel, Tool

_PROBES = {
    "tools": ChatOptions(tools=(Tool("probe"),)),
    "thinking": ChatOptions(chat_template_kwargs=json.dumps({"enable_thinking": True})),
}
# A white pixel, as PNG
_DOT = Image(
    base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAA"
        "AACklEQVR42mP4DwABAQEAHLCMmQAAAABJRU5ErkJggg=="
    )
)
_METHODS = {"lm.generate": "completion", "lm.embed": "embedding"}


async def capabilities_of(
    client: CellClient, model: PublishedModel, limit_s: float
) -> tuple[int | None, Sequence[str]]:
    """Return the context length and the capabilities of a model.

    None, and what its methods tell: no replica is ready. Raises SaxError.
    """
    told = [name for method, name in _METHODS.items() if method in model.methods]
    if not model.ready_replicas or "completion" not in told:
        return None, told
    _, context = await client.tokenize(model.spec.model_id, "Hi", limit_s)
    for name, options in _PROBES.items():
        if await _takes(client, model.spec.model_id, "Hi", options, limit_s):
            told.append(name)
    if await _takes(client, model.spec.model_id, (_DOT, "Hi"), PLAIN_CHAT, limit_s):
        told.append("vision")
    return context, told


async def _takes(
    client: CellClient, model_id: str, content: Content, options: ChatOptions, limit_s: float
) -> bool:
    try:
        await client.tokenize(model_id, (Message("user", content),), limit_s, chat=options)
    except InvalidRequest:
        return False
    return True
