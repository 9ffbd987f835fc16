"""Names of the attributes of spans: those of OpenTelemetry's conventions, and a few of ours.

https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from __future__ import annotations

from sax.tracing.tracer import Value
from sax.types import GenerateRequest, SamplingParams

PROVIDER = "gen_ai.provider.name"
OPERATION = "gen_ai.operation.name"
REQUEST_MODEL = "gen_ai.request.model"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
FINISH_REASONS = "gen_ai.response.finish_reasons"
ERROR_TYPE = "error.type"
METHOD, ROUTE, STATUS = "http.request.method", "http.route", "http.response.status_code"
REQUEST_ID = "sax.request.id"
TOOL_NAME, MCP_SERVER = "gen_ai.tool.name", "sax.mcp.server"

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "frequency_penalty",
    "presence_penalty",
)
_PLAIN = SamplingParams()


def operation_of(request: GenerateRequest) -> str:
    """Return the name that the conventions have for what is asked."""
    prompt = request.prompt
    chat = not isinstance(prompt, str) and any(not isinstance(part, int) for part in prompt)
    return "chat" if chat else "text_completion"


def attributes_of(request: GenerateRequest) -> dict[str, Value]:
    """Return what a request says of itself, without its text and without fields left alone."""
    told: dict[str, Value] = {
        PROVIDER: "sax",
        OPERATION: operation_of(request),
        REQUEST_MODEL: request.model_id,
    }
    if request.request_id:
        told[REQUEST_ID] = request.request_id
    for name in _SAMPLING:
        value = getattr(request.sampling, name)
        if value is not None and value != getattr(_PLAIN, name):
            told[f"gen_ai.request.{name}"] = value
    return told
