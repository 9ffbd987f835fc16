"""Schemathesis asks every route of its own making, right and wrong, and finds nothing.

Its package is not in the usual environment: pip install --group contract.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from sax.storage.object_store import open_store
from tests.http_gateway.fake_cell import FakeCell, published

schemathesis = pytest.importorskip("schemathesis")

# What is asked for may be refused for reasons that no schema says.
UNSAID = {
    "/tokenize": "arguments of calls in messages are JSON",
    "/generate": "the model knows which extra inputs it takes",
    "/publish": "overrides are a text of JSON texts, and bounds must not contradict each other",
    "/update": "as /publish",
    "/score": "there must be as many first texts as second ones, or one",
    "/v1/score": "as /score",
    "/v1/chat/completions": "a grammar must be one, and at most one may be given",
    "/v1/messages": "results must follow their calls, and a schema must be one",
    "/v1/messages/count_tokens": "as /v1/messages",
    **{
        f"/api/{change}": "models are changed in other ways"
        for change in ("pull", "push", "create", "copy", "delete")
    },
    "/api/chat": "a schema must be one",
    "/api/generate": "as /api/chat",
    "/api/show": "model and name, if both are given, must be the same",
    "/v1/responses": "as chats, and outputs of calls must answer calls",
    "/v1/responses/{response_id}/cancel": "no response here is in the background",
    "/v1/conversations": "as /v1/responses",
    "/v1/conversations/{conversation_id}/items": "as /v1/responses",
    "/v1/completions": "as chats, and prompts times answers are bounded",
}


class ConstantCell(FakeCell):
    """Forgets every change, so that requests cannot take each other's model away."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return self._forgotten(found) if name in ("publish", "update", "unpublish") else found

    def _forgotten(self, change: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def tried(*args: Any, **settings: Any) -> None:
            before = dict(self.models)
            await change(*args, **settings)
            self.models = before

        return tried


# A body that is too large as a whole has a status that schemathesis does not expect.
CONFIG = GatewayConfig(max_body_bytes=64 << 20)
schema = schemathesis.openapi.from_asgi(
    "/openapi.json",
    create_app(
        ConstantCell(published("/sax/test/smollm2")),
        CONFIG,
        store=open_store("memory://"),
    ),
)
schema.config.generation.update(modes=list(schemathesis.GenerationMode))


@pytest.mark.extended
@pytest.mark.timeout(600)
@schema.parametrize()
@settings(
    derandomize=True,
    database=None,
    max_examples=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_reply_is_as_the_document_says(case: Any) -> None:
    unsaid = case.operation.path in UNSAID
    excluded = [schemathesis.checks.positive_data_acceptance] if unsaid else []
    case.call_and_validate(excluded_checks=excluded)
