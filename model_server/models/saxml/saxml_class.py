"""Common base of the registered Saxml classes: sizes and serving values as class data.

A class defines its own sizes, so it can be served with random weights (checkpoint "None") on any
mesh; with a checkpoint the two must agree. Each value can be overridden under Saxml's name for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from model_server.checkpoints.orbax.pax.dialect import PRAXIS_ONLY, SAXML_SIZES
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys
from model_server.models.recipe import SERVING_DEFAULTS, ModelClass, Recipe
from sax.errors import CheckpointError, InvalidRequest
from sax.fields.sampling import MOST_LOGPROBS, SAMPLING, UNCHANGED
from sax.format import quoted

Values = Mapping[str, Any]

_PACKAGE = "saxml.server.pax.lm.params"
# Defaults of Saxml's serving template that apply here; Saxml users see its 2 samples, for example.
_TEMPLATE: Values = {
    "INPUT_SEQ_LEN": 256,  # with MAX_DECODE_STEPS: the context
    "MAX_DECODE_STEPS": 32,
    "PER_EXAMPLE_MAX_DECODE_STEPS": None,  # default per call; null: MAX_DECODE_STEPS
    "BATCH_SIZE": None,  # concurrent requests, without NUM_CACHE_SLOTS
    "NUM_SAMPLES": 2,
    "TEMPERATURE": 0.1,
    "TOP_K": 40,  # in Saxml also an upper limit; here a request may ask for more
    "EOS_ID": None,  # end token, instead of the tokenizer's; null: the tokenizer's
    "STOP_TOKEN_IDS": None,  # likewise, several
    "TOKENIZED_INPUT": False,  # queries of Generate and Score are token ids, "5,6,7"
    "TOKENIZED_OUTPUT": False,  # and so are answers, the end token included
    "USE_BEAM_SEARCH": False,  # search for the likeliest answers instead of sampling
    "BEAM_SIZE": 4,  # of a beam search: hypotheses, and answers
    # Of a beam search: tokens that each hypothesis offers; null: BEAM_SIZE.
    "TOKENS_PER_BEAM": None,
    "LENGTH_NORM_ALPHA": 0.8,  # of a beam search: 0 compares whole log-probabilities
    "BEAM_SEARCH_EARLY_EXIT": False,  # of a beam search: ends once all hypotheses did
    "MIN_DECODE_STEPS": 0,  # of a beam search: tokens before an answer may end
}
_MOST = 2**24  # of any size: a slip otherwise
_SOS_ID = 0  # of Saxml's template, where no tokenizer says otherwise
_OF_BEAMS = (
    "BEAM_SIZE",
    "TOKENS_PER_BEAM",
    "LENGTH_NORM_ALPHA",
    "BEAM_SEARCH_EARLY_EXIT",
    "MIN_DECODE_STEPS",
)
_OF_SAMPLES = ("NUM_SAMPLES", "TEMPERATURE", "TOP_K", "TOP_P")
_SIZES = (
    "NUM_LAYERS",
    "MODEL_DIMS",
    "HIDDEN_DIMS",
    "NUM_HEADS",
    "DIMS_PER_HEAD",
    "VOCAB_SIZE",
)
_KV_HEADS = "NUM_KV_HEADS"  # of classes with grouped queries; null: as many as heads
_COUNTS = ("INPUT_SEQ_LEN", "MAX_DECODE_STEPS", "NUM_SAMPLES")
_MAY_BE_NULL = (_KV_HEADS, "PER_EXAMPLE_MAX_DECODE_STEPS", "BATCH_SIZE")


def _own_config(values: Values, context: int) -> Values:
    return {**values, "CONTEXT": context}


@dataclass(frozen=True, slots=True, kw_only=True)
class SaxmlArchitecture:
    """Model behind one Saxml module's classes, and the mapping of sizes to config.json."""

    configure: Callable[[Values | None, Values], Recipe]
    # Maps a class's values and a context to what `configure` reads: a config.json, or the values.
    config: Callable[[Values, int], Values] = _own_config
    keys: KnownKeys  # of matching checkpoints
    sizes: Callable[[ConfigKeys], Values] = lambda keys: {}  # config.json sizes in Saxml's names


def sizes(
    layers: int,
    embed: int,
    ffw: int,
    heads: int,
    *,
    head_dim: int = 128,
    vocab: int = 32000,
) -> Values:
    return dict(zip(_SIZES, (layers, embed, ffw, heads, head_dim, vocab), strict=True))


def mesh(devices: int, *, replicas: int = 1) -> Values:
    """Pure tensor parallelism over `devices` in each of `replicas`."""
    return {"ICI_MESH_SHAPE": [replicas, 1, devices]}


