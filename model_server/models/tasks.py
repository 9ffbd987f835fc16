"""Tasks of a model: what it was published to do, from its overrides and its checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from sax.errors import InvalidRequest, UnsupportedParameter

GENERATE, EMBED, CLASSIFY, GRADIENT = "generate", "embed", "classify", "gradient"
RERANK = "rerank"  # scores pairs by the next token
_TASKS = (GENERATE, EMBED, CLASSIFY, GRADIENT, RERANK)
# How Hugging Face's names of classifiers end: of whole inputs, and of their tokens
_CLASSIFIER, _TAGGER = "ForSequenceClassification", "ForTokenClassification"
_ACTIVATIONS = ("softmax", "sigmoid", "none")
_POOLINGS = ("cls", "mean", "max", "last")

# Overrides of models that embed and classify.
TASK_DEFAULTS: Mapping[str, Any] = {
    # A list of: generate, embed, classify, gradient, rerank; null: as the checkpoint says
    "TASKS": None,
    "POOLING": None,  # of embeddings: cls, mean, max or last; null: as the checkpoint says
    "NORMALIZE": None,  # vectors to length 1; null: as the checkpoint says
    # Shorter vectors: true for any, a list of sizes, false; null: as the checkpoint says
    "MATRYOSHKA": None,
    "CLASSIFY_ACTIVATION": None,  # softmax, sigmoid or none; null: as the checkpoint says
}
# And of those that can also generate; the last two are Saxml's.
PASS_DEFAULTS: Mapping[str, Any] = {
    **TASK_DEFAULTS,
    # Texts of the tokens that say that a document fits a query, and that it does not; null: as the
    # checkpoint says
    "RERANK_TOKENS": None,
    "PASS_CONTEXT": 512,  # tokens of an input that is embedded or differentiated beside generating
    "GRADIENT_WRT_INPUT_TENSOR_NAMES": None,  # null: embeddings
    "GRADIENT_WRT_MDL_VAR_TENSOR_NAMES": None,
}

# True: vectors of any smaller size; else the sizes
Sizes = Literal[True] | tuple[int, ...]
GRADIENT_INPUTS = ("embeddings", "weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """Overrides of a model's tasks; None: as the checkpoint says."""

    names: tuple[str, ...] | None = None
    pooling: str | None = None
    normalise: bool | None = None
    matryoshka: Sizes | None = None  # (): none
    activation: str | None = None
    rerank_tokens: tuple[str, ...] | None = None
    pass_context: int = 512  # tokens
    gradient_inputs: tuple[str, ...] = ("embeddings",)
    gradient_weights: tuple[str, ...] = ()  # as declared: final_norm.scale
    max_context: int | None = None  # MAX_CONTEXT as published

    def of(
        self,
        config: Mapping[str, Any] | None,
        *,
        embeds: bool,
        generates: bool,
        reranks: bool = False,
    ) -> frozenset:
        """Return the names of all tasks. Raises InvalidRequest if they contradict each other.

        embeds: the checkpoint's own files say that it is an embedding model; reranks: or one that
        scores pairs by the next token. generates: its family can generate.
        """
        reranks = reranks or self.rerank_tokens is not None
        names = self.names
        if names is None:
            own = _own_task(config, embeds=embeds, generates=generates)
            names = (RERANK if reranks else own,)
        if RERANK in names and (len(names) > 1 or not reranks):
            raise _wrong(
                "TASKS",
                "rerank stands alone, and needs RERANK_TOKENS unless the checkpoint is a language "
                "model with sentence-transformers' LogitScore",
            )
        if self.rerank_tokens is not None and RERANK not in names:
            raise _wrong(
                "RERANK_TOKENS", f"is for the task rerank, not {min(names)}: leave one out"
            )
        if not generates and (wrong := {GENERATE, GRADIENT, RERANK} & {*names}):
            raise _wrong("TASKS", f"an encoder has no task {min(wrong)}: leave it out")
        if CLASSIFY in names and (len(names) > 1 or not _classifies(config)):
            raise _wrong(
                "TASKS",
                "classify stands alone, and needs a checkpoint whose architecture ends in "
                f"{_CLASSIFIER} or {_TAGGER}",
            )
        if GRADIENT in names and GENERATE not in names:
            raise _wrong("TASKS", "gradient comes beside generate: add it")
        self._check_used(names)
        return frozenset(names)

    def _check_used(self, names: Sequence[str]) -> None:
        """Raise InvalidRequest for an override that changes nothing about these tasks."""
        if self.activation is not None and not {CLASSIFY, RERANK} & {*names}:
            raise _unused("CLASSIFY_ACTIVATION", "that classifies or ranks", names)
        of_vectors = {
            "POOLING": self.pooling,
            "NORMALIZE": self.normalise,
            "MATRYOSHKA": self.matryoshka,
        }
        for key, value in of_vectors.items():
            if value is not None and EMBED not in names:
                raise _unused(key, "that embeds", names)


