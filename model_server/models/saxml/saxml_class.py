"""Common base of the registered Saxml classes: sizes and serving values as class data.

A class defines its own sizes, so it can be served with random weights (checkpoint "None") on any
mesh; with a checkpoint the two must agree. Each value can be overridden under Saxml's name for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from model_server.checkpoints.orbax.pax.dialect import PRAXIS_ONLY, SAXML_SIZES
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys
from model_server.models.recipe import SERVING_DEFAULTS, ModelClass, Recipe
from model_server.models.saxml_replies import SaxmlReplies
from sax.errors import CheckpointError, InvalidRequest
from sax.fields.sampling import MOST_LOGPROBS, UNCHANGED
from sax.format import quoted
from sax.overrides.saxml_overrides import EXTRA_INPUTS, with_declared
from sax.overrides.value_rule import as_list
from sax.types import SamplingParams

_OF_SAMPLES = ("temperature", "top_k", "top_p")
_GREEDY = 0.0  # Saxml's temperature where no extra input is declared


def normal(given: Values) -> Values:
    """Return the values with one of the ways to write each: lists of lengths, zeros for none."""
    _check_alone("MAX_SEQ_LEN", "MAX_CONTEXT", given)
    _check_alone("QUANTIZE_KV", "KV_CACHE_DTYPE", given)
    return {
        **given,
        "MAX_DECODE_STEPS": max(as_list(given["MAX_DECODE_STEPS"])),
        "NUM_CACHE_SLOTS": given["NUM_CACHE_SLOTS"] or None,
        "MAX_CONTEXT": given["MAX_SEQ_LEN"] or given["MAX_CONTEXT"],
        "KV_CACHE_DTYPE": "int8" if given["QUANTIZE_KV"] else given["KV_CACHE_DTYPE"],
    }


def _check_alone(key: str, ours: str, given: Values) -> None:
    """Raise InvalidRequest if Saxml's name and ours for one thing are both set."""
    if given[key] and given[ours] is not None:
        raise InvalidRequest(
            f"{key} and {ours} set the same: leave one of the two out", param=f"overrides.{key}"
        )


def batches(given: Values) -> tuple[int, ...]:
    """Return the sequences of each batch size; () if slots are counted otherwise."""
    sizes = given["BATCH_SIZE"]
    if given["NUM_CACHE_SLOTS"] or sizes is None:
        return ()
    answers = given["BEAM_SIZE" if given["USE_BEAM_SEARCH"] else "NUM_SAMPLES"]
    return tuple(sorted({size * answers for size in as_list(sizes)}))


def call_defaults(given: Values, usual: Values, served: SamplingParams) -> SamplingParams:
    """Return what a call that says nothing gets.

    usual: the class's own values. served: the sampling of those that were given, with end tokens.
    Raises InvalidRequest naming an extra input.
    """
    found = replace(served, **_search(given))
    declared = given[EXTRA_INPUTS]
    if declared is None:
        return found
    if given["USE_BEAM_SEARCH"]:
        return _bounded(with_declared(declared, found, searches=True), given)
    return _bounded(with_declared(declared, _undeclared(given, usual, found)), given)


def _undeclared(given: Values, usual: Values, found: SamplingParams) -> SamplingParams:
    """Return what Saxml's calls get where a class declares no extra input.

    A class's own TEMPERATURE, TOP_P and PER_EXAMPLE_MAX_DECODE_STEPS stand for those it declares.
    """

    def told(key: str) -> bool:
        return given[key] != usual[key]

    return replace(
        found,
        temperature=found.temperature if told("TEMPERATURE") else _GREEDY,
        top_p=found.top_p if told("TOP_P") else UNCHANGED.top_p,
        max_tokens=found.max_tokens
        if told("PER_EXAMPLE_MAX_DECODE_STEPS")
        else given["MAX_DECODE_STEPS"],
    )


def _bounded(found: SamplingParams, given: Values) -> SamplingParams:
    """Return the defaults within the class's limits, as Saxml clips them."""
    most_k, most = given["TOP_K"], given["MAX_DECODE_STEPS"]
    if most_k and not given["USE_BEAM_SEARCH"]:
        found = replace(found, top_k=min(found.top_k or most_k, most_k))
    return replace(found, max_tokens=min(found.max_tokens or most, most))


