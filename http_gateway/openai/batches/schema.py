"""The body of POST /v1/batches."""

from __future__ import annotations

import re
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict

from http_gateway.bounds import bounded
from http_gateway.openai.batches.input_lines import ENDPOINTS
from http_gateway.openai.schema import refuse_unsupported
from http_gateway.openapi import RequestBody, Schema
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted

_ROUTE = RequestRoute.BATCHES
_WINDOW = re.compile(r"([1-9][0-9]{0,2})h")
MOST_HOURS = 168
_SECONDS = field(RequestRoute.FILES, "expires_after.seconds")


class BatchRequest(BaseModel):
    """POST /v1/batches. null always means the default."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    input_file_id: Annotated[str, bounded(_ROUTE, "input_file_id")]
    endpoint: Annotated[str, bounded(_ROUTE, "endpoint")]
    completion_window: Annotated[str, bounded(_ROUTE, "completion_window")]
    metadata: Annotated[dict[str, str], bounded(_ROUTE, "metadata")] | None = None
    output_expires_after: (
        Annotated[dict[str, object], bounded(_ROUTE, "output_expires_after")] | None
    ) = None

    def check(self) -> None:
        """Raise InvalidRequest or UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, {})
        if self.endpoint not in [*ENDPOINTS]:
            raise UnsupportedParameter(
                f"endpoint {quoted(self.endpoint)} is not supported: send {', '.join(ENDPOINTS)}",
                param="endpoint",
            )
        self.window_s  # noqa: B018  (checks it)
        self.output_ttl_s  # noqa: B018

    @property
    def window_s(self) -> int:
        found = _WINDOW.fullmatch(self.completion_window)
        if found is None or int(found[1]) > MOST_HOURS:
            raise InvalidRequest(
                f"completion_window is {quoted(self.completion_window)}: send hours from 1h to "
                f"{MOST_HOURS}h, such as 24h",
                param="completion_window",
            )
        return int(found[1]) * 3600

    @property
    def output_ttl_s(self) -> int | None:
        """Seconds that the output and error files are kept; None: until they are deleted."""
        given = self.output_expires_after
        if given is None:
            return None
        param = "output_expires_after"
        if set(given) != {"anchor", "seconds"} or given["anchor"] != "created_at":
            raise InvalidRequest(
                f'{param}: send {{"anchor": "created_at", "seconds": ...}}', param=param
            )
        _SECONDS.read(given["seconds"], f"{param}.seconds")
        return cast("int", given["seconds"])


def _expiry() -> Schema:
    properties: dict[str, Any] = {
        "anchor": {"const": "created_at"},
        "seconds": {"type": "integer", "minimum": _SECONDS.least, "maximum": _SECONDS.most},
    }
    whole = {"type": "object", "properties": properties, "required": [*properties]}
    return {"anyOf": [{**whole, "additionalProperties": False}, {"type": "null"}]}


BATCH = RequestBody(
    model=BatchRequest,
    route=_ROUTE,
    replaced={
        "endpoint": {"enum": [*ENDPOINTS]},
        "completion_window": {
            "type": "string",
            "pattern": "^([1-9]|[1-9][0-9]|1[0-5][0-9]|16[0-8])h$",
        },
        "output_expires_after": _expiry(),
    },
)
