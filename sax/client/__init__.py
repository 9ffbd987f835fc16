"""Public clients of one cell: `AsyncClient` for asyncio and `Client` for blocking code.

with Client() as client:
    client.publish("/sax/test/smollm2", "llama", "/models/smollm2.gguf")
    client.wait_for_ready("/sax/test/smollm2")
    for chunk in client.generate(GenerateRequest(model_id="/sax/test/smollm2", prompt="Hi")):
        print(chunk.text, end="")
"""

from __future__ import annotations

from sax.client.async_client import AsyncClient
from sax.client.blocking_client import Client
from sax.client.routing import in_session
from sax.client.watch import Change, WatchEvent

__all__ = ["AsyncClient", "Change", "Client", "WatchEvent", "in_session"]