def saxml_class(
    module: str, name: str, architecture: SaxmlArchitecture, values: Values
) -> ModelClass:
    """Registry entry for a class of `saxml.server.pax.lm.params.<module>`."""
    defaults = {**SERVING_DEFAULTS, **_TEMPLATE, **values}

    def configure(config: Values | None, given: Values) -> Recipe:
        _check(given)
        _check_search(given, defaults)
        stored = {} if config is None else _agreed(name, architecture, config, given, defaults)
        if config is None or SAXML_SIZES in config:
            context = given["MAX_CONTEXT"] or _length(given)
            config = architecture.config({**_whole(given), **stored}, context)
        recipe = architecture.configure(config, _served(given))
        return replace(
            recipe,
            max_context=_context(recipe.max_context, given, defaults),
            defaults=replace(recipe.defaults, **_ends(given, recipe.vocab), **_search(given)),
            tokenized_input=given["TOKENIZED_INPUT"],
            tokenized_output=given["TOKENIZED_OUTPUT"],
            start_token=_SOS_ID,
        )

    def config_of(config: Values, given: Values) -> Values:
        stored = _agreed(name, architecture, config, given, defaults)
        if architecture.config is _own_config:  # Praxis' own, which has no other config.json
            return config
        return architecture.config({**_whole(given), **stored}, _length(given))

    path = f"{_PACKAGE}.{module}.{name}"
    return ModelClass(path, False, defaults, configure, config_of)


def _check(given: Values) -> None:
    for key in (*_SIZES, *_COUNTS, *_MAY_BE_NULL):
        value = given.get(key)
        unsaid = value is None and key in _MAY_BE_NULL
        if not unsaid and (type(value) is not int or value < 1):
            raise InvalidRequest(
                f"{key} must be at least 1, not {quoted(value)}", param=f"overrides.{key}"
            )
    heads, kv_heads = given["NUM_HEADS"], given.get(_KV_HEADS) or given["NUM_HEADS"]
    if heads % kv_heads:
        raise InvalidRequest(
            f"NUM_HEADS {heads} is not a multiple of {_KV_HEADS} {kv_heads}",
            param=f"overrides.{_KV_HEADS}",
        )
    if given["TOKENIZED_INPUT"] and given["QUERY_FORMAT"] == "chat":
        raise InvalidRequest(
            'QUERY_FORMAT "chat" needs queries that are text: with TOKENIZED_INPUT they are token '
            "ids; leave one of the two out",
            param="overrides.QUERY_FORMAT",
        )
    if given["BATCH_SIZE"] and given["NUM_CACHE_SLOTS"]:
        raise InvalidRequest(
            "with NUM_CACHE_SLOTS, BATCH_SIZE is how many prompts Saxml prefills at once; here "
            "prompts share each step's tokens: leave it out",
            param="overrides.BATCH_SIZE",
        )


def _check_search(given: Values, defaults: Values) -> None:
    """Raise InvalidRequest for what a beam search does not heed, or what needs one."""
    searches = given["USE_BEAM_SEARCH"]
    for key in _OF_SAMPLES if searches else _OF_BEAMS:
        if given[key] != defaults[key]:
            said = "is true, and a beam search has no samples" if searches else "is false"
            raise InvalidRequest(
                f"{key} has no effect here: USE_BEAM_SEARCH {said}; leave one of the two out",
                param=f"overrides.{key}",
            )
    for key, name in (("BEAM_SIZE", "beam_size"), ("LENGTH_NORM_ALPHA", "length_penalty")):
        row = SAMPLING[name]
        least = max(row.least or 0, 1) if name == "beam_size" else row.least
        if not isinstance(given[key], int | float) or not least <= given[key] <= row.most:
            raise InvalidRequest(
                f"{key} is {given[key]}: give a number from {least} to {row.most}",
                param=f"overrides.{key}",
            )
    steps, most = given["MIN_DECODE_STEPS"], given["MAX_DECODE_STEPS"]
    if type(steps) is not int or not 0 <= steps < most:
        raise InvalidRequest(
            f"MIN_DECODE_STEPS is {quoted(steps)} and MAX_DECODE_STEPS {most}, the end token "
            "included: give a number from 0 on, and below that",
            param="overrides.MIN_DECODE_STEPS",
        )
    _check_offers(given["TOKENS_PER_BEAM"], steps)


def _check_offers(offers: Any, steps: int) -> None:
    """Raise InvalidRequest for a TOKENS_PER_BEAM that no search can have."""
    # What a step reports has room for the end tokens, too, which do not count at first.
    room = MOST_LOGPROBS - 1 if steps else MOST_LOGPROBS
    if offers is not None and (type(offers) is not int or not 1 <= offers <= room):
        raise InvalidRequest(
            f"TOKENS_PER_BEAM is {quoted(offers)}: with MIN_DECODE_STEPS {steps} give a number "
            f"from 1 to {room}, or null: as many as BEAM_SIZE",
            param="overrides.TOKENS_PER_BEAM",
        )


