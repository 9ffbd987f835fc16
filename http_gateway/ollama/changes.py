"""Bodies of Ollama's routes that change the models there are."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from http_gateway.bounds import bounded
from http_gateway.openai.unsupported import refuse_unsupported
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute

_Name = Annotated[str, bounded(RequestRoute.OLLAMA_SHOW, "name")]
# Field -> the values besides null that change nothing
PULL_UNCHANGED: dict[str, tuple[object, ...]] = {
    "insecure": (True, False),
    "username": ("",),
    "password": ("",),
}
CREATE_UNCHANGED: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("modelfile", "template", "system", "quantize", "path"), ("",)),
    **dict.fromkeys(("license", "messages"), ("", [])),
    **dict.fromkeys(("parameters", "files", "adapters"), ({},)),
}


class OllamaNamed(BaseModel):
    """DELETE /api/delete."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    model: _Name | None = None
    name: _Name | None = None  # older clients'

    @property
    def asked(self) -> str:
        """The model. Raises InvalidRequest or UnsupportedParameter for what cannot be honoured."""
        refuse_unsupported(self.model_extra, self._unchanged())
        name = self.model if self.name is None else self.name
        if not name or (self.model or name) != name:
            raise InvalidRequest("model is missing: send model, or name", param="model")
        return name

    def _unchanged(self) -> dict[str, tuple[Any, ...]]:
        return {}


class OllamaPull(OllamaNamed):
    """POST /api/pull."""

    stream: bool | None = None

    def _unchanged(self) -> dict[str, tuple[Any, ...]]:
        return PULL_UNCHANGED


class OllamaCreate(OllamaNamed):
    """POST /api/create."""

    stream: bool | None = None
    source: Annotated[_Name, Field(alias="from")]

    def _unchanged(self) -> dict[str, tuple[Any, ...]]:
        return CREATE_UNCHANGED


class OllamaCopy(BaseModel):
    """POST /api/copy."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    source: _Name
    destination: _Name
