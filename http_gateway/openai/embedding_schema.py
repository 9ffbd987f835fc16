"""OpenAI's embedding request and the treatment of each of its fields."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from http_gateway.openai.schema import Prompt, read_prompts, refuse_unsupported
from sax.errors import UnsupportedParameter

MAX_INPUTS = 2048  # OpenAI's own limit

_HARMLESS = frozenset({"user", "metadata", "safety_identifier"})
# Field -> the values besides null that change nothing. Any other value is refused.
_EXTRA: dict[str, tuple[object, ...]] = {
    # vLLM extensions that are not supported here
    "truncate_prompt_tokens": (),
    "add_special_tokens": (True,),
    "normalize": (),
    "priority": (0,),
}


class EmbeddingRequest(BaseModel):
    """POST /v1/embeddings. null always means the default."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    model: str
    input: Annotated[
        list[str | list[int]],
        BeforeValidator(read_prompts),
        Field(min_length=1, max_length=MAX_INPUTS),
    ]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None

    def check(self) -> None:
        """Raise UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, _EXTRA, _HARMLESS)

    def check_dimensions(self, given: int) -> None:
        """Raise UnsupportedParameter unless `dimensions` is the model's own size.

        Truncating would give a different embedding, so it is not offered.
        """
        if self.dimensions not in (None, given):
            raise UnsupportedParameter(
                f"dimensions is {self.dimensions}, but this model's vectors have {given}: leave it "
                f"out, or send {given}",
                param="dimensions",
            )

    def inputs(self) -> list[Prompt]:
        return [each if isinstance(each, str) else tuple(each) for each in self.input]
