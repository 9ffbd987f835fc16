"""One model as Saxml's method classes ask it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sax.client import Client
from sax.client.attempts import ANY_ROUTE, Route
from sax.proto import common_pb2
from sax.saxml.cell_client import client_of
from sax.saxml.options import ModelOptions
from sax.wire.services import Reply, RpcMethod

Media = bytes | str  # Saxml takes either for an image or a sound; a text is sent as UTF-8


@dataclass(frozen=True)
class ModelHandle:
    """A model's name, the route of its requests, and its cell's client, looked up at each call
    because an admin server may move."""

    model_id: str
    route: Route = field(default=ANY_ROUTE)
    find_client: Callable[[str], Client] = client_of

    @property
    def client(self) -> Client:
        return self.find_client(self.model_id)

    def ask(self, method: RpcMethod[Reply], request: Any, options: ModelOptions | None) -> Reply:
        """Send a request of any data service, with its model and extra inputs filled in."""
        request.model_key = self.model_id
        request.extra_inputs.CopyFrom(_extra(options))
        timeout_s = options.timeout_s if options is not None else None
        return self.client.ask_service(self.model_id, method, request, timeout_s, route=self.route)


def as_bytes(media: Media) -> bytes:
    return media.encode() if isinstance(media, str) else media


def _extra(options: ModelOptions | None) -> common_pb2.ExtraInputs:
    return common_pb2.ExtraInputs() if options is None else options.ToProto()
