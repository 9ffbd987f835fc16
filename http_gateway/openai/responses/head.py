"""Fields of a response that do not depend on the answer: what was asked for, and defaults."""

from __future__ import annotations

import json
from typing import Any

from http_gateway.openai.responses.schema import ResponseRequest


def head_of(body: ResponseRequest, id: str, created: int, *, store: bool) -> dict[str, Any]:
    chat = body.options
    return {
        "id": id,
        "object": "response",
        "created_at": created,
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "model": body.model,
        "parallel_tool_calls": chat.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": body.effort, "summary": None},
        "service_tier": "default",
        "store": store,
        "temperature": _number(body, "temperature"),
        "text": {"format": body.format, "verbosity": "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description or None,
                "parameters": json.loads(tool.parameters) if tool.parameters else None,
                "strict": tool.strict,
            }
            for tool in chat.tools
        ],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": _number(body, "top_p"),
        "truncation": "disabled",
        **{name: (body.model_extra or {}).get(name) for name in _LABELS},
    }


def _number(body: ResponseRequest, name: str) -> float | None:
    """Return what was asked for; None: the model's own default."""
    value = getattr(body, name)
    return None if value is None else float(value)


_LABELS = ("user", "safety_identifier", "prompt_cache_key")
