"""Values of every field of the table: at both ends and in the middle of its bounds, and wrong ones.

A new field takes part by itself. Where its kind does not say what is worth asking, SPECIAL does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sax.fields.field import Kind, RequestField, RequestRoute
from sax.fields.table import fields_of

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_FORMATS: list[Any] = [
    {"type": "text"},
    {"type": "json_object"},
    {"type": "json_schema", "json_schema": {"name": "n", "schema": _SCHEMA}},
]
_TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "Paris"}}
# Values worth asking, where bounds do not tell them. A time limit is never short here, and a sound
# never heard at random.
SPECIAL: dict[str, list[Any]] = {
    "model": ["adapted", "nobody", "/sax/test/adapted"],
    "timeout": [60.0],
    "seed": [0, 7, 2**63 - 1],
    "messages": [[], [{"role": "system", "content": "Be brief."}]],
    "prompt": ["", "One, two,"],
    "input": [[], "Paris", ["Paris", "Oslo"]],
    "stop": [[], [" is"], ["a", "e"]],
    "stop_sequences": [["e"]],
    "stop_token_ids": [[], [253, 260, 28, 30]],
    "stop_sequence": [[], [30, 0]],
    "bad_words": [[], ["Paris", "is"]],
    "logit_bias": [{}, {"253": -100}, {"260": 100}],
    "allowed_token_ids": [[], [253, 260, 28], [260]],
    "json_schema": ['{"type": "integer"}'],
    "regex": ["[a-z]{3,5}"],
    "choice": [["Paris", "Rome"]],
    "grammar": ['start: "Par" "is"+'],
    "structural_tag": ['{"format": {"type": "const_string", "value": "Paris"}}'],
    "response_format": [*_FORMATS, _TAG],
    "guided_json": [_SCHEMA],
    "guided_regex": ["[a-z]{3,5}"],
    "guided_choice": [["Paris", "Rome"]],
    "guided_grammar": ['root ::= "(" ("a" | root)* ")"'],
    "structured_outputs": [{"choice": ["Paris", "Rome"]}, {"json": _SCHEMA}],
    "format": ["json", _SCHEMA],
    "text": [{"format": {"type": "json_object"}}],
    "reasoning": [{"effort": "low"}, {"effort": "none"}],
    "reasoning_effort": ["low", "none"],
    "think": [True, False, "low"],
    "thinking": [{"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}],
    "output_config": [{"effort": "low"}, {"format": {"type": "json_schema", "schema": _SCHEMA}}],
    "include": [["message.output_text.logprobs"]],
    "stream_options": [{}, {"include_usage": True}],
    "encoding_format": ["float", "base64"],
    "tools": [[]],
    "tool_choice": ["none", "auto", "required"],
    "chat_template_kwargs": [{}, {"enable_thinking": True}],
    "temperature of sounds": [0.0],
    "extra_inputs": [{"temperature": 0, "per_example_max_decode_steps": 3}],
    "keep_alive": ["5m", 0],
    "timestamp_granularities": [["segment"]],
    "response_format of sounds": ["json", "text", "srt", "vtt", "verbose_json"],
}
_OF_BEAMS = ("length_penalty", "early_stopping", "tokens_per_beam")
_REPEATING = "tick tock tick tock tick tock"
# What some fields are nothing without.
NEEDS: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    **dict.fromkeys(_OF_BEAMS, {"use_beam_search": True, "n": 2}),
    "continue_final_message": {"add_generation_prompt": False},
    "use_beam_search": {"n": 2},
    "max_completion_tokens": {"max_tokens": None},
    "min_tokens": {"stop": ["a"]},
    "include_stop_str_in_output": {"stop": ["a"]},
    "ignore_eos": {"logit_bias": {"2": 100}},  # the demo model's end token
    "skip_special_tokens": {"logit_bias": {"2": 100}, "ignore_eos": True},
    "spaces_between_special_tokens": {"logit_bias": {"2": 100}, "ignore_eos": True},
    "presence_penalty": {"prompt": _REPEATING},
    "frequency_penalty": {"prompt": _REPEATING},
    "return_tokens_as_token_ids": {"logprobs": 1},
}


def values_of(field: RequestField, *, sounds: bool = False) -> list[Any]:
    """Return values that the bounds of a field allow: the least, one between and the greatest."""
    name = field.name.rpartition("options.")[2]
    if (special := SPECIAL.get(f"{name} of sounds" * sounds or name)) is not None:
        return special
    match field.kind:
        case Kind.FLAG:
            return [False, True]
        case Kind.INTEGER | Kind.NUMBER:
            return _numbers(field)
        case Kind.TEXT:
            return ["", "x"]
        case Kind.TEXTS | Kind.PROMPTS:
            return [[], ["the"]]
        case Kind.IDS:
            return [[], [253, 260]]
        case Kind.MAP | Kind.BIASES:
            return [{}]
        case Kind.MESSAGES | Kind.OBJECTS:
            return [[]]


def _numbers(field: RequestField) -> list[Any]:
    lowest = field.least if field.least is not None else field.above
    low = -100.0 if lowest is None else lowest
    high = 100.0 if field.most is None else field.most
    middle = (low + high) / 2 if high - low <= 300 else low + 4
    if field.kind is Kind.INTEGER:
        return sorted({int(low), int(middle), int(high)})
    return [low + 0.01 * (field.least is None), middle, high]


def wrong_of(field: RequestField) -> list[Any]:
    """Return values that the bounds of a field or its kind forbid."""
    match field.kind:
        case Kind.INTEGER | Kind.NUMBER:
            past = [] if field.most is None else [field.most + 1]
            below = [each - 1 for each in (field.least, field.above) if each is not None]
            whole = field.kind is Kind.INTEGER
            return [*(int(each) if whole else each for each in (*below, *past)), "many"]
        case Kind.FLAG:
            return ["maybe"]
        case Kind.IDS:
            return [[-1], "x"]
        case Kind.BIASES:
            return [{"x": 1}, {"5": 1000}]
        case Kind.TEXT if (field.bytes or 1 << 20) <= 512:
            return [5, "x" * ((field.bytes or 0) + 1)]
        case _:
            return [5]


def as_sampling(field: RequestField, value: Any) -> Any:
    """Return a value as SamplingParams holds it."""
    if field.kind is Kind.BIASES and isinstance(value, Mapping):
        return {int(key) if key.isdigit() else key: each for key, each in value.items()}
    return tuple(value) if isinstance(value, list) else value


def needs_of(route: RequestRoute, name: str) -> dict[str, Any]:
    """Return the fields that go with one, if the route has them."""
    if route is RequestRoute.MESSAGES and name == "top_k":
        return {"temperature": 0}  # Anthropic's requests have no seed
    if route is RequestRoute.STREAM and name in _OF_BEAMS:
        return {"beam_size": 2}  # another name for it
    needed = NEEDS.get(name, {})
    return needed if needed.keys() <= fields_of(route).keys() else {}
