"""OpenAI's embedding request and the treatment of each of its fields."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

from http_gateway.bounds import WHOLE, bounded, ranged, sized
from http_gateway.openai.prompts import prompts_schema
from http_gateway.openai.schema import Prompt, read_prompts, refuse_unsupported
from http_gateway.openapi import RequestBody
from sax.fields.field import RequestRoute

_HARMLESS = frozenset({"user", "metadata", "safety_identifier"})
# Field -> the values besides null that change nothing. Any other value is refused.
_EXTRA: dict[str, tuple[object, ...]] = {
    # vLLM extensions that are not supported here
    "truncate_prompt_tokens": (),
    "add_special_tokens": (True,),
    "normalize": (),
    "priority": (0,),
    "task": ("embed",),
}


class EmbeddingRequest(BaseModel):
    """POST /v1/embeddings. null always means the default."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    model: Annotated[str, bounded(RequestRoute.EMBEDDINGS, "model")]
    input: Annotated[
        list[str | list[int]],
        BeforeValidator(read_prompts),
        sized(RequestRoute.EMBEDDINGS, "input", least=1),
        bounded(RequestRoute.EMBEDDINGS, "input"),
    ]
    encoding_format: (
        Annotated[Literal["float", "base64"], bounded(RequestRoute.EMBEDDINGS, "encoding_format")]
        | None
    ) = None
    # Seconds, waiting included
    timeout: Annotated[float, ranged(RequestRoute.EMBEDDINGS, "timeout")] | None = None
    dimensions: Annotated[int, ranged(RequestRoute.EMBEDDINGS, "dimensions"), WHOLE] | None = None
    # One of the model's prompts, to go before each text, as in sentence-transformers
    prompt_name: Annotated[str, bounded(RequestRoute.EMBEDDINGS, "prompt_name")] | None = None

    def check(self) -> None:
        """Raise UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, _EXTRA, _HARMLESS)

    def inputs(self) -> list[Prompt]:
        return [each if isinstance(each, str) else tuple(each) for each in self.input]


EMBED = RequestBody(
    model=EmbeddingRequest,
    route=RequestRoute.EMBEDDINGS,
    unchanged=_EXTRA,
    labels=_HARMLESS,
    replaced={"input": prompts_schema(RequestRoute.EMBEDDINGS, "input")},
)
