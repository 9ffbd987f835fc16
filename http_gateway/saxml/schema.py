"""Request bodies of Saxml's HTTP server, generation 2.

Extra inputs are not checked here: the model server knows which ones a model takes.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from http_gateway import modes
from http_gateway.bounds import WHOLE, bounded, check_names, ranged
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted, shortened
from sax.scaling import Scaling, named
from sax.weights import Pausing, WeightAction, WeightChange
from sax.wire.extra_inputs import ExtraInputs

# Generation 2 always sends these unless overridden; null selects the model's own defaults.
DEFAULT_EXTRA_INPUTS: ExtraInputs = {
    "temperature": 0.5,
    "per_example_max_decode_steps": 128.0,
    "per_example_top_k": 200.0,
    "per_example_top_p": 0.95,
}


def read_overrides(value: object) -> object:
    """Parse `K=1 K2="text"` or an object into one JSON text per key. Raises ValueError."""
    if isinstance(value, str):
        return _overrides_from_text(value)
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        return {key: _json_text(key, item) for key, item in fields.items()}
    return value


def _json_text(key: str, value: object) -> str:
    """Return JSON text: a string already is, as in Saxml; other values are encoded."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        json.loads(value)
    except (ValueError, RecursionError) as exc:
        raise ValueError(
            f'{shortened(key)}={shortened(value)} is not JSON text: a string needs "quotes"'
        ) from exc
    return value


def _overrides_from_text(text: str) -> dict[str, str]:
    overrides: dict[str, str] = {}
    pairs, decoder = 0, json.JSONDecoder()
    rest = text.strip()
    while rest:
        field(RequestRoute.PUBLISH, "overrides").check_count(pairs := pairs + 1)
        key, equals, tail = rest.partition("=")
        if not equals or not key or any(letter.isspace() for letter in key):
            raise ValueError(f"{quoted(rest)}: write KEY=VALUE pairs with a space between them")
        try:
            _, end = decoder.raw_decode(tail)
        except (ValueError, RecursionError) as exc:
            word = shortened(f"{key}={tail}".split(maxsplit=1)[0])
            raise ValueError(f'{word} is not JSON text: a string needs "quotes"') from exc
        if tail[end:] and not tail[end].isspace():
            raise ValueError(f"{quoted(rest)}: a space must follow the value")
        overrides[key], rest = tail[:end], tail[end:].strip()
    return overrides


def read_numbers(value: object) -> object:
    """Read generation 2's own numbers from text ("0.5"), as its server does."""
    if not isinstance(value, dict):
        return value
    given = cast("dict[str, object]", value)
    return {
        key: _number_in(item) if key in DEFAULT_EXTRA_INPUTS else item
        for key, item in given.items()
    }


def _number_in(value: object) -> object:
    """Return the number of a text that is one; anything else as it is, to be refused by name."""
    if not isinstance(value, str):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    return number if math.isfinite(number) else value


def _not_a_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("give a number")
    return value


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
ExtraInput = Number | list[Number] | Annotated[str, Field(strict=True)]
Replicas = Annotated[int, BeforeValidator(_not_a_bool), ranged(RequestRoute.PUBLISH, "replicas")]
Count = Annotated[int, Field(strict=True), WHOLE]
Overrides = Annotated[
    dict[str, str], BeforeValidator(read_overrides), bounded(RequestRoute.PUBLISH, "overrides")
]
ModelName = Annotated[str, bounded(RequestRoute.PUBLISH, "model")]  # the same on every route


class _Body(BaseModel):
    model_config = ConfigDict(
        defer_build=True, extra="forbid", frozen=True, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: object) -> object:
        """Refuse too many fields at once: each unknown one would be reported by itself."""
        if isinstance(data, dict):
            fields = cast("dict[str, object]", data)
            check_names(fields)
            known = cls.model_fields
            return {
                name: value
                for name, value in fields.items()
                if name in known or not modes.ignored(shortened(name))
            }
        return data


class ModelBody(_Body):
    """/listcell, /unpublish, /promote and /abort."""

    model: ModelName


class CellBody(_Body):
    """/listall."""

    sax_cell: Annotated[str, bounded(RequestRoute.LISTALL, "sax_cell")]


