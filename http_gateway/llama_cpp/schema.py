"""The body of llama.cpp's /infill, and the treatment of each of its fields.

Editors' plug-ins (llama.vim, llama.vscode) send more than they need. What only says how llama.cpp's
server is to work is taken; what would change the answer is honoured or refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model

from http_gateway.bounds import bounded, checked, ranged, setting, sized, whole
from http_gateway.openai.tools import object_at, refuse_others
from http_gateway.openai.unsupported import refuse_unsupported
from http_gateway.openapi import RequestBody, Schema
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.fields.table import LLAMA_CPP_SAMPLING, field
from sax.types import SamplingParams

_ROUTE = RequestRoute.INFILL
_EXTRA_TEXT = field(_ROUTE, "input_extra.text")
# llama.cpp's, where they differ from ours
DEFAULTS: Mapping[str, float] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
# Fields about how llama.cpp's server works: its slots, its cache and its clock
LABELS = frozenset(
    {"cache_prompt", "id_slot", "n_keep", "samplers", "t_max_predict_ms", "t_max_prompt_ms"}
)
# Field -> the values besides null that change nothing. Any other value is refused.
UNCHANGED: dict[str, tuple[object, ...]] = {
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "grammar": ("",),
    "ignore_eos": (False,),
    "json_schema": ({},),
    "logit_bias": ([], {}),
    "lora": ([],),
    "min_keep": (0,),
    "mirostat": (0,),
    "n_cache_reuse": (0,),
    "n_probs": (0,),
    "penalize_nl": (True, False),
    "post_sampling_probs": (False, True),
    "repeat_last_n": (64, -1),
    "return_progress": (False,),
    "return_tokens": (False,),
    "timings_per_token": (False,),
    "xtc_probability": (0,),
}
REMARKS = {
    **dict.fromkeys(LABELS, "How llama.cpp's server works."),
    "samplers": "The fields of sampling say what is done.",
    "t_max_predict_ms": "n_predict and n_indent bound the answer, which comes whole.",
    "model": "Without it, the only model there is.",
    "input_extra": "Files that stand before the text in front, each behind its name.",
    "prompt": "The beginning of the middle, which the answer continues.",
    "n_indent": "The answer ends before a line with fewer spaces than these.",
    "n_predict": "-1: to the end; 0: only into the prefix cache.",
    "response_fields": "Only these are in the reply, each under the path that was given.",
}

if TYPE_CHECKING:
    _Sampling = BaseModel
else:
    _Sampling = create_model(
        "InfillSampling",
        __config__=ConfigDict(extra="allow", strict=True, frozen=True),
        **{name: (setting(_ROUTE, name), None) for name in LLAMA_CPP_SAMPLING},
    )

_Whole = BeforeValidator(whole)


class InfillRequest(_Sampling):
    """POST /infill. null always means the default."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    input_prefix: Annotated[str, bounded(_ROUTE, "input_prefix")]
    input_suffix: Annotated[str, bounded(_ROUTE, "input_suffix")]
    model: Annotated[str, bounded(_ROUTE, "model")] | None = None
    input_extra: (
        Annotated[
            list[dict[str, object]], sized(_ROUTE, "input_extra"), bounded(_ROUTE, "input_extra")
        ]
        | None
    ) = None
    prompt: Annotated[str, bounded(_ROUTE, "prompt")] | None = None
    stream: Annotated[bool, checked(_ROUTE, "stream")] | None = None
    n_predict: (
        Annotated[int, ranged(_ROUTE, "n_predict"), checked(_ROUTE, "n_predict"), _Whole] | None
    ) = None
    n_indent: (
        Annotated[int, ranged(_ROUTE, "n_indent"), checked(_ROUTE, "n_indent"), _Whole] | None
    ) = None
    seed: Annotated[int, ranged(_ROUTE, "seed"), checked(_ROUTE, "seed"), _Whole] | None = None
    response_fields: (
        Annotated[list[str], sized(_ROUTE, "response_fields"), bounded(_ROUTE, "response_fields")]
        | None
    ) = None
    timeout: Annotated[float, ranged(_ROUTE, "timeout")] | None = None

    def check(self) -> None:
        """Raise InvalidRequest or UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, UNCHANGED, LABELS, route=_ROUTE)
        _ = self.before
        if not self.before and not self.input_suffix:
            raise InvalidRequest(
                "input_prefix and input_suffix are empty: send the text around the answer",
                param="input_prefix",
            )

    @cached_property
    def before(self) -> str:
        """The text before the answer. Raises InvalidRequest or UnsupportedParameter."""
        files = [_file(each, f"input_extra[{n}]") for n, each in enumerate(self.input_extra or ())]
        return "".join([*files, self.input_prefix, self.prompt or ""])

    @property
    def only_cached(self) -> bool:
        """True if there is to be no answer: an editor wants its prompt in the prefix cache."""
        return self.n_predict == 0

    def sampling(self) -> SamplingParams:
        given: dict[str, Any] = dict(DEFAULTS)
        for name, ours in LLAMA_CPP_SAMPLING.items():
            if (value := getattr(self, name)) is not None:
                given[ours] = tuple(cast("list[str]", value)) if isinstance(value, list) else value
        if self.seed is not None and self.seed >= 0:
            given["seed"] = self.seed
        if self.n_predict is not None and self.n_predict >= 0:
            given["max_tokens"] = max(1, self.n_predict)
        return SamplingParams(**given)


def _file(entry: object, at: str) -> str:
    parts = object_at(entry, at)
    name, text = parts.pop("filename", None), parts.pop("text", None)
    refuse_others({k: v for k, v in parts.items() if k != "time"}, at)
    if not isinstance(text, str) or not isinstance(name, str | None):
        raise InvalidRequest(f"{at}: send a filename and a text", param=at)
    _EXTRA_TEXT.check_text(text, at)
    return f"--- {name or 'snippet'} ---\n{text}\n\n"


_EXTRA: Schema = {
    "anyOf": [
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "filename": {"type": ["string", "null"]},
                    "text": {
                        "type": "string",
                        "maxLength": _EXTRA_TEXT.bytes,
                    },
                    "time": {},
                },
                "required": ["text"],
                "additionalProperties": False,
            },
            "maxItems": field(_ROUTE, "input_extra").count,
        },
        {"type": "null"},
    ]
}
INFILL = RequestBody(
    model=InfillRequest,
    route=_ROUTE,
    unchanged=UNCHANGED,
    labels=LABELS,
    replaced={"input_extra": _EXTRA},
    remarks=REMARKS,
)