def check_search(given: Values) -> None:
    """Raise InvalidRequest for a beam search that cannot be."""
    if not given["USE_BEAM_SEARCH"]:
        return
    steps, most = given["MIN_DECODE_STEPS"], given["MAX_DECODE_STEPS"]
    if not 0 <= steps < most:
        raise InvalidRequest(
            f"MIN_DECODE_STEPS is {quoted(steps)} and MAX_DECODE_STEPS {most}, the end token "
            "included: give a number from 0 on, and below that",
            param="overrides.MIN_DECODE_STEPS",
        )
    offers = given["TOKENS_PER_BEAM"]
    # What a step reports has room for the end tokens, too, which do not count at first.
    room = MOST_LOGPROBS - 1 if steps else MOST_LOGPROBS
    if offers is not None and offers > room:
        raise InvalidRequest(
            f"TOKENS_PER_BEAM is {offers}: with MIN_DECODE_STEPS {steps} give a number from 1 to "
            f"{room}, or null: as many as BEAM_SIZE",
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
        **{name: getattr(UNCHANGED, name) for name in _OF_SAMPLES},
    }


Values = Mapping[str, Any]

_PACKAGE = "saxml.server.pax.lm.params"
# Defaults of Saxml's serving template that apply here; Saxml users see its 2 samples, for example.
_TEMPLATE: Values = {
    "INPUT_SEQ_LEN": 256,  # with MAX_DECODE_STEPS: the context
    "MAX_DECODE_STEPS": 32,
    "PER_EXAMPLE_MAX_DECODE_STEPS": None,  # default per call; null: MAX_DECODE_STEPS
    "MAX_SEQ_LEN": None,  # the context instead; null: INPUT_SEQ_LEN and MAX_DECODE_STEPS
    "BATCH_SIZE": None,  # concurrent requests, or a list of sizes, without NUM_CACHE_SLOTS
    "NUM_SAMPLES": 2,
    "SORT_SAMPLES": True,  # best first
    "TEMPERATURE": 0.1,
    "TOP_K": 40,  # in Saxml also an upper limit; here a request may ask for more
    # Defaults of calls, in Saxml's names; null: TEMPERATURE, TOP_K, TOP_P and
    # PER_EXAMPLE_MAX_DECODE_STEPS
    "EXTRA_INPUTS": None,
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
    "INCLUDE_PREFIX_IN_RESULT": False,  # an answer begins with its query
    "GENERATION_USE_GEOMEAN_PROB_SCORE": False,  # a score is a mean probability of a token
    "SCORING_USE_GEOMEAN_PROB_SCORE": False,  # likewise of Score
    "SCORING_INCLUDE_EOS_SCORE": False,  # Score counts the end token, too
    "GENERATE_ONLY": None,  # true: no Score
    "SCORE_ONLY": False,  # no Generate and no GenerateStream
    "ENABLE_GENERATE": True,  # false: streams only
    "QUANTIZE_KV": False,  # KV_CACHE_DTYPE "int8"
}
_MOST = 2**24  # of any size: a slip otherwise
_SOS_ID = 0  # of Saxml's template, where no tokenizer says otherwise
_SIZES = (
    "NUM_LAYERS",
    "MODEL_DIMS",
    "HIDDEN_DIMS",
    "NUM_HEADS",
    "DIMS_PER_HEAD",
    "VOCAB_SIZE",
)
_KV_HEADS = "NUM_KV_HEADS"  # of classes with grouped queries; null: as many as heads


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
        given = normal(given)
        _check(given)
        stored = {} if config is None else _agreed(name, architecture, config, given, defaults)
        if config is None or SAXML_SIZES in config:
            context = given["MAX_CONTEXT"] or _length(given)
            config = architecture.config({**_whole(given), **stored}, context)
        recipe = architecture.configure(config, _served(given))
        ended = replace(recipe.defaults, **_ends(given, recipe.vocab))
        return replace(
            recipe,
            max_context=_context(recipe.max_context, given, defaults),
            defaults=call_defaults(given, defaults, ended),
            auto_context=None if given["MAX_SEQ_LEN"] is None else False,
            batches=batches(given),
            tokenized_input=given["TOKENIZED_INPUT"],
            tokenized_output=given["TOKENIZED_OUTPUT"],
            start_token=_SOS_ID,
            replies=replies(given),
        )

    def config_of(config: Values, given: Values) -> Values:
        given = normal(given)
        stored = _agreed(name, architecture, config, given, defaults)
        if architecture.config is _own_config:  # Praxis' own, which has no other config.json
            return config
        return architecture.config({**_whole(given), **stored}, _length(given))

    path = f"{_PACKAGE}.{module}.{name}"
    return ModelClass(path, False, defaults, configure, config_of)