class PublishBody(_Body):
    """/publish. Replicas may be text: "1".

    The last three fields are autoscaling. In an update, fields that are not sent stay as they are,
    and a max_replicas of null turns autoscaling off.
    """

    model: ModelName
    model_path: Annotated[str, bounded(RequestRoute.PUBLISH, "model_path")]
    checkpoint: Annotated[str, bounded(RequestRoute.PUBLISH, "checkpoint")]
    replicas: Replicas
    overrides: Overrides | None = None
    min_replicas: Annotated[Count, ranged(RequestRoute.PUBLISH, "min_replicas")] | None = None
    max_replicas: Annotated[Count, ranged(RequestRoute.PUBLISH, "max_replicas")] | None = None
    target_queue: Annotated[Number, ranged(RequestRoute.PUBLISH, "target_queue")] | None = None

    @property
    def autoscaling(self) -> Scaling | None:
        """The requested change, if any. Raises InvalidRequest when fields contradict each other."""
        said = named(self.min_replicas, self.max_replicas, self.target_queue)
        if "max_replicas" not in self.model_fields_set or self.max_replicas is not None:
            return said
        if said is not None:
            raise InvalidRequest(
                "max_replicas null turns autoscaling off: send no min_replicas or target_queue",
                param="max_replicas",
            )
        return "off"


class UpdateBody(PublishBody):
    """/update. With `revision` (the number of the model's newest event) the update applies only to
    that state; without it, to any."""

    revision: Annotated[Count, ranged(RequestRoute.UPDATE, "revision")] | None = None


class CanaryBody(_Body):
    """/canary. Without checkpoint and overrides: another percentage for the running canary."""

    model: ModelName
    percent: Annotated[Number, ranged(RequestRoute.CANARY, "percent")]
    checkpoint: Annotated[str, bounded(RequestRoute.CANARY, "checkpoint")] | None = None
    overrides: Overrides | None = None
    revision: Annotated[Count, ranged(RequestRoute.CANARY, "revision")] | None = None


class RollbackBody(_Body):
    """/rollback. Default version: the one before the current."""

    model: ModelName
    version: Annotated[
        str, Field(pattern="^([0-9a-f]{32})?$"), bounded(RequestRoute.ROLLBACK, "version")
    ] = ""


class WeightsBody(_Body):
    """/weights. Default version: the next number."""

    model: ModelName
    action: WeightAction = WeightAction.UPDATE
    checkpoint: Annotated[str, bounded(RequestRoute.WEIGHTS, "checkpoint")] = ""
    version: Annotated[str, bounded(RequestRoute.WEIGHTS, "version")] = ""
    expected: Annotated[str, bounded(RequestRoute.WEIGHTS, "expected")] = ""
    partial: bool = False
    mode: Pausing = Pausing.WAIT

    @property
    def change(self) -> WeightChange:
        return WeightChange(
            model_id=self.model,
            action=self.action,
            source=self.checkpoint,
            version=self.version,
            expected=self.expected,
            partial=self.partial,
            pausing=self.mode,
        )


class EventsQuery(_Body):
    """/events. Default: all models of the cell."""

    model: ModelName = ""
    before: Annotated[int, ranged(RequestRoute.EVENTS, "before")] = 0
    limit: Annotated[int, ranged(RequestRoute.EVENTS, "limit")] = 100


class GenerateBody(_Body):
    """/generate."""

    model: ModelName
    query: Annotated[str, bounded(RequestRoute.GENERATE, "query")]
    extra_inputs: (
        Annotated[
            dict[str, ExtraInput],
            BeforeValidator(read_numbers),
            bounded(RequestRoute.GENERATE, "extra_inputs"),
        ]
        | None
    ) = None

    def effective_extra_inputs(self) -> ExtraInputs | None:
        """Merge what was sent over generation 2's defaults; None when null was sent."""
        if "extra_inputs" not in self.model_fields_set:
            return DEFAULT_EXTRA_INPUTS
        if self.extra_inputs is None:
            return None
        return {**DEFAULT_EXTRA_INPUTS, **self.extra_inputs}