def parse_tasks(values: Mapping[str, Any]) -> Tasks:
    """Check the overrides of `TASK_DEFAULTS`, or of `PASS_DEFAULTS`. Raises InvalidRequest."""
    _check_one_of(values, "POOLING", _POOLINGS)
    _check_one_of(values, "CLASSIFY_ACTIVATION", _ACTIVATIONS)
    if values["NORMALIZE"] not in (None, True, False):
        raise _wrong("NORMALIZE", f"is {values['NORMALIZE']!r}; it must be true, false or null")
    inputs = _names(values, "GRADIENT_WRT_INPUT_TENSOR_NAMES", GRADIENT_INPUTS)
    weights = _names(values, "GRADIENT_WRT_MDL_VAR_TENSOR_NAMES")
    context = values.get("PASS_CONTEXT", 512)
    if type(context) is not int or context < 3:
        raise _wrong("PASS_CONTEXT", f"is {context!r}; it must be at least 3 tokens")
    return Tasks(
        names=_names(values, "TASKS", _TASKS),
        pooling=values["POOLING"],
        normalise=values["NORMALIZE"],
        matryoshka=read_sizes(values["MATRYOSHKA"]),
        activation=values["CLASSIFY_ACTIVATION"],
        rerank_tokens=_rerank_tokens(values),
        pass_context=context,
        gradient_inputs=("embeddings",) if inputs is None and weights is None else inputs or (),
        gradient_weights=weights or (),
        max_context=values["MAX_CONTEXT"],
    )


def _rerank_tokens(values: Mapping[str, Any]) -> tuple[str, ...] | None:
    tokens = _names(values, "RERANK_TOKENS")
    if tokens is not None and len(tokens) > 2:
        raise _wrong("RERANK_TOKENS", f"has {len(tokens)} tokens; give one or two")
    return tokens


def read_sizes(value: Any) -> Sizes | None:
    """Read MATRYOSHKA. Raises InvalidRequest."""
    if value is None or value is True:
        return value
    if value is False:
        return ()
    sizes = _list(value)
    if sizes and all(type(size) is int and size >= 1 for size in sizes):
        return tuple(cast("list[int]", sizes))
    raise _wrong("MATRYOSHKA", f"is {value!r}; it must be true, false, null or a list of sizes")


def sizes_of(config: Mapping[str, Any]) -> Sizes:
    """Return the smaller sizes that a config.json says its vectors may have."""
    if sizes := _list(config.get("matryoshka_dimensions")):
        return tuple(size for size in sizes if type(size) is int)
    return True if config.get("is_matryoshka") is True else ()


def check_size(asked: int, own: int, sizes: Sizes) -> None:
    """Raise UnsupportedParameter for a size that the model's vectors cannot be cut to."""
    if asked == own or (asked < own and (sizes is True or asked in sizes)):
        return
    if sizes is True:
        offered = f"send at most {own}"
    elif sizes:
        offered = f"send one of {', '.join(map(str, sorted({*sizes, own})))}"
    else:
        offered = f"leave it out, send {own}, or publish it with MATRYOSHKA if it was trained so"
    raise UnsupportedParameter(
        f"dimensions is {asked}, but this model's vectors have {own}: {offered}",
        param="dimensions",
    )


def _own_task(config: Mapping[str, Any] | None, *, embeds: bool, generates: bool) -> str:
    if _classifies(config):
        return CLASSIFY
    return EMBED if embeds or not generates else GENERATE


def classifies_tokens(config: Mapping[str, Any] | None) -> bool:
    """True if a config.json says that the model gives each token a label."""
    return _is_named(config, _TAGGER)


def _classifies(config: Mapping[str, Any] | None) -> bool:
    return _is_named(config, _CLASSIFIER, _TAGGER)


def _is_named(config: Mapping[str, Any] | None, *endings: str) -> bool:
    named = _list((config or {}).get("architectures"))
    return any(isinstance(name, str) and name.endswith(endings) for name in named)


def _names(
    values: Mapping[str, Any], key: str, known: Sequence[str] | None = None
) -> tuple[str, ...] | None:
    value = values.get(key)
    if value is None:
        return None
    names = _list(value)
    if not names or not all(isinstance(name, str) for name in names):
        raise _wrong(key, f"is {value!r}; it must be a list of names, or null")
    if known is not None and (wrong := [name for name in names if name not in known]):
        raise _wrong(key, f"has {wrong[0]!r}; known are {', '.join(known)}")
    return tuple(cast("list[str]", names))


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _check_one_of(values: Mapping[str, Any], key: str, known: Sequence[str]) -> None:
    if values[key] is not None and values[key] not in known:
        raise _wrong(key, f"is {values[key]!r}; it must be {', '.join(known)} or null")


def _unused(key: str, of: str, names: Sequence[str]) -> InvalidRequest:
    tasks = " and ".join(names)
    return _wrong(key, f"is for a model {of}, and this one is loaded to {tasks}: leave it out")


def _wrong(key: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{key} {what}", param=f"overrides.{key}")
