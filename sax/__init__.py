"""The SDK: Saxml's calls (`sax.Publish`), clients, values and errors.

Names are imported on first use, so that `import sax.names` does not load gRPC.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sax.client import AsyncClient, Client, WatchEvent
    from sax.errors import SaxError
    from sax.names import CellId, ModelId
    from sax.saxml.admin_calls import (
        GetACL,
        List,
        ListAll,
        ListDetail,
        ModelDetail,
        ModelServerTypeStat,
        Publish,
        SetACL,
        StartDebugPort,
        Stats,
        Unpublish,
        Update,
        WaitForReady,
    )
    from sax.saxml.model import (
        AudioModel,
        CustomModel,
        LanguageModel,
        Model,
        MultimodalModel,
        VisionModel,
    )
    from sax.saxml.options import AdminOptions, ModelOptions, Options
    from sax.status import Status, StatusCode, StatusNotOk
    from sax.types import (
        GenerateRequest,
        JoinedServer,
        Message,
        ModelSpec,
        PublishedModel,
        ReplyOptions,
        SamplingParams,
        TokenChunk,
    )

__all__ = [
    "AdminOptions",
    "AsyncClient",
    "AudioModel",
    "CellId",
    "Client",
    "CustomModel",
    "GenerateRequest",
    "GetACL",
    "JoinedServer",
    "LanguageModel",
    "List",
    "ListAll",
    "ListDetail",
    "Message",
    "Model",
    "ModelDetail",
    "ModelId",
    "ModelOptions",
    "ModelServerTypeStat",
    "ModelSpec",
    "MultimodalModel",
    "Options",
    "Publish",
    "PublishedModel",
    "ReplyOptions",
    "SamplingParams",
    "SaxError",
    "SetACL",
    "StartDebugPort",
    "Stats",
    "Status",
    "StatusCode",
    "StatusNotOk",
    "TokenChunk",
    "Unpublish",
    "Update",
    "VisionModel",
    "WaitForReady",
    "WatchEvent",
]

# gRPC reads this on import. Without it, gRPC logs every lost peer to stderr; our errors already
# report that to the caller.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

_HOMES = (
    "sax.errors",
    "sax.names",
    "sax.types",
    "sax.client",
    "sax.status",
    "sax.saxml.admin_calls",
    "sax.saxml.options",
    "sax.saxml.model",
)


def __getattr__(name: str) -> object:
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(home)
            if hasattr(module, name):
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise AttributeError(f"module 'sax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