def _search(given: Values) -> Values:
    """Sampling defaults of a class that searches."""
    if not given["USE_BEAM_SEARCH"]:
        return {}
    return {
        "beam_size": given["BEAM_SIZE"],
        "tokens_per_beam": given["TOKENS_PER_BEAM"] or 0,
        "length_penalty": given["LENGTH_NORM_ALPHA"],
        "early_stopping": bool(given["BEAM_SEARCH_EARLY_EXIT"]),
        "min_tokens": given["MIN_DECODE_STEPS"],
        **{name: getattr(UNCHANGED, name) for name in ("temperature", "top_k", "top_p")},
    }


def _whole(given: Values) -> Values:
    return {**given, _KV_HEADS: given.get(_KV_HEADS) or given["NUM_HEADS"]}


def _length(given: Values) -> int:
    return given["INPUT_SEQ_LEN"] + given["MAX_DECODE_STEPS"]


def pax_keys(family: str) -> KnownKeys:
    """The config.json of a model that no library but Praxis has: its sizes, in Saxml's names."""
    return KnownKeys(family, (SAXML_SIZES,), {})


def _agreed(
    name: str, architecture: SaxmlArchitecture, config: Values, given: Values, defaults: Values
) -> Values:
    """Return the checkpoint's sizes. Raises CheckpointError if they are not the class's."""
    known, model_type = architecture.keys, config.get("model_type")
    fitting = known.family
    if model_type != fitting:
        pax_only = ', which are Pax\'s, or "None"' if fitting in PRAXIS_ONLY else ""
        raise CheckpointError(
            f"{name} loads checkpoints of model_type {fitting!r}{pax_only}, not {model_type!r}"
        )
    wanted = _whole(given)
    if SAXML_SIZES in config:
        stored = _pax_sizes(config)
    else:
        stored = architecture.sizes(ConfigKeys(config, known))
    for key, found in stored.items():
        # Saxml rounds vocabularies up; trust the checkpoint unless VOCAB_SIZE was overridden.
        insisted = key != "VOCAB_SIZE" or given[key] != defaults[key]
        if insisted and found != wanted.get(key):
            other = f"publish {fitting!r}, which takes its sizes from the checkpoint, or "
            raise CheckpointError(
                f"the checkpoint's {key} is {found} but {name} has {wanted.get(key)}: "
                f"{'' if SAXML_SIZES in config else other}override {key}"
            )
    return stored


def _pax_sizes(config: Values) -> Values:
    """Return the sizes that a Pax checkpoint has. Raises CheckpointError."""
    pax_keys(str(config.get("model_type"))).check(config)
    sizes = config[SAXML_SIZES]
    whole = isinstance(sizes, dict) and all(type(size) is int for size in sizes.values())
    if not whole or not all(0 < size <= _MOST for size in sizes.values()):
        raise CheckpointError(
            f"config.json has {SAXML_SIZES} = {quoted(sizes)}; it takes whole numbers from 1 to "
            f"{_MOST}"
        )
    return sizes


def _served(given: Values) -> Values:
    """Values in the form every family takes."""
    most, usual = given["MAX_DECODE_STEPS"], given["PER_EXAMPLE_MAX_DECODE_STEPS"]
    answers = given["BEAM_SIZE" if given["USE_BEAM_SEARCH"] else "NUM_SAMPLES"]
    batch = given["BATCH_SIZE"] and given["BATCH_SIZE"] * answers
    return {
        **given,
        "MAX_CONTEXT": None,
        "MAX_DECODE_STEPS": min(most, usual or most),
        "NUM_CACHE_SLOTS": given["NUM_CACHE_SLOTS"] or batch,
    }


def _context(own: int, given: Values, defaults: Values) -> int:
    """Context in tokens. A class's default is clipped to a shorter model; an override raises."""
    wanted = given["MAX_CONTEXT"] or _length(given)
    keys = ("MAX_CONTEXT", "INPUT_SEQ_LEN", "MAX_DECODE_STEPS")
    asked = [key for key in keys if given[key] != defaults[key]]
    if wanted > own and asked:
        raise InvalidRequest(
            f"{' and '.join(asked)} make a context of {wanted}, more than the {own} tokens this "
            "model supports",
            param=f"overrides.{asked[0]}",
        )
    return min(wanted, own)


def _ends(given: Values, vocab: int) -> Values:
    """Sampling defaults from the class's own end tokens."""
    key = "EOS_ID" if given["STOP_TOKEN_IDS"] is None else "STOP_TOKEN_IDS"
    ids = given[key]
    if ids is None:
        return {}
    ids = ids if isinstance(ids, list) else [ids]
    if not all(type(token) is int and 0 <= token < vocab for token in ids):
        raise InvalidRequest(
            f"{key} is {given[key]}: give token ids from 0 to {vocab - 1}", param=f"overrides.{key}"
        )
    return {"stop_token_ids": tuple(ids), "ignore_eos": True}
