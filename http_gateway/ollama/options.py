"""Ollama's options: honoured, without effect here, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from http_gateway.bounds import whole
from http_gateway.openai.unsupported import refuse_unsupported
from sax.errors import InvalidRequest
from sax.fields.field import Kind, RequestRoute
from sax.fields.table import OLLAMA_OPTIONS, field
from sax.types import SamplingParams

_ROUTE = RequestRoute.OLLAMA_CHAT
# Ollama's, where they differ from ours
DEFAULTS: Mapping[str, float] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
NUMBERS = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep")
FLAGS = ("numa", "low_vram", "f16_kv", "use_mmap", "use_mlock")
# Option -> the values besides null that change nothing
UNCHANGED: Mapping[str, tuple[object, ...]] = {
    "mirostat": (0,),
    "tfs_z": (1,),
    # Penalties look at the whole prompt and answer.
    "repeat_last_n": (64, -1),
    "penalize_newline": (True,),
    "logits_all": (False,),
    "vocab_only": (False,),
    "embedding_only": (False,),
}
# Of mirostat, which is off
TUNING = ("mirostat_tau", "mirostat_eta")


def read_options(options: Mapping[str, object] | None) -> dict[str, Any]:
    """Return the fields of SamplingParams.

    Raises InvalidRequest or UnsupportedParameter naming the option.
    """
    given = {name: value for name, value in (options or {}).items() if value is not None}
    made: dict[str, Any] = {**DEFAULTS}
    made |= {
        ours: _read(name, given.pop(name)) for name, ours in OLLAMA_OPTIONS.items() if name in given
    }
    seed, most = given.pop("seed", None), given.pop("num_predict", None)
    if seed is not None and (seed := _read("seed", seed)) >= 0:
        made["seed"] = seed
    if most is not None and (most := _read("num_predict", most)) > 0:
        made["max_tokens"] = most
    _check_loading(given)
    refuse_unsupported(given, UNCHANGED, at="options.")
    return made


def sampling_of(options: Mapping[str, object] | None, **own: Any) -> SamplingParams:
    return SamplingParams(**read_options(options), **own)


def _read(name: str, value: object) -> Any:
    row = field(_ROUTE, f"options.{name}")
    if row.kind is Kind.INTEGER:
        value = whole(value)
    if row.kind is Kind.TEXTS and isinstance(value, str):
        value = [value]
    row.read(value)
    return tuple(cast("list[object]", value)) if isinstance(value, list) else value


def _check_loading(given: dict[str, object]) -> None:
    """Take out the options of how a runner loads a model, which was loaded when it was published.

    Raises InvalidRequest for a value of another kind.
    """
    kinds: dict[str, tuple[type, ...]] = {
        **dict.fromkeys((*NUMBERS, *TUNING), (int, float)),
        **dict.fromkeys(FLAGS, (bool,)),
    }
    for name, kind in kinds.items():
        value = given.pop(name, None)
        if value is None:
            continue
        if not isinstance(value, kind) or (bool not in kind and isinstance(value, bool)):
            wanted = "true or false" if bool in kind else "a number"
            raise InvalidRequest(
                f"options.{name}: give {wanted}, or leave it out", param=f"options.{name}"
            )