def _check(given: Values) -> None:
    usual = given["PER_EXAMPLE_MAX_DECODE_STEPS"]
    if usual is not None and (type(usual) is not int or usual < 1):
        raise InvalidRequest(
            f"PER_EXAMPLE_MAX_DECODE_STEPS is {quoted(usual)}: give a whole number of 1 or more, "
            "or null",
            param="overrides.PER_EXAMPLE_MAX_DECODE_STEPS",
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
    check_search(given)
    check_replies(given)


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
    return {
        **given,
        "MAX_CONTEXT": None,
        "MAX_DECODE_STEPS": min(most, usual or most),
        "NUM_CACHE_SLOTS": given["NUM_CACHE_SLOTS"] or max(batches(given), default=None),
    }


def _context(own: int, given: Values, defaults: Values) -> int:
    """Context in tokens. A class's default is clipped to a shorter model; an override raises."""
    wanted = given["MAX_CONTEXT"] or _length(given)
    own_name = "MAX_CONTEXT" if given["MAX_SEQ_LEN"] is None else "MAX_SEQ_LEN"
    keys = (own_name, "INPUT_SEQ_LEN", "MAX_DECODE_STEPS")
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
    for key in ("EOS_ID", "STOP_TOKEN_IDS"):
        if not all(token is None or token < vocab for token in as_list(given[key])):
            raise InvalidRequest(
                f"{key} is {given[key]}: give token ids from 0 to {vocab - 1}",
                param=f"overrides.{key}",
            )
    ids = given["EOS_ID"] if given["STOP_TOKEN_IDS"] is None else given["STOP_TOKEN_IDS"]
    return {} if ids is None else {"stop_token_ids": tuple(as_list(ids)), "ignore_eos": True}


def replies(given: Mapping[str, Any]) -> SaxmlReplies:
    return SaxmlReplies(
        begins_with_query=given["INCLUDE_PREFIX_IN_RESULT"],
        best_first=given["SORT_SAMPLES"],
        mean_probability=given["GENERATION_USE_GEOMEAN_PROB_SCORE"],
        scored_mean=given["SCORING_USE_GEOMEAN_PROB_SCORE"],
        scores_end=given["SCORING_INCLUDE_EOS_SCORE"],
        end_token=_only_end(given),
        withheld=tuple(_withheld(given)),
    )


def _withheld(given: Mapping[str, Any]) -> Iterator[str]:
    if given["SCORE_ONLY"] or not given["ENABLE_GENERATE"]:
        yield "lm.generate"
    if given["SCORE_ONLY"]:
        yield "lm.generate_stream"
    if given["GENERATE_ONLY"]:
        yield "lm.score"


def check_replies(given: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for overrides that contradict each other."""
    if given["SCORE_ONLY"] and given["GENERATE_ONLY"]:
        raise InvalidRequest(
            "SCORE_ONLY and GENERATE_ONLY leave no method: leave one of the two out",
            param="overrides.SCORE_ONLY",
        )
    if given["GENERATION_USE_GEOMEAN_PROB_SCORE"] and given["USE_BEAM_SEARCH"]:
        raise InvalidRequest(
            "GENERATION_USE_GEOMEAN_PROB_SCORE is of samples, and USE_BEAM_SEARCH answers with a "
            "search, whose scores LENGTH_NORM_ALPHA divides: leave one of the two out",
            param="overrides.GENERATION_USE_GEOMEAN_PROB_SCORE",
        )


def _only_end(given: Mapping[str, Any]) -> int | None:
    """Return the class's own end token, EOS_ID; None: the tokenizer's."""
    end = given["EOS_ID"]
    return end[0] if isinstance(end, list) else end
